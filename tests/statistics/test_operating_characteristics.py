"""What the judge promises (docs/statistics.md), with the product's own judge, at repetition counts that still bind: each gate is checked so that
a true rate at the gate would fail about as often as pass, and the prototype's rate practically never. Full counts:
benchmarks/statistics."""

import pytest
from simulate import (
    aa_studies,
    beliefs,
    beliefs_of_bundles,
    bimodal,
    coverage,
    drift_detections,
    heavy,
    lottery,
    many_tests,
    normal,
    quick_exits,
    skewed,
    winners_curse,
)

from optimizer.core.economy import policy_for
from optimizer.model.verdict import JudgePolicy

POLICY = JudgePolicy()
NOISE = {"normal": normal, "heavy": heavy, "lottery": lottery, "skewed": skewed, "bimodal": lambda sd: bimodal(sd, within=sd / 3)}


@pytest.mark.gate("S1")
@pytest.mark.parametrize("shape", ["normal", "heavy", pytest.param("lottery", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("sd", "gate"), [(0.01, 0.05), (0.03, 0.05), (0.05, 0.06)])
def test_s1_studies_without_effect_promote_nothing(shape: str, sd: float, gate: float) -> None:
    # At 5 % the truth is 5.6 % in the worst shapes (docs/statistics.md): 800 studies could not tell it from the gate.
    found = aa_studies(NOISE[shape](sd), POLICY, 3000 if sd == 0.05 else 800, seed=11, target_above=3 * sd)
    assert found.promoted <= gate
    assert found.kept <= min(gate, 0.05)  # what a person is told: the fresh confirmation takes a part of them back
    assert found.met <= 0.01
    assert found.ideas > 5  # the studies did try something


@pytest.mark.gate("S2")
@pytest.mark.parametrize(
    ("ratio", "sd", "supported", "launches"),
    [
        (1.25, 0.01, 0.995, 1.3), (1.25, 0.03, 0.995, 1.3), (1.20, 0.03, 0.99, 2.0), (1.10, 0.03, 0.95, 6.0),
        (1.10, 0.02, 0.98, 5.0), (1.05, 0.01, 0.95, 9.0), (1.05, 0.02, 0.70, 10.5), (2.0, 0.05, 0.995, 1.1),
    ],
)  # fmt: skip
def test_s2_power_and_cost(ratio: float, sd: float, supported: float, launches: float) -> None:
    found = many_tests(ratio, normal(sd), POLICY, 800, seed=12)
    assert found.share("supported") >= supported
    assert found.mean_launches <= launches


@pytest.mark.gate("S2")
def test_s2_thorough_finds_small_effects() -> None:
    found = many_tests(1.05, normal(0.02), JudgePolicy(thorough=True), 1500, seed=13)
    assert found.share("supported") >= 0.95


@pytest.mark.gate("S2")
@pytest.mark.parametrize("sd", [0.01, 0.02, 0.03, 0.05])
def test_s2_an_idea_without_effect_is_cheap(sd: float) -> None:
    """The truth at 5 % is 2.93 (docs/statistics.md), so that cell needs many runs to tell it from the gate."""
    assert many_tests(1.0, normal(sd), POLICY, 8000 if sd == 0.05 else 1000, seed=14).mean_launches <= 3


@pytest.mark.gate("S3")
@pytest.mark.parametrize("edge", [1.03, 1.05, 1.10, 1.20])
@pytest.mark.parametrize("sd", [0.01, 0.03, 0.05])
def test_s3_a_true_lower_edge_is_not_judged_short(edge: float, sd: float) -> None:
    found = many_tests(edge, normal(sd), POLICY, 800, seed=15, prediction=(edge, edge + 0.3))
    assert found.short <= 0.03


@pytest.mark.gate("S4")
@pytest.mark.parametrize(
    ("shape", "sd", "gate"),
    [
        ("normal", 0.01, 0.94), ("normal", 0.03, 0.94), ("heavy", 0.01, 0.94), ("heavy", 0.03, 0.94),
        ("normal", 0.05, 0.90), ("heavy", 0.05, 0.90), ("lottery", 0.03, 0.87), ("skewed", 0.01, 0.94), ("skewed", 0.03, 0.94),
        ("skewed", 0.05, 0.90), ("bimodal", 0.01, 0.94), ("bimodal", 0.03, 0.94), ("bimodal", 0.05, 0.87),
    ],
)  # fmt: skip
@pytest.mark.parametrize("launches", [(1, 2), (3, 3)])
def test_s4_coverage(shape: str, sd: float, gate: float, launches: tuple[int, int]) -> None:
    assert coverage(NOISE[shape](sd), POLICY, 3000, 16, *launches) >= gate


@pytest.mark.gate("S4")
def test_s4_coverage_is_nominal_once_noise_is_pooled() -> None:
    """Twelve further pairs make 14 degrees of freedom and more."""
    assert coverage(normal(0.03), POLICY, 6000, 17, 1, 2, extra=11) == pytest.approx(0.95, abs=0.011)


@pytest.mark.gate("S10")
@pytest.mark.parametrize(
    ("shape", "sd", "gate"), [("normal", 0.03, 0.0004), ("normal", 0.05, 0.01), ("lottery", 0.03, 0.025)]
)
def test_s10_quick_exit_is_seldom_wrong(shape: str, sd: float, gate: float) -> None:
    assert quick_exits(NOISE[shape](sd), POLICY, 10_000, seed=18) <= gate


@pytest.mark.gate("S11")
@pytest.mark.parametrize(("sd", "gate"), [(0.01, 0.05), (0.03, 0.05), (0.05, 0.07)])
def test_s11_drift(sd: float, gate: float) -> None:
    assert aa_studies(normal(sd), POLICY, 1500, seed=19).false_drift <= gate
    assert drift_detections(6, sd, POLICY, 2000, seed=20) >= 0.85
    small = drift_detections(3, sd, POLICY, 2000, seed=22)
    assert drift_detections(0, sd, POLICY, 4000, seed=21) < 0.08 and small < 0.5  # 3 sd is beyond what one launch shows


@pytest.mark.gate("S1")
@pytest.mark.parametrize("draw", [normal, bimodal, heavy])
@pytest.mark.parametrize("sd", [0.08, 0.12])
def test_cpu_engines_do_not_promote_noise_and_still_find_factors(draw, sd: float) -> None:
    """Machines whose identical launches differ by a quarter: the CPU policy."""
    policy = policy_for("cpu")
    assert aa_studies(draw(sd), policy, 600, seed=23).promoted <= 0.05
    for ratio, gate in ((2.0, 0.93), (3.0, 0.98)):
        assert many_tests(ratio, draw(sd), policy, 500, seed=24, prediction=(1.3, 6.0)).within_two >= gate


@pytest.mark.gate("S1")
def test_the_default_policy_would_promote_noise_there() -> None:
    """Why the CPU policy exists: this check shows that the one above can fail."""
    assert aa_studies(bimodal(0.12), POLICY, 400, seed=25).promoted > 0.10


@pytest.mark.parametrize(("drift", "gate"), [(0.1, 0.02), (0.3, 0.04)])
def test_a_slow_drift_is_rarely_taken_for_a_gain(drift: float, gate: float) -> None:
    """The box gets faster by so many sd with every launch; no idea has an effect. Ten per cent are still found."""
    found = many_tests(1.0, normal(0.02), POLICY, 1000, seed=26, drift=drift * 0.02)
    assert found.share("supported", "partial") <= gate
    assert many_tests(1.1, normal(0.02), POLICY, 500, seed=27, drift=drift * 0.02).share("supported", "partial") >= 0.97


def test_an_excluded_claim_and_target_save_launches_and_lose_no_gain_that_counts() -> None:
    for ratio, target in ((1.0, 10.0), (1.1, 10.0)):
        plain = many_tests(ratio, normal(0.03), POLICY, 600, seed=28, prediction=(1.5, 4.0))
        ended = many_tests(ratio, normal(0.03), POLICY, 600, seed=28, prediction=(1.5, 4.0), target=target)
        assert ended.mean_launches <= min(1.2, plain.mean_launches)
    # What could reach the target is never given up: the interval of a true 2x lies above a target of 1.5.
    assert many_tests(2.0, normal(0.03), POLICY, 600, seed=29, prediction=(1.5, 4.0), target=1.5).share("supported") >= 0.99
    assert many_tests(1.5, normal(0.05), POLICY, 600, seed=30, prediction=(1.5, 4.0), target=1.5).share("supported", "partial") >= 0.99


@pytest.mark.parametrize(("ideas", "seems"), [(8, 0.028), (20, 0.037), (50, 0.045)])
def test_the_winners_curse_is_gone_from_the_fresh_confirmation(ideas: int, seems: float) -> None:
    """The best of equal settings looks better than it is; only the number of its fresh launch is reported."""
    seemed, fresh = winners_curse(ideas, normal(0.02), 4000, seed=31)
    assert seemed == pytest.approx(seems, abs=0.002)
    assert abs(fresh) <= 0.001


BEFORE_5 = JudgePolicy(noise_known=True)


@pytest.mark.parametrize(("shape", "sd"), [("normal", 0.01), ("normal", 0.03), ("normal", 0.05), ("heavy", 0.05), ("lottery", 0.03), ("bimodal", 0.05)])
def test_what_is_said_with_a_probability_is_true_as_often(shape: str, sd: float) -> None:
    found = beliefs(NOISE[shape](sd), POLICY, 1000, seed=32)
    assert found.calibration_error <= 0.07  # of which about 0.012 is chance; the rest is what an undecided interval may not say
    low, high = found.undecided.farthest_db
    assert len(found.undecided.rows) > 100 and -8.3 <= low <= high <= 8.3
    for said, real, count in found.bins:
        if count >= 100:  # never surer than it is right
            assert real >= said - 0.06 if said > 0.5 else real <= said + 0.06


def test_causes_that_share_a_launch_are_not_all_certain_of_it() -> None:
    """Each was credited with the whole: said with 0.99, true two times in three."""
    now, before = (beliefs_of_bundles(normal(0.03), policy, 700, seed=33) for policy in (POLICY, BEFORE_5))
    assert now.calibration_error <= 0.06 and now.brier <= 0.18
    assert before.calibration_error > 0.2 and before.brier > 0.25  # this check can fail


@pytest.mark.gate("S1")
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["normal", "heavy", "lottery"])
@pytest.mark.parametrize(("sd", "gate"), [(0.01, 0.05), (0.02, 0.05), (0.03, 0.05), (0.05, 0.06)])
def test_s1_at_full_count(shape: str, sd: float, gate: float) -> None:
    found = aa_studies(NOISE[shape](sd), POLICY, 10_000, seed=2, target_above=3 * sd)
    assert found.promoted <= gate
    assert found.kept <= min(gate, 0.05)  # what a person is told: the fresh confirmation takes a part of them back
    assert found.met <= 0.01
