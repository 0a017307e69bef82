"""Sentences for people about actions: what to relaunch with, in the spelling of this engine build. Says nothing about
whether an action is worth its launch, and carries none out."""

import shlex
import textwrap
from collections.abc import Mapping, Sequence

from optimizer.core.builds import in_builds
from optimizer.core.predicate import View
from optimizer.core.resolve import Unresolved, offered, param_of, resolve_value, spellings
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.playbook import Action, HandOver, SetAction
from optimizer.model.space import Param, Space


def command_text(argv: Sequence[str], limit: int) -> str:
    """A command line of at most so many characters for a sentence; what does not fit is left out word by word."""
    return textwrap.shorten(" ".join(argv), limit, placeholder=" …")


# What tells a fact that a relaunch needs a value from, by the beginning of its name; the longest that fits.
_MEASURE: Mapping[str, str] = {
    "client.": "run a benchmark, or say the concurrency of the load",
    "graphs.": "keep the server log from its start, and under load",
    "decode.": "keep the server log, or /metrics, under load",
    "prefill.": "keep the server log from its start",
    "kv.": "keep the server log from its start",
    "spec.": "add the launch arguments or /server_info",
    "gpu.": "add nvidia-smi's output",
    "model.": "add the model's config.json",
    "model.max_context_tokens": "keep the server log from its start",
    "scheduler.": "keep the server log from its start",
}
# What stands for a fact that was not observed: another fact and how many times it. A cap that is doubled is above the load
# that it cut off, or shows that the load was not at it.
_INSTEAD: Mapping[str, tuple[tuple[str, float], ...]] = {
    "client.concurrency": (("scheduler.max_running", 2.0), ("decode.batch_max", 2.0)),
    "graphs.required_size": (("decode.batch_p90", 1.0), ("decode.batch_max", 1.0), ("scheduler.max_running", 1.0)),
    "decode.batch_p90": (("decode.batch_max", 1.0), ("scheduler.max_running", 1.0)),
    "spec.draft_tokens": (("spec.steps", 1.0),),
}
# What an engine takes for a setting that was not given, by version (vLLM's config/cache.py in five releases).
_DEFAULTS: Mapping[str, Mapping[str, tuple[tuple[str, float], ...]]] = {
    "vllm": {"gpu_memory_utilization": ((">=0.17", 0.92), ("", 0.9))},
}


def action_sentence(
    action: Action, view: View, spaces: Sequence[Space], flags: FlagTable, concurrency: int | None
) -> str:
    """One imperative sentence, for example "Relaunch with --cuda-graph-max-bs 64 and compare at concurrency 64.". Never with
    a placeholder: a value that cannot be worked out is said to be missing, with what would tell it."""
    if isinstance(action, HandOver):
        return _sentence(action.text)
    at = f" at concurrency {concurrency}" if concurrency else " under the same load"
    flags = _as_resolved(flags, view, spaces)
    if isinstance(action, SetAction):
        if (why := not_in_build(action, view, spaces, flags)) is not None:
            return why
        wanted, missing = _worked_out(action.params, view, spaces, flags)
        if not missing:
            return f"{_relaunch(wanted, view, spaces, flags)} and compare{at}."
        first = f"{_relaunch(wanted, view, spaces, flags)} and compare{at}; " if wanted else ""
        said = first + " ".join(missing)
        return said[0].upper() + said[1:]
    space = next((found for found in spaces if found.id == action.space), None)
    missing = ()
    if action.try_first:
        point, missing = _worked_out(action.try_first[0], view, spaces, flags)
        if not missing and all(value is not None for value in point.values()):
            return f"{_relaunch(point, view, spaces, flags)} and compare{at}."
    names = action.only or tuple(param.name for param in space.params) if space else action.only
    listed = [name for name in names if _unavailable(name, view, spaces, flags) is None]
    spelled = ", ".join(_spelling(name, spaces, flags) for name in listed[:4]) or action.space
    return " ".join((f"Relaunch with other values of {spelled} and compare{at}.", *missing))


def _as_resolved(flags: FlagTable, view: View, spaces: Sequence[Space]) -> FlagTable:
    """Where neither help nor version is known, the names in the server's own settings tell how it spells a renamed flag."""
    if flags.known or view.facts.value("engine.version"):
        return flags
    absent = set(flags.absent)
    for spelled in (param.flag for space in spaces for param in space.params):
        here = [flag for flag in spelled if flag.lstrip("-").replace("-", "_") in view.settings]
        absent.update(flag for flag in spelled if here and flag not in here)
    return flags.model_copy(update={"absent": tuple(sorted(absent))})


