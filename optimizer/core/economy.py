"""What a launch is worth: how many a test will probably cost, what it can win, how ideas and probes rank, when the
baseline is measured again and how much of the budget is spoken for. Plain numbers in, plain numbers out; it knows no
state, decides nothing and never looks at a clock."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from optimizer.model.verdict import JudgePolicy

BoxKind = Literal["gpu", "cpu"]

# Identical relaunches of CPU engines on a shared machine differ by up to a quarter. Simulated with the judge
# (docs/statistics.md): this prior, worth four launches, promotes something in at most 3 % of studies without any effect
# at a launch noise of 8-12 % (4-6 % at 15 %), normal, bimodal or heavy-tailed, where the default policy does so in
# 9-20 %, and it still finds a factor two within two launches.
CPU_PRIOR_SD, CPU_PRIOR_WEIGHT = 0.12, 4.0

# True effect in launch sd -> (launches a test costs, chance that it ends as supported). From docs/statistics.md: the
# judge itself at its prior noise, candidates and re-measured baselines counted, the first baseline pair not.
COST_OF_EFFECT: tuple[tuple[float, float, float], ...] = (
    (-2.0, 1.0, 0.0), (-1.0, 1.3, 0.0), (0.0, 2.4, 0.0), (0.5, 4.0, 0.02), (1.0, 6.1, 0.11), (1.5, 8.0, 0.36),
    (2.0, 8.5, 0.69), (2.5, 7.4, 0.88), (3.0, 6.0, 0.97), (3.5, 4.7, 0.99), (4.0, 3.6, 1.0), (5.0, 2.3, 1.0),
    (6.0, 1.6, 1.0), (7.0, 1.3, 1.0), (8.0, 1.1, 1.0), (10.0, 1.0, 1.0),
)  # fmt: skip


def policy_for(kind: BoxKind, *, thorough: bool = False, noise_floor: float = 0.0) -> JudgePolicy:
    """The judging policy of a study. ``noise_floor``: e.g. what the windows of one launch already differ by."""
    if kind == "cpu":
        return JudgePolicy(
            prior_sd=CPU_PRIOR_SD, prior_weight=CPU_PRIOR_WEIGHT, thorough=thorough, noise_floor=noise_floor
        )
    return JudgePolicy(thorough=thorough, noise_floor=noise_floor)


def effect_in_sd(ratio: float, sd: float) -> float:
    """A ratio as a multiple of the launch sd."""
    return math.log(ratio) / sd if ratio > 0 else -math.inf


def expected_launches(effect_sd: float) -> float:
    """Launches that a test of a true effect of ``effect_sd`` launch sd costs on average (linear between rows)."""
    return _interpolate(effect_sd, 1)


def chance_of_support(effect_sd: float) -> float:
    """Chance that a true effect of ``effect_sd`` launch sd ends as supported under the default looks."""
    return _interpolate(effect_sd, 2)


def worth_its_own_test(ratio: float, sd: float) -> bool:
    """Below about 1.5 sd an idea costs eight launches and mostly ends deferred: it belongs into a joint search."""
    return effect_in_sd(ratio, sd) >= 1.5


def typical_ratio(ratio: tuple[float, float]) -> float:
    """Midpoint of a predicted ratio on the log scale."""
    return math.sqrt(max(ratio[0], 1e-9) * max(ratio[1], 1e-9))


def expected_gain(
    ratio: tuple[float, float],
    *,
    distance_to_target: float | None = None,
    bucket_share: float | None = None,
) -> float:
    """Log of the ratio that curing the cause should give.

    Args:
        ratio: the predicted interval.
        distance_to_target: target / current; what lies beyond it is worth nothing. None: no target.
        bucket_share: share of the time that sits in the waterfall bucket which the idea addresses: a fix cannot win
            back more than that. None: the idea addresses no bucket, or no waterfall exists.
    """
    gain = math.log(typical_ratio(ratio))
    if distance_to_target is not None:
        gain = min(gain, math.log(max(distance_to_target, 1.0)))
    if bucket_share is not None:
        gain = min(gain, -math.log1p(-min(max(bucket_share, 0.0), 0.999)))
    return max(gain, 0.0)


def cost_minutes(launches: float, launch_minutes: float, window_minutes: float) -> float:
    """Minutes of a test: each launch brings its start and its warm-up and windows; none costs its windows only."""
    return launches * (launch_minutes + window_minutes) if launches > 0 else window_minutes


def rank_value(probability: float, gain: float, cost: float, guard_risk: float = 1.0) -> float:
    """Expected log gain per minute. ``guard_risk`` ≥ 1 divides: what may break a guard has to promise more."""
    return probability * gain / max(cost, 1e-6) / max(guard_risk, 1.0)


def entropy_bits(probability: float) -> float:
    """Uncertainty of one yes/no question."""
    return -math.fsum(p * math.log2(p) for p in (probability, 1 - probability) if 0 < p < 1)


def expected_information_bits(probability: float, if_true_db: float, if_false_db: float) -> float:
    """Expected drop in the entropy of a hypothesis when a fact that has these weights becomes known.

    The two weights are likelihood ratios of the two answers and fix both answers' probabilities. Weights of equal sign
    cannot come from a yes/no fact and inform about nothing (0)."""
    yes, no = 10 ** (if_true_db / 10), 10 ** (if_false_db / 10)
    if (yes - 1) * (no - 1) >= 0:
        return 0.0
    given_false = (1 - no) / (yes - no)
    given_true = yes * given_false
    seen = probability * given_true + (1 - probability) * given_false
    left = 0.0
    for answer, joint in ((seen, probability * given_true), (1 - seen, probability * (1 - given_true))):
        if answer > 0:
            left += answer * entropy_bits(min(max(joint / answer, 0.0), 1.0))
    return max(entropy_bits(probability) - left, 0.0)


def probe_value(informations_bits: Iterable[float], minutes: float) -> float:
    """Expected bits per minute over the top hypotheses that read the probe's facts."""
    return math.fsum(informations_bits) / max(minutes, 1e-6)


