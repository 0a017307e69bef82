"""The journal of one study in a SQLite file: opens it, takes the lease, commits and reads rows. Every append is one
immediate transaction that is on disk when the call returns. Decides nothing about the study."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from optimizer.crashpoint import crash_point
from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError, JournalTooNew
from optimizer.journal import files, lease, schema, views
from optimizer.journal.base import Journal, Numbered, Row, now_utc
from optimizer.journal.blobs import BLOB_COLUMNS, Blob, blob_of, blob_row
from optimizer.journal.codec import COLUMNS
from optimizer.journal.lease import Holder
from optimizer.model.entry import GENESIS, Entry
from optimizer.redact import Redactor

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM entry"
_SELECT_BLOB = f"SELECT {', '.join(BLOB_COLUMNS)} FROM blob"
INSERT = f"INSERT INTO entry ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
INSERT_BLOB = f"INSERT OR IGNORE INTO blob ({', '.join(BLOB_COLUMNS)}) VALUES ({', '.join('?' * len(BLOB_COLUMNS))})"


class FileJournal(Journal):
    """See ``Journal``."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, write: bool, redactor: Redactor | None) -> None:
        super().__init__(str(path), write=write, redactor=redactor)
        self.path = path
        self._connection = connection
        self._inode = path.stat().st_ino

    @classmethod
    def create_at(cls, path: Path, *, redactor: Redactor | None = None) -> Self:
        files.check_sqlite()
        path.parent.mkdir(parents=True, exist_ok=True)
        files.check_local(path.parent)
        if path.exists() and not files.is_unfinished(path):
            files.check_ours(path)
            if not files.holds_nothing(path):
                raise JournalError(
                    f"There is a journal already: {path}.", hint="Resume that study, or give the new one another name."
                )
            taken_over = cls.open_at(path, write=True, redactor=redactor)  # of a coordinator that died before its first entry
            if taken_over.last_seq:
                taken_over.close()
                raise JournalError(f"Another process has just begun {path}.", hint="Give the new study another name.")
            return taken_over
        with files.explained(path):
            connection = files.connected(path, write=True)
            try:
                with _transaction(connection):
                    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        raise JournalError(
                            f"Another process has just created {path}.", hint="Give the new study another name."
                        )
                    make_tables(connection)
                    crash_point("journal.create.before_commit")
                files.sync_folder(path.parent)
                journal = cls(path, connection, write=True, redactor=redactor)
                journal._take_lease()
            except BaseException:
                connection.close()
                raise
        return journal

    @classmethod
    def open_at(cls, path: Path, *, write: bool, redactor: Redactor | None = None) -> Self:
        files.check_sqlite()
        version = files.check_ours(path)
        if write and version > schema.USER_VERSION:
            raise JournalTooNew(
                f"{path} was written by a newer release (format {version}; this one writes {schema.USER_VERSION}).",
                why="It can be read here; what this release wrote into it, that one would misread.",
                hint="Resume it with the release that wrote it, or a later one.",
            )
        if write:
            files.check_local(path.parent)
        with files.explained(path):
            journal = cls(path, files.connected(path, write=write), write=write, redactor=redactor)
            if write:
                try:
                    journal._take_lease()
                except BaseException:
                    journal._connection.close()
                    raise
        return journal

    def _committed(self, expect: int, numbered: Numbered, packs: Sequence[Blob]) -> Entry:
        with files.explained(self.path), _transaction(self._connection):
            seq, prev = self._last()
            self._check_expected(seq, expect)
            row, entry = numbered(seq + 1, prev)
            for blob in packs:
                self._connection.execute(INSERT_BLOB, blob_row(blob))
            self._connection.execute(INSERT, row)
            crash_point("journal.append.before_commit")
        return entry

    def _rows(self, first: int, count: int = -1) -> list[Row]:
        with files.explained(self.path):
            self._refresh()
            return self._connection.execute(f"{_SELECT} WHERE seq >= ? ORDER BY seq LIMIT ?", (first, count)).fetchall()

    @property
    def last_seq(self) -> int:
        with files.explained(self.path):
            self._refresh()
            return self._last()[0]

    def _blob(self, sha256: str) -> Blob | None:
        with files.explained(self.path):
            self._refresh()
            row = self._connection.execute(f"{_SELECT_BLOB} WHERE sha256 = ?", (sha256,)).fetchone()
        return None if row is None else blob_of(row)

    def _blobs(self) -> Iterator[Blob]:
        with files.explained(self.path):
            self._refresh()
            for row in self._connection.execute(f"{_SELECT_BLOB} ORDER BY sha256"):
                yield blob_of(row)

    def _leases(self) -> list[tuple[Any, ...]]:
        with files.explained(self.path):
            self._refresh()
            return self._connection.execute(
                "SELECT epoch, host, pid, pid_start, boot_id, at_utc, released_utc FROM lease ORDER BY epoch"
            ).fetchall()

    def _check_place(self) -> None:
        with files.explained(self.path):
            self._refresh()
            answers = [row[0] for row in self._connection.execute("PRAGMA integrity_check")]
        if answers != ["ok"]:
            raise JournalCorrupt(
                f"{self.path} is damaged: {answers[0]}.", hint="Restore the study's folder from a copy."
            )

    def export(self, dest: Path | str) -> Path:
        dest = Path(dest)
        with files.explained(self.path):
            self._refresh()
            files.closed_copy(self._connection, dest)
        return dest

    def rows(self, view: str) -> list[dict[str, Any]]:
        views.check_name(view)
        with files.explained(self.path):
            self._refresh()
            return views.rows(self._connection, view)

    def holder(self) -> Holder | None:
        with files.explained(self.path):
            self._refresh()
            return self._holder()

    def close(self) -> None:
        try:
            if self._write and self._pid == os.getpid() and self.epoch:
                self._connection.execute(
                    "UPDATE lease SET released_utc = ? WHERE epoch = ? AND released_utc IS NULL",
                    (now_utc(), self.epoch),
                )
                # Even if a reader is still open, the file alone then holds everything.
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error:
            # The lease lapses with this process anyway; failing here would hide why the caller is closing.
            pass
        finally:
            self.epoch, self._write = 0, False
            self._connection.close()

    def _take_lease(self) -> None:
        """Take over the study, or raise AnotherWriter if a living process holds it."""
        with _transaction(self._connection):
            holder = self._holder()
            if holder is not None and holder.alive:
                raise AnotherWriter(
                    f"{self.path} is being written by process {holder.pid} on {holder.host} (since {holder.at_utc}).",
                    hint="Wait for it, or stop it with `optimize stop`; then resume.",
                )
            mine = lease.this_process((holder.epoch if holder else 0) + 1, now_utc())
            self._connection.execute(
                "INSERT INTO lease (epoch, host, pid, pid_start, boot_id, at_utc) VALUES (?, ?, ?, ?, ?, ?)",
                (mine.epoch, mine.host, mine.pid, mine.pid_start, mine.boot_id, mine.at_utc),
            )
            seq, prev = self._last()
            if (taken := self._taken(mine, holder, seq, prev)) is not None:
                self._connection.execute(INSERT, taken)
            crash_point("journal.lease.before_commit")
        self.epoch = mine.epoch
        crash_point("journal.lease.after_commit")

    def _holder(self) -> Holder | None:
        row = self._connection.execute(
            "SELECT epoch, host, pid, pid_start, boot_id, at_utc, released_utc IS NOT NULL FROM lease"
            " ORDER BY epoch DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        return Holder(
            epoch=row[0],
            host=row[1],
            pid=row[2],
            pid_start=row[3],
            boot_id=row[4],
            at_utc=row[5],
            released=bool(row[6]),
        )

    def _last(self) -> tuple[int, str]:
        row = self._connection.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
        return (row[0], row[1]) if row else (0, GENESIS)

    def _check_still_there(self) -> None:
        """A file that was deleted or replaced under us still accepts writes, which nobody would ever see."""
        try:
            same = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            raise JournalCorrupt(
                f"{self.path} was deleted or replaced while the study was running.",
                why="What would be written now nobody would see, so nothing more is done.",
                hint="Put the original file back, then `optimize resume`.",
            )

    def _refresh(self) -> None:
        """A reader of a closed file pins it as immutable; once somebody writes to it again, read it the ordinary
        way."""
        if not self._write and files.is_pinned(self._connection) and files.has_wal(self.path):
            self._connection.close()
            self._connection = files.connected(self.path, write=False)


class _transaction:
    """``BEGIN IMMEDIATE`` … ``COMMIT``. A deferred BEGIN would fail at once under contention instead of waiting its
    turn."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def make_tables(connection: sqlite3.Connection) -> None:
    """Everything that makes an empty database a journal, within the caller's transaction."""
    for statements in (schema.TABLES, schema.TRIGGERS, views.VIEWS):
        for statement in _split(statements):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {schema.USER_VERSION}")


def _split(statements: str) -> list[str]:
    """Single statements of a script; ``executescript`` would commit the transaction around it."""
    found: list[str] = []
    text = ""
    for line in statements.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found
