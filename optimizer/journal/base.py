"""What a journal is, wherever it is kept: append by compare-and-append, read with the hash chain checked, verify. The
places that keep it (a SQLite file, a PostgreSQL database) supply transactions and rows, and enforce the same rules
themselves. Interprets no body beyond the outcome's ``status``."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from optimizer.crashpoint import crash_point
from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError
from optimizer.journal.blobs import Blob, packed, unpacked
from optimizer.journal.codec import decoded, encoded
from optimizer.journal.lease import Holder
from optimizer.journal.place import Database, Place, Stored
from optimizer.model.entry import GENESIS, Entry, EntryKind
from optimizer.redact import Redactor

_PAGE = 5_000  # entries that `verify` holds at once

Row = tuple[Any, ...]  # of codec.COLUMNS
Numbered = Callable[[int, str], tuple[Row, Entry]]  # (seq, prev) -> the row with that number, and its entry


class Journal(ABC):
    """One study's entries. Use as a context manager, or call ``close``; a writer holds the study's lease until then."""

    # Whether the lease can be lost while this process lives; then ``confirm_lease`` has to be called all the while.
    lease_can_be_lost = False

    def __init__(self, where: str, *, write: bool, redactor: Redactor | None) -> None:
        self.where = where  # for messages: never holds a password
        self.redactor = redactor or Redactor()
        self.epoch = 0  # of the lease that this object holds; 0 while reading only
        self._write = write
        self._pid = os.getpid()

    @staticmethod
    def create(place: Place | str, *, redactor: Redactor | None = None) -> Journal:
        """A new, empty journal, open for writing under the first lease.

        Raises JournalError if there is one already, or if the place cannot hold one."""
        if isinstance(place, Stored):
            from optimizer.journal.postgres.store import DatabaseJournal

            return DatabaseJournal.create_in(place, redactor=redactor)
        from optimizer.journal.store import FileJournal

        return FileJournal.create_at(Path(place), redactor=redactor)

    @staticmethod
    def open(place: Place | str, *, write: bool, redactor: Redactor | None = None) -> Journal:
        """An existing journal: a file, a study's folder, or a study in a database. ``write=True`` takes the lease;
        ``write=False`` leaves no trace.

        Raises AnotherWriter if a living process holds the lease, JournalTooNew if a newer release made it (reading is
        still tried), JournalCorrupt if it is no journal of ours, JournalError if it does not exist."""
        if isinstance(place, Stored):
            from optimizer.journal.postgres.store import DatabaseJournal

            return DatabaseJournal.open_in(place, write=write, redactor=redactor)
        from optimizer.journal.store import FileJournal

        path = Path(place)
        return FileJournal.open_at(path / "journal.db" if path.is_dir() else path, write=write, redactor=redactor)

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
        Raises AnotherWriter if the journal has moved on or the lease is lost, JournalError if the disk, the database or
        the rules of the journal refuse; then nothing was written. StoreLost if the database went away in the middle and
        did not come back: then reading tells whether it was. ValueError for a body that is not JSON or an unknown
        kind."""
        if not self._write or self._pid != os.getpid():
            raise JournalError(
                f"{self.where} is open for reading only in this process.", hint="Open it with write=True."
            )
        self._check_still_there()
        if "blobs" in body:
            raise ValueError("the body's `blobs` belongs to the journal; give the bytes as blobs=")
        packs = {name: packed(self.redactor.data(data)) for name, data in (blobs or {}).items()}
        full = {**body, "blobs": {name: blob.sha256 for name, blob in packs.items()}} if packs else body
        crash_point("journal.append.before_begin")

        def numbered(seq: int, prev: str) -> tuple[Row, Entry]:
            return encoded(
                seq=seq, at_utc=now_utc(), epoch=self.epoch, kind=kind, key=key, cause=cause, body=full, prev=prev,
                redactor=self.redactor,
            )  # fmt: skip

        entry = self._committed(expect, numbered, list(packs.values()))
        crash_point("journal.append.after_commit")
        return entry

    def read(self, after: int = 0, limit: int = -1) -> list[Entry]:
        """All entries with a number above ``after``, in order, or the first ``limit`` of them. Raises JournalCorrupt at the
        first gap, edit or broken link."""
        first, count = max(after, 1), limit + 1 if limit >= 0 and after > 0 else limit
        rows = self._rows(first, count)
        prev, seq = GENESIS, 0
        if after > 0:
            if not rows or rows[0][0] != after:
                raise JournalCorrupt(f"{self.where} has no entry {after}.", hint="It was cut; restore it from a copy.")
            prev, seq = rows.pop(0)[-1], after
        entries: list[Entry] = []
        for row in rows:
            if row[0] != seq + 1 or row[8] != prev:
                raise JournalCorrupt(
                    f"The chain of {self.where} breaks at entry {row[0]}: one before it was removed, added or changed.",
                    hint="Restore the study from a copy; nothing from there on can be trusted.",
                )
            entries.append(decoded(row))
            prev, seq = row[9], row[0]
        return entries

    @property
    @abstractmethod
    def last_seq(self) -> int:
        """Number of the newest entry, 0 if there is none: what the next ``append`` expects."""

    def blob(self, sha256: str) -> bytes:
        """An attachment. Above the cap its middle is missing, and a line in it says how much."""
        row = self._blob(sha256)
        if row is None:
            raise JournalCorrupt(f"{self.where} cites the attachment {sha256[:12]} but does not hold it.")
        return unpacked(row)

    def verify(self) -> int:
        """Check everything: the place's own check, the chain, the order of intents and outcomes, every attachment.

        Returns the number of entries. Raises JournalCorrupt with the first thing that is wrong."""
        self._check_place()
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

    @abstractmethod
    def export(self, dest: Path | str) -> Path:
        """A closed copy at ``dest``: one SQLite file that can be moved, committed and read from read-only media.

        Raises JournalError if ``dest`` exists. The copy is complete even while this study is still being written."""

    @abstractmethod
    def rows(self, view: str) -> list[dict[str, Any]]:
        """The rows of a view for people: decision, trial, measurement, hypothesis, flip, refusal."""

    @abstractmethod
    def holder(self) -> Holder | None:
        """Who holds, or last held, the lease: ``alive`` tells whether a coordinator is running."""

    @abstractmethod
    def close(self) -> None:
        """Release the lease and close. Closing twice is harmless."""

    @property
    def database(self) -> Database | None:
        """The database that keeps it, where one does."""
        return None

    @property
    def unconfirmed_s(self) -> float:
        """Seconds since this process last knew for certain that it holds the lease."""
        return 0.0

    def confirm_lease(self) -> bool:
        """Make sure that this process still holds the study; True if somebody has asked it to stop. May be called from
        another thread than ``append``. Raises AnotherWriter or StoreLost when nothing more may be done."""
        return False

    def ask_stop(self) -> bool:
        """Leave word for the coordinator that holds this study, wherever it runs, to end it. False where the place
        cannot carry word."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what a place supplies -----------------------------------------------------------------------------------------

    @abstractmethod
    def _committed(self, expect: int, numbered: Numbered, packs: Sequence[Blob]) -> Entry:
        """Commit ``numbered(expect + 1, hash of the last entry)`` with its attachments, in one transaction."""

    @abstractmethod
    def _rows(self, first: int, count: int = -1) -> list[Row]:
        """Rows from number ``first`` on, in order; at most ``count`` unless negative."""

    @abstractmethod
    def _blob(self, sha256: str) -> Blob | None: ...

    @abstractmethod
    def _blobs(self) -> Iterator[Blob]:
        """Every attachment, in the order of their digests."""

    @abstractmethod
    def _leases(self) -> list[tuple[Any, ...]]:
        """Every lease: epoch, host, pid, pid_start, boot_id, at_utc, released_utc."""

    @abstractmethod
    def _check_place(self) -> None:
        """Raise JournalCorrupt if the place itself finds damage."""

    @abstractmethod
    def _check_still_there(self) -> None:
        """Raise JournalCorrupt if what is written would never be seen."""

    def _check_expected(self, seq: int, expect: int) -> None:
        if seq != expect:
            raise AnotherWriter(
                f"{self.where} holds {seq} entries where this process knows of {expect}: another writes it.",
                hint="Stop the other coordinator, then `optimize resume` this study.",
            )

    def _taken(self, mine: Holder, before: Holder | None, seq: int, prev: str) -> Row | None:
        """The entry that tells of a takeover; None where there is nothing to tell."""
        if before is None or not seq:
            return None
        body = {
            "epoch": mine.epoch, "host": mine.host, "pid": mine.pid,
            "previous": {"epoch": before.epoch, "host": before.host, "pid": before.pid, "ended": before.why_stale},
        }  # fmt: skip
        row, _ = encoded(
            seq=seq + 1, at_utc=mine.at_utc, epoch=mine.epoch, kind=EntryKind.LEASE_TAKEN, key=None, cause=None,
            body=body, prev=prev, redactor=self.redactor,
        )  # fmt: skip
        return row


def now_utc() -> str:
    """For people only: no decision may depend on it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _status(body: Mapping[str, Any]) -> str:
    nested = body.get("outcome")
    status = body.get("status") or (nested.get("status") if isinstance(nested, Mapping) else None)
    return str(status or "")
