"""Turns what knowledge files ask for into values: ``{grid_above: FACT}``, ``{fact: NAME, times: k, plus: n}``,
``{setting: NAME}`` against a space's grid, and settings into their one canonical form. Responsible for values only;
whether they may be launched is
``refuse.py``'s question."""

from collections.abc import Mapping, Sequence

from optimizer.model.base import Value
from optimizer.model.settings import Settings

# JSON settings that do nothing unless one of these keys is there: without it the whole setting is off.
_SWITCHES: Mapping[str, tuple[str, ...]] = {"speculative_config": ("method", "model")}

_RESOLVERS = {"grid_above", "grid_below", "grid_nearest", "fact", "setting"}


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
