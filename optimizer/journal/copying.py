"""A study from one place to another, entry by entry: a SQLite file from a database, a study of a database from a file. Every
row goes in through the rules of its new place, so that a copy is a journal or does not appear at all; the original is
only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optimizer.errors import JournalError
from optimizer.journal import files
from optimizer.journal.base import Journal, Row
from optimizer.journal.blobs import blob_row
from optimizer.journal.place import Stored

_PAGE = 1_000


def copy_to_file(source: Journal, dest: Path) -> Path:
    """One closed SQLite file. Raises JournalError if ``dest`` exists, JournalCorrupt if the original is damaged."""
    from optimizer.journal.store import INSERT, INSERT_BLOB, make_tables

    source.verify()
    with files.explained(dest), files.drafted(dest) as copy:
        copy.execute("BEGIN IMMEDIATE")
        make_tables(copy)
        for lease, row in _ordered(source):
            if lease is not None:
                copy.execute("INSERT INTO lease (epoch, host, pid, pid_start, boot_id, at_utc, released_utc) VALUES (?, ?, ?, ?, ?, ?, ?)", lease)
            if row is not None:
                copy.execute(INSERT, row)
        for blob in source._blobs():  # last: an entry that a running study adds meanwhile is left out, its attachments are not missed
            copy.execute(INSERT_BLOB, blob_row(blob))
        copy.execute("COMMIT")
    _check(source, dest, lambda: dest.unlink())
    return dest


def copy_to_database(source: Journal, dest: Stored) -> Stored:
    """A study of a database. Raises JournalError if there is one of that name, or if the original is being written."""
    from optimizer.journal.postgres import copy_in

    source.verify()
    holder = source.holder()
    if holder is not None and holder.alive:
        raise JournalError(
            f"{source.where} is being written by process {holder.pid} on {holder.host}: the copy would end in the middle.",
            hint="Wait for it, or stop it with `optimize stop`; then copy.",
        )
    copy_in(dest, source._blobs(), _ordered(source))
    _check(source, dest, None)
    return dest


def _ordered(source: Journal) -> Iterator[tuple[tuple[Any, ...] | None, Row | None]]:
    """Leases and entries in an order in which both rules hold: an entry stands under the newest lease. Nobody holds the
    copy."""
    leases = [(*lease[:6], lease[6] or lease[5]) for lease in source._leases()]
    after = 0
    while rows := source._rows(after + 1, _PAGE):
        for row in rows:
            while leases and leases[0][0] <= row[2]:
                yield leases.pop(0), None
            yield None, row
        after = rows[-1][0]
    for lease in leases:
        yield lease, None


def _check(source: Journal, place: Path | Stored, undo: Any) -> None:
    """The copy is read back whole."""
    with Journal.open(place, write=False) as copy:
        same = copy._rows(1) == source._rows(1, copy.verify())
    if not same:
        if undo is not None:
            undo()
        raise JournalError(f"The copy {place} does not hold what {source.where} holds.", hint="It was being written: copy it again.")
