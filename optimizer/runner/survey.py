"""The survey: reads the box, the server that runs on it or is described, its flags, files and endpoints. Changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from optimizer.box.box import Box
from optimizer.box.plain.look import APART, NO_NETWORK
from optimizer.box.results import FoundServers, Hello, ServerProcess
from optimizer.core.fits import VISIBLE
from optimizer.engines.base import Engine
from optimizer.engines.registry import engine, engine_of, engines
from optimizer.errors import BoxError, EngineError
from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.collect import COMMAND_BYTES, COMMAND_TIMEOUT_S, GLANCE_S, WATCH_S, box_commands
from optimizer.evidence.nvidia_smi import without_identity
from optimizer.model.flags import FlagTable
from optimizer.model.outcome import Done, Failed
from optimizer.model.study import LaunchSpec, StudySpec
from optimizer.runner.base import Effect
from optimizer.runner.collecting import endpoint_files, read_log_files
from optimizer.runner.context import BoxContext
from optimizer.runner.deployment import as_one, engine_behind, found_launch, leading, running_as, why_not_whole
from optimizer.runner.hosts import EXAMPLE
from optimizer.runner.phrases import command_text

MIN_DISK_BYTES = 200 << 20
GPU_QUERY = "name,memory.total,memory.used"
FOREIGN_GPU_MIB = 1024  # what an idle GPU with a display or a persistence daemon holds stays well below


class Unfit(BoxError):
    """The box, or the server on it, does not fit a study."""

    matters = "No study can run there as it is; nothing was changed on the box."


async def survey(box: Box, spec: StudySpec, usual: LaunchSpec | None = None) -> Effect:
    """Everything a decision may rest on before the first launch. ``usual`` as in :func:`find_target`."""
    try:
        return await _survey(box, spec, usual)
    except (Unfit, EngineError) as error:
        return Effect(Failed(cause="refused_by_box", message=str(error)))


async def _survey(box: Box, spec: StudySpec, usual: LaunchSpec | None) -> Effect:
    hello = await box.hello()
    _check(box, hello)
    adapter, launch, original = await find_target(box, spec, usual)
    # Everything that does not need another answer is asked at once, over the one connection.
    async with _together() as group:
        asked = group.create_task(_flags(box, adapter, launch))
        told = group.create_task(installed_version(box, adapter, launch))
        worker = leading(original) if original is not None and original.before else original
        looked = group.create_task(_look(box, hello, worker, simulated=spec.host.kind == "sim"))
        logs = group.create_task(read_log_files(box, worker.logs, worker) if worker is not None else _nothing())
    flags, help_text = asked.result()
    version = told.result()
    identity = adapter.identity(launch.argv, flags)
    entry_port = port_of(adapter, launch)
    files: dict[str, bytes] = {"help.txt": help_text} if help_text else {}
    files |= looked.result()
    gpus = [row.split(",") for row in files.pop("gpus.txt", b"").decode("utf-8", "replace").splitlines() if row.strip()]
    gpu_names = [row[0].strip() for row in gpus]
    given = adapter.parse_launch(launch.argv, launch.env, flags).values
    if original is None:
        await _refuse_foreign_load(box, spec, gpus, adapter.gpus_of(given), launch)
    if original is not None:
        await box.learn_key(entry_port, identity.port)
    async with _together() as group:
        config = group.create_task(_model_config(box, identity.model, launch))
        served = group.create_task(endpoint_files(box, adapter, identity.port) if original is not None else _nothing())
    files |= config.result() | logs.result() | served.result()
    context = BoxContext(
        engine=adapter.name,
        engine_version=version,
        launch=launch,
        original=original,
        model_path=identity.model,
        served_model=identity.served_name or identity.model,
        original_port=entry_port,
        boot_id=hello.boot_id,
        hostname=hello.hostname,
        gpu=gpu_names[0] if gpu_names else None,
        gpu_count=len(gpu_names),
        interconnect=_interconnect(files.get("topo.txt", b"")),
        python=".".join(map(str, hello.python)),
        cpus=hello.cpus,
        has_nvidia_smi=hello.nvidia_smi is not None,
        model_config_json=_json_object(files.get("config.json")),
        facts=_box_facts(hello, gpus, launch),
    )
    files["launch.json"] = launch_json(context, "as-found", launch.argv, launch.env, ready=original is not None, start_s=None)
    bundle = bundle_from_files(files)
    body: dict[str, Any] = {
        "engine": adapter.name,
        "engine_version": version,
        "box": context.plain(),
        "evidence": bundle.evidence.plain(),
        "flags": flags.plain(),
        "given": given,
        "original": original is not None,
        "unknown_flags": list(adapter.unknown_flags(launch.argv, flags)) if flags.known else [],
    }
    return Effect(Done(body=body), files)


def launch_json(context: BoxContext, name: str, argv: Any, env: Mapping[str, Any], *, ready: bool, start_s: float | None) -> bytes:
    """The ``launch.json`` of an evidence bundle."""
    document = {
        "name": name, "engine": context.engine, "engine_version": context.engine_version, "gpu": context.gpu,
        "gpu_count": context.gpu_count, "interconnect": context.interconnect, "model": context.model_path, "argv": list(argv),
        "env": {key: value for key, value in env.items() if value is not None}, "ready": ready, "start_s": start_s,
    }  # fmt: skip
    return json.dumps(document, indent=1).encode()


def _check(box: Box, hello: Hello) -> None:
    if not hello.home_writable:
        raise Unfit(f"The home directory {hello.home} on {box.name} is not writable.", hint="The tool keeps its claims under ~/.optimizer; give the user a writable home.")
    if hello.disk_free_bytes is not None and hello.disk_free_bytes < MIN_DISK_BYTES:
        raise Unfit(f"{box.name} has {hello.disk_free_bytes >> 20} MiB of disk left.", hint="Free at least 200 MiB for the server's log.")


async def servers_to_tune(box: Box, spec: StudySpec) -> tuple[tuple[ServerProcess, ...], FoundServers]:
    """The servers that this study may be about, and everything that was found beside them."""
    found = await box.find_servers(spec.port, same_home=spec.host.kind == "sim")
    held_by = await _studies_at_work(box, spec, found.servers)
    running = [server for server in as_one([one for one in found.servers if _study_of(one) not in held_by]) if _adapter_of(server, spec) is not None]
    if spec.port is not None:
        running = [server for server in running if spec.port in server.ports]
    return tuple(running), found


async def find_target(box: Box, spec: StudySpec, usual: LaunchSpec | None = None) -> tuple[Engine, LaunchSpec, ServerProcess | None]:
    """Which server this study is about: the described launch if there is one, else the one that runs. ``usual``: of several that run, the one
    whose port it names; for commands that only look at what runs, whatever its command line is today."""
    running, found = await servers_to_tune(box, spec)
    if spec.launch is not None and spec.launch.members:
        adapter = engine_of(spec.launch.argv, spec.launch.env)
        assert adapter is not None  # a deployment is described by command lines that are known
        held_by = await _studies_at_work(box, spec, found.servers)
        return adapter, spec.launch, running_as(spec.launch, [one for one in found.servers if _study_of(one) not in held_by])
    if spec.launch is not None:
        adapter = engine(spec.engine) if spec.engine else engine_of(spec.launch.argv, spec.launch.env)
        if adapter is None:
            raise Unfit(
                f"No engine adapter knows this command: {command_text(spec.launch.argv, 300)}",
                hint=f"Engines: {', '.join(engines())}. Name one with --engine if it starts through a wrapper.",
            )
        same = [server for server in running if port_of(adapter, spec.launch) in server.ports]
        if same and not _same_command(same[0], spec.launch) and same[0].control is None:
            left = f", left running by study {_study_of(same[0])}" if _study_of(same[0]) else ""
            raise Unfit(
                f"Port {port_of(adapter, spec.launch)} on {box.name}, which the launch command names, is held by another server "
                f"(process {same[0].pid}{left}): {command_text(same[0].argv, 300)}",
                hint="What was measured beside it would be wrong. To tune that server, leave --launch away; else stop it first.",
            )
        for one in same[:1]:
            _refuse_unreached(box, one, port_of(adapter, spec.launch))
        return adapter, spec.launch, same[0] if same else None
    if not running and (why := why_not_whole(found.servers)):
        raise Unfit(f"No server on {box.name} can be tuned by itself. {why.strip()}", hint="docs/deployments.md says how a deployment is described.")
    for other in found.servers if not running and spec.port is not None else ():
        if _study_of(other):
            continue
        _refuse_other_network(box, other)
        if not other.ports and (its := engine_behind(other)) is not None and port_of(its, found_launch(other, its)) == spec.port:
            raise Unfit(f"The server on {box.name} that is to listen on port {spec.port} (process {other.pid}) does not listen yet: it loads, or hangs.",
                        hint="When it answers, the same command again. Do not start a second one beside it.")  # fmt: skip
    if not running:
        hidden = " Somebody listens on that port, but this user may not see who." if found.port_owner_hidden else ""
        for other in found.servers:
            if spec.port is not None and spec.port in other.ports and not _study_of(other):
                hidden = f" Process {other.pid} listens on port {spec.port}, and its command line is of no engine that is known: {command_text(other.argv, 160)}"
        raise Unfit(f"No inference server runs on {box.name} and none is described.{hidden}", hint=EXAMPLE.format(host=box.name))
    if len(running) > 1 and usual is not None and (known := engine_of(usual.argv, usual.env)) is not None:
        running = tuple(server for server in running if port_of(known, usual) in server.ports) or running
    if len(running) > 1:
        listed = "\n".join(f"  port {', '.join(map(str, server.ports)) or 'none yet'}: {command_text(server.argv, 160)}" for server in running)
        raise Unfit(f"Several servers run on {box.name}:\n{listed}", hint=f"{why_not_whole(found.servers)}Say which one with --port.")
    server = running[0]
    for one in server.processes:
        _refuse_out_of_reach(box, spec, one)
    adapter = _adapter_of(server, spec)
    assert adapter is not None
    for one in server.processes:
        if (its := engine_behind(one)) is not None:
            _refuse_unreached(box, one, port_of(its, found_launch(one, its)))
    # --help of the same build, and launch.sh, must find what the server finds.
    return adapter, found_launch(server, adapter), server


def _refuse_out_of_reach(box: Box, spec: StudySpec, server: ServerProcess) -> None:
    if not server.env_readable:
        raise Unfit(f"The server on {box.name} (process {server.pid}) belongs to another user, so it cannot be relaunched as it was.",
                    hint="Run the tool as the user that runs the server, or describe the launch with --launch.")  # fmt: skip
    _refuse_other_network(box, server)
    if server.supervisor is not None and server.supervisor.startswith(APART) and server.control is None:
        raise Unfit(
            f"The server on {box.name} (process {server.pid}) runs in {server.supervisor}. Once it is stopped nobody outside could start it again.",
            hint="Stop it, and describe how it is started with --launch 'apptainer exec IMAGE …' (or enroot, unshare); the study then starts it that way.",
        )
    if server.supervisor is not None and server.supervisor.startswith("container") and not spec.host.prefix:
        raise Unfit(
            f"The server on {box.name} (process {server.pid}) runs in {server.supervisor}; its command means nothing outside.",
            hint="Enter the container (--inside 'docker exec -i NAME', where the server is not its main process), or describe with --launch how the "
            "same engine starts on the host; the container is then stopped and started again through its own tool.",
        )


def _refuse_other_network(box: Box, server: ServerProcess) -> None:
    """Its ports are not those that are seen here: it is neither found by one nor reached."""
    if server.supervisor == NO_NETWORK and server.control is None:
        raise Unfit(
            f"The server on {box.name} (process {server.pid}) runs in {NO_NETWORK}: its ports are not reached from outside.",
            hint=f"Enter it: --inside 'nsenter -t {server.pid} -n'. Or start the server in the network of the box.",
        )


def _refuse_unreached(box: Box, server: ServerProcess, port: int) -> None:
    """Everything is sent to the loopback: who answers there has to be this server, or somebody else's service gets the load."""
    if why := server.unreached.get(str(port)):
        raise Unfit(
            f"The server on {box.name} (process {server.pid}) does not answer at 127.0.0.1, port {port}: {why}.",
            hint="Load is sent over the loopback. Start the server with --host 127.0.0.1 or 0.0.0.0, on a port that nobody else has there.",
        )