def not_in_build(action: Action, view: View, spaces: Sequence[Space], flags: FlagTable) -> str | None:
    """A sentence when this build lacks what a ``set`` action would give; taking a setting away needs nothing of it."""
    if not isinstance(action, SetAction):
        return None
    reasons = [_unavailable(name, view, spaces, flags) for name, value in action.params.items() if value is not None]
    return next((f"Not with this version: {reason}." for reason in reasons if reason is not None), None)


def _unavailable(name: str, view: View, spaces: Sequence[Space], flags: FlagTable) -> str | None:
    param = param_of(name, spaces)
    spelled = _spelling(name, spaces, flags)
    version = view.facts.value("engine.version")
    version = version if isinstance(version, str) else ""
    if param is not None and in_builds(version, param.builds) is False:
        return f"{spelled} is in {param.builds} only, and this is {version}"
    if offered(name, param, flags) is None:
        return f"{version or 'this build'} has no {' or '.join(spellings(name, param)) or spelled}"
    return None


def _worked_out(
    params: Mapping[str, Value], view: View, spaces: Sequence[Space], flags: FlagTable
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The values that can be worked out, and a sentence for each that cannot."""
    wanted: dict[str, Value] = {}
    missing = []
    for name, value in params.items():
        found = _resolved(name, value, view, param_of(name, spaces))
        if isinstance(found, Unresolved):
            missing.append(_what_is_missing(_spelling(name, spaces, flags), value))
        else:
            wanted[name] = found
    return wanted, tuple(missing)


def _resolved(name: str, value: Value, view: View, param: Param | None) -> Value | Unresolved:
    """The value of a formula; where its fact was not observed, of what stands for that fact."""
    found = resolve_value(value, view.facts, view.settings, param)
    if not isinstance(found, Unresolved) or not isinstance(value, Mapping):
        return found
    for other, times in _INSTEAD.get(_operand(value), ()):
        if view.facts.number(other) is not None and view.facts.number(_operand(value)) is None:
            form = next(key for key in value if value[key] == _operand(value))
            again = {**value, form: other, "times": times * _times(value)}
            found = resolve_value(again, view.facts, view.settings, param)
            return _past_the_grid(again, found, view)
    engine = str(view.facts.value("engine.name"))
    version = view.facts.value("engine.version")
    if "setting" in value:
        for builds, default in _DEFAULTS.get(engine, {}).get(name, ()):
            if not builds or in_builds(version if isinstance(version, str) else None, builds) is True:
                return resolve_value(value, view.facts, {**view.settings, str(value["setting"]): default}, param)
        if name == "mem_fraction_static" and (share := view.facts.number("memory.fraction_static")) is not None:
            return resolve_value(value, view.facts, {**view.settings, str(value["setting"]): share}, param)
    return _past_the_grid(value, found, view)


def _past_the_grid(value: Mapping[str, Value], found: Value | Unresolved, view: View) -> Value | Unresolved:
    """A size beyond the sampled values is still the size that is needed; a search stays within them, advice need not."""
    if isinstance(found, Unresolved) and "grid_above" in value:
        plain = {**{key: item for key, item in value.items() if key != "grid_above"}, "fact": value["grid_above"]}
        return resolve_value(plain, view.facts, view.settings, None)
    return found


def _operand(value: Value) -> str:
    if not isinstance(value, Mapping):
        return ""
    return next((str(value[key]) for key in ("grid_above", "grid_below", "fact", "setting") if key in value), "")


def _times(value: Mapping[str, Value]) -> float:
    times = value.get("times")
    return float(times) if isinstance(times, int | float) else 1.0


def _what_is_missing(spelled: str, value: Value) -> str:
    name = _operand(value)
    fits = [start for start in _MEASURE if name.startswith(start)]
    if fits:
        how = _MEASURE[max(fits, key=len)]
        return f"the value for {spelled} follows from {name}, which was not observed: {how}, and look again."
    how = "add the launch arguments or /server_info"
    return f"the value for {spelled} follows from the one in force, which is not known: {how}, and look again."


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
    if isinstance(value, float):
        value = round(value, 6)  # 0.9 + 0.05 is 0.95
    return shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))


def _spelling(name: str, spaces: Sequence[Space], flags: FlagTable) -> str:
    """The flag as this build spells it, a variable by its name, a JSON setting as ``--flag key``."""
    base, dot, key = name.partition(".")
    if base == "env":
        return key
    found = offered(name, param_of(name, spaces), flags) or f"--{base.replace('_', '-')}"
    return f"{found}.{key}" if dot and base.endswith("_config") and "." not in found else found


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
