"""What would go wrong on a box, before a study is opened: each check reads, says what it saw, why it matters and what to do.
Nothing is launched, stopped or written; a check that could not be made says so instead of passing."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from optimizer.box.box import Box
from optimizer.box.results import Hello, ServerProcess
from optimizer.core.builds import replaced
from optimizer.core.witness import foreign_processes
from optimizer.engines.base import Engine
from optimizer.engines.environment import surroundings
from optimizer.errors import OptimizerError
from optimizer.evidence.bundle import bundle_from_files
from optimizer.model.base import Frozen
from optimizer.model.flags import FlagTable
from optimizer.model.study import LaunchSpec, StudySpec
from optimizer.redact import Redactor
from optimizer.runner.collecting import endpoint_files
from optimizer.runner.logins import lost_at_logout
from optimizer.runner.phrases import command_text
from optimizer.runner.survey import (
    FOREIGN_GPU_MIB,
    GPU_QUERY,
    MIN_DISK_BYTES,
    Unfit,
    find_target,
    installed_version,
    port_of,
)
from optimizer.runner.witness import gpu_processes, processes_of

Level = Literal["ok", "warning", "problem"]
OPEN_FILES = 4096  # one socket per stream, and what the server opens for its shards
SHM_BYTES = 1 << 30  # what NCCL and the engines' own message queues map there with several GPUs
CLOCK_SKEW_S = 5.0
SLOW_HELP_S = 60.0


class Finding(Frozen):
    """One check. ``do`` is empty where nothing has to be done."""

    check: str
    level: Level
    said: str
    why: str = ""
    do: str = ""


def local(runs: Path) -> list[Finding]:
    """This machine: the journal must be writable, and the link's tools present."""
    found = []
    folder = next(parent for parent in (runs, *runs.absolute().parents) if parent.exists())
    if os.access(folder, os.W_OK):
        free = shutil.disk_usage(folder).free
        level: Level = "ok" if free > MIN_DISK_BYTES else "problem"
        found.append(Finding(check="journal folder", level=level, said=f"{runs} can be written; {free >> 30} GiB free.",
                             why="Without its journal a study does nothing.", do="" if level == "ok" else "Free 200 MiB."))  # fmt: skip
    else:
        found.append(Finding(check="journal folder", level="problem", said=f"{folder} cannot be written.",
                             why="Without its journal a study does nothing.", do="Name another folder: optimize --runs FOLDER …"))  # fmt: skip
    return found


async def examine(box: Box, spec: StudySpec) -> list[Finding]:
    """The box and what runs there. Link errors are the caller's: without an answer there is nothing to examine."""
    asked = time.time()
    hello = await box.hello()
    answered = time.time()
    found = [*_basics(hello), _clock(hello, asked, answered), await _holder(box, spec)]
    if await lost_at_logout(box, hello.user):
        found.append(Finding(check="logout", level="problem", said=f"logind ends what user {hello.user} has left running when a login ends (KillUserProcesses).",
                             why="The guard would be ended with the connection, just when it is needed, and the server that was launched with it.",
                             do="KillExcludeUsers= in /etc/systemd/logind.conf can except this user; then: systemctl restart systemd-logind"))  # fmt: skip
    gpus = await _gpus(box, hello)
    found += gpus[0]
    try:
        adapter, launch, original = await find_target(box, spec)
    except (Unfit, OptimizerError) as error:
        return [*found, Finding(check="server", level="problem", said=error.message, why="Until then a study does not begin.", do=error.hint)]
    found += [*_server(original), *await _watched_over(box, original)] if original is not None else [_described(launch.argv)]
    if original is None:
        found += _busy_gpus(gpus[1])
    elif hello.nvidia_smi is not None:
        found += await _company(box, original)
    found.append(await _help(box, adapter, launch.argv, launch.env, launch.cwd))
    found += await _model(box, adapter, launch.argv)
    if original is not None:
        found += await _build(box, adapter, launch)
        found += await _logs(box, original)
    return found


