"""The launch-to-launch standard deviation of ln(metric): a prior worth a few launches, pooled over every setting that
was launched at least twice. The launch is the unit of replication; windows within one launch can only raise the
estimate (``within_launch_floor``), never add degrees of freedom."""

import math
from collections.abc import Iterable, Sequence

from optimizer.model.verdict import Arm, JudgePolicy, Noise


def pooled_noise(arms: Iterable[Arm], policy: JudgePolicy, floor: float = 0.0) -> Noise:
    """s² = (ν0·prior² + Σ (x − mean of its arm)²) / (ν0 + Σ (n − 1)), not below ``policy.noise_floor`` or ``floor``.

    Arms with one launch add nothing. The result is in natural-log units, about a relative sd (0.03 = 3 %)."""
    squares, freedom, used = policy.prior_weight * policy.prior_sd**2, policy.prior_weight, []
    for arm in arms:
        n = len(arm.ln_values)
        if n < 2:
            continue
        mean = math.fsum(arm.ln_values) / n
        squares += math.fsum((value - mean) ** 2 for value in arm.ln_values)
        freedom += n - 1
        used.append(arm.fingerprint)
    return Noise(
        sd=max(math.sqrt(squares / freedom), policy.noise_floor, floor), degrees_of_freedom=freedom, arms=tuple(used)
    )


def within_launch_floor(windows_tokens_per_s: Sequence[float], correlation: float = 0.0) -> float:
    """Standard error of a launch's mean from its own windows, as a relative sd: at most the launch-to-launch sd.

    A relaunch repeats everything that varies inside a launch and adds what is drawn at spawn, so launches cannot agree
    better than this. Positively correlated windows (AR(1) coefficient ``correlation``) make it larger. Fewer than five
    windows say nothing (0)."""
    n = len(windows_tokens_per_s)
    mean = math.fsum(windows_tokens_per_s) / n if n else 0.0
    if n < 5 or mean <= 0:
        return 0.0
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in windows_tokens_per_s) / (n - 1))
    inflation = math.sqrt((1 + correlation) / (1 - correlation)) if 0 < correlation < 1 else 1.0
    return sd / mean / math.sqrt(n) * inflation
