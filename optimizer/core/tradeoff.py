"""A study with ``--tradeoff``: after the causes, points of the spaces are measured for the front of throughput against a latency, until the
front no longer grows. Also what the front is. Pure; a point that was not measured is not in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.core import boxes, closing, sampling
from optimizer.core.dimensions import RULED_OUT_PROBABILITY, touched_by
from optimizer.core.plan import Plan
from optimizer.core.predicate import Look, evaluate
from optimizer.core.refuse import Ground
from optimizer.core.resolve import in_range, is_formula
from optimizer.core.score import Scored
from optimizer.core.since import FRONT_PRUNED, STARTABLE, decides_by
from optimizer.core.state import ArmState, Belief, State
from optimizer.model.base import Value
from optimizer.model.playbook import Playbook, SetAction, SpaceAction
from optimizer.model.settings import Settings
from optimizer.model.space import Space

TRADEOFF = "tradeoff"  # the name under which its launches are tested and judged
RATE = "output_tokens_per_s"
ENOUGH = 3  # points in a row that enlarge the front by less than GROWTH end the search
GROWTH = 0.01
MARGIN = 0.05  # ln, below the worst of both sides: where the area under the front is measured from


@dataclass(frozen=True)
class FrontPoint:
    """One setting at one load: geometric means over its launches. ``latency_ms`` of the metric that was asked for."""

    settings: Settings
    concurrency: int
    rate: float
    latency_ms: float
    launches: int


def measured(state: State, latency: str, concurrency: int | None = None) -> list[FrontPoint]:
    """Every setting and load level of which both sides are known; with ``concurrency`` only that level."""
    return [point for arm in state.arms.values() for point in _points(arm, latency, concurrency)]


def _points(arm: ArmState, latency: str, concurrency: int | None) -> list[FrontPoint]:
    levels = sorted({point.concurrency for result in arm.results for point in result.points})
    found = []
    for level in levels if concurrency is None else (concurrency,):
        seen = [point.metrics for result in arm.results for point in result.points if point.concurrency == level]
        both = [(metrics[RATE], metrics[latency]) for metrics in seen if metrics.get(RATE, 0) > 0 and metrics.get(latency, 0) > 0]
        if both:
            rate, delay = (math.exp(math.fsum(math.log(pair[side]) for pair in both) / len(both)) for side in (0, 1))
            found.append(FrontPoint(arm.settings, level, rate, delay, len(both)))
    return found


def front(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Those that no other beats in both at once, the fastest first."""
    found = [point for point in points if not any(_beats(other, point) for other in points)]
    return sorted(found, key=lambda point: (-point.rate, point.latency_ms, point.concurrency, point.settings.digest))


def _beats(other: FrontPoint, point: FrontPoint) -> bool:
    no_worse = other.rate >= point.rate and other.latency_ms <= point.latency_ms
    return no_worse and (other.rate > point.rate or other.latency_ms < point.latency_ms)


def area(points: Sequence[FrontPoint], rate: float, latency_ms: float) -> float:
    """The area (in ln of both) that the points dominate over a reference of this rate and latency: its hypervolume."""
    total, worst = 0.0, 0.0
    for point in front(points):  # the fastest first, each slower one has a smaller latency
        wide, deep = math.log(point.rate / rate), math.log(latency_ms / point.latency_ms)
        if wide > 0 and deep > worst:
            total += wide * (deep - worst)
            worst = deep
    return total


# ---- the search -----------------------------------------------------------------------------------------------------


def wanted(state: State) -> bool:
    """Whether this study still searches the front."""
    return bool(state.spec is not None and state.spec.tradeoff and sampling.screens(state) and state.base_arm.results) and not _finished(state)


def _finished(state: State) -> bool:
    confirming = state.server is not None and state.server.purpose == "confirm" and state.server.status in ("launched", "ready")
    return confirming or closing.over_budget(state, reserve=1) or stalled(state)


def stalled(state: State) -> bool:
    """Whether the latest points have not enlarged the front any more."""
    assert state.spec is not None
    tried = state.beliefs.get(TRADEOFF, Belief()).tried
    if len(tried) < ENOUGH:
        return False
    points = measured(state, state.spec.tradeoff, state.spec.workload.concurrency)
    if not points:
        return True  # nothing tells this latency: no point of a front will ever be known
    rate, latency = min(point.rate for point in points) * math.exp(-MARGIN), max(point.latency_ms for point in points) * math.exp(MARGIN)
    late = tried[-ENOUGH:]
    before = area([point for point in points if point.settings.digest not in late], rate, latency)
    return area(points, rate, latency) <= before * (1 + GROWTH)


