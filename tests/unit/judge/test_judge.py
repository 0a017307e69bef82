"""Verdicts row by row, and which launch each state of a test asks for next."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.judge import chance_of_support, drifted, judge, verdict_of, wanders
from optimizer.errors import OptimizerError
from optimizer.model.verdict import Arm, Judgement, JudgePolicy, Noise
from optimizer.stats.noise import pooled_noise

POLICY = JudgePolicy()


def arms(candidate: list[float], baseline: list[float]) -> tuple[Arm, Arm]:
    return Arm(fingerprint="c", ln_values=tuple(candidate)), Arm(fingerprint="b", ln_values=tuple(baseline))


def run(candidate, baseline, prediction=(1.03, 1.3), policy=POLICY, left=100, noise=None) -> Judgement:
    c, b = arms(candidate, baseline)
    return judge(c, b, noise or pooled_noise([c, b], policy), prediction, policy, left)


@pytest.mark.parametrize(
    ("low", "high", "edge", "verdict"),
    [
        (0.02, 0.20, 0.10, "supported"),
        (0.02, 0.08, 0.10, "partial"),
        (-0.20, -0.02, 0.10, "harmful"),
        (-0.20, 0.005, 0.10, "no_useful_effect"),
        (-0.005, 0.05, 0.10, "below_prediction"),
        (-0.05, 0.05, 0.10, "unresolved"),
        (-0.05, 0.20, 0.10, "unresolved"),
        (0.01, 0.20, 0.10, "unresolved"),  # the edge of the region is not above it
    ],
)
def test_table(low: float, high: float, edge: float, verdict: str) -> None:
    assert verdict_of(low, high, edge, 0.01) == verdict


def test_a_large_effect_is_final_after_one_launch() -> None:
    found = run([math.log(1.5)], [0.0, 0.01])
    assert (found.verdict, found.final, found.next_arm, found.look) == ("supported", True, None, 1)
    assert found.low > 1.01 and found.confidence == 0.95 and "quick exit" in found.reason


def test_a_large_effect_below_its_prediction_is_partial() -> None:
    assert run([math.log(1.5)], [0.0, 0.01], prediction=(3.0, 6.0)).verdict == "partial"


def test_a_large_loss_is_harmful_after_one_launch() -> None:
    found = run([math.log(0.6)], [0.0, 0.01])
    assert found.verdict == "harmful" and found.final


def test_just_below_six_sd_goes_to_the_next_launch() -> None:
    noise = Noise(sd=0.03, degrees_of_freedom=3)
    assert run([0.179], [0.0, 0.0], noise=noise).next_arm == "candidate"
    assert run([0.181], [0.0, 0.0], noise=noise).final


def test_quick_exit_needs_an_interval_without_the_region() -> None:
    """Against a single baseline launch the 95 % interval is 6.08 sd wide at the prior: a little more is asked for."""
    noise = Noise(sd=0.03, degrees_of_freedom=2)
    found = run([0.185], [0.0], noise=noise)
    assert not found.final and found.next_arm == "baseline"
    assert run([0.20], [0.0], noise=noise).verdict == "supported"


def test_quick_exit_is_for_the_first_launch_only() -> None:
    noise = Noise(sd=0.03, degrees_of_freedom=6)
    found = run([0.25, 0.25, 0.25, 0.25], [0.0, 0.0], noise=noise)
    assert not found.final and found.next_arm == "candidate" and "look 5" in found.reason


def test_no_effect_is_deferred_and_never_refuted() -> None:
    found = run([0.0], [0.0, 0.01])
    assert found.verdict == "deferred" and found.final and "chance" in found.reason


def test_promising_goes_on_to_look_two_then_three() -> None:
    assert run([0.12], [0.0, 0.01]).next_arm == "candidate"
    noise = Noise(sd=0.03, degrees_of_freedom=4)
    found = run([0.08, 0.10], [0.0, 0.0], noise=noise)
    assert not found.final and found.next_arm == "candidate" and found.verdict == "unresolved"


@pytest.mark.parametrize(("baseline", "order"), [([0.0, 0.002], "cbccbb"), ([0.0, 0.07], "bcccbb")])
def test_the_arms_take_turns_where_the_baseline_wanders(baseline: list[float], order: str) -> None:
    """In two blocks a drift would be measured as an effect; where nothing (any longer) points to one, the candidate goes first."""
    sd, said, middle = 0.03, "", sum(baseline) / 2
    candidate, known = [middle + 1.5 * sd, middle + 1.7 * sd], list(baseline)
    for _ in order:
        found = run(candidate, known, noise=Noise(sd=sd, degrees_of_freedom=5))
        assert not found.final
        said += str(found.next_arm)[0]
        if found.next_arm == "candidate":
            candidate.append(middle + 1.6 * sd)
        else:
            known.append(middle)
    assert said == order


def test_half_the_drift_bound_is_wandering() -> None:
    noise, policy = Noise(sd=0.03, degrees_of_freedom=3), JudgePolicy()
    assert wanders([0.0, 0.07], noise, policy) and not drifted(0.07, [0.0], noise, policy)
    assert not wanders([0.0, 0.06], noise, policy)
    assert not wanders([0.0], noise, policy)


def test_a_small_claim_has_the_baseline_topped_up_before_the_look() -> None:
    noise = Noise(sd=0.03, degrees_of_freedom=5)
    within, beyond = [0.07, 0.08, 0.08], [0.14, 0.15, 0.14]
    found = run(within, [0.0, 0.0], noise=noise)
    assert found.next_arm == "baseline" and found.expected_launches == 1
    after = run(within, [0.0, 0.0, 0.0], noise=noise)
    assert after.look == 3 and "look 5" in after.reason  # the look at three was held
    assert run(beyond, [0.0, 0.0], noise=noise).verdict == "supported"


def test_no_look_is_held_against_one_baseline_launch() -> None:
    assert run([0.30, 0.31], [0.0], noise=Noise(sd=0.03, degrees_of_freedom=3)).next_arm == "baseline"


def test_verdicts_at_a_look() -> None:
    noise = Noise(sd=0.01, degrees_of_freedom=12)
    five, base = [0.0] * 5, [0.0] * 5
    assert run([v + 0.06 for v in five], base, noise=noise).verdict == "supported"
    assert run([v + 0.06 for v in five], base, (1.2, 1.4), noise=noise).verdict == "partial"
    assert run([v - 0.06 for v in five], base, noise=noise).verdict == "harmful"
    assert run([v - 0.011 for v in five], base, noise=noise).verdict == "no_useful_effect"
    assert run([v + 0.012 for v in five], base, (1.2, 1.4), noise=noise).verdict == "below_prediction"
    assert all(run([v + d for v in five], base, noise=noise).confidence == 0.9875 for d in (0.06, -0.06))


def test_without_a_prediction_any_useful_gain_supports() -> None:
    found = run([0.06] * 5, [0.0] * 5, None, noise=Noise(sd=0.01, degrees_of_freedom=12))
    assert found.verdict == "supported" and found.bayes_db == 0.0


def test_the_last_look_ends_unresolved() -> None:
    noise = Noise(sd=0.06, degrees_of_freedom=16)
    found = run([0.06] * 8, [0.0] * 8, noise=noise)
    assert found.verdict == "unresolved" and found.final and found.look == 8


def test_thorough_never_defers_and_looks_at_twelve() -> None:
    thorough = JudgePolicy(thorough=True)
    assert not run([0.0], [0.0, 0.01], policy=thorough).final
    found = run([0.06] * 8, [0.0] * 8, policy=thorough, noise=Noise(sd=0.06, degrees_of_freedom=16))
    assert not found.final and "look 12" in found.reason and found.confidence == 0.99


@pytest.mark.parametrize("left", [0, 1, 2])
def test_what_the_budget_cannot_pay_ends_unresolved(left: int) -> None:
    """One more candidate launch reaches look 2; look 3 would also want the baseline topped up."""
    noise = Noise(sd=0.03, degrees_of_freedom=4)
    assert run([0.14], [0.0, 0.0], left=left, noise=noise).final is (left == 0)
    assert run([0.08, 0.08], [0.0, 0.0], left=left, noise=noise).final is (left < 2)


def test_a_real_gain_survives_a_claim_that_was_too_large() -> None:
    """15 % at 3 % noise with a predicted factor two: worth another launch, unlike 5 %."""
    noise = Noise(sd=0.03, degrees_of_freedom=3)
    assert not run([0.15], [0.0, 0.0], (2.0, 4.0), noise=noise).final
    assert run([0.05], [0.0, 0.0], (2.0, 4.0), noise=noise).verdict == "deferred"


def test_an_empty_arm_is_an_error() -> None:
    with pytest.raises(OptimizerError):
        run([], [0.0])
    with pytest.raises(OptimizerError):
        run([0.1], [])


def test_chance_rises_with_the_effect() -> None:
    noise = Noise(sd=0.03, degrees_of_freedom=3)
    chances = [chance_of_support(d, 1, 2, noise, 0.03, POLICY, 8) for d in (-0.05, 0.0, 0.03, 0.06, 0.09)]
    assert chances == sorted(chances) and chances[0] < 0.02 and chances[-1] > 0.8


def test_drift() -> None:
    noise = Noise(sd=0.03, degrees_of_freedom=4)
    limit = 3 * 0.03 * math.sqrt(1.5)
    assert not drifted(limit - 1e-6, [0.0, 0.0], noise, POLICY)
    assert drifted(limit + 1e-6, [0.0, 0.0], noise, POLICY) and drifted(-limit - 1e-6, [0.0, 0.0], noise, POLICY)


values = st.lists(st.floats(-2, 2), min_size=1, max_size=12)


@given(values, values, st.integers(0, 30), st.booleans())
def test_every_judgement_is_consistent(candidate, baseline, left, thorough) -> None:
    """Whatever is measured: an interval around the ratio, an end or a next launch that can be paid, never both."""
    found = run(candidate, baseline, policy=JudgePolicy(thorough=thorough), left=left)
    assert found.low <= found.ratio * (1 + 1e-9) and found.ratio <= found.high * (1 + 1e-9)
    assert found.final == (found.next_arm is None)
    if not found.final:
        assert found.verdict == "unresolved" and 1 <= found.expected_launches <= left
    if found.verdict in ("supported", "partial"):
        assert found.low > 1.01
    if found.verdict == "harmful":
        assert found.high < 1.0


@given(values, values)
def test_judging_twice_gives_the_same(candidate, baseline) -> None:
    assert run(candidate, baseline).plain() == run(candidate, baseline).plain()