async def _studies_at_work(box: Box, spec: StudySpec, servers: Iterable[ServerProcess]) -> set[str]:
    """Studies whose launches are no servers to tune: this one, and one that still holds the box. What an earlier study left
    running on purpose is a server like any other."""
    if not any(server.launch_id for server in servers):
        return set()
    holder = await box.holder()
    return {spec.study} if holder is None else {spec.study, holder.study}


def _study_of(server: ServerProcess) -> str:
    return (server.launch_id or "").partition(":")[0]


def _adapter_of(server: ServerProcess, spec: StudySpec) -> Engine | None:
    adapter = engine_behind(server)
    return None if adapter is None or (spec.engine and adapter.name != spec.engine) else adapter


def port_of(adapter: Engine, launch: LaunchSpec) -> int:
    """The port that a launch command names, or its engine's own; of a deployment that of its router."""
    return launch.members[-1].port if launch.members else adapter.identity(launch.argv, FlagTable(known=False)).port


def _same_command(server: ServerProcess, launch: LaunchSpec) -> bool:
    return server.argv[1:] == launch.argv[1:]


async def _flags(box: Box, adapter: Engine, launch: LaunchSpec) -> tuple[FlagTable, bytes]:
    """The build's own --help. A build whose help cannot be read is not filtered, and that is said."""
    done = await box.command(adapter.help_argv(launch.argv), env=dict(launch.env), timeout_s=180, cwd=launch.cwd)
    text = done.stdout.decode("utf-8", "replace")
    if done.exit == 0 and "--" in text:
        return adapter.flags(text), done.stdout
    if done.not_started:
        raise Unfit(f"The server's program does not start on {box.name}: {done.not_started}", hint="Check the path in the launch command.")
    return FlagTable(known=False), b""


