"""The knee finder: the largest load that meets a target, in few steps. Pure: it is told what was measured and says which
load to offer next. It knows neither servers nor metrics; how far a load is from its bounds comes as one number.

Loads double (or halve) until one meets the target and one does not. Between them the next load is where a line through
the logarithms of load and strain would cross 1; queues bend upwards, so such a line alone creeps up from one side, and
every second guess is the middle instead.
"""

import math
from collections.abc import Mapping

from optimizer.model.base import FiniteFloat, Frozen

RESOLUTION = 0.08  # load levels closer than this are one level: an unchanged server varies by as much between launches
MOST_STEPS = 14
FAILED = math.inf  # strain of a load under which requests failed or the queue grew without end


class Knee(Frozen):
    """``good``: the largest load that met the target, None if none did. ``bad``: the smallest that did not, None if every
    load up to ``highest`` met it."""

    good: FiniteFloat | None
    bad: FiniteFloat | None
    steps: int


def next_load(strains: Mapping[float, float], *, start: float, lowest: float, highest: float, whole: bool) -> float | None:
    """The load to offer next; None when the knee is known to within ``RESOLUTION`` (or to one, with ``whole`` loads).

    ``strains``: load -> the largest of measured / allowed over all bounds; up to 1 meets the target."""
    if not strains:
        return _clamped(start, lowest, highest, whole)
    if len(strains) >= MOST_STEPS:
        return None
    found = knee(strains)
    if found.good is None:
        assert found.bad is not None
        return None if found.bad <= lowest else _clamped(found.bad / 2, lowest, highest, whole)
    if found.bad is None:
        return None if found.good >= highest else _clamped(found.good * 2, lowest, highest, whole)
    good, bad = found.good, found.bad
    if bad / good <= 1 + RESOLUTION or (whole and bad - good <= 1):
        return None
    low, high = math.log(good), math.log(bad)
    middle = (low + high) / 2
    at, over = math.log(max(1e-9, strains[good])), strains[bad]
    guess = middle
    inside = sum(1 for load in strains if good <= load <= bad)
    if math.isfinite(over) and len(strains) % 2 == 0 and inside >= 2 and math.log(over) > at:
        guess = low + (high - low) * (0 - at) / (math.log(over) - at)
    # Never so close to an end that the step could teach nothing.
    guess = min(max(guess, low + 0.15 * (high - low)), high - 0.15 * (high - low))
    wanted = _clamped(math.exp(guess), lowest, highest, whole)
    if wanted in strains or not good < wanted < bad:
        wanted = _clamped(math.exp(middle), lowest, highest, whole)
    return None if wanted in strains or not good < wanted < bad else wanted


def knee(strains: Mapping[float, float]) -> Knee:
    """What is known so far. A load that met the target above one that did not is an accident of noise and does not count."""
    bad = min((load for load, strain in strains.items() if not strain <= 1), default=None)
    good = max((load for load, strain in strains.items() if strain <= 1 and (bad is None or load < bad)), default=None)
    return Knee(good=good, bad=bad, steps=len(strains))


def _clamped(load: float, lowest: float, highest: float, whole: bool) -> float:
    load = min(highest, max(lowest, load))
    return float(round(load)) if whole else float(f"{load:.4g}")
