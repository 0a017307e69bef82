"""A launch whose rate does not settle is measured again for longer, up to three runs; other reasons and other launches get two."""

from typing import Any

import pytest

from optimizer.model.entry import EntryKind
from optimizer.model.measurement import ValidityCode
from optimizer.model.step import Measure
from optimizer.runner.recorded import verify

from .model_box import PLAN, ModelBox, invalid_point, spec
from .test_state_machine import EAGER, run, speed


def spoiling(*codes: ValidityCode, purpose: str = "baseline") -> Any:
    """The first runs with this purpose are invalid, one code each."""
    left = list(codes)
    return lambda step, number: invalid_point(left.pop(0)) if isinstance(step, Measure) and step.purpose == purpose and left else None


def runs(log: Any, purpose: str) -> list[tuple[str, float]]:
    """(launch, window in seconds) of every run with this purpose."""
    steps = [entry.body["step"] for entry in log.read() if entry.kind == EntryKind.INTENT]
    return [(step["launch"], step["levels"][0]["window_s"]) for step in steps if step["kind"] == "measure" and step["purpose"] == purpose]


@pytest.mark.parametrize("original", [False, True])
def test_a_third_run_of_three_times_the_length_may_settle(original: bool) -> None:
    box = ModelBox(EAGER, speed, original=original, fault=spoiling(ValidityCode.NEVER_STEADY, ValidityCode.NEVER_STEADY))
    state, log = run(box)
    seen = runs(log, "baseline")
    assert [window for _, window in seen[:3]] == [60.0, 120.0, 180.0] and len({launch for launch, _ in seen[:3]}) == 1
    assert state.closed["ending"] == "met" and state.first_arm.results[0].launch == seen[2][0]
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_a_candidate_is_given_the_same_patience() -> None:
    box = ModelBox(EAGER, speed, fault=spoiling(ValidityCode.NEVER_STEADY, ValidityCode.NEVER_STEADY, purpose="candidate"))
    state, log = run(box)
    assert len(runs(log, "candidate")) == 3 and state.closed["ending"] == "met" and state.closed["launches"] == 2


def test_whatever_else_is_wrong_gets_two_runs_and_another_launch() -> None:
    for codes in ((ValidityCode.FOREIGN_TRAFFIC,) * 2, (ValidityCode.NEVER_STEADY, ValidityCode.ERRORS)):
        _, log = run(ModelBox(EAGER, speed, fault=spoiling(*codes)))
        seen = [launch for launch, _ in runs(log, "baseline")[:3]]
        assert seen[0] == seen[1] != seen[2], codes


def test_a_box_that_never_settles_ends_the_study_after_one_third_run() -> None:
    state, log = run(ModelBox(EAGER, speed, fault=spoiling(*[ValidityCode.NEVER_STEADY] * 99)))
    counted = [launch for launch, _ in runs(log, "baseline")]
    assert state.closed["ending"] == "unfit" and "never_steady" in state.closed["reason"]
    assert sorted(counted.count(launch) for launch in set(counted)) == [2, 3]
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_journals_of_the_versions_before_are_recomputed_with_two_runs() -> None:
    box = ModelBox(EAGER, speed, fault=spoiling(ValidityCode.NEVER_STEADY, ValidityCode.NEVER_STEADY))
    _, log = run(box, spec().model_copy(update={"policy_version": 2}))
    seen = [launch for launch, _ in runs(log, "baseline")[:3]]
    assert seen[0] == seen[1] != seen[2]
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
