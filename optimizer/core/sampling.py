"""What a sampler is asked for and what becomes of its answer: the dimensions that are left on this build, what it may know (this
study's launches, those of other boxes and of earlier studies), and the rules that a proposal has to pass before it is launched."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from optimizer.core import boxes, since
from optimizer.core.plan import Plan
from optimizer.core.predicate import Look, evaluate, operands
from optimizer.core.prior import Match, compared, is_like_here
from optimizer.core.refuse import Ground, first_of_itself, never_starts, refuse
from optimizer.core.resolve import in_range
from optimizer.core.state import ArmState, Belief, State, Test, mean_ln, metric_value
from optimizer.core.whole_space import as_point
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json
from optimizer.model.playbook import Predicate, SpaceAction
from optimizer.model.prior import EarlierStudy
from optimizer.model.space import ARM, Param, Refusal, Space, Trial

MOST_REJECTED = 16  # proposals that a rule refused, for one test: then nothing is left that may be launched
MOST_REJECTED_OF_AN_ARM = 64  # it moves every parameter at once, so that most of its points break some rule
WORTH_A_LAUNCH = math.log(1.02)  # over the current baseline: what an earlier study must have seen of a point that is tried first
MOST_TRY_FIRST = 2
MOST_EARLIER_TRIALS = 200


def screens(state: State) -> bool:
    """Whether this study's proposals pass the rules before they are launched."""
    return since.decides_by(state.spec, since.SCREENED_PROPOSALS)


def live_params(space: Space, action: SpaceAction, look: Look) -> list[Param]:
    """The parameters of the space that the action asks for and whose condition is not known to be false."""
    wanted = set(action.only)
    return [
        param
        for param in space.params
        if (not wanted or param.name in wanted) and (param.when is None or evaluate(param.when, look) is not False)
    ]


def asks_itself(param: Param) -> bool:
    """A parameter that exists only where somebody has set it: the sampler, which leaves things unset, cannot decide that."""
    return param.when is not None and {item.name for item in operands(param.when)} == {param.name}


def sampled_params(space: Space, action: SpaceAction, look: Look) -> list[Param]:
    """``live_params`` without those that exist only where somebody has set them, and nobody has."""
    return [
        param for param in live_params(space, action, look)
        if param.when is None or not asks_itself(param) or evaluate(param.when, look) is True
    ]  # fmt: skip


def dimensions(params: Sequence[Param], ground: Ground) -> tuple[list[str], dict[str, list[Value]], dict[str, str]]:
    """(names that can be given on this build, what is left of their values where some are refused, name -> why it is left out)."""
    names, grids, out = [], {}, {}
    for param in params:
        values: list[Value] = list(param.grid) or ([False, True] if param.type == "bool" else [param.low if param.low is not None else 0])
        refused = {canonical_json(value): found for value in values if (found := _never(param.name, value, ground)) is not None}
        left = [value for value in values if canonical_json(value) not in refused]
        if not left:
            out[param.name] = next(iter(refused.values())).why
            continue
        names.append(param.name)
        if refused and (param.grid or param.type == "bool"):
            grids[param.name] = left
    return names, grids, out


def startable(
    params: Sequence[Param], names: Sequence[str], grids: Mapping[str, list[Value]], ground: Ground, searched: Collection[str]
) -> tuple[list[str], dict[str, list[Value]], dict[str, str]]:
    """``dimensions`` without the values with which the engine does not start here whatever the other searched settings are going to be:
    (names, what is left of their values, name -> why nothing is left of it)."""
    kept, left, out = list(names), dict(grids), {}
    for param in params:
        if param.name not in kept:
            continue
        values = left.get(param.name) or list(param.grid) or ([False, True] if param.type == "bool" else [])
        never = {canonical_json(value): why for value in values if (why := never_starts(param.name, value, ground, searched))}
        if never and len(never) == len(values):
            kept.remove(param.name)
            out[param.name] = next(iter(never.values()))
        elif never:
            left[param.name] = [value for value in values if canonical_json(value) not in never]
    return kept, left, out


def _never(name: str, value: Value, ground: Ground) -> Refusal | None:
    """Why the value is refused whatever stands beside it; None when that depends."""
    return first_of_itself({name: value}, ground)


def held(state: State, plan: Plan, test: Test) -> dict[str, Value]:
    """The settings in force that decide which of the space's parameters exist, beside those that are searched."""
    space = plan.space(test.space or "")
    if space is None or not screens(state):
        return dict(test.fixed)
    predicates: Iterable[Predicate] = (param.when for param in space.params if param.when is not None and param.name in test.space_params)
    asked = sorted({item.name for predicate in predicates for item in operands(predicate) if item.kind == "setting"})
    in_force = state.effective
    return {**{name: in_force[name] for name in asked if in_force.get(name) is not None and name not in test.space_params}, **test.fixed}


