"""What a measurement is worth to a belief: the same noise as its interval, little while that decides nothing, shared among causes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core.credit import said, said_of_shared
from optimizer.core.judge import judge
from optimizer.core.weight import (
    Cause,
    Seen,
    Weight,
    most_db,
    seen,
    share,
    weigh,
    with_known_noise_db,
)
from optimizer.model.verdict import Arm, JudgePolicy, Noise
from optimizer.stats.interval import half_width
from optimizer.stats.noise import pooled_noise

POLICY = JudgePolicy()
OLD = JudgePolicy(noise_known=True)
ROPE = math.log1p(POLICY.rope)


def measured(ratio: float, se: float = 0.03, nu: float = 4.0, confidence: float = 0.9875) -> Seen:
    return Seen(math.log(ratio), se, nu, half_width(confidence, nu, se), confidence, ROPE)


def by_quadrature(what: Seen, low: float, high: float) -> float:
    """The density of what was measured with the noise integrated out by hand: χ²(ν) on a fine grid, effects on another."""
    total = weight = 0.0
    for step in range(1, 4000):
        chi = 0.01 * step * (1 + what.degrees_of_freedom / 10)
        p = math.exp((what.degrees_of_freedom / 2 - 1) * math.log(chi) - chi / 2)
        sd = what.se * math.sqrt(what.degrees_of_freedom / chi)
        inside = (math.erf((high - what.d) / sd / math.sqrt(2)) - math.erf((low - what.d) / sd / math.sqrt(2))) / 2
        total += p * inside / (high - low)
        weight += p
    return total / weight


@pytest.mark.parametrize("nu", [2.0, 4.0, 11.0])
@pytest.mark.parametrize("ratio", [1.02, 1.08, 1.15])
def test_the_closed_form_is_the_integral_over_the_noise(ratio: float, nu: float) -> None:
    what = measured(ratio, nu=nu)
    by_hand = by_quadrature(what, math.log(1.05), math.log(1.3)) / by_quadrature(what, -ROPE, ROPE)
    assert weigh(what, (1.05, 1.3), POLICY).full_db == pytest.approx(10 * math.log10(by_hand), abs=0.05)


def test_the_confirmation_that_stood_beside_a_certainty() -> None:
    """×1.116 [0.949, 1.312] at 98.75 %, unresolved: it used to move its cause as if the noise were known."""
    nu = 3.0
    se = math.log(1.312 / 1.116) / half_width(0.9875, nu, 1.0)
    what = Seen(math.log(1.116), se, nu, math.log(1.312 / 1.116), 0.9875, ROPE)
    before, now = with_known_noise_db(what.d, se, (1.05, 1.3), POLICY), weigh(what, (1.05, 1.3), POLICY)
    assert before > 12 and 0 < now.db < 5 and "the interval holds no useful change from 95." in now.limit


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-0.3, 0.5), min_size=1, max_size=8), st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=8),
    st.floats(1.0, 3.0), st.floats(1.001, 2.0), st.booleans(),
)  # fmt: skip
def test_an_undecided_interval_never_moves_a_belief_far(candidate, baseline, low, times, thorough) -> None:
    policy = JudgePolicy(thorough=thorough)
    c, b = Arm(fingerprint="c", ln_values=tuple(candidate)), Arm(fingerprint="b", ln_values=tuple(baseline))
    found = judge(c, b, pooled_noise([c, b], policy), (low, low * times), policy, 20)
    assert abs(found.bayes_db) <= policy.bayes_clip_db
    if found.low <= 1.0:
        assert found.bayes_db <= most_db(found.confidence) + 0.01
    if found.low <= 1.0 and found.ratio <= 1.0:
        assert found.bayes_db <= 0.0
    if found.high >= low * (1 + 1e-9):  # it holds what is predicted at least
        assert found.bayes_db >= -most_db(found.confidence) - 0.01


def test_what_a_level_of_confidence_can_say_at_most() -> None:
    assert most_db(0.9875) == pytest.approx(8.27, abs=0.01) and most_db(0.95) == pytest.approx(3.90, abs=0.01)
    assert most_db(0.5) == 0.0


@pytest.mark.parametrize("ratio", [1.0, 1.02, 1.05, 1.1, 1.2, 1.3])
def test_more_gain_is_more_evidence_and_less_noise_is_too(ratio: float) -> None:
    factors = [weigh(measured(times * ratio), (1.05, 1.4), POLICY).full_db for times in (1.0, 1.02, 1.05)]
    assert factors == sorted(factors)


def test_more_than_predicted_is_no_evidence_against_and_a_harm_none_for() -> None:
    assert weigh(measured(7.0, nu=12), (1.2, 1.4), POLICY).db == 20.0
    assert weigh(measured(0.6, nu=12), (1.2, 1.4), POLICY).db < -10
    assert weigh(measured(0.6), (1.2, 1.4), POLICY).full_db == weigh(measured(1.0), (1.2, 1.4), POLICY).full_db


def test_a_prediction_of_one_ratio_and_one_that_starts_below_one_have_their_factor() -> None:
    narrow, point = weigh(measured(1.2), (1.2, 1.2001), POLICY).full_db, weigh(measured(1.2), (1.2, 1.2), POLICY).full_db
    assert narrow == pytest.approx(point, abs=0.05)
    assert math.isfinite(weigh(measured(1.1), (0.8, 1.2), POLICY).db) and math.isfinite(weigh(measured(1.1), (0.5, 0.9), POLICY).db)


def test_known_noise_is_what_older_studies_are_recomputed_with() -> None:
    c, b = Arm(fingerprint="c", ln_values=(0.12, 0.13)), Arm(fingerprint="b", ln_values=(0.0, 0.01))
    noise = Noise(sd=0.03, degrees_of_freedom=4)
    old, new = (judge(c, b, noise, (1.05, 1.3), policy, 9) for policy in (OLD, POLICY))
    assert "degrees_of_freedom" not in old.plain() and new.plain()["degrees_of_freedom"] == 4
    assert old.bayes_db == with_known_noise_db(0.12, 0.03, (1.05, 1.3), POLICY) or old.bayes_db > new.bayes_db
    assert (old.verdict, old.low, old.high, old.next_arm) == (new.verdict, new.low, new.high, new.next_arm)
    assert seen(old, OLD) is None


def test_known_noise() -> None:
    assert with_known_noise_db(math.log(1.3), 0.02, (1.2, 1.4), POLICY) == 20.0
    assert with_known_noise_db(0.0, 0.02, (1.2, 1.4), POLICY) == -20.0
    assert with_known_noise_db(2.0, 0.02, (1.2, 1.4), POLICY) == 20.0
    assert -3 < with_known_noise_db(0.03, 0.05, (1.02, 1.06), POLICY) < 3


def test_one_cause_of_a_launch_gets_all_of_it() -> None:
    what = measured(1.2)
    assert share(what, {"a": Cause(0.6, (1.1, 1.4))}, POLICY)["a"].db == weigh(what, (1.1, 1.4), POLICY).db


def test_causes_that_predict_the_same_share_what_the_others_leave_open() -> None:
    """One doubtful cause beside a certain one gets next to nothing; the launch may be the certain one's doing."""
    what = measured(1.5, nu=12)
    alone = weigh(what, (1.2, 2.0), POLICY).db
    both = share(what, {"likely": Cause(0.95, (1.2, 2.0)), "doubtful": Cause(0.3, (1.2, 2.0))}, POLICY)
    assert alone == 20.0 and 0 <= both["doubtful"].db < 0.5 < both["likely"].db < alone
    even = share(what, {name: Cause(0.5, (1.2, 2.0)) for name in "abc"}, POLICY)
    assert all(0 < even[name].db < 4 for name in "abc") and len({even[name].db for name in "abc"}) == 1