async def installed_version(box: Box, adapter: Engine, launch: LaunchSpec) -> str | None:
    """The version of the build that a launch starts now; None where it does not say."""
    done = await box.command(adapter.version_argv(launch.argv), env=dict(launch.env), timeout_s=60, cwd=launch.cwd)
    words = done.stdout.decode("utf-8", "replace").split()
    return words[-1] if done.exit == 0 and words else None


@asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks side by side; the first that fails ends the others, and its own error is what is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _nothing() -> dict[str, bytes]:
    return {}


async def _look(box: Box, hello: Hello, original: ServerProcess | None, *, simulated: bool) -> dict[str, bytes]:
    """The kernel's account of the box (``host.json``) and what the GPUs' own tools say; nothing where there is none."""
    commands: dict[str, Sequence[str]] = dict(box_commands(root=hello.uid == 0))
    commands["gpus.txt"] = ("nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv,noheader")
    host, answers = await box.survey(
        original.pid if original is not None else None, commands, interval_s=WATCH_S if original is not None else GLANCE_S,
        timeout_s=COMMAND_TIMEOUT_S, max_bytes=COMMAND_BYTES, same_home=simulated,
    )  # fmt: skip
    files = {"host.json": json.dumps(host, indent=1).encode()}
    for name, done in answers.items():
        if done.exit == 0:
            files[name] = without_identity(done.stdout)
    return files