def needs_second_baseline(predicted_ratio: tuple[float, float] | None, sd: float, quick_exit_sd: float = 6.0) -> bool:
    """E2: A/A before small claims. False where the leading idea's *lower* edge lies beyond the quick exit."""
    return predicted_ratio is None or effect_in_sd(predicted_ratio[0], sd) <= quick_exit_sd


def needs_third_baseline(ln_values: Sequence[float], policy: JudgePolicy) -> bool:
    """E2: the first pair differs by more than 3 sd of the difference, at the prior (13.6 % for 3 %)."""
    apart = policy.drift_sd * policy.prior_sd * math.sqrt(2)
    return len(ln_values) == 2 and abs(ln_values[0] - ln_values[1]) > apart


def top_up_due(d: float, n_candidate: int, n_baseline: int, sd: float, policy: JudgePolicy) -> bool:
    """E3a: a claimed effect within 3 sd at a look has the comparator measured as often as the candidate."""
    return abs(d) <= policy.top_up_within_sd * sd and n_baseline < n_candidate


def promoted_needs_launch(n_launches: int) -> bool:
    """E3b: after a promotion the new baseline wants two launches before it is a comparator of small effects."""
    return n_launches < 2


def reserve_launches(promoted: bool, open_ideas: int) -> int:
    """E8: one fresh confirmation of the winner, as long as there is or may be one."""
    return 1 if promoted or open_ideas > 0 else 0


def launches_left(budget: int, used: int, reserve: int) -> int:
    """E10: what may still be spent on tests; the baseline's launches are among ``used``, restoring is not."""
    return max(budget - used - reserve, 0)


def launches_that_fit(minutes_left: float, reserve_minutes: float, minutes_per_launch: float) -> int:
    """E10: whole launches with their windows that fit into the time once confirmation and restore are set aside."""
    spare = minutes_left - reserve_minutes
    return max(int(spare / minutes_per_launch + 1e-9), 0) if minutes_per_launch > 0 and spare > 0 else 0


def _interpolate(effect_sd: float, column: int) -> float:
    rows = COST_OF_EFFECT
    if effect_sd <= rows[0][0]:
        return rows[0][column]
    for left, right in pairwise(rows):
        if effect_sd <= right[0]:
            share = (effect_sd - left[0]) / (right[0] - left[0])
            return left[column] + share * (right[column] - left[column])
    return rows[-1][column]
