"""How long a study may still take, against how long it did: on the record of a real one, at every entry."""

from pathlib import Path

from optimizer.core.phase import phase_of
from optimizer.core.state import State, apply
from optimizer.journal import Journal
from optimizer.report.remaining import Remaining, remaining, remaining_text

H200 = Path(__file__).parents[2] / "histories/h200-7b-eager"


def course() -> tuple[list[tuple[State, float, Remaining | None]], float]:
    """(state, minutes at which its launch began, what was foreseen) at every entry, and the minutes of the whole study."""
    with Journal.open(H200 / "journal.db", write=False) as journal:
        entries = journal.read()
    state, since, seen = State(), 0.0, []
    for entry in entries:
        if entry.kind == "intent" and entry.body["step"]["kind"] == "launch":
            since = state.minutes
        state = apply(state, entry)
        if state.spec is not None:
            seen.append((state, since, remaining(state, since)))
    return seen, state.minutes


def test_a_real_study_ended_within_what_was_foreseen() -> None:
    seen, total = course()
    told = [(state, found) for state, _, found in seen if found is not None]
    assert len(told) > 15
    for state, found in told:
        left = total - state.minutes
        assert 0 <= found.soonest <= found.latest
        assert left <= found.latest, (state.seq, left, found)
        # Its candidate met the target, so that the soonest end came true: within the spread of one launch.
        assert abs(found.soonest - left) <= found.pace + 0.1, (state.seq, left, found)


def test_nothing_is_foreseen_before_a_launch_has_ended_or_while_it_closes() -> None:
    seen, _ = course()
    first = next(index for index, (state, _, _) in enumerate(seen) if any(arm.results for arm in state.arms.values()))
    assert all(found is None for _, _, found in seen[:first])
    assert remaining_text(seen[0][0], 0.0) == "known when the first launch has been measured"
    closing = [(state, since) for state, since, _ in seen if phase_of(state) in ("closing", "closed")]
    assert closing and all(remaining_text(state, since) == "" for state, since in closing)


def test_the_end_comes_nearer_while_a_step_runs_and_says_on_what_it_depends() -> None:
    seen, _ = course()
    state, since, found = next(item for item in seen if phase_of(item[0]) == "test" and item[2] is not None and item[0].server is not None and item[0].server.status == "ready")
    later = remaining(state, since, 0.5)
    assert found is not None and later is not None and later.latest < found.latest and later.soonest < found.soonest
    assert "if this candidate meets the target, at most" in remaining_text(state, since) and "min a launch so far" in remaining_text(state, since)
    assert any("if this confirmation holds" in remaining_text(state, since) for state, since, _ in seen)