async def _model_config(box: Box, model: str | None, launch: LaunchSpec) -> dict[str, bytes]:
    """``config.json`` of a model folder, or of the newest snapshot of a hub name in the cache."""
    if model is None:
        return {}
    if not model.startswith("/"):
        base = launch.cwd or ""
        paths = [f"{base}/{model}/config.json"] if base else []
        code = (
            "import os,glob,sys;h=os.environ.get('HF_HOME') or os.path.expanduser('~/.cache/huggingface');"
            "f=sorted(glob.glob(os.path.join(h,'hub','models--'+sys.argv[1].replace('/','--'),'snapshots','*','config.json')),key=os.path.getmtime);"
            "print(f[-1] if f else '')"
        )
        done = await box.command(["python3", "-I", "-c", code, model], env=dict(launch.env), timeout_s=20)
        found = done.stdout.decode("utf-8", "replace").strip()
        paths += [found] if found else []
    else:
        paths = [f"{model.rstrip('/')}/config.json"]
    for path in paths:
        try:
            part = await box.read_file(path, max_bytes=1 << 20)
        except BoxError:
            continue
        return {"config.json": part.data}
    return {}


async def _refuse_foreign_load(box: Box, spec: StudySpec, gpus: list[list[str]], needed: int, launch: LaunchSpec) -> None:
    """A number measured beside somebody else's job is a wrong number: the ``needed`` GPUs that the launch is going to use must be idle."""
    visible = str(launch.env.get("CUDA_VISIBLE_DEVICES", "")).split(",")
    if launch.members:  # together they may use any of them
        visible, needed = [""], len(gpus)
    indices = [int(item) for item in visible] if all(item.strip().isdigit() for item in visible) else list(range(needed))
    busy = {index: _mib(gpus[index][2]) for index in indices if index < len(gpus) and len(gpus[index]) > 2}
    taken = {index: mib for index, mib in busy.items() if mib is not None and mib > FOREIGN_GPU_MIB}
    if taken:
        holder = await box.holder()
        if holder is not None and holder.study != spec.study:
            raise Unfit(
                f"{box.name} is held by study {holder.study} (coordinator on {holder.coordinator_name}), whose server fills its GPUs.",
                hint=f"Wait for it, or end it: optimize stop {holder.study}; if its coordinator is gone for good: optimize restore --host {box.name}",
            )
        listed = ", ".join(f"GPU {index}: {mib} MiB" for index, mib in sorted(taken.items()))
        raise Unfit(
            f"No server of this study runs on {box.name}, yet its GPUs are in use ({listed}): somebody else's job would be measured as well.",
            hint="End it (nvidia-smi lists the processes), or choose other GPUs with CUDA_VISIBLE_DEVICES in the launch command.",
        )


