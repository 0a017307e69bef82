"""What is compared where the target is goodput: the rate of requests that each keep the SLO. While fewer than half keep it, their number
tells two settings badly apart, and not at all where none does; then it is the request in the middle that is compared, by how far it is
from its limits. Pure; the target itself is always held against goodput as it was measured."""

import math
from collections.abc import Sequence

from optimizer.model.measurement import LoadPoint

METRIC = "goodput_per_s"
MIDDLE = "slo_ratio_p50"  # of the median request: its value over its limit, whichever limit it is furthest beyond
NONE_SEEN = 3.0  # nothing seen where three were expected happens once in twenty


def misses(point: LoadPoint) -> float | None:
    """How many times its limit the median request takes, above 1; None where at least half of the requests keep the SLO."""
    ratio = point.metrics.get(MIDDLE)
    return ratio if ratio is not None and ratio > 1 else None


def compared(point: LoadPoint, goodput: float) -> float:
    """Requests/s that launches are compared by: goodput, or while the median request misses its limits the half of the rate over its
    miss. Both are half of the rate where the median request is exactly at its limit, so no step lies between them."""
    ratio, rate = misses(point), point.metrics.get("requests_per_s", 0.0)
    return rate / 2 / ratio if ratio is not None and rate > 0 else goodput


def counting_error(point: LoadPoint) -> float:
    """Relative sd of a goodput that is a count of requests, as ln; 0 where it says nothing of that, or where none was counted."""
    share = point.metrics.get("good_share", 0.0)
    return math.sqrt((1 - share) / (share * point.requests_ok)) if MIDDLE in point.metrics and 0 < share < 1 and point.requests_ok else 0.0


def floor_of(points: Sequence[LoadPoint]) -> float:
    """What launches differ by for counting alone: the middle of those whose goodput is what is compared."""
    errors = sorted(counting_error(point) for point in points if misses(point) is None)
    return errors[len(errors) // 2] if errors else 0.0


def said(candidate: LoadPoint, baseline: LoadPoint) -> str:
    """What a comparison was made by where it was not goodput itself; else empty."""
    if misses(candidate) is None and misses(baseline) is None:
        return ""
    now, was = candidate.metrics.get(MIDDLE, 0.0), baseline.metrics.get(MIDDLE, 0.0)
    return (
        "; where fewer than half of the requests keep the SLO, half the request rate is compared, divided by how far the median request is "
        f"beyond its limit: {was:.2f} -> {now:.2f} times the limit"
    )