def chosen(state: State, plan: Plan, look: Look, ground: Ground, scored: Sequence[Scored] = ()) -> dict[str, Any] | None:
    """The next point of the front to measure, as the body of ``chosen``; None when no space has one left. ``scored``: what the evidence and
    the launches say of every cause."""
    assert state.spec is not None
    if not wanted(state) or TRADEOFF in boxes.pending(state):
        return None
    done = {str(item.get("space")) for item in state.refusals if item.get("hypothesis") == TRADEOFF and item.get("about") is None}
    engine, spaces, without = str((state.survey or {}).get("engine", "")), [], dict[str, str]()
    every = {space.id: [param.name for param in space.params] for space in plan.spaces}
    moved = {name for book in plan.playbooks for name in touched_by(book, engine, every)}
    for space in plan.spaces:
        if space.id in done or space.engine not in ("any", engine) or (space.requires is not None and evaluate(space.requires, look) is False):
            continue
        params = sampling.sampled_params(space, SpaceAction(space=space.id), look)
        names, grids, out = sampling.dimensions(params, ground)
        if decides_by(state.spec, STARTABLE):
            names, grids, never = sampling.startable(params, names, grids, ground, set(names))
            out |= never
        # A point that moves a dozen settings nobody expects anything of says little: only those that cure some cause are moved.
        names = [name for name in names if name in moved] if moved & {name for listed in every.values() for name in listed} else names
        if decides_by(state.spec, FRONT_PRUNED):
            gone = _ruled_out(state, plan, space, names, scored)
            names, out = [name for name in names if name not in gone], {**out, **gone}
            without |= {} if names else gone
        if names:
            spaces.append((space.id, names, {name: left for name, left in grids.items() if name in names}, out))
    if not spaces:
        return None
    # What decides how many requests share a step comes first; then every space has its turn.
    spaces.sort(key=lambda item: not item[0].endswith("/scheduler"))
    space_id, names, grids, out = spaces[len(state.beliefs.get(TRADEOFF, Belief()).tried) % len(spaces)]
    empty: dict[str, Value] = {}
    return {
        "hypothesis": TRADEOFF, "claim": f"Other settings trade {RATE} for {state.spec.tradeoff}.", "family": "search", "ratio": None,
        "probability": 0.5, "score_db": 0.0, "value": 0.0, "discriminating_test": "One launch for each point.", "changes": None,
        "space": space_id, "space_params": names, "fixed": empty, "grids": grids, "left_out": {**without, **out},
    }  # fmt: skip


def _ruled_out(state: State, plan: Plan, space: Space, names: Sequence[str], scored: Sequence[Scored]) -> dict[str, str]:
    """name -> why it leaves the space: every cause that would give it a value of this space is ruled out, one of them by a launch that is
    beaten in both rate and latency. A cause that the evidence alone excludes takes nothing away: what costs no rate may still trade it."""
    by_id = {item.id: item for item in scored}
    best = {point.settings.digest for point in front(measured(state, state.spec.tradeoff if state.spec is not None else ""))}
    found = {}
    for name in names:
        asking = [book.id for book in plan.playbooks if _gives(book, space, name)]
        launched = [one for one in asking if (belief := state.beliefs.get(one, Belief())).tried and belief.measured_db < 0 and not set(belief.tried) & best]
        # What a launch showed needs no probability beside it.
        if launched and all(one in launched or (one in by_id and by_id[one].probability <= RULED_OUT_PROBABILITY) for one in asking):
            entries = ", ".join(f"{one} (entry {state.beliefs[one].entry})" for one in launched)
            found[name] = f"ruled out with {entries}: launched, and beaten in both rate and latency"
    return found


def _gives(book: Playbook, space: Space, name: str) -> bool:
    """Whether curing this cause would give the parameter a value of this space; taking it away asks for nothing here."""
    param = next((param for param in space.params if param.name == name), None)
    for action in book.actions:
        if isinstance(action, SpaceAction) and action.space == space.id and (not action.only or name in action.only):
            return True
        if isinstance(action, SetAction) and param is not None and action.engine in ("any", space.engine):
            value = action.params.get(name)
            if value is not None and (is_formula(value) or in_range(param, value)):
                return True
    return False