# ---- what the sampler may know --------------------------------------------------------------------------------------


def history(state: State, plan: Plan, test: Test) -> tuple[Trial, ...]:
    """Every launch of this study, of its other boxes and of earlier studies, as values of the space's parameters; and what a rule of
    the engine or the memory model refused, as what cannot run."""
    if test.hypothesis == ARM:
        return _of_an_arm(state, plan, test)
    rows, declared = [], _declared(plan, test)
    for arm in state.arms.values():
        params = _restricted(_point_of(state, arm), test, declared)
        value = mean_ln(arm.results) if arm.results else None
        if value is not None or arm.crashed:
            rows.append(Trial(params=params, value=value, infeasible=value is None, violations=_violations(state, arm), second=_second(state, arm)))
    for arm, carried in boxes.measured_elsewhere(state):
        params = _restricted(arm.settings.values, test, declared)
        rows.append(Trial(params=params, value=carried, infeasible=carried is None, violations=_violations(state, arm)))
    if not screens(state):
        return tuple(rows)
    first = {canonical_json(point) for point in try_first(state, plan, test)}
    rows += [trial for trial in _earlier(state, plan, test) if canonical_json(trial.params) not in first]
    rows += [Trial(params=dict(one["params"]), value=None, infeasible=True, note="refused before a launch") for one in test.rejected if one["infeasible"]]
    return tuple(rows)


def _of_an_arm(state: State, plan: Plan, test: Test) -> tuple[Trial, ...]:
    """What a plain sampler knows: the launches of this study and what was refused, and nothing of any other study."""
    space = plan.space(test.space or "")
    assert space is not None
    params, fixed, rows = [param for param in space.params if param.name in test.space_params], held(state, plan, test), []
    for digest, arm in state.arms.items():
        point = state.points.get(digest) or as_point({**state.given, **arm.settings.values}, arm.effective, params, fixed, test.grids)
        value = mean_ln(arm.results) if arm.results else None
        if value is not None or arm.crashed:
            rows.append(Trial(params=dict(point), value=value, infeasible=value is None, violations=_violations(state, arm)))
    refused = (dict(one["point"]) for one in test.rejected if one["infeasible"])
    return (*rows, *(Trial(params=point, value=None, infeasible=True, note="refused before a launch") for point in refused))


def try_first(state: State, plan: Plan, test: Test) -> tuple[dict[str, Value], ...]:
    """Points with which an earlier study of this class of box was faster than what runs now, best first, unless they were tried here."""
    if not screens(state) or not state.base_arm.results or test.hypothesis == ARM:
        return ()
    now = mean_ln(state.base_arm.results)
    declared = _declared(plan, test)
    here = {canonical_json(_restricted(_point_of(state, arm), test, declared)) for arm in state.arms.values()}
    rejected = {canonical_json(dict(one["params"])) for one in test.rejected}
    better = [
        trial for trial in _earlier(state, plan, test)
        if trial.value is not None and trial.value > now + WORTH_A_LAUNCH and trial.params
        # Others stay in the history, where the sampler's answer names what today's space has no place for.
        and all(name in declared and in_range(declared[name], value) for name, value in trial.params.items())
    ]  # fmt: skip
    better.sort(key=lambda trial: (-(trial.value or 0.0), canonical_json(trial.params)))
    found: dict[str, dict[str, Value]] = {canonical_json(trial.params): dict(trial.params) for trial in better}
    return tuple(point for key, point in found.items() if key not in here and key not in rejected)[:MOST_TRY_FIRST]


def _point_of(state: State, arm: ArmState) -> Mapping[str, Value]:
    """What an arm ran with: where nobody gave a value, the one that its server reported."""
    given = {**state.given, **arm.settings.values}
    return {**arm.effective, **{name: value for name, value in given.items() if value is not None}} if screens(state) else given


def _declared(plan: Plan, test: Test) -> dict[str, Param]:
    space = plan.space(test.space or "")
    return {param.name: param for param in space.params} if space is not None else {}


def _restricted(point: Mapping[str, Value], test: Test, declared: Mapping[str, Param]) -> dict[str, Value]:
    """What of a point the searched parameters are, each value under the one name that the space has for it."""
    given = {name: point[name] for name in test.space_params if point.get(name) is not None}
    return {name: declared[name].one(value) if name in declared else value for name, value in given.items()}


def _earlier(state: State, plan: Plan, test: Test) -> list[Trial]:
    """The launches of earlier studies that compare with this one's: their ratio to their own baseline, carried over to ours."""
    assert state.spec is not None
    base = state.first_arm.results or state.first_arm.earlier
    if not base:
        return []
    here, declared = mean_ln(base), _declared(plan, test)
    found: list[Trial] = []
    for study in state.spec.earlier:
        if not _comparable(state, study):
            continue
        for arm in study.arms:
            params = _restricted({**study.given, **arm.settings}, test, declared)
            if params and len(found) < MOST_EARLIER_TRIALS:
                value = None if arm.ln is None else round(here + arm.ln, 9)
                found.append(Trial(params=params, value=value, infeasible=value is None, note=f"study {study.name}"))
    return found


