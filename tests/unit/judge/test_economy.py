"""Costs, gains, ranks and the rules of the launch economy."""

import math

import pytest

from optimizer.core import economy
from optimizer.model.verdict import JudgePolicy


def test_cost_falls_with_the_effect_and_is_bounded() -> None:
    large = [economy.expected_launches(sd) for sd in (2, 2.5, 3, 4, 6, 8, 30)]
    assert large == sorted(large, reverse=True)
    assert economy.expected_launches(30) == 1.0 and economy.expected_launches(-30) == 1.0
    assert 1 <= economy.expected_launches(6.5) <= 2  # "> 6 sd one to two launches"
    assert 3.5 <= economy.expected_launches(4) <= 6 and 3.5 <= economy.expected_launches(3.1) <= 6  # "3-6 sd four to six"
    assert 2 < economy.expected_launches(0) < 3


def test_chance_of_support_rises_with_the_effect() -> None:
    chances = [economy.chance_of_support(sd) for sd in (-5, 0, 1, 1.5, 2, 2.5, 3, 5)]
    assert chances == sorted(chances) and chances[0] == 0.0 and chances[-1] == 1.0
    assert economy.chance_of_support(2.5) > 0.7  # "2-3 sd ... with three chances in four"


def test_small_effects_belong_into_the_joint_search() -> None:
    assert not economy.worth_its_own_test(1.03, 0.03) and economy.worth_its_own_test(1.05, 0.03)


def test_gain_is_capped_by_target_and_bucket() -> None:
    assert economy.expected_gain((2.0, 8.0)) == pytest.approx(math.log(4.0))
    assert economy.expected_gain((2.0, 8.0), distance_to_target=1.5) == pytest.approx(math.log(1.5))
    assert economy.expected_gain((2.0, 8.0), bucket_share=0.5) == pytest.approx(math.log(2.0))
    assert economy.expected_gain((2.0, 8.0), bucket_share=0.0) == 0.0
    assert economy.expected_gain((2.0, 8.0), distance_to_target=0.5) == 0.0  # the target is met already
    assert economy.expected_gain((0.5, 0.9)) == 0.0


def test_rank_prefers_likely_large_cheap_and_safe() -> None:
    base = economy.rank_value(0.5, 0.5, 10)
    assert economy.rank_value(0.9, 0.5, 10) > base < economy.rank_value(0.5, 0.9, 10)
    assert economy.rank_value(0.5, 0.5, 5) > base > economy.rank_value(0.5, 0.5, 10, guard_risk=2)
    assert economy.rank_value(0.5, 0.5, 10, guard_risk=0.1) == base


def test_an_action_without_a_launch_costs_its_windows() -> None:
    assert economy.cost_minutes(2, 3, 1) == 8 and economy.cost_minutes(0, 3, 1) == 1


def test_information_of_a_probe() -> None:
    sharp = economy.expected_information_bits(0.5, 20, -20)
    blunt = economy.expected_information_bits(0.5, 3, -3)
    assert 0.85 < sharp < 1.0 and 0 < blunt < 0.3
    assert economy.expected_information_bits(0.5, 10, 10) == 0.0  # cannot be a yes/no fact
    assert economy.expected_information_bits(0.999, 20, -20) < sharp
    assert economy.expected_information_bits(0.0, 20, -20) == 0.0
    assert economy.probe_value([sharp, blunt], 2) == pytest.approx((sharp + blunt) / 2)


@pytest.mark.parametrize("probability", [0.05, 0.3, 0.8])
@pytest.mark.parametrize(("yes", "no"), [(10, -5), (3, -12), (-6, 4)])
def test_information_equals_the_enumeration(probability: float, yes: float, no: float) -> None:
    """Against Bayes' rule written out: odds times likelihood ratio for both answers."""
    odds = probability / (1 - probability)
    after = {db: odds * 10 ** (db / 10) / (1 + odds * 10 ** (db / 10)) for db in (yes, no)}
    seen = (probability - after[no]) / (after[yes] - after[no])  # the mean of the posteriors is the prior
    expected = economy.entropy_bits(probability) - sum(
        weight * economy.entropy_bits(after[db]) for weight, db in ((seen, yes), (1 - seen, no))
    )
    assert economy.expected_information_bits(probability, yes, no) == pytest.approx(expected)


def test_a_a_before_small_claims() -> None:
    assert economy.needs_second_baseline(None, 0.03)
    assert economy.needs_second_baseline((1.05, 9.0), 0.03)  # the lower edge counts
    assert not economy.needs_second_baseline((1.25, 1.3), 0.03)
    assert economy.needs_second_baseline((1.25, 1.3), 0.12)


def test_a_pair_that_disagrees_wants_a_third() -> None:
    policy = JudgePolicy()
    assert economy.needs_third_baseline([0.0, math.log(1.14)], policy)
    assert not economy.needs_third_baseline([0.0, math.log(1.13)], policy)
    assert not economy.needs_third_baseline([0.0, 1.0, 2.0], policy) and not economy.needs_third_baseline([0.0], policy)
    assert not economy.needs_third_baseline([0.0, 0.4], economy.policy_for("cpu"))


def test_baseline_rules() -> None:
    policy = JudgePolicy()
    assert economy.top_up_due(0.08, 3, 2, 0.03, policy) and not economy.top_up_due(0.10, 3, 2, 0.03, policy)
    assert not economy.top_up_due(0.08, 2, 2, 0.03, policy)
    assert economy.promoted_needs_launch(1) and not economy.promoted_needs_launch(2)


def test_budget() -> None:
    assert economy.reserve_launches(False, 0) == 0 and economy.reserve_launches(True, 0) == 1
    assert economy.reserve_launches(False, 3) == 1
    assert economy.launches_left(20, 5, 1) == 14 and economy.launches_left(3, 5, 1) == 0
    assert economy.launches_that_fit(120, 20, 10) == 10 and economy.launches_that_fit(10, 20, 10) == 0


def test_policies() -> None:
    assert economy.policy_for("gpu").prior_sd == 0.03 and not economy.policy_for("gpu").thorough
    cpu = economy.policy_for("cpu", thorough=True, noise_floor=0.02)
    assert (cpu.prior_sd, cpu.prior_weight, cpu.thorough, cpu.noise_floor) == (0.12, 4.0, True, 0.02)
