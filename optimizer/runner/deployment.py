"""Which processes make one deployment, by their command lines: those that run on a box, or those that a file describes. Opens
nothing on the box; what starts them is in ``engines.members``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.box.plain.look import engine_of as program_of
from optimizer.box.plain.machine import part_of
from optimizer.box.results import ServerProcess
from optimizer.engines.base import Engine
from optimizer.engines.environment import surroundings
from optimizer.engines.registry import engine_of
from optimizer.errors import EngineError
from optimizer.evidence.deployment import described as said_of
from optimizer.evidence.deployment import groups
from optimizer.model.study import LaunchSpec, Member
from optimizer.runner.phrases import command_text

ORDER = {"prefill": 0, "decode": 1, "server": 2, "router": 3}  # of the start: whoever is asked is there before whoever asks
ROUTERS = frozenset(("sglang-router",))
# The first of these that a router serves says whether it has workers; older ones know only the later paths.
ROUTER_READY = ("/readiness", "/health_generate", "/health")
TITLE = "sglang::router"  # what the router writes over its own command line


def as_one(servers: Sequence[ServerProcess]) -> list[ServerProcess]:
    """The servers of a box, the processes of a whole deployment as one: the router, with its workers before it. Those of a deployment
    that could not be started again stay what they are, one by one."""
    found: list[ServerProcess] = []
    for group in groups([_row(server) for server in servers]):
        members = [server for server in servers if any(server.pid == row["pid"] for row in group)]
        try:
            launch = launch_of([(server.argv, server.env, server.cwd) for server in members]) if len(members) > 1 else None
        except EngineError:
            launch = None
        if launch is None:
            found += members
            continue
        *before, entry = (next(one for one in members if one.argv == member.argv) for member in launch.members)
        found.append(entry.model_copy(update={"before": tuple(before)}))
    return sorted(found, key=lambda server: server.pid)


def leading(server: ServerProcess) -> ServerProcess:
    """The process whose settings are tuned first and whose log is read as the server's: the decode side, else the first worker."""
    return next((one for one in server.before if _row(one)["role"] == "decode"), server.processes[0])


def found_launch(server: ServerProcess, adapter: Engine) -> LaunchSpec:
    """How what runs was started, with what a second start of its programs needs of their environments."""
    rows = [(one.argv, {**surroundings(one.env), **adapter.environment_of_interest(one.env)}, one.cwd) for one in server.processes]
    return launch_of(rows) if server.before else LaunchSpec(argv=rows[0][0], env=rows[0][1], cwd=rows[0][2])


def running_as(launch: LaunchSpec, servers: Sequence[ServerProcess]) -> ServerProcess | None:
    """What of a described deployment runs; None when nothing does. Raises EngineError for a part of it, or for a stranger on a port."""
    matched: list[ServerProcess] = []
    missing: list[str] = []
    for member in launch.members:
        holder = next((one for server in servers for one in server.processes if member.port in one.ports), None)
        if holder is None:
            missing.append(f"{member.name} (port {member.port})")
            continue
        titled = list(holder.argv[:1]) == [TITLE]
        if not titled and holder.argv[1:] != member.argv[1:] and holder.control is None:
            raise EngineError(
                f"Port {member.port}, where the description has {member.name}, is held by another server (process {holder.pid}): {command_text(holder.argv, 300)}",
                hint="Describe what runs there, or stop it first.",
            )
        matched.append(holder.model_copy(update={"before": (), **({"argv": member.argv, "env": member.env, "described": True} if titled else {})}))
    if matched and missing:
        raise EngineError(
            f"Only a part of the described deployment runs; {', '.join(missing)} is not there.",
            hint="Start it again, or stop the rest: half a deployment is not measured.",
        )
    return matched[-1].model_copy(update={"before": tuple(matched[:-1])}) if matched else None


def why_not_whole(servers: Sequence[ServerProcess]) -> str:
    """What keeps processes that belong together from being tuned as one; empty when none belong together."""
    said = []
    hidden = next((server for server in servers if list(server.argv[:1]) == [TITLE]), None)
    for group in groups([_row(server) for server in servers if server is not hidden]):
        members = [server for server in servers if any(server.pid == row["pid"] for row in group)]
        if len(members) < 2:
            continue
        if hidden is not None:
            said.append(
                f"{', '.join(said_of(group))} are the workers of the router (process {hidden.pid}), which has overwritten its own command line: nobody could "
                "start it again as it was. Describe the deployment in a file: --launch deployment.toml (docs/deployments.md). "
            )
            continue
        named = {port for server in members for port in _row(server).get("workers", ())}
        if absent := sorted(named - {port for server in servers for port in server.ports}):
            said.append(
                f"{', '.join(said_of(group))} serve one address together, and their router also names port {', '.join(map(str, absent))}, where no server "
                "of this box listens: start that one again, or the router without it. "
            )
            continue
        try:
            launch_of([(server.argv, server.env, server.cwd) for server in members])
        except EngineError as error:
            said.append(f"{', '.join(said_of(group))} serve one address together, and are not launched as one: {error.message} {error.hint} ")
    return "".join(said)


