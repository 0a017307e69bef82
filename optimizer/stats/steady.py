"""When a warm-up is over, and how far the mean of a measured window can be trusted. Pure arithmetic on a series of
rates in equal windows; it never decides what a measurement is used for, and it estimates no launch-to-launch noise
(that is ``stats.noise``).

Three rules, from the strictest down.
- *steady*: the last 10 windows vary by less than 2 % (coefficient of variation) and have no slope. A slope of at most
  1 % over their span passes whatever its significance, else a very quiet server would never pass.
- *level*: real servers breathe (prefill waves, a busy host), so 2 % may never be reached although the rate has
  stopped changing. The last 20 windows show that when the whole 95 % interval of the fitted change over their span
  lies within ±10 %.
- *window usable*: if neither was reached by the longest warm-up, the window is measured all the same, and the window
  itself must answer two questions: did the rate move while it was measured, and how uncertain is its mean? The mean's
  standard error uses Geyer's initial positive sequence, because windows of one run are correlated (positively when a
  host drifts, negatively when prefill and decode alternate), and treating them as independent is wrong in both
  directions.

Sources: slope and its error, ordinary least squares; C. J. Geyer, Practical Markov Chain Monte Carlo, Statistical
Science 7 (1992) 473-483, section 3.3 (initial positive sequence).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from optimizer.stats.interval import t_quantile

Steadiness = Literal["steady", "level", ""]

STEADY_WINDOWS, LEVEL_WINDOWS = 10, 20
STEADY_COV, STEADY_CHANGE, LEVEL_CHANGE = 0.02, 0.01, 0.10
# Two means known to ±25 % (95 %) each still tell a factor 1.5 apart; wider than that they tell nothing that is worth a
# verdict. How uncertain the mean is travels with it (``output_tokens_per_s_rel_se``), so that the judge can allow for it.
USABLE_HALF_WIDTH = 0.25
# A rate that moves evenly by 20 % during the window has a mean within 10 % of where it ends.
MOVED_CHANGE = 0.20


@dataclass(frozen=True)
class Trend:
    """``change`` = fitted relative change over the series, ``error`` = its standard error, ``cov`` = coefficient of
    variation."""

    change: float
    error: float
    cov: float

    def significant(self, n: int, confidence: float = 0.95) -> bool:
        return abs(self.change) > t_quantile(0.5 + confidence / 2, n - 2) * self.error


@dataclass(frozen=True)
class WindowMean:
    """What a measured window says about its own mean; all figures are relative to the mean except ``mean``."""

    mean: float
    relative_se: float
    half_width: float
    trend: Trend
    moved: bool
    usable: bool


def trend(series: Sequence[float]) -> Trend:
    """Least-squares trend of at least three values with a positive sum."""
    n = len(series)
    mean = math.fsum(series) / n
    middle = (n - 1) / 2
    sxx = n * (n * n - 1) / 12
    slope = math.fsum((i - middle) * y for i, y in enumerate(series)) / sxx
    spread = math.fsum((y - mean) ** 2 for y in series)
    left = max(0.0, spread - slope * slope * sxx)
    error = math.sqrt(left / (n - 2) / sxx)
    return Trend(slope * (n - 1) / mean, error * (n - 1) / mean, math.sqrt(spread / (n - 1)) / mean)


def steadiness(series: Sequence[float]) -> Steadiness:
    """``steady``, ``level`` or ``""`` (not yet) for rates in equal, consecutive windows, oldest first."""
    last = series[-STEADY_WINDOWS:]
    if len(last) == STEADY_WINDOWS and math.fsum(last) > 0:
        found = trend(last)
        if found.cov < STEADY_COV and (abs(found.change) <= STEADY_CHANGE or not found.significant(STEADY_WINDOWS)):
            return "steady"
    last = series[-LEVEL_WINDOWS:]
    if len(last) == LEVEL_WINDOWS and math.fsum(last) > 0:
        found = trend(last)
        if abs(found.change) + t_quantile(0.975, LEVEL_WINDOWS - 2) * found.error <= LEVEL_CHANGE:
            return "level"
    return ""


def standard_error_of_mean(series: Sequence[float]) -> float:
    """Standard error of the mean of one correlated, stationary series, in its own unit.

    The estimate is never below a quarter of the one for independent values: a short series can look more
    regular than it is.
    """
    n = len(series)
    mean = math.fsum(series) / n
    centred = [y - mean for y in series]

    def covariance(lag: int) -> float:
        return math.fsum(centred[i] * centred[i + lag] for i in range(n - lag)) / n

    independent = covariance(0) * n / (n - 1) / n
    total, lag = -covariance(0), 0
    while lag + 1 < n // 2:
        pair = covariance(lag) + covariance(lag + 1)
        if pair <= 0:
            break
        total += 2 * pair
        lag += 2
    return math.sqrt(max(total * n / (n - 1) / n, independent / 16))


def window_mean(series: Sequence[float]) -> WindowMean | None:
    """Judge the measured window by its own sub-windows; None when there are fewer than five or nothing was produced."""
    if len(series) < 5 or math.fsum(series) <= 0:
        return None
    n = len(series)
    mean = math.fsum(series) / n
    relative_se = standard_error_of_mean(series) / mean
    half_width = t_quantile(0.975, n - 1) * relative_se
    found = trend(series)
    # The slope's own error assumes independent residuals; how correlated they are is read off what the line leaves.
    fitted = [mean * found.change * (i / (n - 1) - 0.5) for i in range(n)]
    residuals = [y - line for y, line in zip(series, fitted, strict=True)]
    left = trend(residuals).cov * mean / math.sqrt(n)
    inflation = max(1.0, standard_error_of_mean(residuals) / left) if left > 0 else 1.0
    corrected = Trend(found.change, found.error * inflation, found.cov)
    moved = abs(found.change) > MOVED_CHANGE and corrected.significant(n, 0.99)
    return WindowMean(mean, relative_se, half_width, corrected, moved, half_width <= USABLE_HALF_WIDTH and not moved)
