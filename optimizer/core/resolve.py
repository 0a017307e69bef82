"""Turns what knowledge files ask for into values: ``{grid_above: FACT}``, ``{fact: NAME, times: k, plus: n}``,
``{setting: NAME}`` against a space's grid, and settings into their one canonical form. Responsible for values only;
whether they may be launched is
``refuse.py``'s question."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.playbook import SetAction, SpaceAction
from optimizer.model.settings import Settings
from optimizer.model.space import Param, Refusal, Space

# JSON settings that do nothing unless one of these keys is there: without it the whole setting is off.
_SWITCHES: Mapping[str, tuple[str, ...]] = {"speculative_config": ("method", "model")}

_FORMS = ("grid_above", "grid_below", "fact", "setting")


@dataclass(frozen=True)
class Unresolved:
    """Why a value could not be worked out. Nothing is launched on a guess."""

    why: str


def is_json_param(name: str) -> bool:
    """``base.key`` of a JSON setting such as ``speculative_config.method``; not ``env.NAME``, not a role's
    ``decode.tp_size``."""
    base, dot, _ = name.partition(".")
    return bool(dot) and base.endswith(("_config", "_args"))


def canonical_settings(settings: Settings, *, keep_none: bool = True) -> Settings:
    """One spelling per point: dotted keys folded into their JSON setting (they win over the whole), empty JSON = not
    given, whole-number environment values as integers. Two settings that mean the same launch get the same digest."""
    values: dict[str, Value] = {}
    dotted: dict[str, Value] = {}
    for name, value in settings.values.items():
        if is_json_param(name):
            dotted[name] = value
        elif name.startswith("env."):
            values[name] = _env_value(value)
        else:
            values[name] = value
    for name in sorted(dotted):
        base, _, key = name.partition(".")
        given = values.get(base)
        values[base] = _set(given if isinstance(given, dict) else {}, key.split("."), dotted[name])
    for base, value in list(values.items()):
        if isinstance(value, dict) and base.endswith(("_config", "_args")):
            switches = _SWITCHES.get(base)
            if not value or (switches and not any(value.get(key) is not None for key in switches)):
                values[base] = None
    return Settings(values={name: value for name, value in sorted(values.items()) if keep_none or value is not None})


def _set(given: Mapping[str, Value], path: Sequence[str], value: Value) -> dict[str, Value]:
    result = dict(given)
    head = path[0]
    if len(path) > 1:
        inner = result.get(head)
        folded = _set(inner if isinstance(inner, dict) else {}, path[1:], value)
        if folded:
            result[head] = folded
        else:
            result.pop(head, None)
    elif value is None:
        result.pop(head, None)
    else:
        result[head] = value
    return result


def _env_value(value: Value) -> Value:
    if isinstance(value, str) and value.isascii() and value.isdigit() and str(int(value)) == value and len(value) < 16:
        return int(value)
    if isinstance(value, bool):
        return int(value)
    return value


def is_formula(value: Value) -> bool:
    """A value to be worked out from facts or settings, as opposed to a literal (JSON settings are literal dicts)."""
    return isinstance(value, dict) and any(form in value for form in _FORMS)


def resolve_value(
    value: Value, facts: Evidence, settings: Mapping[str, Value], param: Param | None = None
) -> Value | Unresolved:
    """A literal as it is; a formula worked out, snapped up to the grid where the parameter has one.

    ``{grid_above: FACT}`` is the smallest grid value that covers the fact, ``{grid_below: FACT}`` the largest that does
    not exceed it; ``{fact: NAME}`` and ``{setting: NAME}`` are the number itself. All take ``labels``, ``times``,
    ``plus``, ``at_least`` and ``at_most``.
    """
    if not isinstance(value, dict) or not is_formula(value):
        return value
    form = next(form for form in _FORMS if form in value)
    name = str(value[form])
    if form == "setting":
        source = settings.get(name)
        if isinstance(source, str | bool | list | dict) and "times" not in value and "plus" not in value:
            return source
        number = _number(source)
    else:
        number = _fact(facts, name, value.get("labels"))
    if number is None:
        return Unresolved(f"{name} was not observed, so the value cannot be worked out")
    number = number * _number_or(value.get("times"), 1.0) + _number_or(value.get("plus"), 0.0)
    number = max(number, _number_or(value.get("at_least"), -math.inf))
    number = min(number, _number_or(value.get("at_most"), math.inf))
    if form in ("grid_above", "grid_below"):
        return _on_grid(form, number, name, param)
    if param is not None:
        number = max(number, param.low if param.low is not None else -math.inf)
        number = min(number, param.high if param.high is not None else math.inf)
        if param.type == "float":
            return number
    # Counts are rounded up: a limit that is a fraction too small would not cover what was observed.
    return math.ceil(number - 1e-9) if param is not None or number == math.floor(number) else number


def _on_grid(form: str, number: float, name: str, param: Param | None) -> Value | Unresolved:
    if param is None or not param.grid:
        return Unresolved(f"no space declares a grid for the parameter that {name} should set")
    grid = sorted(item for item in param.grid if isinstance(item, int | float) and not isinstance(item, bool))
    fits = [item for item in grid if (item >= number if form == "grid_above" else item <= number)]
    if not fits:
        side = "above" if form == "grid_above" else "below"
        return Unresolved(f"{name} = {number:g} has no grid value {side} it (grid {grid[0]}..{grid[-1]})")
    return fits[0] if form == "grid_above" else fits[-1]


def _fact(facts: Evidence, name: str, labels: Value) -> float | None:
    """The unlabelled observation, else the largest of the labelled ones (the one that asks for most)."""
    if isinstance(labels, dict):
        wanted = {str(key): item for key, item in labels.items() if not isinstance(item, list | dict)}
        return facts.number(name, **wanted)
    plain = [_number(fact.value) for fact in facts.all(name) if not fact.labels]
    numbers = [number for number in plain if number is not None]
    if not numbers:
        numbers = [number for fact in facts.all(name) if (number := _number(fact.value)) is not None]
        return max(numbers, default=None)
    return numbers[0]


def _number(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _number_or(value: Value, default: float) -> float:
    number = _number(value)
    return default if number is None else number


def param_of(name: str, spaces: Iterable[Space]) -> Param | None:
    """The declaration of a parameter in the first space that has it."""
    return next((param for space in spaces for param in space.params if param.name == name), None)


def spellings(name: str, param: Param | None) -> tuple[str, ...]:
    """The flags of a parameter, newest first: as its space declares them, else its own name with dashes."""
    if name.startswith("env.") or (param is not None and param.env):
        return ()
    if param is not None and param.flag:
        return param.flag
    return (f"--{name.partition('.')[0].replace('_', '-')}",)


def offered(name: str, param: Param | None, flags: FlagTable) -> str | None:
    """The first spelling that this build's help lists (one without a deprecation note first); variables are always
    offered."""
    names = spellings(name, param)
    if not names:
        return param.env if param is not None and param.env else name.removeprefix("env.")
    listed = [spelling for spelling in names if flags.offers(spelling)]
    fresh = [item for item in listed if item not in flags.by_name or not flags.by_name[item].deprecated]
    return next(iter((*fresh, *listed)), None)


def unavailable(name: str, value: Value, param: Param | None, flags: FlagTable) -> Refusal | None:
    """A refusal when this build cannot be given the value: no such flag, or not one of its choices."""
    if value is None:
        return None
    spelling = offered(name, param, flags)
    if spelling is None:
        tried = ", ".join(spellings(name, param))
        return Refusal(
            kind="unavailable",
            params={name: value},
            why=f"Not testable here: this build's --help has no {tried}.",
            source="--help",
        )
    flag = flags.by_name.get(spelling)
    if flag is not None and flag.choices and "." not in name and not isinstance(value, list | dict):
        text = str(value)
        if text not in flag.choices:
            return Refusal(
                kind="unavailable",
                params={name: value},
                why=f"Not testable here: {spelling} of this build takes only {', '.join(flag.choices)}.",
                source="--help",
            )
    return None


def resolve_params(
    params: Mapping[str, Value],
    facts: Evidence,
    settings: Mapping[str, Value],
    spaces: Sequence[Space],
    flags: FlagTable,
) -> dict[str, Value] | Refusal:
    """Every formula worked out and checked against this build, or the first reason why not.

    Giving a whole JSON setting also clears its dotted keys that are in force, so that nothing of the old one is left.
    """
    resolved: dict[str, Value] = {}
    for name, value in params.items():
        param = param_of(name, spaces)
        result = resolve_value(value, facts, settings, param)
        if isinstance(result, Unresolved):
            return Refusal(kind="unavailable", params={name: value}, why=f"{result.why}.", source="evidence")
        refusal = unavailable(name, result, param, flags)
        if refusal is not None:
            return refusal
        if not is_json_param(name):
            resolved.update({key: None for key in settings if is_json_param(key) and key.startswith(f"{name}.")})
        resolved[name] = result
    return resolved


def resolve_action(
    action: SetAction, facts: Evidence, settings: Mapping[str, Value], spaces: Sequence[Space], flags: FlagTable
) -> dict[str, Value] | Refusal:
    """The settings that a ``set`` action asks for on this launch's evidence, or why it cannot be carried out here."""
    return resolve_params(action.params, facts, settings, spaces, flags)


def resolve_first(
    action: SpaceAction, facts: Evidence, settings: Mapping[str, Value], spaces: Sequence[Space], flags: FlagTable
) -> tuple[tuple[dict[str, Value], ...], tuple[Refusal, ...]]:
    """The ``try_first`` points of a ``space`` action that can be worked out here, and why the others cannot."""
    points: list[dict[str, Value]] = []
    refusals: list[Refusal] = []
    for point in action.try_first:
        result = resolve_params(point, facts, settings, spaces, flags)
        if isinstance(result, Refusal):
            refusals.append(result)
        elif result not in points:
            points.append(result)
    return tuple(points), tuple(refusals)


def in_range(param: Param, value: Value) -> bool:
    """Is ``value`` one that the space allows?"""
    if value is None:
        return False
    if param.grid:
        return any(_equal(param.one(value), item) for item in param.grid)
    if param.type == "bool":
        return isinstance(value, bool)
    number = _number(value)
    if number is None or (param.type == "int" and number != math.floor(number)):
        return False
    return (param.low is None or number >= param.low) and (param.high is None or number <= param.high)


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)
