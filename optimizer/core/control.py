"""A control arm: a study whose launches are points of the whole space that a plain sampler asked for, which knows no cause, so that what
evidence saves can be measured on the same box. Launches, measurements, refusals and the way back are those of every study. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optimizer.core import closing, sampling, verdicts
from optimizer.core.plan import Plan
from optimizer.core.predicate import Look, evaluate, operands
from optimizer.core.refuse import Ground
from optimizer.core.state import State, mean_ln
from optimizer.core.whole_space import whole
from optimizer.model.base import Value
from optimizer.model.playbook import SpaceAction
from optimizer.model.space import ALONE, ARM, Param

_NAMED = 6  # parameters, and reasons, that a sentence names


def is_arm(state: State) -> bool:
    """Whether a plain sampler decides what this study launches."""
    return state.spec is not None and state.spec.policy != "evidence"


def searching(state: State) -> bool:
    """Whether the sampler has launches left. The last one that the budget allows is the confirmation of the best."""
    confirming = state.server is not None and state.server.purpose == "confirm"
    return not (confirming or state.promoted or _confirmed(state) or _exhausted(state) or closing.over_budget(state, reserve=1))


def chosen(state: State, plan: Plan, look: Look, ground: Ground) -> dict[str, Any]:
    """The next point is the sampler's: the body of ``chosen``, with what it may move on this build and why the rest is left out."""
    assert state.spec is not None
    engine = str((state.survey or {}).get("engine", ""))
    asked, params, out = set(state.spec.params), dict[str, Param](), dict[str, str]()
    spaces = [space for space in plan.spaces if space.engine in ("any", engine)]
    searched = asked or {param.name for space in spaces for param in space.params}
    # What the sampler sets itself is not known yet: a parameter that needs it stays in.
    free = Look(look.facts, {name: value for name, value in look.settings.items() if name not in searched}, look.box)
    for space in spaces:
        only = tuple(param.name for param in space.params if param.name in searched)
        if space.requires is not None and evaluate(space.requires, look) is False:
            out.update(dict.fromkeys(only, space.why_not or f"{space.id} does not apply here."))
        elif only:
            live = sampling.live_params(space, SpaceAction(space=space.id, only=only), free)
            params |= {param.name: param for param in live if param.name not in params and (not sampling.asks_itself(param) or state.given.get(param.name) is not None)}
    # Nor is what is dead only beside another setting that is searched: sizes of graphs that are off now.
    dead = [item for item in ground.dead if item.when is None or not {one.name for one in operands(item.when) if one.kind == "setting"} & searched]
    names, grids, left_out = sampling.dimensions(list(params.values()), replace(ground, dead=dead))
    names, grids, never = sampling.startable(list(params.values()), names, grids, ground, searched)
    left_out |= never
    for param in params.values():
        if param.name in names and param.type == "choice":  # a sampler has to be able to leave a choice alone, or it would have to speculate
            grids[param.name] = [*grids.get(param.name, param.grid), ALONE]
    out.update(dict.fromkeys(sorted(asked - set(params) - set(out)), "Nothing sets it on this build."))
    nothing: dict[str, Value] = {}
    return {
        "hypothesis": ARM, "claim": f"Control arm: {_sampler(state)} over {len(names)} parameters.", "family": "search", "ratio": None,
        "probability": 0.5, "score_db": 0.0, "value": 0.0, "discriminating_test": "One launch for each point.", "changes": None,
        "space": whole(engine), "space_params": names, "fixed": nothing, "grids": grids, "left_out": {**out, **left_out},
    }  # fmt: skip


def without_a_point(state: State, plan: Plan, look: Look, ground: Ground) -> str:
    """Why there is nothing for the sampler to launch, known from the build's help and the rules before anything was launched; empty
    where a point may exist. What is not known yet refuses nothing."""
    assert state.spec is not None
    body = chosen(state, plan, look, ground)
    if body["space_params"]:
        return ""
    asked = state.spec.params
    reasons: dict[str, list[str]] = {}
    for name in asked or sorted(body["left_out"]):
        reasons.setdefault(str(body["left_out"].get(name, "it does not exist here")), []).append(name)
    said = [f"{', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}: {why}" for why, names in list(reasons.items())[:_NAMED]]
    more = "Name others with --params, or leave it out: then all parameters that this build offers are searched." if asked else "No space of this engine has a parameter left."
    return f"Control arm: no point of {'--params ' + ','.join(asked) if asked else 'any space'} exists here, so nothing was launched, the baseline included. {' '.join(said)} {more}"


def best(state: State) -> dict[str, Any] | None:
    """Once the launches are spent: the fastest point that kept its guards, to be promoted and confirmed by a fresh launch; None where the
    server as found was never beaten, or the best was confirmed already."""
    if state.promoted or _confirmed(state) or not state.base_arm.results or closing.over_budget(state, reserve=0):
        return None
    allowed = [arm for arm in state.arms.values() if arm.results and not verdicts.broken_guard(state, arm, state.base_arm)]
    first = max(allowed, key=lambda arm: (mean_ln(arm.results), arm.settings.digest), default=state.base_arm)
    if first.settings == state.baseline or mean_ln(first.results) <= mean_ln(state.base_arm.results):
        return None
    launches, ratio = sum(bool(arm.results or arm.crashed) for arm in state.arms.values()) - 1, math.exp(mean_ln(first.results) - mean_ln(state.base_arm.results))
    return {
        "hypothesis": ARM, "changes": dict(first.settings.values), "verdict": "unresolved",
        "why": f"×{ratio:.3f} of the server as found, the best of {launches} points; the best of many looks better than it is, so a fresh launch decides.",
        "settings": dict(first.settings.values), "before": dict(state.baseline.values), "companions": [],
    }  # fmt: skip


def ending(state: State) -> str:
    """Why the study ends where its target was not shown."""
    tried = [arm for arm in state.arms.values() if arm.settings != state.first_arm.settings]
    ran, crashed = sum(bool(arm.results) for arm in tried), sum(bool(arm.crashed) for arm in tried)
    why = next((str(item["why"]) for item in state.refusals if _ends(item)), "The budget is spent.")
    confirmed = state.base_arm.confirmed if state.promoted else None
    if confirmed and not closing.is_refuted(state):
        kept = f"Best confirmed: {confirmed.value:.4g}."
    else:
        kept = "The best of them could not be confirmed by a fresh launch." if state.promoted and not confirmed else "Nothing is kept."
    return f"Control arm, {_sampler(state)}: {ran + crashed} points launched, {crashed} of them do not run. {why} {kept}"


def _sampler(state: State) -> str:
    assert state.spec is not None
    return "Optuna's TPE" if state.spec.policy == "tpe" else "random search"


def _exhausted(state: State) -> bool:
    """Whether no point is left: the sampler said so, or its proposals were all refused."""
    return any(_ends(item) for item in state.refusals)


def _ends(refusal: Mapping[str, Any]) -> bool:
    return refusal.get("hypothesis") == ARM and refusal.get("about") is None


def _confirmed(state: State) -> bool:
    return any(arm.confirmations for arm in state.arms.values())
