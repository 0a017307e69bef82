"""The engine adapter: what one inference server is called, takes, answers and means, as pure functions from text to
data. Responsible for everything that differs between engines on the way to a running server; it never does I/O, so
that it is tested entirely with files. Third-party adapters derive from ``Engine`` and register under the entry point
group ``optimizer.engines``."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from optimizer.core.resolve import canonical_settings, is_json_param
from optimizer.engines.argv import Parsed, edit, parse, same, text_of
from optimizer.engines.dialect import Dialect
from optimizer.engines.help_text import parse_help
from optimizer.errors import EngineError
from optimizer.model.base import FiniteFloat, Frozen, Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings
from optimizer.redact import may_hold_secret

_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

ExitCause = Literal["oom", "bad_flag", "port_busy", "model_missing", "nccl", "timeout", "crashed", "unknown"]


class Command(Frozen):
    """How to start a server: the whole argv, and what changes against the original environment (``None`` removes a
    variable)."""

    argv: tuple[str, ...]
    env: dict[str, str | None] = Field(default_factory=dict)


class HttpRequest(Frozen):
    """A request to the control plane, path only."""

    method: Literal["GET", "POST"] = "GET"
    path: str
    ok: tuple[int, ...] = (200,)


class Ready(Frozen):
    """What counts as ready: ``probe`` answers ``ok``, then ``identity`` names our served model, then one generation
    succeeds.

    ``timeout_s`` is the longest that one probe may take before it counts as "not yet".
    """

    base_url: str
    probe: HttpRequest
    identity: HttpRequest = HttpRequest(path="/v1/models")
    generation_path: str = "/v1/completions"
    timeout_s: FiniteFloat = 30.0


class Identity(Frozen):
    """Where and as whom a server runs, as its command line says."""

    model: str | None
    served_name: str | None
    host: str
    port: int


class Mismatch(Frozen):
    """A setting that the server accepted and does not use as asked."""

    param: str
    wanted: Value
    effective: Value
    where: str  # the readback path that says so


class Quirks(Frozen):
    """What one engine does differently, declared rather than coded around.

    ``health_is_ready``: a 200 of the probe means that the server can generate. ``log_ready``: the line of a finished
    start.
    ``start_limit_s``: longest start without log growth worth waiting for. ``drain_s``: longest exit after SIGTERM.
    ``name_pattern``: served names that the engine takes. ``side_ports``: flags that hold further ports.
    ``steps_in_log``: the log prints running and waiting requests; else they are read from ``metrics_path`` under load.
    ``dynamic_ports``: ports that are drawn at run time. ``no_metrics_without``: the flag without which
    ``metrics_path`` is not served.
    """

    health_is_ready: bool
    health_503_while_loading: bool
    log_ready: str
    start_limit_s: FiniteFloat
    drain_s: FiniteFloat
    name_pattern: str
    side_ports: tuple[str, ...] = ()
    dynamic_ports: str = ""
    metrics_path: str = "/metrics"
    no_metrics_without: str | None = None
    steps_in_log: bool = True
    child_titles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Engine(ABC):
    """Base of all adapters. Everything is pure; unknown settings raise EngineError, unreadable input never does."""

    name: ClassVar[str]
    api: ClassVar[Literal["completions", "chat"]] = "completions"
    default_port: ClassVar[int]
    published_image: ClassVar[str] = ""  # container image of a release, with {version}
    image_program: ClassVar[str] = ""  # where that image has the program, if not on its search path
    parallel_params: ClassVar[tuple[str, ...]] = ()  # their product is the number of GPUs of one server
    dialect: ClassVar[Dialect]
    quirks: ClassVar[Quirks]
    server_info_paths: ClassVar[tuple[str, ...]] = ()
    model_param: ClassVar[str]
    positional_model: ClassVar[bool] = False
    settings_env: ClassVar[re.Pattern[str]]

    # ---- what a process is
    # -------------------------------------------------------------------------------------------------

    @abstractmethod
    def options_start(self, argv: Sequence[str]) -> int | None:
        """Index of the first option of a server's command line, None when this is not the main process of such a
        server."""

    @abstractmethod
    def help_argv(self, original_argv: Sequence[str]) -> list[str]:
        """The command that prints every option of the build that ``original_argv`` starts."""

    @abstractmethod
    def version_argv(self, original_argv: Sequence[str]) -> list[str]:
        """The command whose last output word is the version of that build."""

    def recognise(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Is this the main process of a server of this engine? Workers, shells and ``--help`` are not."""
        start = self.options_start(argv)
        return start is not None and not any(
            token in {"-h", "--help"} or token.startswith("--help=") for token in argv[start:]
        )

    # ---- the command line
    # --------------------------------------------------------------------------------------------------

    def flags(self, help_text: str) -> FlagTable:
        """The options of a build from its ``--help``."""
        return parse_help(help_text)

    def parsed(self, argv: Sequence[str], flags: FlagTable) -> tuple[int, Parsed]:
        start = self.options_start(argv)
        if start is None:
            raise EngineError(
                f"This is no {self.name} command line: {' '.join(argv)[:200]!r}.",
                hint=f"Give the command that starts the server, for example: {self.example()}",
            )
        return start, parse(argv, start, flags, self.dialect)

    @abstractmethod
    def example(self) -> str:
        """A command line that starts this engine, for messages."""

    def parse_argv(self, argv: Sequence[str], flags: FlagTable) -> Settings:
        """The settings that the user gave, under canonical names; where and as whom the server runs, and secrets,
        left out."""
        _, parsed = self.parsed(argv, flags)
        values = {param: value for param, value in parsed.settings().items() if not self.dialect.is_identity(param)}
        if self.positional_model and parsed.positionals and self.model_param not in values:
            values[self.model_param] = argv[parsed.positionals[0]]
        return canonical_settings(Settings(values=dict(sorted(values.items()))))

    def parse_launch(self, argv: Sequence[str], env: Mapping[str, str], flags: FlagTable) -> Settings:
        """``parse_argv`` plus the environment variables that are settings, as ``env.NAME``."""
        values: dict[str, Value] = {f"env.{name}": value for name, value in self.environment_of_interest(env).items()}
        return canonical_settings(self.parse_argv(argv, flags).merged(values))

    def unknown_flags(self, argv: Sequence[str], flags: FlagTable) -> tuple[str, ...]:
        """Options that this build does not know: argparse would refuse to start."""
        _, parsed = self.parsed(argv, flags)
        return tuple(argv[index] for index in parsed.unknown if argv[index].startswith("-"))

    def identity(self, argv: Sequence[str], flags: FlagTable) -> Identity:
        """Model, served name, host and port as the command line gives them, with the engine's defaults."""
        _, parsed = self.parsed(argv, flags)
        values = parsed.settings()
        model = values.get(self.model_param)
        if model is None and self.positional_model and parsed.positionals:
            model = argv[parsed.positionals[0]]
        served = values.get("served_model_name")
        first = served[0] if isinstance(served, list) and served else served
        port = values.get("port")
        return Identity(
            model=None if model is None else text_of(model),
            served_name=None if first is None or isinstance(first, bool) else text_of(first),
            host=str(values.get("host") or "127.0.0.1"),
            port=port if isinstance(port, int) and not isinstance(port, bool) else self.default_port,
        )

    def model_name(self, argv: Sequence[str], flags: FlagTable) -> str | None:
        """The name that requests to this server must carry."""
        identity = self.identity(argv, flags)
        return identity.served_name or identity.model

    def settable(self, param: str, flags: FlagTable) -> str | None:
        """The flag or variable through which this build takes a parameter, None when it has none."""
        if param.startswith("env."):
            return param[4:]
        return self.dialect.offered(param, flags)

    def command(
        self,
        original_argv: Sequence[str],
        original_env: Mapping[str, str],
        settings_from: Settings,
        settings_to: Settings,
        *,
        port: int | None,
        served_name: str | None,
        flags: FlagTable,
    ) -> Command:
        """The original command line with as few edits as possible.

        ``settings_to`` is an overlay: a parameter in it gets that value, ``None`` takes it off the command line. A
        parameter that
        ``settings_from`` holds, exactly as the original command line says, and ``settings_to`` does not, is taken off
        too.
        ``port`` and ``served_name`` of None leave the user's. A setting that this build cannot take raises EngineError.
        """
        start, parsed = self.parsed(original_argv, flags)
        now = self._given(original_argv, parsed, original_env)
        wanted = self._wanted(now, settings_from, settings_to)
        changes: dict[str, Value] = {}
        env: dict[str, str | None] = {}
        for param in sorted(set(now) | set(wanted)):
            before, after = now.get(param), wanted.get(param)
            if param.startswith("env."):
                if (before is None) != (after is None) or not same(before, after):
                    env[_env_name(param)] = None if after is None else _env_text(param, after)
            elif not (same(before, after) or (before is None and after is False and not self._negatable(param, flags))):
                changes[param] = after
        if self.model_param in changes and self.positional_model and parsed.positionals:
            raise EngineError(
                f"The model is given without a flag ({original_argv[parsed.positionals[0]]!r}) and is not changed.",
                why="Measurements of two models do not compare.", hint="Start another study for the other model.",
            )
        if port is not None and not same(now.get("port"), port):
            changes["port"] = port
        if served_name is not None and not same(now.get("served_model_name"), served_name):
            if not re.fullmatch(self.quirks.name_pattern, served_name):
                raise EngineError(
                    f"{self.name} cannot serve a model under the name {served_name!r}.",
                    why="The server would refuse to start.", hint=f"Give a name that matches {self.quirks.name_pattern}.",
                )
            changes["served_model_name"] = served_name
        return Command(
            argv=tuple(edit(original_argv, start, parsed, changes, flags, self.dialect)), env=dict(sorted(env.items()))
        )

    def _given(self, argv: Sequence[str], parsed: Parsed, env: Mapping[str, str]) -> dict[str, Value]:
        values: dict[str, Value] = dict(parsed.settings())
        if self.positional_model and parsed.positionals and self.model_param not in values:
            values[self.model_param] = argv[parsed.positionals[0]]
        values.update({f"env.{name}": value for name, value in env.items()})
        return values

    def _wanted(self, now: Mapping[str, Value], settings_from: Settings, settings_to: Settings) -> dict[str, Value]:
        named_from = {self.dialect.canonical(param): value for param, value in settings_from.values.items()}
        named_to = {self.dialect.canonical(param): value for param, value in settings_to.values.items()}
        wanted = dict(now)
        for param, value in named_from.items():
            if param not in named_to and same(now.get(param), value):
                wanted.pop(param, None)
        wanted.update(named_to)
        return canonical_settings(Settings(values=wanted), keep_none=False).values

    def _negatable(self, param: str, flags: FlagTable) -> bool:
        offered = self.dialect.offered(param, flags)
        flag = flags.by_name.get(offered) if offered else None
        return flag is not None and (flag.negatable or flag.takes_value)

    # ---- a running server
    # --------------------------------------------------------------------------------------------------

    @abstractmethod
    def ready(self, port: int, host: str = "127.0.0.1") -> Ready:
        """Where to ask whether the server is ready."""

    def gpus_of(self, values: Mapping[str, Value]) -> int:
        """GPUs that one server with these settings occupies, from its parallel sizes."""
        sizes = [values.get(name) for name in self.parallel_params]
        return math.prod(size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size > 0)

    def image_of(self, version: str | None, *, gpu: bool = False) -> str | None:
        """The engine's published image of a release; None for a build that is none, and without a GPU, as what is published is for GPUs."""
        if not gpu:
            return None
        released = version is not None and re.fullmatch(r"[0-9]+(\.[0-9]+)+(\.?post[0-9]+|rc[0-9]+)?", version)
        return self.published_image.format(version=version) if released and self.published_image else None

    @abstractmethod
    def flush_cache(self) -> HttpRequest | None:
        """The request that empties the prefix cache, None where the engine serves none."""

    @abstractmethod
    def readback(
        self, server_info: Mapping[str, Value] | None, evidence: Evidence | None = None, log_text: str = ""
    ) -> dict[str, Value]:
        """Effective settings under canonical names (and the engine's own, dotted where nested). What is not reported
        is absent."""

    def check_readback(self, wanted: Mapping[str, Value], effective: Mapping[str, Value]) -> tuple[Mismatch, ...]:
        """The asked-for values that the server reports differently. What the server does not report is not judged."""
        found: list[Mismatch] = []
        for param, value in sorted(_flat(wanted).items()):
            name = self.dialect.canonical(param)
            if value is None or name == self.model_param or name.startswith("env."):
                continue  # the model is proven by the served name; the environment by /proc
            where, got = self._reported(name, effective)
            if where and not self.agrees(name, value, got):
                found.append(Mismatch(param=param, wanted=value, effective=got, where=where))
        return tuple(found)

    def _reported(self, param: str, effective: Mapping[str, Value]) -> tuple[str, Value]:
        """(where it stands, the value) of a parameter or of a key of a JSON setting, ("", None) when it is not
        reported."""
        if param in effective:
            return param, effective[param]
        base, dot, key = param.partition(".")
        if dot and base in effective:
            whole = effective[base]
            if whole is None:
                return base, None  # the whole setting is off
            if isinstance(whole, dict) and key in whole:
                return param, whole[key]
        return "", None

    def agrees(self, param: str, wanted: Value, effective: Value) -> bool:
        """Does a reported value satisfy the asked one? Engines with synonyms override this."""
        return same(wanted, effective)

    # ---- environment and exits
    # ---------------------------------------------------------------------------------------------

    def environment_of_interest(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that are settings, sorted. Secrets never are."""
        return {
            name: env[name]
            for name in sorted(env)
            if self.settings_env.match(name) and not may_hold_secret(name)
        }

    def classify_exit(self, log_tail: str, code: int | None) -> ExitCause:
        """Why a start ended. The last lines decide, not the first that looks like an error."""
        for line in reversed(log_tail.splitlines()[-400:]):
            for cause, pattern in _EXITS:
                if pattern.search(line):
                    return cause
        if code == 2:
            return "bad_flag"
        return "crashed" if code not in (None, 0) else "unknown"


_EXITS: tuple[tuple[ExitCause, re.Pattern[str]], ...] = (
    (
        "bad_flag",
        re.compile(r"error: (unrecognized arguments|argument |ambiguous option|the following arguments|invalid)"),
    ),
    ("port_busy", re.compile(r"address already in use|Port \d+ is already in use|\[Errno 98\]", re.IGNORECASE)),
    (
        "oom",
        re.compile(
            r"OutOfMemoryError|CUDA out of memory|out of memory\. Tried|No available memory for the cache"
            r"|leave no GPU memory|Not enough memory\. Please try|larger than the available KV cache memory"
            r"|is less than desired GPU memory"
        ),
    ),
    ("nccl", re.compile(r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|DistBackendError")),
    (
        "model_missing",
        re.compile(
            r"is not a local folder and is not a valid model identifier|Repo id must be"
            r"|does not appear to have a file named|Can't load the configuration of"
            r"|No such file or directory: '[^']*config\.json'"
        ),
    ),
    ("timeout", re.compile(r"[Ww]atchdog .*timeout|Initialization timed out|timed out waiting for the server")),
)


def _flat(wanted: Mapping[str, Value]) -> dict[str, Value]:
    """JSON settings by their keys, so that each key is compared with what is reported of it."""
    flat: dict[str, Value] = {}
    for name, value in wanted.items():
        if isinstance(value, dict) and is_json_param(f"{name}.x"):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    return flat


def _env_name(param: str) -> str:
    name = param.removeprefix("env.")
    if not _ENV_NAME.match(name):
        raise EngineError(
            f"{name!r} is no name of an environment variable.", hint="Use letters, digits and underscores."
        )
    return name


def _env_text(param: str, value: Value) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    text = text_of(value)
    if "\0" in text:
        raise EngineError(f"The value of {param} holds a NUL byte, which no environment can carry.", hint="Remove it.")
    return text
