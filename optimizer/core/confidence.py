"""How sure a result is, as somebody who runs it tomorrow asks it: the chance that one more launch of the same settings meets the target.
For people; no decision rests on it. Pure."""

from __future__ import annotations

import math
from typing import Any

from optimizer.core import closing, goodput
from optimizer.core.state import State, log_value, mean_ln
from optimizer.stats.interval import t_cdf


def next_launch(state: State) -> dict[str, Any] | None:
    """``probability`` that another launch of what the study ends with meets the target's primary ``bound``, predicted from its
    ``launches`` and the noise between launches (Student's t); None where nothing was measured or no bound is asked for. A goodput's
    launches differ by counting as well, and have no such prediction."""
    bound = state.spec.target.primary if state.spec is not None else None
    arm = state.base_arm if closing.is_kept(state) else state.first_arm
    if bound is None or not arm.results or bound.value <= 0 or bound.metric in (goodput.METRIC, "error_rate") or min(one.value for one in arm.results) <= 0:
        return None
    noise = closing.pooled(state)
    distance = mean_ln(arm.results) - log_value(bound.value, bound.direction)
    t = distance / (noise.sd * math.sqrt(1 + 1 / len(arm.results)))
    return {"probability": t_cdf(t, noise.degrees_of_freedom), "bound": bound.text, "launches": len(arm.results), "noise": noise.sd}