def test_a_size_that_only_one_of_them_predicts_is_that_ones() -> None:
    found = share(measured(1.3, nu=12), {"small": Cause(0.8, (1.2, 1.5)), "large": Cause(0.8, (3.0, 6.0))}, POLICY)
    assert found["small"].db > 5 and found["large"].db < -5


def test_of_a_launch_that_is_known_to_be_good_its_causes_get_little() -> None:
    """Known-good settings are better whatever in them helps: whoever predicted a part is not proved by the whole."""
    what, causes = measured(1.5, nu=12), {name: Cause(0.5, (1.2, 2.0)) for name in ("a", "b")}
    without, with_whole = share(what, causes, POLICY), share(what, causes, POLICY, Cause(0.9, (1.3, 1.6)))
    assert 0 <= with_whole["a"].db < without["a"].db


def test_shares_are_those_of_bayes_rule_over_all_combinations() -> None:
    """The posterior of each cause by brute force on a grid of effects for every combination."""
    what = measured(1.25, se=0.04, nu=6)
    causes = {"a": Cause(0.3, (1.1, 1.4)), "b": Cause(0.6, (1.05, 1.2))}
    found = share(what, causes, POLICY)

    def likelihood(low: float, high: float) -> float:
        grid = [low + (high - low) * (i + 0.5) / 400 for i in range(400)]
        return math.fsum((1 + ((what.d - x) / what.se) ** 2 / 6) ** -3.5 for x in grid) / 400

    top = math.log(1.4 * 1.2)
    weights = {
        (True, True): 0.18 * likelihood(math.log(1.1), top), (True, False): 0.12 * likelihood(math.log(1.1), top),
        (False, True): 0.42 * likelihood(math.log(1.05), top), (False, False): 0.28 * likelihood(-ROPE, ROPE),
    }  # fmt: skip
    for place, name in enumerate("ab"):
        odds = math.fsum(w for real, w in weights.items() if real[place]) / math.fsum(w for real, w in weights.items() if not real[place])
        prior = causes[name].probability / (1 - causes[name].probability)
        assert found[name].full_db == pytest.approx(10 * math.log10(odds / prior), abs=0.05)


def test_more_causes_than_can_be_told_apart_get_nothing() -> None:
    found = share(measured(1.5, nu=12), {f"c{i}": Cause(0.9 - i / 100, (1.1, 2.0)) for i in range(10)}, POLICY)
    assert [found[f"c{i}"].db for i in (8, 9)] == [0.0, 0.0] and len(found) == 10


def test_it_says_where_the_decibans_come_from() -> None:
    what = measured(1.116, se=0.036, nu=3)
    text = said(weigh(what, (1.05, 1.3), POLICY), what, (1.05, 1.3))
    assert text.startswith("+") and "×1.116, with 3 degrees of freedom, is " in text
    assert "times as likely under the predicted ×1.05 to ×1.30 as under no useful change" in text
    limited = said(Weight(8.26, 12.0, "because the interval holds no useful change from 98.7 % on"), what, (1.05, 1.3))
    assert limited.endswith("; counted as 6.7 times, because the interval holds no useful change from 98.7 % on") and "16 times" in limited
    against = said(weigh(measured(1.0), (1.2, 1.4), POLICY), measured(1.0), (1.2, 1.4))
    assert against.startswith("-") and "as likely under no useful change as under the predicted ×1.20 to ×1.40" in against
    shared = said_of_shared(share(what, {"a": Cause(0.6, (1.1, 1.4)), "b": Cause(0.6, (1.1, 1.4))}, POLICY), "page_size")
    assert "at least one of a, b and the other settings (page_size) helped, not which" in shared and "db for b" in shared
