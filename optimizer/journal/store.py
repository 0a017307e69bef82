"""The journal of one study: opens the file, takes the lease, appends by compare-and-append, reads with the hash chain
checked. Every append is one immediate transaction that is on disk when the call returns. Decides nothing about the
study and interprets no body beyond the outcome's ``status``."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from optimizer.crashpoint import crash_point
from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError, JournalTooNew
from optimizer.journal import files, lease, schema, views
from optimizer.journal.blobs import Blob, packed, unpacked
from optimizer.journal.codec import COLUMNS, decoded, encoded
from optimizer.journal.lease import Holder
from optimizer.model.entry import GENESIS, Entry, EntryKind
from optimizer.redact import Redactor

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM entry"
_INSERT = f"INSERT INTO entry ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_PAGE = 5_000  # entries that `verify` holds at once


class Journal:
    """One study's entries. Use as a context manager, or call ``close``; a writer holds the study's lease until then."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, write: bool, redactor: Redactor | None) -> None:
        self.path = path
        self.redactor = redactor or Redactor()
        self.epoch = 0  # of the lease that this object holds; 0 while reading only
        self._connection = connection
        self._write = write
        self._pid = os.getpid()
        self._inode = path.stat().st_ino

    @classmethod
    def create(cls, path: Path | str, *, redactor: Redactor | None = None) -> Self:
        """A new, empty journal at ``path`` (its folder is made), open for writing under the first lease.

        Raises JournalError if there is one already, or if the file system cannot hold one."""
        path = Path(path)
        files.check_sqlite()
        path.parent.mkdir(parents=True, exist_ok=True)
        files.check_local(path.parent)
        if path.exists() and not files.is_unfinished(path):
            files.check_ours(path)
            raise JournalError(
                f"There is a journal already: {path}.", hint="Resume that study, or give the new one another name."
            )
        with files.explained(path):
            connection = files.connected(path, write=True)
            try:
                with _transaction(connection):
                    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        raise JournalError(
                            f"Another process has just created {path}.", hint="Give the new study another name."
                        )
                    for statements in (schema.TABLES, schema.TRIGGERS, views.VIEWS):
                        for statement in _split(statements):
                            connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {schema.USER_VERSION}")
                    crash_point("journal.create.before_commit")
                files.sync_folder(path.parent)
                journal = cls(path, connection, write=True, redactor=redactor)
                journal._take_lease()
            except BaseException:
                connection.close()
                raise
        return journal

    @classmethod
    def open(cls, path: Path | str, *, write: bool, redactor: Redactor | None = None) -> Self:
        """An existing journal. ``write=True`` takes the lease; ``write=False`` leaves no trace, not even beside the
        file.

        Raises AnotherWriter if a living process holds the lease, JournalTooNew if a newer release wrote the file
        (reading is still tried), JournalCorrupt if it is no journal of ours, JournalError if it does not exist."""
        path = Path(path)
        files.check_sqlite()
        version = files.check_ours(path)
        if write and version > schema.USER_VERSION:
            raise JournalTooNew(
                f"{path} was written by a newer release (format {version}; this one writes {schema.USER_VERSION}).",
                hint="It can be read here, but only resumed with that release.",
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

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        key: str | None = None,
        cause: int | None = None,
        expect: int,
        blobs: Mapping[str, bytes] | None = None,
    ) -> Entry:
        """Commit one entry as number ``expect + 1`` and return it as it will be read back: without secrets, and with
        ``body["blobs"]`` (name -> sha256) if there are attachments, which are committed with it.

        An outcome's body carries ``status`` (or ``outcome.status``): ``unknown`` leaves its intent open.
        Raises AnotherWriter if the journal has moved on or the lease is lost, JournalError if the disk or the rules of
        the journal refuse; then nothing was written. ValueError for a body that is not JSON or an unknown kind."""
        if not self._write or self._pid != os.getpid():
            raise JournalError(
                f"{self.path} is open for reading only in this process.", hint="Open it with write=True."
            )
        self._check_still_there()
        if "blobs" in body:
            raise ValueError("the body's `blobs` belongs to the journal; give the bytes as blobs=")
        packs = {name: packed(self.redactor.data(data)) for name, data in (blobs or {}).items()}
        full = {**body, "blobs": {name: blob.sha256 for name, blob in packs.items()}} if packs else body
        crash_point("journal.append.before_begin")
        with files.explained(self.path), _transaction(self._connection):
            seq, prev = self._last()
            if seq != expect:
                raise AnotherWriter(
                    f"{self.path} holds {seq} entries where this process knows of {expect}: another writes it.",
                    hint="Nothing was written. Stop the other coordinator, then `optimize resume` this study.",
                )
            row, entry = encoded(
                seq=seq + 1, at_utc=now_utc(), epoch=self.epoch, kind=kind, key=key, cause=cause, body=full, prev=prev,
                redactor=self.redactor,
            )  # fmt: skip
            for blob in packs.values():
                self._connection.execute(
                    "INSERT OR IGNORE INTO blob (sha256, encoding, total_bytes, kept, data) VALUES (?, ?, ?, ?, ?)",
                    (blob.sha256, blob.encoding, blob.total_bytes, blob.kept, blob.data),
                )
            self._connection.execute(_INSERT, row)
            crash_point("journal.append.before_commit")
        crash_point("journal.append.after_commit")
        return entry

    def read(self, after: int = 0, limit: int = -1) -> list[Entry]:
        """All entries with a number above ``after``, in order, or the first ``limit`` of them. Raises JournalCorrupt at the
        first gap, edit or broken link."""
        first, count = max(after, 1), limit + 1 if limit >= 0 and after > 0 else limit
        with files.explained(self.path):
            self._refresh()
            rows = self._connection.execute(f"{_SELECT} WHERE seq >= ? ORDER BY seq LIMIT ?", (first, count)).fetchall()
        prev, seq = GENESIS, 0
        if after > 0:
            if not rows or rows[0][0] != after:
                raise JournalCorrupt(f"{self.path} has no entry {after}.", hint="It was cut; restore it from a copy.")
            prev, seq = rows.pop(0)[-1], after
        entries: list[Entry] = []
        for row in rows:
            if row[0] != seq + 1 or row[8] != prev:
                raise JournalCorrupt(
                    f"The chain of {self.path} breaks at entry {row[0]}: one before it was removed, added or changed.",
                    hint="Restore the study's folder from a copy; nothing from there on can be trusted.",
                )
            entries.append(decoded(row))
            prev, seq = row[9], row[0]
        return entries

    @property
    def last_seq(self) -> int:
        """Number of the newest entry, 0 if there is none: what the next ``append`` expects."""
        with files.explained(self.path):
            self._refresh()
            return self._last()[0]

    def blob(self, sha256: str) -> bytes:
        """An attachment. Above the cap its middle is missing, and a line in it says how much."""
        with files.explained(self.path):
            self._refresh()
            row = self._connection.execute(
                "SELECT sha256, encoding, total_bytes, kept, data FROM blob WHERE sha256 = ?", (sha256,)
            ).fetchone()
        if row is None:
            raise JournalCorrupt(f"{self.path} cites the attachment {sha256[:12]} but does not hold it.")
        return unpacked(Blob(sha256=row[0], encoding=row[1], total_bytes=row[2], kept=row[3], data=row[4]))

    def verify(self) -> int:
        """Check the whole file: SQLite's own check, the chain, the order of intents and outcomes, every attachment.

        Returns the number of entries. Raises JournalCorrupt with the first thing that is wrong."""
        with files.explained(self.path):
            self._refresh()
            answers = [row[0] for row in self._connection.execute("PRAGMA integrity_check")]
        if answers != ["ok"]:
            raise JournalCorrupt(
                f"{self.path} is damaged: {answers[0]}.", hint="Restore the study's folder from a copy."
            )
        opened: dict[str, str | None] = {}  # box -> key of its open intent
        keys: set[str | None] = set()
        count = 0
        for entry in self._pages():
            count += 1
            if entry.cause is not None and not 0 < entry.cause < entry.seq:
                raise JournalCorrupt(f"Entry {entry.seq} names {entry.cause} as its cause, which is no earlier entry.")
            open_key = opened.get(entry.box)
            if entry.kind is EntryKind.INTENT:
                if open_key is not None or entry.key in keys:
                    raise JournalCorrupt(
                        f"Entry {entry.seq} announces {entry.key!r} while {open_key!r} is open, or a second time."
                    )
                opened[entry.box] = entry.key
                keys.add(entry.key)
            elif entry.kind is EntryKind.OUTCOME:
                if entry.key is None or entry.key != open_key:
                    raise JournalCorrupt(f"Entry {entry.seq} is the outcome of {entry.key!r}, which is not open.")
                if _status(entry.body) != "unknown":
                    opened[entry.box] = None
            for digest in (entry.body.get("blobs") or {}).values():
                self.blob(digest)
        return count

    def _pages(self) -> Iterator[Entry]:
        """All entries, some thousands at a time."""
        after = 0
        while page := self.read(after, _PAGE):
            yield from page
            after = page[-1].seq

    def export(self, dest: Path | str) -> Path:
        """A closed copy at ``dest``: one file that can be moved, committed and read from read-only media.

        Raises JournalError if ``dest`` exists. The copy is complete even while this study is still being written."""
        dest = Path(dest)
        with files.explained(self.path):
            self._refresh()
            files.closed_copy(self._connection, dest)
        return dest

    def rows(self, view: str) -> list[dict[str, Any]]:
        """The rows of a view for people: decision, trial, measurement, hypothesis, flip, refusal."""
        if view not in views.NAMES:
            raise ValueError(f"no view {view!r}; there are {', '.join(views.NAMES)}")
        with files.explained(self.path):
            self._refresh()
            return views.rows(self._connection, view)

    def holder(self) -> Holder | None:
        """Who holds, or last held, the lease: ``alive`` tells whether a coordinator is running."""
        with files.explained(self.path):
            self._refresh()
            return self._holder()

    def close(self) -> None:
        """Release the lease and close the file. Closing twice is harmless."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            if holder is not None and seq:
                body = {
                    "epoch": mine.epoch, "host": mine.host, "pid": mine.pid,
                    "previous": {
                        "epoch": holder.epoch, "host": holder.host, "pid": holder.pid, "ended": holder.why_stale,
                    },
                }  # fmt: skip
                row, _ = encoded(
                    seq=seq + 1, at_utc=mine.at_utc, epoch=mine.epoch, kind=EntryKind.LEASE_TAKEN, key=None, cause=None,
                    body=body, prev=prev, redactor=self.redactor,
                )  # fmt: skip
                self._connection.execute(_INSERT, row)
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
                hint="Nothing more is written. Put the original file back, then `optimize resume`.",
            )

    def _refresh(self) -> None:
        """A reader of a closed file pins it as immutable; once somebody writes to it again, read it the ordinary
        way."""
        if not self._write and files.is_pinned(self._connection) and files.has_wal(self.path):
            self._connection.close()
            self._connection = files.connected(self.path, write=False)


def now_utc() -> str:
    """For people only: no decision may depend on it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _status(body: Mapping[str, Any]) -> str:
    nested = body.get("outcome")
    status = body.get("status") or (nested.get("status") if isinstance(nested, Mapping) else None)
    return str(status or "")


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
