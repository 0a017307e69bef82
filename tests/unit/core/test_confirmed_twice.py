"""A confirmation that misses the target by less than launches differ is launched once more, and the mean of both decides."""

from typing import Any

import pytest

from optimizer.core.state import fold
from optimizer.model.step import Launch, Measure
from optimizer.report.prose import result_text
from optimizer.runner.recorded import verify

from .model_box import PLAN, ModelBox, invalid_point, spec
from .test_state_machine import EAGER, run


def cured(*rates: float) -> Any:
    """400 with the cause in force, then these in turn without it; the last one from then on."""
    left = list(rates)

    def rate(values: Any) -> float:
        if values.get("disable_cuda_graph"):
            return 400.0
        return left.pop(0) if len(left) > 1 else left[0]

    return rate


def confirmations(box: ModelBox) -> int:
    return sum(isinstance(step, Launch) and step.purpose == "confirm" for step in box.calls)


@pytest.mark.parametrize(("second", "ending", "value"), [(1030.0, "met", 1009.8), (1005.0, "not_met", 997.5)])
def test_the_mean_of_two_decides(second: float, ending: str, value: float) -> None:
    box = ModelBox(EAGER, cured(980.0, 990.0, second), noise=1e-6)
    state, log = run(box)
    assert confirmations(box) == 2 and state.closed["ending"] == ending
    best = state.closed["best"]
    assert best["value"] == pytest.approx(value, rel=1e-3) and best["launches"] == 2 and best["fresh_confirmation"]
    assert "(2 launches, fresh confirmations of 60 s)" in result_text(best)
    assert state.promoted and (ending == "not_met" or "mean of two fresh launches" in state.closed["reason"])
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
    for cut in range(1, len(log.read()), 7):
        fold(log.read()[:cut])


def test_what_is_far_from_the_target_or_reaches_it_is_launched_once() -> None:
    for rate in (880.0, 1001.0):
        box = ModelBox(EAGER, cured(rate), noise=1e-6)
        state, _ = run(box)
        assert confirmations(box) == 1 and state.closed["best"]["launches"] == 1, rate


def test_a_guard_that_is_missed_is_no_matter_of_luck() -> None:
    box = ModelBox(EAGER, cured(990.0), noise=1e-6)
    state, _ = run(box, spec("1000tps@16,ttft.p50<5ms"))
    assert confirmations(box) <= 1 and state.closed["ending"] != "met"


def test_a_spent_budget_and_a_second_launch_that_gives_nothing_end_as_before() -> None:
    base = spec()
    box = ModelBox(EAGER, cured(990.0), noise=1e-6)
    state, _ = run(box, base.model_copy(update={"budget": base.budget.model_copy(update={"launches": 3})}))  # baseline, candidate, confirmation
    assert confirmations(box) == 1 and state.closed["ending"] == "not_met"

    def spoilt(step: Any, number: int) -> Any:
        return invalid_point() if isinstance(step, Measure) and step.purpose == "confirm" and confirmations(box) == 2 else None

    box = ModelBox(EAGER, cured(990.0), noise=1e-6, fault=spoilt)
    state, log = run(box)
    assert confirmations(box) == 2 and state.closed["ending"] == "not_met" and state.closed["best"]["launches"] == 1
    assert state.closed["best"]["value"] == pytest.approx(990, rel=1e-3)
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_journals_of_the_versions_before_are_recomputed_as_they_were() -> None:
    box = ModelBox(EAGER, cured(990.0), noise=1e-6)
    _, log = run(box, spec().model_copy(update={"policy_version": 2}))
    assert confirmations(box) == 1
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
