"""Which processes make one deployment, by their command lines: those that run on a box, or those that a file describes. Opens
nothing on the box; what starts them is in ``engines.members``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optimizer.box.plain.look import engine_of as program_of
from optimizer.box.plain.machine import part_of
from optimizer.errors import EngineError
from optimizer.model.study import LaunchSpec, Member

ORDER = {"prefill": 0, "decode": 1, "server": 2, "router": 3}  # of the start: whoever is asked is there before whoever asks
ROUTERS = frozenset(("sglang-router",))
# The first of these that a router serves says whether it has workers; older ones know only the later paths.
ROUTER_READY = ("/readiness", "/health_generate", "/health")
TITLE = "sglang::router"  # what the router writes over its own command line


def described(argv: Sequence[str]) -> tuple[str, str, int]:
    """(program, role, port) of one command line. Raises EngineError for a program that is no part of a deployment."""
    program = program_of(list(argv), {})
    if program is None:
        raise EngineError(
            f"A member of the deployment starts neither an engine nor a router that is known: {' '.join(argv)[:200]}",
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
                f"Deployments of {program} are recognised, not launched: {' '.join(argv)[:200]}",
                hint="SGLang's prefill, decode and router are. To tune one worker by itself, stop the others and name it with --port.",
            )
        if role == "router" and program not in ROUTERS:
            raise EngineError(f"This router is recognised, not launched: {' '.join(argv)[:200]}", hint="SGLang's is: python3 -m sglang_router.launch_router.")
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
            hint="It has one router, and either prefill and decode servers (at least one of each) or plain servers behind it.",
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
        raise EngineError(f"The workers serve different models: {', '.join(sorted(models))}.", hint="One deployment serves one model.")
