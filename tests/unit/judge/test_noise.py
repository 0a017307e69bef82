"""The pooled launch-to-launch sd."""

import math

import pytest

from optimizer.model.verdict import Arm, JudgePolicy
from optimizer.stats.noise import pooled_noise, within_launch_floor

POLICY = JudgePolicy()


def arm(*values: float, name: str = "a") -> Arm:
    return Arm(fingerprint=name, ln_values=values)


def test_the_prior_stands_until_something_is_repeated() -> None:
    noise = pooled_noise([arm(1.0), arm(2.0, name="b")], POLICY)
    assert noise.sd == pytest.approx(0.03) and noise.degrees_of_freedom == 2 and noise.arms == ()


def test_pooling_follows_the_formula() -> None:
    noise = pooled_noise([arm(0.0, 0.1), arm(1.0, 1.1, 1.2, name="b"), arm(5.0, name="c")], POLICY)
    expected = (2 * 0.03**2 + 0.1**2 / 2 + 2 * 0.1**2) / (2 + 1 + 2)
    assert noise.sd == pytest.approx(math.sqrt(expected)) and noise.degrees_of_freedom == 5
    assert noise.arms == ("a", "b")


def test_differences_between_settings_are_not_noise() -> None:
    far = pooled_noise([arm(0.0, 0.02), arm(9.0, 9.02, name="b")], POLICY)
    near = pooled_noise([arm(0.0, 0.02), arm(0.0, 0.02, name="b")], POLICY)
    assert far.sd == pytest.approx(near.sd)


def test_a_pair_that_disagrees_raises_it_at_once() -> None:
    assert pooled_noise([arm(0.0, 0.2)], POLICY).sd == pytest.approx(math.sqrt((2 * 0.0009 + 0.02) / 3))
    assert pooled_noise([arm(0.0, 0.2)], POLICY).sd > 2.5 * 0.03


def test_floors() -> None:
    assert pooled_noise([arm(0.0, 0.001)], POLICY, floor=0.05).sd == 0.05
    assert pooled_noise([arm(0.0, 0.001)], JudgePolicy(noise_floor=0.04)).sd == 0.04
    assert pooled_noise([arm(0.0, 0.4)], POLICY, floor=0.05).sd > 0.05


def test_windows_can_only_raise_it() -> None:
    steady, wild = [100.0, 101, 99, 100, 101, 99], [100.0, 140, 60, 100, 150, 50]
    assert within_launch_floor(steady) < 0.01 < 0.1 < within_launch_floor(wild)
    assert within_launch_floor([100.0, 150, 50]) == 0.0  # too few to say anything
    assert within_launch_floor([0.0] * 8) == 0.0
    assert within_launch_floor(wild, correlation=0.6) == pytest.approx(2 * within_launch_floor(wild))
