"""The evidence policy over launches that left their evidence: which recorded configuration is launched next, from what the
last launch's logs and metrics say. Scores, cures and refusals are those of a live study. Knows no file and no box."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optimizer.core.plan import Plan
from optimizer.core.predicate import Look, evaluate
from optimizer.core.refuse import Ground, screen
from optimizer.core.resolve import resolve_action, resolve_first
from optimizer.core.score import Scored, score
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.playbook import Action, HandOver, Playbook, SetAction, SpaceAction
from optimizer.model.settings import Settings
from optimizer.model.space import Direction
from optimizer.search.encode import Effect, dimensions, number

# What a change that no hypothesis asks for is expected to cost (ln): it can only blur what a launch shows.
_UNASKED = 0.03
_BLIND = Look(facts=Evidence(), settings={}, box={})
_UNLIKELY = 0.15  # below, a hypothesis moves nobody to a launch


@dataclass(frozen=True)
class Recorded:
    """One configuration with what was measured of it. ``settings``: what its command line and environment gave."""

    name: str
    engine: str
    settings: Mapping[str, Value]
    values: tuple[float, ...]
    look: Look | None = None
    flags: FlagTable = field(default_factory=lambda: FlagTable(known=False))
    engine_version: str | None = None
    failed: str = ""


@dataclass(frozen=True)
class Promise:
    """A configuration and why it is worth a launch. ``gain``: ln of the expected ratio to what runs now."""

    index: int
    gain: float
    why: str


@dataclass(frozen=True)
class Outlook:
    """Everything the evidence says at one point: promises best first, refused configurations, and wished-for points that
    nobody recorded."""

    promises: tuple[Promise, ...]
    refused: Mapping[int, str]
    not_recorded: tuple[str, ...]


def outlook(
    current: Recorded, others: Mapping[int, Recorded], plan: Plan, directions: Sequence[Direction], effect: Effect
) -> Outlook:
    """What to launch after ``current``. Nothing of the others but their settings is looked at."""
    look = current.look or _BLIND
    books = [book for book in plan.playbooks if not book.actions or any(action.engine in ("any", current.engine) for action in book.actions)]
    by_id = {book.id: book for book in books}
    likely = [item for item in score(books, look) if item.probability >= _UNLIKELY]
    ground = _ground(current, plan)
    promises, refused = [], {}
    changes_of = {index: _changes(current, other) for index, other in others.items()}
    for index, changes in changes_of.items():
        screened = screen(changes, ground)
        if not {name for name in changes if changes[name] is not None} <= set(screened.changes):
            worst = next((item for item in screened.refusals if item.kind in ("dead", "infeasible", "duplicate", "unavailable")), None)
            if worst is not None:
                refused[index] = f"{worst.kind}: {worst.why}"
                continue
        promises.append(_promise(index, changes, current, others[index], likely, by_id, ground, look, directions, effect))
    promises.sort(key=lambda item: (-item.gain, item.index))
    return Outlook(tuple(promises), refused, _wished(likely, by_id, ground, look, changes_of))


def _ground(current: Recorded, plan: Plan) -> Ground:
    look = current.look or _BLIND
    return Ground(
        settings=Settings(values=dict(current.settings)),
        evidence=look.facts,
        flags=current.flags,
        dead=[item for item in plan.dead if item.engine in ("any", current.engine)],
        constraints=[item for item in plan.constraints if item.engine in ("any", current.engine)],
        spaces=[space for space in plan.spaces if space.engine in ("any", current.engine)],
        engine_version=current.engine_version,
        effective=dict(look.settings),
        box=look.box,
        phase="decode",
        allow_lossy=True,  # they were launched: whether they may be is no question any more
    )


def _changes(current: Recorded, other: Recorded) -> dict[str, Value]:
    names = sorted({*current.settings, *other.settings})
    return {
        name: other.settings.get(name)
        for name in names
        if canonical_json(current.settings.get(name)) != canonical_json(other.settings.get(name))
    }


def _promise(
    index: int, changes: Mapping[str, Value], current: Recorded, other: Recorded, likely: Sequence[Scored], by_id: Mapping[str, Playbook],
    ground: Ground, look: Look, directions: Sequence[Direction], effect: Effect,
) -> Promise:  # fmt: skip
    by_bucket: dict[str, tuple[float, str]] = {}
    asked: set[str] = set()
    for item in likely:
        book = by_id[item.id]
        touched = _cured(book, changes, other, by_id, ground, look)
        if not touched or book.predicts is None:
            continue
        asked |= touched
        low, high = book.predicts.ratio
        worth = item.probability * 0.5 * (math.log(low) + math.log(high))
        if worth > by_bucket.get(book.addresses, (-math.inf, ""))[0]:
            by_bucket[book.addresses] = (worth, f"cures {item.id} (probability {item.probability:.2f})")
    dims = dimensions([current.settings, other.settings], sorted(changes), directions, effect)
    usual = sum(float(dim.expected[1] - dim.expected[0]) for dim in dims)
    unasked = len([name for name in changes if name not in asked])
    gain = sum(worth for worth, _ in by_bucket.values()) + usual - _UNASKED * unasked
    why = "; ".join(text for _, text in sorted(by_bucket.values(), reverse=True)) or "nothing asks for it"
    return Promise(index, gain, why)


def _cured(
    book: Playbook, changes: Mapping[str, Value], other: Recorded, by_id: Mapping[str, Playbook], ground: Ground, look: Look
) -> set[str]:
    """The changes that carry out an action of the playbook; empty when none does, or when the candidate sets a parameter below
    what another playbook for the same loss asks for."""
    touched: set[str] = set()
    for action in book.actions:
        if action.engine not in ("any", other.engine) or (action.when is not None and evaluate(action.when, look) is False):
            continue
        touched |= _carried_out(action, changes, ground, look)
    if touched:
        for rival in by_id.values():
            if rival.addresses == book.addresses and _falls_short(rival, other, ground, look):
                return set()
    return touched


def _carried_out(action: Action, changes: Mapping[str, Value], ground: Ground, look: Look) -> set[str]:
    if isinstance(action, SetAction):
        wanted = resolve_action(action, look.facts, look.settings, ground.spaces, ground.flags)
        if not isinstance(wanted, dict):
            return set()
        hit = {name for name, value in wanted.items() if name in changes and canonical_json(changes[name]) == canonical_json(value)}
        missed = [name for name, value in wanted.items() if name not in changes and value is not None and look.settings.get(name) != value]
        return set() if missed else hit
    if isinstance(action, SpaceAction):
        names = set(action.only) or {param.name for space in ground.spaces if space.id == action.space for param in space.params}
        return {name for name in changes if name in names and changes[name] is not None}
    return set()


def _falls_short(book: Playbook, other: Recorded, ground: Ground, look: Look) -> bool:
    """Does the candidate give less than the smallest value that this playbook would try?"""
    for action in book.actions:
        if isinstance(action, HandOver) or action.engine not in ("any", other.engine) or not isinstance(action, SpaceAction):
            continue
        points, _ = resolve_first(action, look.facts, look.settings, ground.spaces, ground.flags)
        for point in points:
            for name, value in point.items():
                wanted, has = number(value), number(other.settings.get(name))
                if wanted is not None and has is not None and has < wanted:
                    return True
    return False


def _wished(
    likely: Sequence[Scored], by_id: Mapping[str, Playbook], ground: Ground, look: Look, changes_of: Mapping[int, Mapping[str, Value]]
) -> tuple[str, ...]:
    """The points that a live study would launch for the likeliest hypothesis and that nobody recorded."""
    for item in likely:
        for action in by_id[item.id].actions:
            if isinstance(action, HandOver) or action.engine not in ("any", *{space.engine for space in ground.spaces}):
                continue
            if isinstance(action, SetAction):
                resolved = resolve_action(action, look.facts, look.settings, ground.spaces, ground.flags)
                points: tuple[dict[str, Value], ...] = (resolved,) if isinstance(resolved, dict) else ()
            else:
                points, _ = resolve_first(action, look.facts, look.settings, ground.spaces, ground.flags)
            wished = []
            for point in points:
                change = {name: value for name, value in point.items() if canonical_json(ground.settings.values.get(name)) != canonical_json(value)}
                if change and not any(canonical_json(dict(changes)) == canonical_json(change) for changes in changes_of.values()):
                    wished.append(canonical_json(change))
            if wished:
                return tuple(wished)
    return ()
