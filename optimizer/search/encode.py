"""Configurations as numbers for a model: where each one lies along every parameter, and what the directions of the knowledge
files expect of it. Knows names and values; knows no measurement."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from optimizer.model.base import Value
from optimizer.model.space import Direction

Effect = Literal["throughput", "per_gpu", "latency"]
Array = NDArray[np.float64]

_OFF = {"", "false", "off", "no", "none", "null", "0"}
_UNSET = ("auto", "bf16")  # what a choice that nobody made stands for, where the knowledge lists it
_WIDE = 3.0  # values that span more than this factor are compared by their logarithm


@dataclass(frozen=True)
class Dimension:
    """One parameter over all configurations: ``place`` in [0, 1] (or a category number), and the expected gain (ln)."""

    name: str
    ordered: bool
    place: Array
    expected: Array
    known: bool  # a knowledge file names it


def plain_name(name: str) -> str:
    """``--max-num-seqs``, ``param:max_num_seqs`` and ``flags.max-num-seqs`` are one parameter."""
    return re.split(r"[:/]", name)[-1].lstrip("-").replace("-", "_").lower().removeprefix("flags.")


def dimensions(
    points: Sequence[Mapping[str, Value]], names: Sequence[str], directions: Sequence[Direction], effect: Effect
) -> tuple[Dimension, ...]:
    """One for every parameter that has more than one value; spellings of one parameter (``tp``, ``tp-size``) that are never
    given together are one. ``expected`` is oriented: more is better, also for latency."""
    by_name = {name: direction for direction in directions for name in direction.names}
    found = []
    for spellings in _merged(points, names, by_name):
        values = [next((point[name] for name in spellings if point.get(name) is not None), None) for point in points]
        if len({json.dumps(value) for value in values}) < 2:
            continue
        direction = by_name.get(plain_name(spellings[0]))
        if direction is not None and direction.absent is not None:
            values = [direction.absent if value is None else value for value in values]
        ordered, place = _places(values)
        expected = np.zeros(len(values))
        if direction is not None:
            gain = -direction.latency if effect == "latency" else getattr(direction, effect)
            expected = gain * _units(values, direction)
        found.append(Dimension(spellings[0], ordered, place, expected, direction is not None))
    return tuple(found)


def _merged(
    points: Sequence[Mapping[str, Value]], names: Sequence[str], by_name: Mapping[str, Direction]
) -> list[tuple[str, ...]]:
    groups: dict[int | str, list[str]] = {}
    for name in names:
        direction = by_name.get(plain_name(name))
        groups.setdefault(id(direction) if direction is not None else name, []).append(name)
    merged: list[tuple[str, ...]] = []
    for spellings in groups.values():
        together = any(sum(point.get(name) is not None for name in spellings) > 1 for point in points)
        merged.extend([(name,) for name in spellings] if together else [tuple(spellings)])
    return merged


def number(value: Value) -> float | None:
    """The number that a cell stands for, None when it is none (also for true and false)."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def given(value: Value) -> bool:
    """Is a flag with this value switched on?"""
    return str(value).strip().lower() not in _OFF if value is not None else False


def _places(values: Sequence[Value]) -> tuple[bool, Array]:
    numbers = [number(value) for value in values]
    present = [value for value in numbers if value is not None]
    if len(set(present)) < 2 or any(n is None and v is not None for n, v in zip(numbers, values, strict=True)):
        names = {key: index for index, key in enumerate(sorted({json.dumps(value) for value in values}))}
        return False, np.array([names[json.dumps(value)] for value in values], dtype=np.float64)
    log = min(present) > 0 and max(present) / min(present) >= _WIDE
    scaled = [math.log(value) if log else value for value in present]
    low, high = min(scaled), max(scaled)
    middle = sorted(scaled)[len(scaled) // 2]
    place = [middle if value is None else math.log(value) if log else value for value in numbers]
    return True, (np.array(place) - low) / (high - low)


def _units(values: Sequence[Value], direction: Direction) -> Array:
    """How many doublings, tenths, steps or flags each value is above the lowest."""
    if direction.per == "flag":
        return np.array([float(given(value)) for value in values])
    if direction.per == "step":
        ranks = [_rank(value, direction) for value in values]
        known = [rank for rank in ranks if rank is not None]
        middle = sum(known) / len(known) if known else 0.0
        usual = next((float(i) for i, group in enumerate(direction.order) if set(group) & set(_UNSET)), middle)
        return np.array([usual if rank is None else rank for rank in ranks])
    measured: list[float | None] = []
    for value in values:
        size = number(value)
        if size is None and isinstance(value, bool):
            size = 2.0 if value else 1.0
        if direction.per == "doubling":
            measured.append(math.log2(size) if size is not None and size > 0 else None)
        else:
            measured.append(size * 10 if size is not None else None)
    present = sorted(value for value in measured if value is not None)
    middle = present[len(present) // 2] if present else 0.0
    return np.array([middle if value is None else value for value in measured])


def _rank(value: Value, direction: Direction) -> float | None:
    text = str(value).lower()
    words = set(re.split(r"[^a-z0-9]+", text))
    for index in range(len(direction.order) - 1, -1, -1):
        if any(word in words or (len(word) > 2 and word in text) for word in direction.order[index]):
            return float(index)
    return None
