"""The points of a search space: which parameters exist under which choices, which points there are, which were seen.
Responsible for the discrete side of a space; knows nothing of samplers."""

import random
from collections.abc import Iterator, Mapping, Sequence

from optimizer.core.predicate import View
from optimizer.core.resolve import in_range
from optimizer.core.whole_space import exists
from optimizer.model.base import Scalar, Value
from optimizer.model.canonical import canonical_json
from optimizer.model.space import Param, Trial

# Spaces up to this size are enumerated, so that "nothing left to try" is known and not guessed.
MOST_ENUMERATED = 20_000

Point = dict[str, Value]


def choices(param: Param) -> tuple[Scalar | list[Scalar], ...]:
    """The values of a discrete parameter in order, empty for a continuous one."""
    if param.grid:
        return param.grid
    if param.type == "bool":
        return (False, True)
    if param.type == "int" and param.low is not None and param.high is not None and param.high - param.low < 1_000:
        return tuple(range(int(param.low), int(param.high) + 1))
    return ()


def sample(params: Sequence[Param], seed: int, fixed: Mapping[str, Value], context: View | None) -> Point:
    """A uniformly random point, parameter by parameter in declaration order."""
    source = random.Random(seed)
    point: Point = {}
    for param in params:
        if param.name in fixed or not exists(param, point, fixed, context):
            continue
        options = choices(param)
        if options:
            point[param.name] = options[source.randrange(len(options))]
        else:
            low, high = bounds(param)
            number = source.uniform(low, high)
            point[param.name] = round(number) if param.type == "int" else number
    return point


def bounds(param: Param) -> tuple[float, float]:
    """[low, high] of a continuous parameter."""
    low = param.low if param.low is not None else 0.0
    return low, param.high if param.high is not None else max(low, 1.0)


def points(params: Sequence[Param], fixed: Mapping[str, Value], context: View | None) -> Iterator[Point] | None:
    """Every point in a fixed order, None when a parameter is continuous or there are too many."""
    size = 1
    for param in params:
        if param.name in fixed:
            continue
        if not choices(param):
            return None
        size *= len(choices(param))
        if size > MOST_ENUMERATED:
            return None
    return _walk(list(params), {}, fixed, context)


def _walk(params: list[Param], chosen: Point, fixed: Mapping[str, Value], context: View | None) -> Iterator[Point]:
    if not params:
        yield dict(chosen)
        return
    head, rest = params[0], params[1:]
    if head.name in fixed or not exists(head, chosen, fixed, context):
        yield from _walk(rest, chosen, fixed, context)
        return
    for value in choices(head):
        yield from _walk(rest, {**chosen, head.name: value}, fixed, context)


def key(point: Mapping[str, Value]) -> str:
    """Identity of a point; parameters that are not given do not count."""
    return canonical_json({name: value for name, value in point.items() if value is not None})


def restricted(trial: Trial, params: Sequence[Param]) -> Point:
    """A trial's values of these parameters, each under its one name."""
    return only(trial.params, params)


def only(point: Mapping[str, Value], params: Sequence[Param]) -> Point:
    """The values of these parameters that are given, each under its one name."""
    declared = {param.name: param for param in params}
    return {name: declared[name].one(value) for name, value in point.items() if name in declared and value is not None}


def valid(
    point: Mapping[str, Value], params: Sequence[Param], fixed: Mapping[str, Value], context: View | None
) -> str | None:
    """Why ``point`` is none of this space, None when it is one. Optuna itself would take an integer out of range."""
    declared = {param.name: param for param in params}
    chosen: Point = {}
    for name, value in point.items():
        if name not in declared:
            return f"{name} is no parameter of the space any more"
        if value is not None and not in_range(declared[name], value):
            return f"{name} = {value!r} is no value of the space"
    for param in params:
        if param.name in point and point[param.name] is not None:
            if not exists(param, {**point}, fixed, context):
                return f"{param.name} does not exist under the other choices"
            chosen[param.name] = point[param.name]
    return None
