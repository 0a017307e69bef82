"""The adapters that are installed, by entry point group ``optimizer.engines``, checked when they are loaded.
Responsible for finding and refusing adapters; knows no engine by itself."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from optimizer.engines.base import Engine
from optimizer.errors import EngineError

GROUP = "optimizer.engines"
_METHODS = (
    "options_start", "help_argv", "version_argv", "recognise", "flags", "parse_argv", "identity", "command", "ready",
    "flush_cache", "readback", "check_readback", "environment_of_interest", "classify_exit",
)  # fmt: skip
_DATA = ("name", "default_port", "dialect", "quirks", "model_param", "settings_env", "server_info_paths", "api")


@cache
def engines() -> Mapping[str, Engine]:
    """name -> adapter of every installed one. Raises EngineError for a broken adapter or a name that is taken twice."""
    return load(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))


def load(points: Sequence[EntryPoint]) -> Mapping[str, Engine]:
    """Load and check the adapters behind these entry points."""
    found: dict[str, Engine] = {}
    origin: dict[str, str] = {}
    for point in points:
        try:
            adapter = point.load()
        except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
            raise EngineError(
                f"The engine adapter {point.name!r} ({point.value}) cannot be loaded: {error}.",
                hint="Uninstall or repair the package that registers it.",
            ) from error
        check(point.name, adapter)
        if point.name in found and origin[point.name] != point.value:
            raise EngineError(
                f"Two adapters are registered as {point.name!r}: {origin[point.name]} and {point.value}.",
                hint="Uninstall one of the packages.",
            )
        found[point.name], origin[point.name] = adapter, point.value
    return found


def check(name: str, adapter: object) -> None:
    """Raises EngineError unless ``adapter`` has every method of ``Engine`` with the argument names that callers use."""
    if not isinstance(adapter, Engine):
        raise EngineError(
            f"The engine adapter {name!r} is a {type(adapter).__name__}, not an optimizer.engines.base.Engine.",
            hint="Register an instance of a class that derives from Engine.",
        )
    if adapter.name != name:
        raise EngineError(
            f"The engine adapter registered as {name!r} calls itself {adapter.name!r}.",
            hint="Make the two names equal.",
        )
    missing = [field for field in _DATA if not hasattr(adapter, field)]
    if missing:
        raise EngineError(
            f"The engine adapter {name!r} lacks {', '.join(missing)}.", hint=f"An adapter has {', '.join(_DATA)}."
        )
    for method in _METHODS:
        ours = list(inspect.signature(getattr(Engine, method)).parameters)[1:]
        theirs = list(inspect.signature(getattr(adapter, method)).parameters)
        if theirs[: len(ours)] != ours:
            raise EngineError(
                f"{name}.{method} takes ({', '.join(theirs)}), callers pass ({', '.join(ours)}).",
                hint="Use the argument names of Engine.",
            )


def engine(name: str) -> Engine:
    """The adapter called ``name``."""
    known = engines()
    if name not in known:
        raise EngineError(f"There is no adapter for the engine {name!r}.", hint=f"Installed: {', '.join(known)}.")
    return known[name]


def engine_of(argv: Sequence[str], env: Mapping[str, str]) -> Engine | None:
    """The adapter whose server this process is, None when it is nobody's."""
    return next((adapter for adapter in engines().values() if adapter.recognise(argv, env)), None)