def _basics(hello: Hello) -> list[Finding]:
    version = ".".join(map(str, hello.python))
    rows = [Finding(check="python", level="ok", said=f"Python {version} at {hello.python_path} on {hello.hostname}, user {hello.user}.")]
    if hello.home_writable:
        rows.append(Finding(check="home", level="ok", said=f"{hello.home} can be written."))
    else:
        rows.append(Finding(check="home", level="problem", said=f"{hello.home} cannot be written.",
                            why="Claims, logs and the guard live in ~/.optimizer.", do="Give the user a writable home."))  # fmt: skip
    if hello.root_fault is not None:
        rows.append(Finding(check="records", level="problem", said=hello.root_fault, why="A study is refused before it begins.", do="Do as it says, then look again."))
    if hello.disk_free_bytes is not None:
        enough = hello.disk_free_bytes >= MIN_DISK_BYTES
        rows.append(Finding(check="disk", level="ok" if enough else "problem", said=f"{hello.disk_free_bytes >> 20} MiB free in {hello.home}.",
                            why="" if enough else "The server's log goes there.", do="" if enough else "Free at least 200 MiB."))  # fmt: skip
    if hello.open_files_limit < OPEN_FILES:
        rows.append(Finding(check="open files", level="warning", said=f"The limit is {hello.open_files_limit} open files.",
                            why="Every stream of the load and of the server needs one; at high concurrency connections fail.",
                            do=f"Raise it for the user (ulimit -n {OPEN_FILES * 16}; /etc/security/limits.conf)."))  # fmt: skip
    if hello.cpu_quota is not None and hello.cpu_quota < hello.cpus:
        rows.append(Finding(check="cpu quota", level="warning", said=f"{hello.cpu_quota:g} of {hello.cpus} CPUs may be used.",
                            why="Scheduler, tokenizer and load generator share them; a throttled host looks like a slow GPU.",
                            do="Raise the container's CPU limit, or expect a host-bound result."))  # fmt: skip
    if not hello.sees_other_processes:
        rows.append(Finding(check="processes", level="warning", said="Processes of other users cannot be seen.",
                            why="Somebody else's load would go unnoticed.", do="Run as the user of the server; check who else is on the box."))  # fmt: skip
    return rows


def _clock(hello: Hello, asked: float, answered: float) -> Finding:
    skew = 0.0 if asked <= hello.clock_unix_s <= answered else min(abs(hello.clock_unix_s - asked), abs(hello.clock_unix_s - answered))
    if skew <= CLOCK_SKEW_S:
        return Finding(check="clock", level="ok", said=f"The box answers in {answered - asked:.1f} s; the clocks agree within {CLOCK_SKEW_S:g} s.")
    return Finding(check="clock", level="warning", said=f"The clocks differ by {skew:.0f} s.",
                   why="Rates are measured with one monotonic clock and stay right, but times in logs and journal do not line up.",
                   do="Run an NTP client on the box.")  # fmt: skip


async def _holder(box: Box, spec: StudySpec) -> Finding:
    holder = await box.holder()
    for pid, uid in await box.strangers():
        return Finding(check="lock", level="problem", said=f"A study of another user (uid {uid}) is at work on this box: process {pid}.",
                       why="Two studies on one box measure each other.", do="Wait for it, or ask that user to end it.")  # fmt: skip
    if holder is None:
        return Finding(check="lock", level="ok", said="No study holds the box.")
    if holder.elsewhere is not None:
        return Finding(check="lock", level="problem", said=f"Study {holder.study} is at work on {holder.elsewhere}, whose home directory this box shares.",
                       why="What each of them writes there is about processes that the other cannot see.",
                       do="Wait for it, enter its container with --inside, or give one of them another HOME.")  # fmt: skip
    alive = "gone, what it started is not" if holder.coordinator_alive is False else "alive" if holder.coordinator_alive else "alive or its guard is"
    gone = "gone" if holder.gone else alive
    return Finding(check="lock", level="warning" if holder.gone else "problem",
                   said=f"Study {holder.study} holds the box since {time.strftime('%Y-%m-%d %H:%M', time.gmtime(holder.since_unix_s))} UTC; "
                   f"its coordinator on {holder.coordinator_name} is {gone}.",
                   why="Two studies on one box measure each other.",
                   do=f"optimize resume {holder.study}, optimize stop {holder.study}, or: optimize restore --host {spec.host.name}")  # fmt: skip


async def _gpus(box: Box, hello: Hello) -> tuple[list[Finding], list[tuple[str, int | None]]]:
    if hello.nvidia_smi is None:
        return [Finding(check="gpu", level="warning", said="There is no nvidia-smi on the box.",
                        why="Memory, clocks and throttling cannot be read; GPU memory cannot be proven free after a launch.",
                        do="Fine for a CPU server; otherwise put nvidia-smi on the PATH of a login over SSH.")], []  # fmt: skip
    done = await box.command(["nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv,noheader"], timeout_s=30)
    if done.exit != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[:200] or "no answer within 30 s"
        return [Finding(check="gpu", level="problem", said=f"nvidia-smi fails: {said}", why="The driver does not answer; a server would not start.",
                        do="Look at `nvidia-smi` and `dmesg` on the box.")], []  # fmt: skip
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    used = [(row[0], int(row[2].split()[0]) if len(row) > 2 and row[2].split()[0].isdigit() else None) for row in rows]
    found = [Finding(check="gpu", level="ok", said=f"{len(rows)} × {rows[0][0]}." if rows else "nvidia-smi lists no GPU.")]
    if len(rows) > 1 and hello.shm_free_bytes is not None and hello.shm_free_bytes < SHM_BYTES:
        found.append(Finding(check="shared memory", level="warning", said=f"/dev/shm has {hello.shm_free_bytes >> 20} MiB free.",
                             why="Collectives over shared memory and the engine's queues need it; launches with several GPUs fail late.",
                             do="Start the container with --shm-size=16g or --ipc=host."))  # fmt: skip
    return found, used


