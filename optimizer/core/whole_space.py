"""All spaces of an engine as one, which is what a plain sampler searches that knows of no causes, and its points as settings and back.
Pure; made of the pinned knowledge alone."""

from collections.abc import Mapping, Sequence

from optimizer.core.predicate import Look, View, evaluate
from optimizer.core.resolve import in_range
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.space import ALONE, Param, Space

ALL = "all"


def whole(engine: str) -> str:
    """The id of the engine's whole space."""
    return f"{engine}/{ALL}"


def space_named(spaces: Sequence[Space], space_id: str) -> Space | None:
    """The space of that id, or the whole one of an engine; None where there is none. Of parameters of one name the first counts."""
    found = next((space for space in spaces if space.id == space_id), None)
    engine, _, name = space_id.rpartition("/")
    if found is not None or name != ALL or not engine:
        return found
    params: dict[str, Param] = {}
    for space in spaces:
        if space.engine in ("any", engine):
            params |= {param.name: param for param in space.params if param.name not in params}
    return Space(id=space_id, engine="any", params=tuple(params.values()))


def exists(param: Param, chosen: Mapping[str, Value], fixed: Mapping[str, Value], context: View | None = None) -> bool:
    """Does the parameter exist once ``chosen`` is chosen? An unknown condition leaves it in."""
    if param.when is None:
        return True
    known = dict(context.settings) if context is not None else {}
    settings = _Settings({**known, **fixed, **{name: None if value == ALONE else value for name, value in chosen.items()}})
    facts = context.facts if context is not None else Evidence()
    box = context.box if context is not None else {}
    return evaluate(param.when, Look(facts, settings, box)) is not False


def overlay(given: Mapping[str, Value], names: Sequence[str], point: Mapping[str, Value]) -> dict[str, Value]:
    """A point as changes to what is given: what the sampler left alone is not given, also where the owner's command line had it."""
    chosen = {name: value for name, value in point.items() if value != ALONE}
    return {**{name: None for name in names if name not in chosen and given.get(name) is not None}, **chosen}


def as_point(
    given: Mapping[str, Value], reported: Mapping[str, Value], params: Sequence[Param], fixed: Mapping[str, Value], grids: Mapping[str, Sequence[Value]]
) -> dict[str, Value]:  # fmt: skip
    """What was launched as a point, parameter by parameter: as given; else a choice was left alone and a switch is off; of a number the
    value that the server reported, where the space has it."""
    point: dict[str, Value] = {}
    for param in params:
        if not exists(param, point, fixed):
            continue
        value = given.get(param.name)
        if value is not None and not in_range(param, value):
            continue
        if value is None and ALONE in grids.get(param.name, ()):
            value = ALONE
        elif value is None and param.type == "bool":
            value = False
        elif value is None and in_range(param, reported.get(param.name)):
            value = reported[param.name]
        if value is not None:
            point[param.name] = param.one(value)
    return point


class _Settings(dict[str, Value]):
    """Settings in which what nobody gave reads as null."""

    def __missing__(self, name: str) -> Value:
        return None

    def __contains__(self, name: object) -> bool:
        return True
