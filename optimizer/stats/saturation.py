"""Is an open-loop load more than the server can take? Then the queue grows as long as the load lasts, and every latency
measured is a property of how long one waited, not of the setting. Pure; closed loops cannot be over-saturated in this
sense and are not its matter.

Rule: requests in flight and time to first token must both rise over the run, from the 30th second (or the first quarter
of a shorter run) on. Each series is cut into 12 blocks of equal time; a rise counts when the least-squares slope of the
block means is significant at 99 % one-sided and the fitted end is at least 1.25 times the fitted beginning. That alone
would cry wolf: the queue of a stable server wanders for many seconds, and its block means are correlated. So the queue
must also have grown by at least 5 % of the requests that arrived meanwhile. A server that takes a share c of the load
lets 1 - c of the arrivals pile up (a sixth at 120 % load); the queue of a stable one does not grow with time at all.

Simulated, 300 runs of 120 s, service about 2 s: false alarms at 80 % load 0 % with 8 or more requests served at a time,
4 % with 4; hits at 120 % load 99 % with 8, 100 % with 32 or more, 91 % with 4 (a longer run is needed there).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.stats.interval import t_quantile

BLOCKS = 12
RISE = 1.25
PILED_UP = 0.05
SKIP_S = 30.0
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Rise:
    """``ratio`` = fitted end over fitted beginning, ``growth`` = their difference, ``t`` = slope over its error."""

    ratio: float
    growth: float
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
    low = mean - slope * middle
    if slope <= 0 or mean <= 0:
        return Rise(1.0, 0.0, 0.0, False)
    spread = math.fsum((y - mean - slope * (i - middle)) ** 2 for i, y in enumerate(means))
    error = math.sqrt(spread / (n - 2) / sxx)
    t = slope / error if error else math.inf
    ratio = (mean + slope * middle) / low if low > 0 else math.inf
    return Rise(ratio, slope * (n - 1), t, ratio >= RISE and t > t_quantile(CONFIDENCE, n - 2))


def over_saturated(in_flight: Sequence[tuple[float, float]], ttft: Sequence[tuple[float, float]]) -> bool:
    """Both series are (seconds, value) in time order; ``ttft`` has one point per request, by its scheduled time."""
    queue, wait = rise(in_flight), rise(ttft)
    if queue is None or wait is None or not (queue.rises and wait.rises):
        return False
    span = in_flight[-1][0] - in_flight[0][0]
    since = in_flight[0][0] + min(SKIP_S, span / 4)
    arrived = sum(at >= since for at, _ in ttft)
    return queue.growth >= PILED_UP * arrived
