"""``optimize copy``: a study out of a team's store into a file, and from a file into a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.errors import UsageError
from optimizer.journal import Journal, Stored
from optimizer.journal.copying import copy_to_database
from optimizer.model.entry import EntryKind
from optimizer.wiring import Roots


def copy_study(source: str, roots: Roots, dest: Path | None, name: str | None = None) -> dict[str, Any]:
    """To ``dest``, one SQLite file, from where the studies are; or, without it, from this machine into the store, as ``name`` (default:
    the study's own). Raises UsageError, or JournalError where something lies there already."""
    if dest is not None:
        if name is not None:
            raise UsageError("--study names the copy in a store; a file has the name that you give it.")
        with Journal.open(roots.named(source), write=False) as journal:
            journal.export(dest)
            count = journal.last_seq
        return _said(source, str(dest), count, f"Read it with: optimize journal {dest}; as FOLDER/NAME/journal.db it is a study of --runs FOLDER.")
    if roots.store is None:
        raise UsageError("Copy to where?", hint="Into a file: optimize copy STUDY FILE.db; into a store: optimize --store URL copy STUDY")
    place = replace(roots, store=None).named(source)
    with Journal.open(place, write=False) as journal:
        stored = Stored(roots.store, name or _own_name(journal) or place.name)
        copy_to_database(journal, stored)
        count = journal.last_seq
    return _said(source, str(stored), count, f"Read it with: optimize --store … journal {stored.name}")


def _own_name(journal: Journal) -> str | None:
    first = journal.read(limit=1)
    return str(first[0].body["spec"]["study"]) if first and first[0].kind is EntryKind.OPENED and "spec" in first[0].body else None


def _said(source: str, dest: str, count: int, hint: str) -> dict[str, Any]:
    return {"source": source, "copy": dest, "entries": count, "text": f"{source}: {count} entries copied to {dest}, read back and compared. {hint}"}