def _busy_gpus(used: Sequence[tuple[str, int | None]]) -> list[Finding]:
    busy = [f"GPU {index}: {mib} MiB" for index, (_, mib) in enumerate(used) if mib is not None and mib > FOREIGN_GPU_MIB]
    if not busy:
        return []
    return [Finding(check="foreign load", level="problem", said=f"No server runs, yet GPU memory is in use ({', '.join(busy)}).",
                    why="Somebody else's job would be measured as well, and the launch may not fit.",
                    do="End it (nvidia-smi lists the processes), or choose other GPUs with CUDA_VISIBLE_DEVICES.")]  # fmt: skip


# Parents that do not start what ended again: login shells and what holds them, first processes, terminals.
_NO_LOOPS = frozenset({"systemd", "init", "sshd", "tini", "dumb-init", "docker-init", "catatonit", "tmux", "screen", "login", "su", "sudo", "containerd-shim", "conmon"})
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "fish", "tcsh", "csh", "ksh"})


async def _watched_over(box: Box, original: ServerProcess) -> list[Finding]:
    """A living parent that runs a script of its own: a loop or a watchdog would start the server again as soon as it is stopped."""
    if original.supervisor is not None or original.launch_id is not None:
        return []
    stat = (await box.command(["cat", f"/proc/{original.processes[0].pid}/stat"])).stdout.rpartition(b")")[2].split()
    parent = int(stat[1]) if len(stat) > 1 else 0
    words = (await box.command(["cat", f"/proc/{parent}/cmdline"])).stdout.decode("utf-8", "replace").rstrip("\0").split("\0") if parent > 1 else []
    program = words[0].rpartition("/")[2].lstrip("-").partition(":")[0].rstrip("0123456789.") if words else ""
    if not program or program in _NO_LOOPS or (program in _SHELLS and not [word for word in words[1:] if word not in ("-l", "-i", "--login")]):
        return []
    shown = Redactor().text(" ".join(words))
    return [Finding(check="parent", level="warning", said=f"Process {parent} ({shown[:80]}) started the server and still runs.",
                    why="If it is a loop or a watchdog, it starts the server again once it is stopped: nothing can be measured beside it, and the study ends there.",
                    do="If it is one, end it for the time of the study and describe the launch with --launch.")]  # fmt: skip


async def _company(box: Box, original: ServerProcess) -> list[Finding]:
    """Whoever else holds memory of the GPUs that the server uses: a measurement in that company is not used."""
    others = foreign_processes(await gpu_processes(box), await processes_of(box, original))
    if not others:
        return []
    listed = ", ".join(f"process {one.pid} with {one.mib:.0f} MiB" for one in others)
    return [Finding(check="foreign load", level="problem", said=f"Others are at work on the GPUs of this server: {listed}.",
                    why="What is measured beside them cannot be compared and is not used, so a study would find nothing out.",
                    do="End them for the time of the study, or move them to other GPUs.")]  # fmt: skip


def _described(argv: Sequence[str]) -> Finding:
    return Finding(check="server", level="ok", said=f"No server runs; the study launches: {command_text(argv, 200)}", do="")


def _server(original: ServerProcess) -> list[Finding]:
    ports = ", ".join(map(str, original.ports)) or "none yet"
    rows = [Finding(check="server", level="ok", said=f"{original.engine or 'A server'} runs as process {original.pid}, port {ports}; it would be stopped and brought back.")]
    if original.control is not None:
        rows.append(Finding(check="supervisor", level="ok", said=f"It is run by {original.supervisor}: it would be stopped by `{original.control}` and started again the same way."))
    elif original.supervisor is not None:
        rows.append(Finding(check="supervisor", level="problem", said=f"It is run by {original.supervisor}.",
                            why="What is stopped by hand is started again by its supervisor, and two servers share the port.",
                            do="Stop it there (systemctl stop, docker stop) for the time of the study and describe it with --launch."))  # fmt: skip
    if original.hidden_arguments:
        rows.append(Finding(check="credentials", level="ok", said=f"{original.hidden_arguments} argument(s) hold credentials; they stay on the box.",
                            why="The guard passes them on, so the server can be brought back without anybody seeing them."))  # fmt: skip
    if not original.ports:
        rows.append(Finding(check="port", level="warning", said="It does not listen yet.", why="It may still be loading; nothing can be measured.",
                            do="Wait until it answers."))  # fmt: skip
    return rows


