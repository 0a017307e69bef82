"""The box as the executor sees it: typed operations, each one call of the shim through a transport. Every operation is
idempotent under its key, bounded in time and bytes on both ends, and raises ``LinkLost`` when nobody can know what
happened. It takes no decision about what to launch or when to stop."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from optimizer.box import results
from optimizer.box.frames import FrameReader
from optimizer.box.program import compiled_shim_program, conductor_program, guard_program, shim_program
from optimizer.box.results import (
    Cleaned,
    CommandOutput,
    FilePart,
    FoundServers,
    GuardInfo,
    GuardStatus,
    Hello,
    Holder,
    JobResult,
    Launched,
    LaunchState,
    Listeners,
    Restored,
    ServerProcess,
    ShimRefused,
    Stopped,
    Swept,
)  # fmt: skip
from optimizer.crashpoint import crash_point
from optimizer.errors import LinkLost, NeedsOperator, PythonMissing
from optimizer.transport.base import BOOTSTRAP, Transport
from optimizer.transport.packing import compiled

MEMBER_TERM_S = 15.0  # how long a member of a deployment that ends with the others may take for it


class MemberLaunch(NamedTuple):
    """One process of a deployment, for ``Box.launch_deployment``. ``env``: changes to the environment of ``base``, None removes;
    ``paths``: of its health, the first that it serves counts."""

    name: str
    role: str
    port: int
    argv: Sequence[str]
    env: Mapping[str, str | None]
    cwd: str | None
    base: str
    paths: Sequence[str]
    timeout_s: float = 30.0


# The shim ends by itself at its deadline; only when it does not answer within this margin is the link given up.
_MARGIN_S = 15.0
_MIB = 1 << 20
KEY_VARIABLE = "OPTIMIZE_API_KEY"


def _coordinator() -> dict[str, Any]:
    """Who we are, so that a box on the same machine can prove whether we still live."""
    found: dict[str, Any] = {"coordinator_name": socket.gethostname()}
    with contextlib.suppress(OSError):  # several machines may have one name; the hash of their own number tells them apart
        found["coordinator_machine"] = hashlib.sha256(b"optimize " + Path("/etc/machine-id").read_bytes().strip()).hexdigest()[:16]
    try:
        stat = Path("/proc/self/stat").read_bytes()
        found["coordinator_boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        found["coordinator_start_time"] = int(stat[stat.rindex(b")") + 2 :].split()[19])
        found["coordinator_pid"] = os.getpid()
    except OSError:
        return found  # no Linux here: the name must do
    return found


class Box:
    """One host. ``epoch`` counts how often a study has secured it; ``secure`` sets it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.epoch = 1
        # What the server under study asks its clients for: in memory, for requests to it, and nowhere else.
        self.api_key: str | None = None

    @property
    def name(self) -> str:
        return self.transport.name

    async def _call(
        self, operation: str, deadline_s: float, on_out: Callable[[bytes], None] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        nonce = secrets.token_hex(16)
        request = {**arguments, "op": operation, "nonce": nonce, "deadline_s": deadline_s}
        program = compiled_shim_program() if self.transport.same_python else shim_program()
        payload = b"%d\n" % len(program) + program + json.dumps(request).encode("ascii")
        reader = FrameReader(nonce, on_out)
        crash_point(f"box.{operation}.before")
        done = await self.transport.run(payload, deadline_s + _MARGIN_S, reader.feed)
        crash_point(f"box.{operation}.after")
        if reader.reply is None:
            self._no_reply(operation, done.exit, done.stderr)
        answer: dict[str, Any] = json.loads(reader.reply)
        if not answer["ok"]:
            _refuse(answer["kind"], answer["message"], answer.get("more") or {})
        result: dict[str, Any] = answer["result"]
        return result

    def _no_reply(self, operation: str, exit_code: int | None, stderr: bytes) -> NoReturn:
        said = stderr.decode("utf-8", "replace").strip()[-500:]
        if exit_code in (126, 127):
            raise PythonMissing(
                f"{self.name} has no usable Python: {said or 'python3 was not found'}",
                hint="The tool needs Python 3.8 or newer on the box, nothing else. Install it (apt-get install python3).",
            )
        raise LinkLost(
            f"The connection to {self.name} was lost during `{operation}`; what happened on the box is unknown. {said}".strip(),
            hint="`optimize resume` looks at the box and goes on from there.",
        )

    # --- looking (writes nothing on the box) ---

    async def hello(self) -> Hello:
        return Hello.model_validate(await self._call("hello", 20))

    async def command(
        self, argv: Sequence[str], env: Mapping[str, str | None] | None = None, timeout_s: float = 60,
        max_bytes: int = 8 * _MIB, cwd: str | None = None,
    ) -> CommandOutput:  # fmt: skip
        """Runs a read-only command, without any shell. ``env``: changes to the login's environment, None removes."""
        result = await self._call(
            "command",
            timeout_s + 10,
            argv=list(argv),
            env=dict(env or {}),
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            cwd=cwd,
        )
        return CommandOutput.model_validate(_decoded(result, "stdout", "stderr"))

    async def read_file(
        self, path: str, offset: int = 0, max_bytes: int = 8 * _MIB, *, written_by: ServerProcess | None = None
    ) -> FilePart:
        """Part of a regular file; a negative offset counts from its end. Credentials are masked on the box, those of
        ``written_by`` included. Raises ShimRefused("unreadable")."""
        result = await self._call(
            "read_file",
            60,
            path=path,
            offset=offset,
            max_bytes=max_bytes,
            secrets_of=[written_by.pid] if written_by else [],
        )
        return FilePart.model_validate(_decoded(result, "data"))

    async def find_servers(
        self, port: int | None = None, *, also: Mapping[str, str] | None = None, same_home: bool = False
    ) -> FoundServers:
        """Running inference servers, and whoever owns ``port``. ``also``: further module or program names -> engine.
        ``same_home`` leaves out processes of another HOME (simulated boxes share one machine)."""
        result = await self._call("find_servers", 60, port=port, also=dict(also or {}), same_home=same_home)
        return FoundServers.model_validate(result)

    async def listeners(self, port: int, launch_id: str | None = None) -> Listeners:
        return Listeners.model_validate(await self._call("listeners", 30, port=port, launch_id=launch_id))

    async def learn_key(self, *ports: int) -> str | None:
        """The API key of the server on the first of ``ports`` that has one, kept as ``api_key``: the user's (OPTIMIZE_API_KEY), else
        the server's own, read on the box. None where it asks for none. Never print, log or store it."""
        self.api_key = os.environ.get(KEY_VARIABLE)
        for port in dict.fromkeys(ports):
            self.api_key = self.api_key or (await self._call("server_key", 30, port=port))["key"]
        return self.api_key

    async def port_free(self, port: int) -> bool:
        return not (await self.listeners(port)).listeners

    async def sample_gpu(self, duration_s: float, max_bytes: int = 8 * _MIB) -> str:
        """Text of a ``gpu.csv`` (no header), one row per GPU and second; empty where there is no nvidia-smi."""
        result = await self._call("sample_gpu", duration_s + 20, duration_s=duration_s, max_bytes=max_bytes)
        return str(result["csv"])

    async def survey(
        self, pid: int | None = None, commands: Mapping[str, Sequence[str]] | None = None, *, interval_s: float = 1.0,
        timeout_s: float = 30, max_bytes: int = 4 * _MIB, same_home: bool = False,
    ) -> tuple[dict[str, Any], dict[str, CommandOutput]]:  # fmt: skip
        """(what the kernel says of the box and of the server whose main process is ``pid``, answers of the read-only
        ``commands``), in one call: the commands run side by side while the kernel's counters are watched. A program that is
        not installed has no answer."""
        asked = {name: list(argv) for name, argv in (commands or {}).items()}
        result = await self._call(
            "survey", timeout_s + interval_s + 15, pid=pid, commands=asked, interval_s=interval_s, timeout_s=timeout_s, max_bytes=max_bytes,
            same_home=same_home,
        )  # fmt: skip
        answers = {}
        for name, answer in result["commands"].items():
            answer.pop("wall_s", None)
            answers[name] = CommandOutput.model_validate(_decoded(answer, "stdout", "stderr"))
        return result["host"], answers

    async def holder(self, patience_s: float = 900) -> Holder | None:
        result = await self._call("holder", 20, patience_s=patience_s)
        held = result["holder"]
        if held is None:
            return None
        return Holder(
            study=held["study"], coordinator_name=held.get("coordinator_name", "?"), since_unix_s=held["since_unix_s"],
            gone=result["gone"], elsewhere=result["elsewhere"], coordinator_alive=result["coordinator_alive"],
        )  # fmt: skip

    async def strangers(self) -> tuple[tuple[int, int], ...]:
        """(pid, uid) of what studies of other users run on the box."""
        return tuple((one["pid"], one["uid"]) for one in (await self._call("holder", 20, patience_s=900, bootstrap=BOOTSTRAP))["strangers"])

    async def left_by(self, study: str) -> bool:
        """Whether a study of this name has files on the box: launches, a guard, the record of an original."""
        return bool((await self._call("holder", 20, patience_s=900, study=study))["left"])

    # --- holding the box ---

    async def lock(self, study: str, patience_s: float = 900) -> None:
        """Takes the box for a study; raises BoxLocked naming the holder. A holder that has provably gone is replaced;
        one on another machine counts as gone when it and its guard have been silent for ``patience_s``."""
        await self._call("lock", 40, study=study, coordinator=_coordinator(), patience_s=patience_s, bootstrap=BOOTSTRAP)

    async def unlock(self, study: str) -> bool:
        """True when the box was held by this study."""
        return bool((await self._call("unlock", 40, study=study))["unlocked"])

    async def secure(
        self, study: str, original: ServerProcess | None = None, minutes: float = 15, *, epoch: int = 1,
        poll_s: float = 0.5, listen_wait_s: float = 1200,
    ) -> GuardInfo:  # fmt: skip
        """Arms the dead-man's switch, once per study and epoch, and records the original server on the box, every process of it."""

        def told(one: ServerProcess) -> dict[str, Any]:
            return {"pid": one.pid, "start_time": one.start_time, **({"argv": list(one.argv), "env": one.env} if one.described else {})}

        result = await self._call(
            "secure", 60, study=study, epoch=epoch, minutes=minutes, poll_s=poll_s, listen_wait_s=listen_wait_s, ready_wait_s=20,
            original={**told(original), "before": [told(one) for one in original.before]} if original else None,
            program=base64.b64encode(shim_program()).decode("ascii"), bootstrap=BOOTSTRAP,
            guard=base64.b64encode(guard_program()).decode("ascii"),
        )  # fmt: skip
        self.epoch = epoch
        return GuardInfo.model_validate(result["guard"])

    async def heartbeat(self, study: str, beat: int) -> bool:
        """Tells the guard that we live: ``beat`` must differ from the last one. False once the guard has fired. Raises
        ShimRefused("restarted") where something on the box has started the original again; the guard has heard us all the same."""
        return not (await self._call("heartbeat", 20, study=study, beat=beat))["fired"]

    async def guard_status(self, study: str) -> GuardStatus:
        result = await self._call("guard_status", 20, study=study)
        return GuardStatus.model_validate({
            "guard": result["guard"], "fired": result["fired"], "recorded": result["recorded"],
            "fenced_epoch": result["fenced"]["epoch"] if result["fenced"] else None, "members": result["members"],
        })  # fmt: skip

    async def disarm(self, study: str, timeout_s: float = 30) -> GuardStatus:
        """Ends the guard without restoring anything. Nothing happens when there is none. Look at ``fired`` of the answer: a guard that
        was just firing finishes that first."""
        await self._call("order", 20, study=study, order="disarm")
        return await self.guard_ended(study, timeout_s)

    async def fire(self, study: str) -> None:
        """Has the guard take our launches down and bring the original back now; it needs nobody for that."""
        await self._call("order", 20, study=study, order="fire")

    async def guard_ended(self, study: str, timeout_s: float, *, tried: int | None = None) -> GuardStatus:
        """Waits until the guard has obeyed: it ends, or with ``tried`` it has failed once more often than that, and stays. Raises
        NeedsOperator when it has done neither in time; it goes on all the same."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        pause_s = 0.1
        while True:
            status = await self.guard_status(study)
            if status.guard is None or (tried is not None and status.tries > tried):
                return status
            if loop.time() > end:
                raise NeedsOperator(
                    f"The guard of study {study} on {self.name} (process {status.guard.pid}) does not obey.",
                    hint=f"Look at ~/.optimizer/runs/{study}/guard/guard.log on the box.",
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2.0, pause_s * 1.5)

    # --- launching and ending ---

    async def launch(
        self, study: str, key: str, argv: Sequence[str], env_changes: Mapping[str, str | None] | None = None,
        cwd: str | None = None, port: int | None = None, *, side_ports: Sequence[int] = (), base: str = "login",
        keep_log: bool = False, affinity: Sequence[int] | None = None, timeout_s: float = 90,
    ) -> Launched:  # fmt: skip
        """Starts ``argv`` detached under the launch id ``study:key``; a key is started at most once, ever.

        ``base="guard"`` starts from the original server's environment, CPU affinity and limits; ``env_changes`` come on
        top, None removes a variable. Raises PortTaken, GuardFired, ShimRefused("exec_failed", "disk_full", ...)."""
        ports = ([port] if port is not None else []) + list(side_ports)
        result = await self._call(
            "launch", timeout_s, study=study, key=key, epoch=self.epoch, argv=list(argv), env=dict(env_changes or {}), cwd=cwd,
            ports=ports, base=base, keep_log=keep_log, affinity=list(affinity) if affinity is not None else None,
        )  # fmt: skip
        return Launched.model_validate(result)

    async def launch_deployment(
        self, study: str, key: str, members: Sequence[MemberLaunch], *, keep_log: bool = False, timeout_s: float = 90
    ) -> Launched:
        """Starts these processes as one launch under ``study:key``, workers first, the router when every worker is healthy; when one
        ends, all end. ``state`` tells of each. Raises what ``launch`` raises."""
        result = await self._call(
            "launch", timeout_s, study=study, key=key, epoch=self.epoch, ports=[one.port for one in members], keep_log=keep_log, argv=[], base="login",
            members=[{**one._asdict(), "argv": list(one.argv), "env": dict(one.env), "paths": list(one.paths)} for one in members],
            program=base64.b64encode(conductor_program()).decode("ascii"), bootstrap=BOOTSTRAP, term_s=MEMBER_TERM_S,
        )  # fmt: skip
        return Launched.model_validate(result)

    async def state(self, study: str, key: str) -> LaunchState:
        """Waits for a launch in progress: ``dead`` and ``not_claimed`` are final."""
        return LaunchState.model_validate(await self._call("state", 60, study=study, key=key))

    async def read_log(
        self, study: str, key: str, offset: int = 0, max_bytes: int = 4 * _MIB, *, member: str | None = None
    ) -> tuple[bytes, int]:
        """(bytes from ``offset`` on, offset to continue at), of the launch or of one ``member`` of it. A log that shrank is read again
        from its start."""
        result = await self._call("read_log", 60, study=study, key=key, offset=offset, max_bytes=max_bytes, member=member)
        part = FilePart.model_validate(_decoded(result, "data"))
        if part.size < offset:
            return await self.read_log(study, key, 0, max_bytes, member=member)
        return part.data, part.end

    async def sweep(
        self,
        launch_id_prefix: str,
        *,
        term_s: float = 20,
        kill_s: float = 30,
        gpu_wait_s: float = 60,
        keep_guard: bool = True,
    ) -> Swept:
        """Ends all launches under the prefix (``study`` or ``study:key``), with everything they started."""
        study = launch_id_prefix.partition(":")[0]
        keep = [f"{study}:guard"] if keep_guard else []
        result = await self._call(
            "sweep", term_s + kill_s + gpu_wait_s + 40, prefix=launch_id_prefix, keep=keep, term_s=term_s, kill_s=kill_s,
            gpu_wait_s=gpu_wait_s,
        )  # fmt: skip
        return Swept.model_validate(result)

    async def stop_original(
        self, study: str, server: ServerProcess, *, term_s: float = 30, kill_s: float = 30, gpu_wait_s: float = 60
    ) -> Stopped:
        """Stops the user's own server by its exact identity. Call it only with consent; the guard must already hold
        it."""
        result = await self._call(
            "stop_original", 2 * term_s + kill_s + gpu_wait_s + 40, study=study, epoch=self.epoch, pid=server.pid,
            start_time=server.start_time, boot_id=server.boot_id, term_s=term_s, kill_s=kill_s, gpu_wait_s=gpu_wait_s,
        )  # fmt: skip
        return Stopped.model_validate(result)

    async def restore_original(self, study: str, timeout_s: float = 1500) -> Restored:
        """Brings the original server back, and returns when it listens. The guard does it while it lives (it alone
        knows the credentials), and stays where it cannot, to be asked again; otherwise the record on the box must do."""
        status = await self.guard_status(study)
        if status.guard is not None:
            await self.fire(study)
            status = await self.guard_ended(study, timeout_s, tried=status.tries)
        fired = status.fired
        if fired is not None and fired.done:
            return Restored(pid=fired.pid, start_time=fired.start_time, log=fired.log, by_guard=True)
        if fired is not None and status.guard is not None:
            raise NeedsOperator(
                f"The guard on {self.name} could not bring the original server back: {fired.message or 'box not clean'}",
                why="The guard still holds what it needs for that, and does nothing more by itself.",
                hint=f"Remove what is in the way, then: optimize restore --host {self.name} (or stop, or resume, of the study). "
                f"What it tried: ~/.optimizer/runs/{study}/guard/guard.log on the box.",
            )
        # The guard is gone, having succeeded in nothing: the record on the disk must do.
        if not status.recorded:
            return Restored(pid=None, start_time=None, log=None, by_guard=False)
        try:
            for member in range(status.members - 1):
                begun = await self._call("start_original", 60, study=study, member=member)
                await self._listens(begun, timeout_s)
            result = await self._call("start_original", 60, study=study)
            await self._listens(result, timeout_s)
        except (ShimRefused, results.PortTaken) as refused:
            if isinstance(refused, results.PortTaken) or refused.kind == "secret_missing":
                raise NeedsOperator(refused.message, why="The original server does not run, and nothing is tried again by itself.",
                                    hint=f"Then: optimize restore --host {self.name}, which sees what runs and removes the rest.") from refused  # fmt: skip
            raise
        return Restored(pid=result["pid"], start_time=result["start_time"], log=result["log"], by_guard=False)

    async def family(self, pid: int, start_time: int) -> tuple[int, ...]:
        """This very process and what descends from it; nothing when it does not live."""
        return tuple((await self._call("listening", 30, pid=pid, start_time=start_time, ports=[]))["pids"])

    async def _listens(self, begun: Mapping[str, Any], timeout_s: float) -> None:
        """Waits until a process of the original that was started again listens: the next one asks it, and so do its users."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            seen = await self._call("listening", 30, pid=begun["pid"], start_time=begun["start_time"], ports=begun["ports"])
            if seen["listening"]:
                return
            if not seen["alive"] or loop.time() > end:
                how = "ended again" if not seen["alive"] else "does not listen"
                raise NeedsOperator(
                    f"Process {begun['pid']}, which brings the original back on {self.name}, was started and {how}.",
                    why="What ran before is not whole, and nothing more is tried by itself.",
                    hint=f"Its log on the box says why; then: optimize restore --host {self.name}",
                )
            await asyncio.sleep(1.0)

    async def cleanup(self, study: str, *, leave_running: bool = False) -> Cleaned:
        """Removes the study's files from the box. Refuses while one of its processes lives, unless it is left on
        purpose."""
        return Cleaned.model_validate(await self._call("cleanup", 60, study=study, leave=leave_running))

    # --- jobs ---

    async def run_job(
        self, source: bytes, stdin: bytes, launch_id: str, timeout_s: float, on_line: Callable[[bytes], None],
        *, args: Sequence[str] = (), python: str | None = None, affinity: Sequence[int] | None = None,
        env_changes: Mapping[str, str | None] | None = None, max_bytes: int = 512 * _MIB,
    ) -> JobResult:  # fmt: skip
        """Runs Python source on the box as a marked child; ``on_line`` gets each line of its output, without the line
        break. It is gone, with everything it started, when this returns or the connection is lost."""
        rest = bytearray()
        if self.transport.same_python and python is None:
            source = compiled(source)

        def on_out(data: bytes) -> None:
            nonlocal rest
            crash_point("box.run_job.output")
            rest += data
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                on_line(line)

        result = await self._call(
            "run_job", timeout_s + 15, on_out, launch_id=launch_id, source=base64.b64encode(source).decode("ascii"),
            stdin=base64.b64encode(stdin).decode("ascii"), args=list(args), python=python, bootstrap=BOOTSTRAP,
            affinity=list(affinity) if affinity is not None else None, env=dict(env_changes or {}), timeout_s=timeout_s,
            max_bytes=max_bytes,
        )  # fmt: skip
        if rest:
            on_line(bytes(rest))
        return JobResult.model_validate(_decoded(result, "stderr"))

    async def forward(self, port: int) -> tuple[str, int]:
        """(host, port) here that reaches the port on the box; for the control plane, never for measured load."""
        return await self.transport.forward(port)

    async def close(self) -> None:
        await self.transport.close()


def _decoded(result: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**result, **{name: base64.b64decode(result[name]) for name in names}}


_HINTS = {
    "deadline": "The box is slow or overloaded; look at its load, then try again.",
    "lock_busy": "Try again in a minute.",
    "internal": "This is a bug of the tool; please report the message.",
}


def _refuse(kind: str, message: str, more: Mapping[str, Any]) -> NoReturn:
    if kind == "port_busy":
        raise results.PortTaken(message)
    if kind == "box_locked":
        raise results.BoxLocked(message)
    if kind == "guard_fired":
        raise results.GuardFired(message)
    if kind == "link_lost":
        raise LinkLost(message)
    if kind == "python_too_old":
        raise PythonMissing(message, hint="Install a newer Python on the box (apt-get install python3).")
    raise ShimRefused(kind, message, hint=_HINTS.get(kind, ""))
