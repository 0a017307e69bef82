"""Which percentile a number of requests can carry. "p99 TTFT ≤ X at 99 % confidence" is a statement about a binomial:
out of n requests k were slower than X, and if the true share of slower requests were 1 % or more, so few would be
seen in at most 1 % of experiments. Pure; it knows nothing about what is measured.

The bound is the one-sided, distribution-free tolerance limit (Wilks, Annals of Mathematical Statistics 12 (1941)
91-96; the early-stopping rule of MLPerf inference's load generator is the same calculation). It assumes independent
requests.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

CONFIDENCE = 0.99
PERCENTILES = (50, 90, 95, 99)
# A median is a description, not a claim about a tail: it needs a middle, no more.
MEDIAN_NEEDS = 3


def chance_of_at_most(misses: int, requests: int, share: float) -> float:
    """P(at most ``misses`` of ``requests`` are slow) when each is slow with probability ``share``."""
    if misses >= requests:
        return 1.0
    log_miss, log_hit = math.log(share), math.log1p(-share)
    log_n = math.lgamma(requests + 1)
    total = 0.0
    for k in range(misses + 1):
        ways = log_n - math.lgamma(k + 1) - math.lgamma(requests - k + 1)
        total += math.exp(ways + k * log_miss + (requests - k) * log_hit)
    return min(1.0, total)


@lru_cache(maxsize=1024)
def requests_needed(percentile: float, misses: int = 0, confidence: float = CONFIDENCE) -> int:
    """Fewest requests that carry the claim with ``misses`` of them over the limit. p99: 459, 662, 838 … for 0, 1, 2
    …"""
    share = 1 - percentile / 100
    low, high = misses, max(2, 2 * misses + 2)
    while chance_of_at_most(misses, high, share) > 1 - confidence:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chance_of_at_most(misses, middle, share) > 1 - confidence else (low, middle)
    return high


@lru_cache(maxsize=4096)
def misses_allowed(percentile: float, requests: int, confidence: float = CONFIDENCE) -> int | None:
    """Most misses among ``requests`` with which the claim still holds; None when there are too few requests for any
    claim."""
    if requests < requests_needed(percentile, 0, confidence):
        return None
    low, high = 0, requests
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if requests_needed(percentile, middle, confidence) <= requests else (low, middle)
    return low


def at_most(samples: Sequence[float], percentile: float, limit: float, confidence: float = CONFIDENCE) -> bool | None:
    """Is "``percentile`` ≤ ``limit``" shown? None when there are too few samples to say so, however fast they were."""
    misses = sum(sample > limit for sample in samples)
    if len(samples) < requests_needed(percentile, 0, confidence):
        return None
    return len(samples) >= requests_needed(percentile, misses, confidence)


def upper_bound(samples: Sequence[float], percentile: float, confidence: float = CONFIDENCE) -> float | None:
    """The smallest limit X for which "``percentile`` ≤ X" is shown by ``samples``; None when there are too few."""
    allowed = misses_allowed(percentile, len(samples), confidence)
    return None if allowed is None else sorted(samples)[len(samples) - 1 - allowed]


def supported(percentile: float, requests: int) -> bool:
    """May this percentile be shown at all?"""
    return requests >= (MEDIAN_NEEDS if percentile <= 50 else requests_needed(percentile))


def quantile(ordered: Sequence[float], percentile: float) -> float:
    """Percentile of sorted samples by linear interpolation (Hyndman and Fan's type 7)."""
    at = percentile / 100 * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def percentiles(samples: Sequence[float]) -> dict[int, float]:
    """Those of 50, 90, 95 and 99 that the number of samples supports."""
    ordered = sorted(samples)
    return {p: quantile(ordered, p) for p in PERCENTILES if supported(p, len(ordered))}