async def _help(box: Box, adapter: Engine, argv: Sequence[str], env: dict[str, str], cwd: str | None) -> Finding:
    began = time.monotonic()
    wanted = {**surroundings(env), **env}
    done = await box.command(adapter.help_argv(list(argv)), env=dict(wanted), timeout_s=180, cwd=cwd)
    took = time.monotonic() - began
    if done.not_started:
        return Finding(check="engine", level="problem", said=f"The server's program does not start: {done.not_started}",
                       why="A relaunch would fail, and the original could not be brought back.", do="Check the path in the launch command.")  # fmt: skip
    flags = adapter.flags(done.stdout.decode("utf-8", "replace")) if done.exit == 0 else FlagTable(known=False)
    if not flags.known:
        return Finding(check="engine", level="warning", said=f"`--help` of {adapter.name} could not be read (exit {done.exit}, {took:.0f} s).",
                       why="Settings cannot be filtered by what this build knows; a launch may be lost to an unknown flag.",
                       do="Run the command with --help on the box and look at its message.")  # fmt: skip
    unknown = adapter.unknown_flags(tuple(argv), flags)
    if unknown:
        return Finding(check="engine", level="warning", said=f"This {adapter.name} does not know {', '.join(unknown)}.",
                       why="The command line was written for another version; a relaunch may be refused.", do="Correct the launch command.")  # fmt: skip
    return Finding(check="engine", level="ok", said=f"{adapter.name}: {len(flags.flags)} flags known to this build; --help took {took:.0f} s.",
                   why="" if took < SLOW_HELP_S else "Importing the engine is slow here, so every launch is.")  # fmt: skip


async def _build(box: Box, adapter: Engine, launch: LaunchSpec) -> list[Finding]:
    """A server that goes on after its program was upgraded is another one than the one that every launch starts."""
    try:
        installed = await installed_version(box, adapter, launch)
        files = await endpoint_files(box, adapter, port_of(adapter, launch))
    except OptimizerError:  # what does not answer is told by the other checks
        return []
    files["launch.json"] = json.dumps({"name": "found", "engine": adapter.name, "engine_version": installed, "argv": list(launch.argv), "env": {}, "ready": True}).encode()
    running = bundle_from_files(files).evidence.value("engine.version")
    if not replaced(installed, str(running)):
        return []
    return [Finding(check="build", level="warning", said=f"The running server is {adapter.name} {running}; installed is {installed}.",
                    why="Every launch, and the server that is brought back after a study, is the installed one: the study measures its baseline anew on it.",
                    do="Restart the server first, if users are to keep what they have; or install its version again.")]  # fmt: skip


async def _model(box: Box, adapter: Engine, argv: Sequence[str]) -> list[Finding]:
    model = adapter.identity(tuple(argv), FlagTable(known=False)).model
    if model is None or not model.startswith("/"):
        return []
    try:
        await box.read_file(f"{model.rstrip('/')}/config.json", max_bytes=1 << 20)
    except OptimizerError as error:
        return [Finding(check="model", level="warning", said=f"{model}/config.json cannot be read: {error.message}",
                        why="Without it there is no ceiling, and a missing model fails every launch.", do="Check the model path.")]  # fmt: skip
    return [Finding(check="model", level="ok", said=f"{model}/config.json can be read.")]


async def _logs(box: Box, original: ServerProcess) -> list[Finding]:
    if not original.logs and original.lost_output is not None:
        return [Finding(check="log", level="warning", said=f"The running server writes into {original.lost_output}.",
                        why="That cannot be opened again: what a server that is brought back writes goes to a file in ~/.optimizer/kept on the box, and its "
                        "start-up facts stay unknown until then.",
                        do="Restart it with its output in a file (> server.log 2>&1), if somebody reads it.")]  # fmt: skip
    if not original.logs:
        return [Finding(check="log", level="warning", said="The running server writes no log file that can be found.",
                        why="Its start-up facts stay unknown until it is relaunched.",
                        do="Redirect its output to a file, or name one in the host file (log = \"...\").")]  # fmt: skip
    for path in original.logs:
        try:
            await box.read_file(path, max_bytes=4096)
        except OptimizerError as error:
            return [Finding(check="log", level="warning", said=f"{path}: {error.message}", why="Its start-up facts stay unknown.",
                            do="Make it readable for this user.")]  # fmt: skip
    return [Finding(check="log", level="ok", said=f"Its log {', '.join(original.logs)} can be read.")]


def document(host: str, findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """What ``doctor --json`` prints."""
    worst = next((level for level in ("problem", "warning") if any(item.level == level for item in findings)), "ok")
    return {"host": host, "verdict": worst, "seconds": round(seconds, 1), "findings": [item.plain() for item in findings]}
