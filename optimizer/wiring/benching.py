"""Puts ``optimize bench`` together: the server behind an address or on a box, the workload from its file and the options, the
target. It measures nothing itself."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from optimizer.bench.tools.base import About
from optimizer.bench.tools.registry import TOOLS
from optimizer.box.box import KEY_VARIABLE
from optimizer.endpoint.client import Endpoint
from optimizer.errors import BoxError, UsageError
from optimizer.model.flags import FlagTable
from optimizer.model.study import StudySpec
from optimizer.model.target import Target, parse_target
from optimizer.model.workload import Workload
from optimizer.runner import hosts
from optimizer.runner.benching import Bench, BoxSource, LocalSource, Served, loads_of
from optimizer.runner.survey import find_target
from optimizer.runner.tooling import ToolRunner
from optimizer.wiring import Roots, _config_folder, opened_box

NO_MODEL_LIST = ("generate", "llamacpp")  # these take no model name
TOOL_LIMIT_S = 3600.0  # of one load
# What changes the requests themselves; a tool that is not told of it would measure another load.
OFFERED = {"prompt_lengths", "output_lengths", "shared_prefix_tokens", "prefix_groups", "trace", "conversations", "turns", "think_s", "burst_size"}
HIGHEST_CONCURRENCY, HIGHEST_RATE = 4096.0, 100_000.0


@dataclass(frozen=True)
class BenchOptions:
    """What ``bench`` was asked on the command line."""

    url: str | None = None
    host: str | None = None
    port: int | None = None
    engine: str | None = None
    model: str | None = None
    workload: Path | None = None
    changes: tuple[tuple[str, Any], ...] = ()  # fields of the workload given as options
    concurrency: str | None = None
    rate: str | None = None
    knee: bool = False
    target: tuple[str, ...] = ()
    ca_file: Path | None = None
    max_connections: int | None = None
    seed: int = 0
    tool: str | None = None
    tool_command: str | None = None
    tokenizer: str | None = None
    requests: int | None = None


@dataclass(frozen=True)
class Asked:
    """The options, resolved: which loads, or from where to look for the knee and up to where."""

    workload: Workload
    target: Target
    loads: tuple[float, ...]
    highest: float

    @property
    def text(self) -> str:
        """What is offered, in words: the loads that are asked for, not the workload's own."""
        loads, said = ", ".join(f"{load:g}" for load in self.loads), self.workload.text
        if not loads or self.workload.arrival == "trace":
            return said
        if self.workload.arrival == "closed":
            return said.replace(f"concurrency {self.workload.concurrency}", f"concurrency {loads}", 1)
        return said.replace(f"{self.workload.rate_per_s:g} requests/s", f"{loads} requests/s", 1)


def asked(options: BenchOptions) -> Asked:
    """Raises UsageError before anything is connected to."""
    if bool(options.url) == bool(options.host):
        raise UsageError("Give either the server's URL or --host NAME.", hint="Examples: optimize bench http://127.0.0.1:8000; optimize bench --host box")
    if options.url:
        parts = urlsplit(options.url)
        if not _has_port(options.url) or parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            said = options.url.partition("?")[0].rpartition("@")[2]  # neither a password nor a key in it
            raise UsageError(f"{said!r} is no server's address.", hint=f"Example: http://127.0.0.1:8000. A key goes into the environment: {KEY_VARIABLE}=… optimize bench URL")
    target = parse_target(options.target) if options.target else Target()
    workload = hosts.read_workload(options.workload, Workload()) if options.workload else Workload()
    changes = dict(options.changes)
    if options.rate is not None and options.concurrency is not None:
        raise UsageError("Give --concurrency (users who wait) or --rate (a clock that does not), not both.")
    if options.rate is not None and workload.arrival in ("closed", "trace"):
        changes |= {"arrival": "poisson"}
    loads = _loads(options, workload)
    if options.rate is not None:
        changes |= {"rate_per_s": loads[0]}
    try:
        workload = Workload.model_validate({**workload.model_dump(), "side_levels": (), **changes})
    except ValueError as error:
        raise UsageError(f"The options do not make a workload: {hosts.faults(error, Workload, 'the load').rstrip('.')}.", hint="optimize bench --help; docs/workloads.md") from error
    workload = hosts.fitted(workload, target)
    if target.concurrency is not None and not options.concurrency and not options.knee and workload.arrival == "closed":
        loads = (float(target.concurrency),)
    if options.knee and not target.bounds:
        raise UsageError("The knee is the largest load that meets a target, and none was given.", hint="Example: --knee --target 'ttft.p95<500ms,tpot<30ms'")
    if options.knee and any(bound.direction == "at_least" for bound in target.bounds):
        raise UsageError("A rate grows with the load, so it bounds no knee.", hint="Give limits: --knee --target 'ttft.p95<500ms,tpot<30ms,error_rate<1%'")
    if options.knee and workload.arrival == "trace":
        raise UsageError("A trace has one load, so it has no knee.", hint="Give --rate to draw arrivals instead, or trace_speed in the workload file.")
    if options.tool is not None:
        _fit_for_a_tool(options, workload)
    elif options.tool_command or options.tokenizer or options.requests:
        raise UsageError("--with-command, --tokenizer and --requests belong to --with TOOL, which was not given.")
    highest = HIGHEST_CONCURRENCY if workload.arrival == "closed" else HIGHEST_RATE
    return Asked(workload, target, loads, max(loads) if options.knee and len(loads) > 1 else highest)