def _mib(text: str) -> int | None:
    words = text.split()
    return int(words[0]) if words and words[0].isdigit() else None


def _box_facts(hello: Hello, gpus: list[list[str]], launch: LaunchSpec) -> dict[str, Any]:
    """What ``{box: ...}`` operands may name, and how many GPUs each worker is shown."""
    known: dict[str, Any] = {"cpus": hello.cpus, "memory_mib": hello.memory_bytes >> 20, "gpu.count": len(gpus)}
    sizes = [size for row in gpus if len(row) > 1 and (size := _mib(row[1])) is not None]
    if sizes:
        known["gpu.memory_mib"] = min(sizes)
    workers = {"": launch.env, **{f".{one.role}": one.env for one in launch.members if one.role != "router" and one.name != launch.leading}}
    for suffix, env in workers.items():
        if listed := [item for item in str(env.get("CUDA_VISIBLE_DEVICES", "")).split(",") if item.strip()]:
            known[VISIBLE + suffix] = len(listed)
    return known


def _json_object(data: bytes | None) -> dict[str, Any] | None:
    try:
        value = json.loads(data) if data else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _interconnect(topo: bytes) -> str | None:
    if not topo:
        return None
    words = topo.decode("utf-8", "replace").split()
    return "nvlink" if any(word.startswith("NV") and word[2:].isdigit() for word in words) else "pcie"
