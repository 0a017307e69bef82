"""Is an open-loop load more than the server can take? Then the queue grows as long as the load lasts, and every
latency measured is a property of how long one waited, not of the setting. Pure; closed loops cannot be over-saturated
in this sense and are not its matter.

Rule: requests in flight and time to first token must both rise over the run. Each series is cut into 12 blocks of
equal time, from the 30th second (or the first quarter of a shorter run) on. A rise counts when the fitted slope of
the block means is significant at 99 % one-sided and the fitted end is at least 1.25 times the fitted beginning.
In-flight counts of a stable queue wander for many seconds, so the slope's error is widened by the block means' own
lag-1 correlation (effective sample size n(1-r)/(1+r); Bartlett, J. Roy. Stat. Soc. B 8 (1946) 27-41).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.stats.interval import t_quantile

BLOCKS = 12
RISE = 1.25
SKIP_S = 30.0
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Rise:
    """``ratio`` = fitted end over fitted beginning; ``t`` = slope over its error, ``rises`` = both are beyond their
    bounds."""

    ratio: float
    t: float
    rises: bool


def block_means(points: Sequence[tuple[float, float]], blocks: int = BLOCKS) -> list[float]:
    """Means of (time, value) points in ``blocks`` spans of equal time; empty spans take the value before them."""
    if not points:
        return []
    start, end = points[0][0], points[-1][0]
    width = (end - start) / blocks or 1.0
    sums: list[list[float]] = [[] for _ in range(blocks)]
    for at, value in points:
        sums[min(blocks - 1, int((at - start) / width))].append(value)
    means: list[float] = []
    for values in sums:
        means.append(math.fsum(values) / len(values) if values else (means[-1] if means else 0.0))
    return means


def rise(points: Sequence[tuple[float, float]]) -> Rise | None:
    """Trend of one series of (seconds since the load began, value); None when it is too short to say anything."""
    if len(points) < 2 * BLOCKS:
        return None
    begin, end = points[0][0], points[-1][0]
    kept = [point for point in points if point[0] >= begin + min(SKIP_S, (end - begin) / 4)]
    if len(kept) < BLOCKS:
        return None
    means = block_means(kept)
    n = len(means)
    mean = math.fsum(means) / n
    middle = (n - 1) / 2
    sxx = n * (n * n - 1) / 12
    slope = math.fsum((i - middle) * y for i, y in enumerate(means)) / sxx
    left = [y - mean - slope * (i - middle) for i, y in enumerate(means)]
    spread = math.fsum(x * x for x in left)
    if slope <= 0:
        return Rise(
            1.0 if not mean else max(0.0, mean + slope * middle) / max(1e-12, mean - slope * middle), 0.0, False
        )
    r = math.fsum(a * b for a, b in itertools.pairwise(left)) / spread if spread > 0 else 0.0
    r = min(0.9, max(0.0, r))
    effective = max(4.0, n * (1 - r) / (1 + r))
    error = math.sqrt(spread / (effective - 2) / sxx) if spread > 0 else 0.0
    t = slope / error if error else math.inf
    low = mean - slope * middle
    ratio = (mean + slope * middle) / low if low > 0 else math.inf
    return Rise(ratio, t, ratio >= RISE and t > t_quantile(CONFIDENCE, effective - 2))


def over_saturated(in_flight: Sequence[tuple[float, float]], ttft: Sequence[tuple[float, float]]) -> bool:
    """Both series are (seconds, value) in time order; ``ttft`` by the scheduled time of the request."""
    queue, wait = rise(in_flight), rise(ttft)
    return bool(queue and wait and queue.rises and wait.rises)