def _comparable(state: State, study: EarlierStudy) -> bool:
    match = compared(state, study)
    return isinstance(match, Match) and is_like_here(match)


def pending_points(state: State, plan: Plan, test: Test) -> tuple[dict[str, Value], ...]:
    """What other boxes measure at this moment, as values of the space's parameters: the sampler looks elsewhere."""
    points: list[dict[str, Value]] = []
    for peer in state.peers:
        if peer.test is not None and peer.test.settings is not None:
            point = _restricted(peer.test.settings.values, test, _declared(plan, test))
            points += [point] if point else []
    return tuple(points)


def rejected_points(test: Test) -> tuple[dict[str, Value], ...]:
    """Proposals that a rule refused although they might run: not to be proposed again. The others are in ``history``."""
    asked = "point" if test.hypothesis == ARM else "params"
    return tuple(dict(one[asked]) for one in test.rejected if not one["infeasible"])


def _second(state: State, arm: ArmState) -> float | None:
    """The other side of a trade-off: ln of the latency of the latest launch, negated."""
    assert state.spec is not None
    value = arm.results[-1].points[0].metrics.get(state.spec.tradeoff) if state.spec.tradeoff and arm.results else None
    return round(-math.log(value), 9) if value is not None and value > 0 else None


def _violations(state: State, arm: ArmState) -> dict[str, float]:
    """How far the latest launch of an arm is beyond each guard, in shares of it; at most 0 where the guard holds."""
    assert state.spec is not None
    if not arm.results:
        return {}
    found = {}
    for guard in state.spec.target.guards:
        value = metric_value(arm.results[-1].points[0], guard.metric)
        if value is not None:
            beyond = guard.value - value if guard.direction == "at_least" else value - guard.value
            found[guard.text] = round(beyond / max(abs(guard.value), 1e-9), 6)
    return found


# ---- what became of the answer --------------------------------------------------------------------------------------


def refused_proposal(state: State, test: Test, ground: Ground, tried: set[str]) -> dict[str, Any] | None:
    """Why the proposal is not launched, as the body of ``refused``: another one is asked for, or (``hypothesis``' test ends) none is
    left. None where it may be launched, or was already."""
    if test.space is None or test.settings is None or not screens(state):
        return None
    if test.hypothesis == ARM and test.point:
        return _refused_of_an_arm(state, test, ground, tried)
    arm = state.arm(test.settings)
    if test.changes and (arm.results or arm.crashed or arm.given_up or (state.server is not None and state.server.settings == test.settings)):
        return None
    if not test.changes:
        why = f"No point of {test.space} is left that is worth a launch."
        return {"kind": "unavailable", "hypothesis": test.hypothesis, "params": {}, "why": why, "source": "sampler", "space": test.space}
    refusals = refuse(test.changes, ground, tried=tried)
    if not refusals:
        return None
    found = {**refusals[0].plain(), "params": dict(test.changes), "hypothesis": test.hypothesis}
    return _rejected(test, found, MOST_REJECTED)


def _refused_of_an_arm(state: State, test: Test, ground: Ground, tried: set[str]) -> dict[str, Any] | None:
    """The same for a point that moves every parameter at once: what does nothing beside the rest is left out of it, and the rest launched."""
    assert test.settings is not None
    under_test = state.arm(test.settings)
    if test.settings.digest in state.beliefs.get(ARM, Belief()).tried:
        said = {"kind": "duplicate", "why": "This study has launched these settings already.", "source": "this study"}
    elif under_test.results or under_test.crashed or (state.server is not None and state.server.settings == test.settings):
        return None
    elif not test.changes:
        said = {"kind": "duplicate", "why": "Nothing of it does anything here.", "source": "this study"}
    elif not (refusals := refuse(test.changes, ground, tried=tried)):
        return None
    elif refusals[0].kind not in ("infeasible", "duplicate"):
        return {**refusals[0].plain(), "hypothesis": test.hypothesis, "about": "part"}
    else:
        said = refusals[0].plain()
    return _rejected(test, {**said, "params": dict(test.changes), "hypothesis": test.hypothesis}, MOST_REJECTED_OF_AN_ARM)


def _rejected(test: Test, found: dict[str, Any], most: int) -> dict[str, Any]:
    if len(test.rejected) + 1 >= most:
        return {**found, "space": test.space, "why": f"{most} proposals in a row may not be launched; the last: {found['why']}"}
    return {**found, "about": "proposal"}
