"""Who ``--host`` and ``--launch`` mean: an SSH alias, localhost or a simulated box, and the command line that starts the
server there. Reads host descriptions; connects to nothing."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from optimizer.bench.traces import resolve
from optimizer.box.plain import procfs
from optimizer.errors import EngineError, UsageError
from optimizer.model.base import Frozen
from optimizer.model.study import HostSpec, LaunchSpec
from optimizer.model.target import Target, percentile_of
from optimizer.model.workload import Workload
from optimizer.runner.deployment import launch_of as deployment_of
from optimizer.stats import tail
from optimizer.transport.base import prefix_of

EXAMPLE = (
    "Start your server first, or describe it, for example:\n"
    "  optimize run --host {host} --target 1000tps@16 --launch 'python3 -m sglang.launch_server --model-path /models/m --port 30000'\n"
    "or write hosts/{host}.toml:\n"
    '  launch = "python3 -m sglang.launch_server --model-path /models/m --port 30000"\n'
    '  env = {{ HF_HUB_OFFLINE = "1" }}'
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class MemberDescription(Frozen):
    """One process of a deployment, in a host description or a launch file. Leading NAME=VALUE words of ``launch`` are environment."""

    launch: str | list[str]
    env: dict[str, str] = {}
    cwd: str | None = None


class HostDescription(Frozen):
    """``hosts/NAME.toml``. Every field is optional; ``ssh`` is the alias or address if it differs from the name, ``inside`` what enters
    the container that the server runs in (``docker exec -i sglang``)."""

    ssh: str | None = None
    launch: str | list[str] | None = None
    members: list[MemberDescription] = []  # of a deployment of several processes, instead of ``launch``
    env: dict[str, str] = {}  # of every process
    cwd: str | None = None
    log: str | None = None
    engine: str | None = None
    port: int | None = None
    inside: str | list[str] | None = None  # the words that enter the server's container
    prior: tuple[str, ...] = ()  # known-good studies or files, as for --prior


def parse_host(text: str) -> HostSpec:
    """``--host``. Raises UsageError for names that could be read as an option, a path or a command."""
    name = text.strip()
    if name.startswith("sim:"):
        if not _NAME.fullmatch(name[4:]):
            raise UsageError(f"{text!r} names no simulated box.", hint="Example: --host sim:h200-7b")
        return HostSpec(name=name, kind="sim")
    if name == "localhost":
        return HostSpec(name=name, kind="local")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"The host name {re.sub(':[^@]*@', ':…@', text)!r} has characters that no SSH alias has.",
            hint="Use an alias from ~/.ssh/config (user, port and jump host belong there), `localhost`, or `sim:NAME`.",
        )
    return HostSpec(name=name, kind="ssh")


def describe(host: HostSpec, folders: tuple[Path, ...]) -> HostDescription:
    """The first ``NAME.toml`` in ``folders``; an empty description when there is none. Raises UsageError for a bad file."""
    for folder in folders:
        path = folder / f"{host.name}.toml"
        if host.kind != "sim" and path.is_file():
            try:
                return HostDescription.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
            except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError, RecursionError) as error:
                raise UsageError(f"The host file {path} cannot be used: {faults(error, HostDescription)}", hint=EXAMPLE.format(host=host.name)) from error
    return HostDescription()


def faults(error: Exception, model: type[BaseModel], whole: str = "the file") -> str:
    """What is wrong with each field, in a reader's words; of a name that is no field, the one that it resembles. ``whole``: what the
    fields belong to."""
    if not isinstance(error, ValidationError):
        return str(error)
    said = []
    for fault in error.errors(include_url=False):
        name = ".".join(str(part) for part in fault["loc"]) or whole
        if fault["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(fault["loc"][-1]), list(model.model_fields), n=1)
            said.append(f"{name} is no field" + (f", did you mean {close[0]}?" if close else ""))
        else:
            said.append(f"{name}: {fault['msg'].removeprefix('Value error, ')}")
    return "; ".join(said)


def parse_launch(text: str) -> LaunchSpec:
    """``--launch``: a command (leading NAME=VALUE words are environment), or a JSON or TOML file with argv, env and cwd, or with the
    members of a deployment."""
    path = Path(text)
    if text.endswith((".json", ".toml")) or (len(text) < 4096 and "\n" not in text and path.is_file()):
        return _launch_file(path)
    try:
        words = shlex.split(procfs.text(procfs.raw(text)))  # bytes that are no UTF-8 are kept as what the box is asked with
    except ValueError as error:
        raise UsageError(f"The launch command cannot be split into words: {error}.", hint="Quote it for a shell.") from error
    env: dict[str, str] = {}
    while words and (match := _VARIABLE.fullmatch(words[0])):
        env[match[1]] = match[2]
        words.pop(0)
    if not words:
        raise UsageError("The launch command is empty.", hint="Example: --launch 'python3 -m sglang.launch_server --model-path /models/m'")
    return LaunchSpec(argv=tuple(words), env=env)


def _launch_file(path: Path) -> LaunchSpec:
    try:
        written = path.read_text(encoding="utf-8")
        data = tomllib.loads(written) if path.suffix == ".toml" else json.loads(written)
        json.dumps(data, ensure_ascii=False, default=str).encode()  # refuses half a surrogate pair, which no command line can hold
        if isinstance(data, dict) and data.get("members"):
            return _deployment([MemberDescription.model_validate(_as_launch(one)) for one in data["members"]], data.get("env") or {}, data.get("cwd"))
        if not isinstance(data, dict) or not data.get("argv"):
            raise ValueError("it names no argv")
        allowed = {key: data[key] for key in ("argv", "env", "cwd", "log") if data.get(key) is not None}
        return LaunchSpec.model_validate(allowed)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"The launch file {path} cannot be used: {error}", hint='It must hold {"argv": [...], "env": {...}}, or the members of a deployment (docs/deployments.md).') from error


def _as_launch(one: Any) -> Any:
    """A member may say ``argv`` as a single server's file does."""
    return {**{key: value for key, value in one.items() if key != "argv"}, "launch": one["argv"]} if isinstance(one, dict) and "argv" in one else one


