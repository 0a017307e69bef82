"""The few questions that a box cannot answer: which of its servers, how one is started where none runs, what it must reach, what its
requests are like, whether it may be stopped, and what runs afterwards. Asked before a study opens, so that giving up leaves no trace;
whatever an option, a host file or the box itself answers is not asked. It changes nothing."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from optimizer.box.results import ServerProcess
from optimizer.engines.registry import engine_of, engines
from optimizer.errors import UsageError
from optimizer.evidence.usual_request import UsualRequest, usual_request
from optimizer.model.flags import FlagTable
from optimizer.model.study import Finish, LaunchSpec
from optimizer.model.target import parse_target
from optimizer.model.workload import Workload
from optimizer.runner import hosts
from optimizer.runner.collecting import endpoint_files
from optimizer.runner.phrases import command_text
from optimizer.runner.survey import port_of, servers_to_tune
from optimizer.wiring import Options, Roots, left_alone, opened_box, prepare

FINISHES: tuple[tuple[Finish | None, str], ...] = (
    (None, "the best settings if a fresh launch confirms them, else what runs now"),
    ("restore", "what runs now, whatever was found"),
    ("leave", "the last server that was measured, on a port of its own"),
)
TARGET = "What must it reach? (1000tps@16: 1,000 output tokens/s with 16 requests at once; ttft.p99<500ms: the first token; commas join)"


class Person(Protocol):
    """Who answers. ``check`` raises OptimizerError with what is wrong with an answer; the person is then asked again."""

    def choose(self, question: str, choices: Sequence[str]) -> int: ...

    def text(self, question: str, default: str | None, check: Callable[[str], object]) -> str: ...

    def agree(self, question: str) -> bool: ...

    def tell(self, text: str) -> None: ...


@dataclass(frozen=True)
class Looked:
    """What one look at the box found: servers that could be tuned, what their requests were like by port, and the launch that a host
    file describes."""

    described: LaunchSpec | None
    servers: tuple[ServerProcess, ...] = ()
    usual: Mapping[int, UsualRequest] = field(default_factory=dict)


def completed(options: Options, roots: Roots, person: Person) -> Options:
    """The options with everything asked that is still open. A simulated box answers for itself. Raises what a person does by giving up."""
    if options.target:
        parse_target(options.target)  # what is wrong already is said before anything is asked
    if options.host.strip().startswith("sim:"):
        return options
    looked = asyncio.run(_look(options, roots))
    options = _which(options, looked, person)
    server = _server_of(options, looked)
    if not options.target:
        options = replace(options, target=(person.text(TARGET, None, lambda text: parse_target([text])),))
    options = _load(options, looked.usual.get(server.ports[0]) if server is not None and server.ports else None, person)
    stopped = [(options.host, server)] if server is not None else []
    stopped += _on_further_boxes(options, roots)
    return _consent(options, stopped, person) if stopped else options


def _on_further_boxes(options: Options, roots: Roots) -> list[tuple[str, ServerProcess]]:
    """The servers that would have to stop on the other boxes of the study: each is asked about, for nobody agreed to them yet."""
    found = []
    for host in options.more_hosts:
        there = replace(options, host=host, more_hosts=())
        server = None if host.strip().startswith("sim:") else _server_of(there, asyncio.run(_look(there, roots)))
        if server is not None:
            found.append((host, server))
    return found


def command_of(options: Options) -> str:
    """The command that needs no answer any more. ``options``: completed ones."""
    words = ["optimize", "run"]
    for host in (options.host, *options.more_hosts):
        words += ["--host", host]
    for part in options.target:
        words += ["--target", part]
    given = {
        "--port": options.port, "--engine": options.engine, "--inside": options.inside, "--launch": options.launch, "--workload": options.workload,
        "--concurrency": options.concurrency, "--prompt-tokens": options.prompt_tokens, "--output-tokens": options.output_tokens, "--finish": options.finish,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None:
            words += [name, str(value)]
    return shlex.join([*words, "--yes"])


async def _look(options: Options, roots: Roots) -> Looked:
    with tempfile.TemporaryDirectory(prefix="optimize-look-") as scratch:
        prepared = prepare(replace(options, study=None), replace(roots, runs=Path(scratch)), need_target=False, prior_roots=roots)
        spec = prepared.spec
        async with opened_box(spec, prepared.folder) as box:
            servers, _ = await servers_to_tune(box, spec)
            usual: dict[int, UsualRequest] = {}
            for server in servers:
                adapter = engine_of(server.argv, server.env)
                if adapter is not None and server.ports:
                    port = adapter.identity(server.argv, FlagTable(known=False)).port
                    port = port if port in server.ports else server.ports[0]
                    await box.learn_key(port)
                    found = usual_request((await endpoint_files(box, adapter, port)).get("metrics.txt", b""))
                    if found is not None:
                        usual[server.ports[0]] = found
            return Looked(described=spec.launch, servers=servers, usual=usual)


def _which(options: Options, looked: Looked, person: Person) -> Options:
    """The server, or how it would be started."""
    if looked.described is not None:
        return options
    if not looked.servers:
        where = f" on port {options.port}" if options.port is not None else ""
        question = f"No inference server runs on {options.host}{where}. The command that starts it (in one line, or a JSON file with argv and env)"
        return replace(options, launch=person.text(question, None, lambda text: _known_engine(text, options)))
    if len(looked.servers) > 1:
        chosen = person.choose(f"Several servers run on {options.host}. Which one?", [_described(server) for server in looked.servers])
        ports = looked.servers[chosen].ports
        return replace(options, port=ports[0] if ports else options.port)
    return options


def _known_engine(text: str, options: Options) -> LaunchSpec:
    launch = hosts.parse_launch(text)
    if options.engine is None and engine_of(launch.argv, launch.env) is None:
        raise UsageError("No engine is known that starts so.", hint=f"Engines: {', '.join(engines())}; for a wrapper, name it with --engine.")
    return launch


def _described(server: ServerProcess) -> str:
    return f"port {', '.join(map(str, server.ports)) or 'unknown'}: {command_text(server.argv, 120)} (process {server.pid})"


def _server_of(options: Options, looked: Looked) -> ServerProcess | None:
    """The running server that would have to stop."""
    launch = looked.described or (hosts.parse_launch(options.launch) if options.launch is not None else None)
    if launch is None:
        return next((server for server in looked.servers if options.port is None or options.port in server.ports), None)
    adapter = engine_of(launch.argv, launch.env)
    port = port_of(adapter, launch) if adapter is not None else options.port
    return next((server for server in looked.servers if port in server.ports), None)


def _load(options: Options, usual: UsualRequest | None, person: Person) -> Options:
    """What a measurement offers, where neither a file nor an option says it."""
    if options.workload is not None:
        return options
    usually = Workload()
    if options.concurrency is None and parse_target(options.target).concurrency is None:
        options = replace(options, concurrency=_whole("Requests at once", usually.concurrency, person))
    if usual is not None and options.prompt_tokens is None and options.output_tokens is None:
        person.tell(f"The {usual.requests:,} requests that it has answered had {usual.prompt_tokens:,} prompt and {usual.output_tokens:,} output tokens on average.")
    if options.prompt_tokens is None:
        options = replace(options, prompt_tokens=_whole("Prompt tokens of a usual request", usual.prompt_tokens if usual else usually.prompt_tokens, person))
    if options.output_tokens is None:
        options = replace(options, output_tokens=_whole("Output tokens of a usual request", usual.output_tokens if usual else usually.output_tokens, person))
    return options


def _whole(question: str, default: int, person: Person) -> int:
    def check(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1_000_000:
            raise UsageError("A whole number from 1 to 1,000,000, please.")
        return int(text)

    return check(person.text(question, str(default), check))


def _consent(options: Options, stopped: Sequence[tuple[str, ServerProcess]], person: Person) -> Options:
    """One question for each server: agreeing to one says nothing about another. Before the last answer nothing has been touched, and
    after a no nothing will be."""
    if options.finish is None:
        options = replace(options, finish=FINISHES[person.choose("What is to run afterwards?", [text for _, text in FINISHES])][0])
    for host, server in stopped:
        if not options.yes and not person.agree(consent_question(host, server)):
            raise left_alone(host)
    return replace(options, yes=True)


def consent_question(host: str, server: ServerProcess) -> str:
    port = f", port {server.ports[0]}" if server.ports else ""
    how = f" by `{server.control}`" if server.control else ""
    return (
        f"A server runs on {host} (process {server.pid}{port}). It will be stopped for the time of the study{how}; "
        "should this machine disappear, a guard on the box brings it back. Go on?"
    )
