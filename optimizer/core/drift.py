"""Drift of the box: a baseline that is measured again and misses its own earlier launches by more than launches differ (E7). What was
measured before it then says nothing about what is measured after it. Pure; what follows from it is folded by ``state``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from optimizer.core import closing
from optimizer.core.state import ArmState, LaunchResult, State
from optimizer.stats.noise import pooled_noise

MAX_DRIFTS = 2  # a box that moves more often than this has no level to come back to: from then on it counts as noise


def found(state: State) -> dict[str, Any] | None:
    """The body of a ``drifted`` entry; None where the baseline still gives what it gave."""
    arm = state.base_arm
    if state.drifts >= MAX_DRIFTS or len(arm.results) < 2 or arm.results[-1].purpose != "baseline":
        return None
    last, others = arm.results[-1], arm.results[:-1]
    if len(others) == 1 and not _launched_between(state, others[0], last):
        return None  # two launches in a row are the first pair: how much they differ is the noise (E2)
    policy = closing.policy(state)
    noise = pooled_noise([replace(one, results=others).arm() if one is arm else one.arm() for one in closing.arms_of(state)], policy)
    mean = math.fsum(item.ln for item in others) / len(others)
    miss, limit = last.ln - mean, policy.drift_sd * noise.sd * math.sqrt(1 + 1 / len(others))
    if abs(miss) <= limit:
        return None
    stale = sorted(name for name, belief in state.beliefs.items() if belief.status in ("pruned", "deferred") and belief.verdict != "infeasible")
    again = f" Verdicts on {', '.join(stale)} were measured before it and are open again." if stale else ""
    before = math.exp(math.fsum(math.log(max(item.value, 1e-3)) for item in others) / len(others))
    why = (
        f"the baseline, measured again, gives {last.value:.4g} where its {len(others)} launch{'es' if len(others) > 1 else ''} before gave {before:.4g} "
        f"(×{math.exp(miss):.3f}; launches of one setting stay within ×{math.exp(-limit):.3f} to ×{math.exp(limit):.3f} here): the box itself is not what "
        f"it was (clocks, temperature, another tenant). Only what is measured from here on is compared.{again}"
    )
    return {
        "fingerprint": arm.settings.digest, "launch": last.launch, "entry": last.entry, "value": last.value, "before": before, "ratio": math.exp(miss),
        "limit": math.exp(limit), "sd": noise.sd, "launches_before": len(others), "stale": stale, "why": why,
    }  # fmt: skip


def _launched_between(state: State, first: LaunchResult, last: LaunchResult) -> bool:
    """Whether something else was measured between the two: then the second one is a re-measurement."""
    others: list[ArmState] = [arm for arm in state.arms.values() if arm.settings.digest != state.baseline.digest]
    return any(first.entry < result.entry < last.entry for arm in others for result in (*arm.results, *arm.earlier))
