"""Drift of the box (E7): a baseline that is measured again and misses its own earlier launches by more than launches differ, an engine
build or a GPU driver that is no longer the one that was measured, or a launch that starts otherwise than the one before it with the same
settings. What was measured before then says nothing about what is measured after. Pure; what follows from it is folded by ``state``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from optimizer.core import closing, ledger
from optimizer.core.once import once_for
from optimizer.core.state import ArmState, LaunchResult, State, mean_ln
from optimizer.model.evidence import Evidence
from optimizer.model.startup import Flip
from optimizer.stats.noise import pooled_noise

# What no setting can change: these are compared across settings too, and what each says of the box.
INSTALLED = {"engine.version": "the engine on the box is another build", "gpu.driver": "the GPU driver on the box is another one"}
# Lists that logs and servers fill differently from one start to the next, and a share that the load decides.
SYMPTOMS = frozenset({"startup.warnings", "settings.resolved", "prefill.graph_used_share", "nccl.env"})
NUMBERS_DIFFER = 1.1
MAX_DRIFTS = 2  # a box that moves more often than this has no level to come back to: from then on it counts as noise


def found(state: State) -> dict[str, Any] | None:
    """The body of a ``drifted`` entry; None where the box is still what it was."""
    if state.drifts >= MAX_DRIFTS:
        return None
    return _started_otherwise(state) or _slower_or_faster(state)


def _started_otherwise(state: State) -> dict[str, Any] | None:
    """The latest launch against what it has to equal: the engine's build and the driver against the comparator's, its start-up facts
    against the launch before it with the same settings. No setting is to blame for either."""
    base = state.base_arm
    tested = state.arm(state.test.settings) if state.test is not None and state.test.settings is not None else base
    arm = max((base, tested), key=lambda one: one.results[-1].entry if one.results else 0)
    if not arm.results or arm.results[-1].entry != arm.evidence_entry:
        return None
    others = len(base.results) if arm is not base else len(base.results) - 1
    if not others:
        return None
    flips = [flip for flip in _unprovoked(arm.evidence_before, arm.evidence) if _tells(flip)]
    if arm is not base:
        told = {flip.fact for flip in flips}
        flips += [flip for flip in _unprovoked(base.evidence, arm.evidence) if flip.fact in INSTALLED and flip.fact not in told]
    if not flips:
        return None
    last, stale = arm.results[-1], _stale(state)
    said = ", ".join(f"{flip.fact} {flip.before} -> {flip.after}" for flip in flips)
    installed = [said_of for fact, said_of in INSTALLED.items() if any(flip.fact == fact for flip in flips)]
    what = " and ".join(installed) or "a launch of the same settings started otherwise"
    why = f"{what} ({said}), and no setting did that. Only what is measured from here on is compared.{_again(stale)}"
    return {
        "fingerprint": arm.settings.digest, "launch": last.launch, "entry": last.entry, "value": last.value, "flips": [flip.plain() for flip in flips],
        "launches_before": others, "stale": stale, "why": why,
    }  # fmt: skip


def _unprovoked(before: Evidence, now: Evidence) -> tuple[Flip, ...]:
    """What differs between two launches, whatever settings may have done it: asked at every decision until the next launch."""
    return once_for("unprovoked flips", lambda: ledger.flips(before, now, {}, {}), before, now)


def _tells(flip: Flip) -> bool:
    """Whether a difference between two starts of the same settings shows that the box has changed: not what is drawn anew at every start,
    nor a number within the room that free memory leaves."""
    if flip.minor or flip.fact in SYMPTOMS:
        return False
    if isinstance(flip.before, int | float) and isinstance(flip.after, int | float) and not isinstance(flip.before, bool):
        return min(flip.before, flip.after) <= 0 or max(flip.before, flip.after) / min(flip.before, flip.after) > NUMBERS_DIFFER
    return True


def _stale(state: State) -> list[str]:
    return sorted(name for name, belief in state.beliefs.items() if belief.status in ("pruned", "deferred") and belief.verdict != "infeasible")


def _again(stale: list[str]) -> str:
    return f" Verdicts on {', '.join(stale)} were measured before it and are open again." if stale else ""


def _slower_or_faster(state: State) -> dict[str, Any] | None:
    arm = state.base_arm
    if len(arm.results) < 2 or arm.results[-1].purpose != "baseline":
        return None
    last, others = arm.results[-1], arm.results[:-1]
    if len(others) == 1 and not _launched_between(state, others[0], last):
        return None  # two launches in a row are the first pair: how much they differ is the noise (E2)
    policy = closing.policy(state)
    noise = pooled_noise([replace(one, results=others).arm() if one is arm else one.arm() for one in closing.arms_of(state)], policy)
    mean = mean_ln(others)
    miss, limit = last.ln - mean, policy.drift_sd * noise.sd * math.sqrt(1 + 1 / len(others))
    if abs(miss) <= limit:
        return None
    stale = _stale(state)
    before = closing.value_of(others)
    why = (
        f"the baseline, measured again, gives {last.value:.4g} where its {len(others)} launch{'es' if len(others) > 1 else ''} before gave {before:.4g} "
        f"(×{math.exp(miss):.3f}; launches of one setting stay within ×{math.exp(-limit):.3f} to ×{math.exp(limit):.3f} here): the box itself is not what "
        f"it was (clocks, temperature, another tenant). Only what is measured from here on is compared.{_again(stale)}"
    )
    return {
        "fingerprint": arm.settings.digest, "launch": last.launch, "entry": last.entry, "value": last.value, "before": before, "ratio": math.exp(miss),
        "limit": math.exp(limit), "sd": noise.sd, "launches_before": len(others), "stale": stale, "why": why,
    }  # fmt: skip


def _launched_between(state: State, first: LaunchResult, last: LaunchResult) -> bool:
    """Whether something else was measured between the two: then the second one is a re-measurement."""
    others: list[ArmState] = [arm for arm in state.arms.values() if arm.settings.digest != state.baseline.digest]
    return any(first.entry < result.entry < last.entry for arm in others for result in (*arm.results, *arm.earlier))