def _fit_for_a_tool(options: BenchOptions, workload: Workload) -> None:
    """Raises UsageError where the tool would be offered something else than the workload says."""
    tool = TOOLS[str(options.tool)]
    plain = Workload(
        **{name: getattr(workload, name) for name in ("prompt_tokens", "output_tokens", "concurrency", "ignore_eos", "api")},
        arrival=workload.arrival, rate_per_s=workload.rate_per_s,
    )  # fmt: skip
    special = sorted(name for name, value in workload.plain().items() if name in OFFERED and plain.plain().get(name) != value)
    if special or workload.api != "completions" or workload.arrival not in ("closed", "poisson"):
        said = ", ".join(special) or (f"the {workload.api} API" if workload.api != "completions" else f"{workload.arrival} arrivals")
        raise UsageError(f"{tool.name} is asked here for prompts and answers of one length over the completions API; the workload has {said}.",
                         hint="Leave out --with: our own load generator offers it.")  # fmt: skip
    if options.rate is not None and not tool.rates:
        raise UsageError(f"{tool.name} is asked here for users who wait, not for arrivals by a clock.", hint="Use --concurrency, or --with vllm or sglang.")
    if options.host or options.ca_file or options.max_connections:
        raise UsageError(f"{tool.name} is started on this machine, against an address: --host, --ca and --max-connections do not apply.")
    if os.environ.get(KEY_VARIABLE) and tool.key_variable is None:
        raise UsageError(f"{tool.name} takes an API key on its command line alone, where every user of this machine reads it.", hint="Use --with vllm or sglang.")


def _tool(options: BenchOptions) -> ToolRunner | None:
    if options.tool is None:
        return None
    tool, key = TOOLS[options.tool], os.environ.get(KEY_VARIABLE)
    program = tuple(shlex.split(options.tool_command)) if options.tool_command else tool.program
    if not program:
        raise UsageError("--with-command holds no words.")
    env = {tool.key_variable: key} if key and tool.key_variable else {}
    return ToolRunner(tool, program, env, TOOL_LIMIT_S, options.tokenizer, options.requests)


