"""Sentences for people about actions: what to relaunch with, in the spelling of this engine build. Says nothing about
whether an action is worth its launch, and carries none out."""

import shlex
from collections.abc import Mapping, Sequence

from optimizer.core.predicate import View
from optimizer.core.resolve import Unresolved, offered, param_of, resolve_value
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.playbook import Action, HandOver, SetAction
from optimizer.model.space import Space


def action_sentence(
    action: Action, view: View, spaces: Sequence[Space], flags: FlagTable, concurrency: int | None
) -> str:
    """One imperative sentence, for example "Relaunch with --cuda-graph-max-bs 64 and compare at concurrency 64."."""
    if isinstance(action, HandOver):
        return _sentence(action.text)
    at = f" at concurrency {concurrency}" if concurrency else " under the same load"
    if isinstance(action, SetAction):
        wanted = {name: _resolved(name, value, view, spaces) for name, value in action.params.items()}
        return f"{_relaunch(wanted, view, spaces, flags)} and compare{at}."
    space = next((found for found in spaces if found.id == action.space), None)
    if action.try_first:
        point = {name: _resolved(name, value, view, spaces) for name, value in action.try_first[0].items()}
        if all(value is not None for value in point.values()):
            return f"{_relaunch(point, view, spaces, flags)} and compare{at}."
    names = action.only or tuple(param.name for param in space.params) if space else action.only
    listed = [name for name in names if offered(name, param_of(name, spaces), flags) is not None]
    spelled = ", ".join(_spelling(name, spaces, flags) for name in listed[:4]) or action.space
    return f"Relaunch with other values of {spelled} and compare{at}."


def _resolved(name: str, value: Value, view: View, spaces: Sequence[Space]) -> Value:
    found = resolve_value(value, view.facts, view.settings, param_of(name, spaces))
    return f"<{_wanted(value)}>" if isinstance(found, Unresolved) else found


def _wanted(value: Value) -> str:
    if isinstance(value, Mapping):
        if "grid_above" in value:
            return f"at least {value['grid_above']}"
        return str(value.get("fact") or value.get("setting") or "a value")
    return str(value)


def _relaunch(wanted: Mapping[str, Value], view: View, spaces: Sequence[Space], flags: FlagTable) -> str:
    given = [f"{_text(name, value, spaces, flags)}" for name, value in wanted.items() if value is not None]
    dropped = [name for name, value in wanted.items() if value is None and _in_force(name, view.settings, view.facts)]
    if not given and not dropped:
        dropped = [name for name, value in wanted.items() if value is None][:1]
    parts = []
    if given:
        parts.append("with " + " ".join(given))
    if dropped:
        parts.append("without " + ", ".join(_spelling(name, spaces, flags) for name in dropped))
    return "Relaunch " + " and ".join(parts)


def _in_force(name: str, settings: Mapping[str, Value], facts: Evidence) -> bool:
    asked = facts.value("settings.asked")
    given = asked if isinstance(asked, dict) else settings
    return given.get(name, settings.get(name) if name.startswith("env.") else None) not in (None, False)


def _text(name: str, value: Value, spaces: Sequence[Space], flags: FlagTable) -> str:
    spelled = _spelling(name, spaces, flags)
    if spelled.startswith("--"):
        return spelled if value is True else f"{spelled} {_quoted(value)}"
    return f"{spelled}={_quoted(value)}"


def _quoted(value: Value) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text.startswith("<") else shlex.quote(text)


def _spelling(name: str, spaces: Sequence[Space], flags: FlagTable) -> str:
    """The flag as this build spells it, a variable by its name, a JSON setting as ``--flag key``."""
    base, dot, key = name.partition(".")
    if base == "env":
        return key
    found = offered(name, param_of(name, spaces), flags) or f"--{base.replace('_', '-')}"
    return f"{found}.{key}" if dot and base.endswith("_config") and "." not in found else found


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
