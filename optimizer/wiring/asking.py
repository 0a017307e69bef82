"""``optimize why`` and ``optimize why-not``: a study's journal is read as it stands, closed or still running, and asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optimizer.core import asking
from optimizer.core.prior import extended
from optimizer.core.state import fold
from optimizer.errors import JournalError
from optimizer.journal import Journal
from optimizer.model.entry import Entry
from optimizer.report.asking_view import why_not_text
from optimizer.report.journal_view import setting_document, why_document
from optimizer.wiring import Roots, plans_by_entry


def why(study: str, what: int | str, roots: Roots) -> dict[str, Any]:
    """One entry with what led to it, or why a setting was set."""
    folder = roots.named(study)
    with Journal.open(folder, write=False) as journal:
        entries = journal.read()
    return why_document(folder.name, entries, what) if isinstance(what, int) else setting_document(entries, what)


def why_not(study: str, text: str, roots: Roots) -> dict[str, Any]:
    """What became of a setting or cause in a study. Raises UsageError for one that nobody knows."""
    folder = roots.named(study)
    with Journal.open(folder, write=False) as journal:
        entries: Sequence[Entry] = journal.read()
        if not entries:
            raise JournalError(f"The journal of {folder.name} holds no entry.", why="It ended before it began: nothing was decided.", hint="`optimize studies` lists the others.")
        plan_at = plans_by_entry(journal, entries)
    state = fold(entries)
    plan = extended(state, plan_at(entries[-1].seq))
    found = asking.why_not(entries, state, plan, asking.parse(text, state, plan))
    return {**found, "text": why_not_text(found)}