def _has_port(url: str) -> bool:
    """Whether its port, given or not, is one."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _loads(options: BenchOptions, workload: Workload) -> tuple[float, ...]:
    if options.concurrency is not None:
        if workload.arrival != "closed":
            raise UsageError(f"The workload has {workload.arrival} arrivals: its load is a rate, not a concurrency.", hint="Use --rate.")
        return loads_of(options.concurrency, whole=True)
    if options.rate is not None:
        return loads_of(options.rate, whole=False)
    if workload.arrival == "closed":
        return (float(workload.concurrency),)
    return (workload.rate_per_s or len(workload.trace) / workload.trace_period_s,)


@asynccontextmanager
async def opened_bench(options: BenchOptions, roots: Roots) -> AsyncIterator[tuple[Bench, Asked]]:
    """A bench that is ready to offer load: the server answers and its model has a name."""
    wanted = asked(options)
    name = f"bench-{secrets.token_hex(3)}"
    key = os.environ.get(KEY_VARIABLE) or None
    if options.url:
        served = await _behind(options.url, options, wanted.workload, key)
        yield _bench(served, wanted, options, name), wanted
        return
    assert options.host is not None
    host = hosts.parse_host(options.host)
    if host.kind == "sim":
        raise UsageError("A simulated box has no server until a study launches one.", hint=f"optimize run --host {options.host}")
    description = hosts.describe(host, (Path("hosts"), _config_folder() / "hosts"))
    spec = StudySpec(study=name, host=hosts.resolved_host(host, description), target=wanted.target, workload=wanted.workload,
                     engine=options.engine or description.engine, port=options.port or description.port)  # fmt: skip
    async with opened_box(spec, roots.runs / name) as box:
        adapter, launch, original = await find_target(box, spec, hosts.launch_of(description))
        if original is None:
            raise BoxError(f"No inference server runs on {options.host}, and bench starts none.", hint="Start it, or let a study launch it: optimize run")
        identity = adapter.identity(launch.argv, FlagTable(known=False))
        where, here = await box.forward(identity.port)
        control_key = await box.learn_key(identity.port)
        model = options.model or await _model(f"http://{where}:{here}", options.host, wanted.workload, control_key) or identity.served_name or identity.model
        served = Served(options.host, f"http://127.0.0.1:{identity.port}", model or "", BoxSource(box, name, key), has_key=key is not None,
                        beside=True, metrics_path=adapter.quirks.metrics_path)  # fmt: skip
        yield _bench(served, wanted, options, name), wanted


async def second_server(url: str, options: BenchOptions, wanted: Asked) -> Served:
    """The server behind ``--against``; the API key of the environment is sent to both."""
    asked(replace(options, url=url, host=None))  # the address is one
    return await _behind(url, replace(options, model=None), wanted.workload, os.environ.get(KEY_VARIABLE) or None)


async def _behind(url: str, options: BenchOptions, workload: Workload, key: str | None) -> Served:
    base = url.rstrip("/").removesuffix("/v1")
    model = options.model or await _model(base, url, workload, key, options.ca_file)
    beside = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return Served(url, base, model or "", LocalSource(key), has_key=key is not None, beside=beside,
                  ca_file=str(options.ca_file) if options.ca_file else None)  # fmt: skip


async def _model(base: str, called: str, workload: Workload, key: str | None, ca_file: Path | None = None) -> str | None:
    """The one model that is served. Raises BoxError where nobody answers, UsageError where a choice is needed."""
    async with Endpoint(base, api_key=key, ca_file=ca_file) as endpoint:
        answer = await endpoint.get_json("/v1/models")
        if answer.status is None:
            raise BoxError(f"Nobody answers at {called}: {answer.error}.", why="Nothing was measured.", hint="Check the address and whether the server is up.")
        if answer.status in (401, 403):
            raise UsageError(f"{called} asks for an API key ({answer.status}).", hint=f"Give it in the environment, never as an option: {KEY_VARIABLE}=… optimize bench …")
        names = await endpoint.served_models() or ()
    if workload.api in NO_MODEL_LIST:
        return names[0] if names else None
    if len(names) != 1:
        listed = f"It serves {', '.join(names)}." if names else f"/v1/models gave {answer.status} and no names."
        raise UsageError(f"Which model of {called}? {listed}", hint="Name it with --model.")
    return names[0]


def _bench(served: Served, wanted: Asked, options: BenchOptions, name: str) -> Bench:
    return Bench(served, wanted.workload, wanted.target, options.seed, name, max_connections=options.max_connections, tool=_tool(options))


def exported(tool: str, bench: Bench) -> str:
    """What was measured validly, as this tool's result file. Empty where nothing was: the form has no word for invalid."""
    valid = [point for point in bench.points if not point.invalid]
    if not valid:
        return ""
    date = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return TOOLS[tool].written(valid, About(bench.served.url, bench.served.model, bench.workload, date))