def _deployment(members: Sequence[MemberDescription], env: Mapping[str, str], cwd: str | None) -> LaunchSpec:
    """The launch of several processes. Raises UsageError where they do not make a deployment."""
    parts = []
    for one in members:
        base = parse_launch(one.launch) if isinstance(one.launch, str) else LaunchSpec(argv=tuple(one.launch))
        parts.append((base.argv, {**env, **base.env, **one.env}, one.cwd or cwd))
    try:
        return deployment_of(parts)
    except EngineError as error:
        raise UsageError(error.message, hint=error.hint) from error


def launch_of(description: HostDescription) -> LaunchSpec | None:
    """The launch in a host description."""
    if description.members:
        return _deployment(description.members, description.env, description.cwd)
    if description.launch is None:
        return None
    base = (
        parse_launch(description.launch)
        if isinstance(description.launch, str)
        else LaunchSpec(argv=tuple(description.launch))
    )
    return LaunchSpec(argv=base.argv, env={**base.env, **description.env}, cwd=description.cwd, log=description.log)


def fitted(workload: Workload, target: Target) -> Workload:
    """The workload that also measures what the target asks for. Raises UsageError where it cannot."""
    if any(bound.metric == "goodput_per_s" for bound in target.bounds) and not workload.limits:
        raise UsageError(
            "The target asks for goodput, and the workload does not say what a good request is.",
            hint='Write it into the workload file: slo = "ttft<500ms,tpot<30ms" (bench also takes --slo).',
        )
    asked = [percentile for bound in target.bounds if (percentile := percentile_of(bound.metric)) not in (None, *tail.PERCENTILES)]
    return workload.model_copy(update={"percentiles": tuple(sorted({*workload.percentiles, *asked}))}) if asked else workload


def read_workload(path: Path, base: Workload) -> Workload:
    """``--workload FILE`` (TOML or JSON): the fields of Workload; what it leaves out keeps its default."""
    try:
        text = path.read_text(encoding="utf-8")
        data: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it holds no fields")
        data = resolve(data, lambda name: (path.parent / name).read_text(encoding="utf-8", errors="replace"))
        kept = base.model_dump()
        if data.get("arrival", "closed") != "closed" and "side_levels" not in data:
            kept["side_levels"] = ()  # an open loop has its rate alone
        return Workload.model_validate({**kept, "name": path.stem, **data})
    except UsageError as error:
        raise UsageError(f"The workload file {path} cannot be used: {error.message}", hint=error.hint) from error
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        fields = ", ".join(Workload.model_fields)
        raise UsageError(f"The workload file {path} cannot be used: {faults(error, Workload)}", hint=f"Fields: {fields}.") from error


def resolved_host(host: HostSpec, description: HostDescription, inside: str | None = None) -> HostSpec:
    """How the host is reached: its SSH name, and the words that enter a container there. Raises UsageError for a bad prefix."""
    entering = inside or description.inside
    if entering and host.kind == "sim":
        raise UsageError("A simulated box has no container to enter.", hint="Leave --inside away.")
    return HostSpec(name=description.ssh or host.name, kind=host.kind, prefix=prefix_of(entering) if entering else ())
