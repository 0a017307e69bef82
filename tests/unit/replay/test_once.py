"""Remembering what a decision computed changes no decision, and a replay is fast enough to be used in bulk."""

import time
from pathlib import Path

from optimizer.core import once
from optimizer.core.decide import decide
from optimizer.core.state import State, apply
from optimizer.journal import Journal
from optimizer.runner.recorded import _spelled, verify
from optimizer.wiring import plans_by_entry

HISTORY = Path(__file__).parents[2] / "histories" / "h200-7b-eager"


def test_decisions_are_the_same_with_an_empty_memory() -> None:
    with Journal.open(HISTORY / "journal.db", write=False) as journal:
        entries = journal.read()
        plan_at = plans_by_entry(journal, entries)
    state = State()
    for entry in entries:
        if state.spec is not None and state.open is None:
            plan = plan_at(entry.seq)
            kept = _spelled(decide(state, plan))
            once._LAST, once._LAST_MEASURED, once._LAST_PLAN = once._Memory(), once._Memory(), once._Memory()
            once._KEPT.clear()
            assert _spelled(decide(state, plan)) == kept, entry.seq
        state = apply(state, entry)


def test_hundreds_of_decisions_a_second_are_recomputed() -> None:
    """The promise is a thousand on a free core; a busy test machine gives a fraction of one."""
    with Journal.open(HISTORY / "journal.db", write=False) as journal:
        entries = journal.read()
        plan_at = plans_by_entry(journal, entries)
    verify(entries, plan_at)
    best = 0.0
    for _ in range(5):
        started = time.process_time()
        found = verify(entries, plan_at)
        best = max(best, found.decisions / (time.process_time() - started))
    assert best > 300