def _row(server: ServerProcess) -> dict[str, Any]:
    row = {"pid": server.pid, "engine": server.engine, **part_of(list(server.argv), server.engine or "")}
    if list(server.argv[:1]) == [TITLE]:
        row["port"] = server.ports[0] if server.ports else None
    return row


def engine_behind(server: ServerProcess) -> Engine | None:
    """The adapter of a server, or of the leading worker of a deployment."""
    one = leading(server) if server.before else server
    return engine_of(one.argv, one.env)


def described(argv: Sequence[str]) -> tuple[str, str, int]:
    """(program, role, port) of one command line. Raises EngineError for a program that is no part of a deployment."""
    program = program_of(list(argv), {})
    if program is None:
        raise EngineError(
            f"A member of the deployment starts neither an engine nor a router that is known: {command_text(argv, 200)}",
            hint="Known: python3 -m sglang.launch_server (prefill, decode or plain) and python3 -m sglang_router.launch_router.",
        )
    part = part_of(list(argv), program)
    return program, str(part["role"]), int(part["port"] or 0)


def launch_of(parts: Sequence[tuple[Sequence[str], Mapping[str, str], str | None]]) -> LaunchSpec:
    """The launch of a deployment from (argv, env, cwd) of each process, in any order. Raises EngineError where they do not make one."""
    rows = []
    for argv, env, cwd in parts:
        program, role, port = described(argv)
        if role != "router" and program != "sglang":
            raise EngineError(
                f"Deployments of {program} are recognised, not launched: {command_text(argv, 200)}",
                hint="SGLang's prefill, decode and router are. To tune one worker by itself, stop the others and name it with --port.",
            )
        if role == "router" and program not in ROUTERS:
            raise EngineError(f"This router is recognised, not launched: {command_text(argv, 200)}", hint="SGLang's is: python3 -m sglang_router.launch_router.")
        rows.append((ORDER[role], role, port, tuple(argv), dict(env), cwd))
    rows.sort(key=lambda row: row[0])
    counts: dict[str, int] = {}
    members = []
    for _, role, port, argv, env, cwd in rows:
        counts[role] = counts.get(role, 0) + 1
        name = role if counts[role] == 1 else f"{role}-{counts[role]}"
        members.append(Member.model_validate({"name": name, "role": role, "port": port, "argv": argv, "env": env, "cwd": cwd}))
    _refuse_incomplete(members, counts)
    leading = next((one for one in members if one.role == "decode"), members[0])
    return LaunchSpec(argv=leading.argv, env=leading.env, cwd=leading.cwd, members=tuple(members))


def _refuse_incomplete(members: Sequence[Member], counts: Mapping[str, int]) -> None:
    listed = ", ".join(f"{one.name}:{one.port}" for one in members)
    workers = [one for one in members if one.role != "router"]
    split = bool(counts.get("prefill")) and bool(counts.get("decode")) and not counts.get("server")
    replicas = bool(counts.get("server")) and not counts.get("prefill") and not counts.get("decode")
    if counts.get("router") != 1 or not (split or replicas):
        raise EngineError(
            f"These processes make no deployment: {listed or 'none'}.",
            why="A half or a mixture of two would be measured as one.", hint="A deployment has one router, and either prefill and decode servers (at least one of each) or plain servers behind it.",
        )
    ports = [one.port for one in members]
    if len(set(ports)) != len(ports):
        raise EngineError(f"Two members of the deployment have the same port: {listed}.", hint="Give each its own --port.")
    asked = set(part_of(list(members[-1].argv), "sglang-router").get("workers") or ())
    strangers, unasked = asked - {one.port for one in workers}, {one.port for one in workers} - asked
    if strangers or unasked:
        words = [f"it asks port {port}, where no member serves" for port in sorted(strangers)] + [f"it does not ask port {port}" for port in sorted(unasked)]
        raise EngineError(f"The router does not fit its workers ({listed}): {'; '.join(words)}.", hint="Describe every worker of the router, and no other; all on one box.")
    models = {str(part_of(list(one.argv), "sglang").get("model")) for one in workers}
    if len(models) > 1:
        raise EngineError(f"The workers serve different models: {', '.join(sorted(models))}.", why="One deployment serves one model: figures of two could not be told apart.", hint="Describe the workers of one model.")
