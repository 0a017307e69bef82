"""A server that a supervisor runs is stopped and started through it, by the coordinator and by the guard. The control groups are
the kernel's own; systemctl and docker are small programs that start and stop a real process in such a group."""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.results import ServerProcess, ShimRefused

from .conftest import alive, until

HIERARCHY = next((path for path in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")) if os.access(path / "cgroup.procs", os.W_OK)), None)
QUICK = {"poll_s": 0.1, "listen_wait_s": 20.0}
# Starts the server in its control group, remembers its process, and logs every call.
TOOL = """
import os, subprocess, sys, time
folder, group, command = {folder!r}, {group!r}, {command!r}
words = sys.argv[1:]
with open(folder + "/calls", "a") as log:
    log.write(" ".join([os.path.basename(sys.argv[0]), *words]) + "\\n")
def pid():
    try:
        number = int(open(folder + "/pid").read())
        return number if open("/proc/%d/stat" % number).read().rpartition(")")[2].split()[0] != "Z" else 0
    except (OSError, ValueError):
        return 0
if os.path.exists(folder + "/broken"):
    sys.exit("Failed to act on the unit: access denied")
if "stop" in words:
    number = pid()
    if number:
        os.kill(number, 15)
        while pid():
            time.sleep(0.02)
elif "start" in words:
    if not pid():
        enter = lambda: open(group + "/cgroup.procs", "w").write(str(os.getpid()))
        env = {{**os.environ, "SUPERVISED": "yes"}}
        env.pop("OPTIMIZER_LAUNCH_ID", None)
        child = subprocess.Popen(command, cwd="/", preexec_fn=enter, stdin=subprocess.DEVNULL, stdout=open(folder + "/log", "a"), stderr=subprocess.STDOUT,
                                 start_new_session=True, env=env)
        with open(folder + "/pid.new", "w") as file:
            file.write(str(child.pid))
        os.replace(folder + "/pid.new", folder + "/pid")  # whoever reads meanwhile finds the old one or the new one, whole
elif "show" in words or "inspect" in words:
    print(pid())
"""


class Supervisor:
    """A unit or a container: ``tool`` in ``path`` acts on it."""

    def __init__(self, folder: Path, tool: str, group: Path, command: list[str]) -> None:
        self.folder, self.group = folder, group
        for _ in range(20):  # another test may remove the empty folder above it in that moment
            with contextlib.suppress(FileNotFoundError):
                group.mkdir(parents=True)
                break
        folder.mkdir()
        program = folder / tool
        body = TOOL.format(folder=str(folder), group=str(group), command=command)
        program.write_text(f"#!{sys.executable}\n{body}")
        program.chmod(0o755)
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        subprocess.run([str(program), "start", "it"], check=True)
        (folder / "calls").unlink()

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def calls(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [line for line in (self.folder / "calls").read_text().splitlines() if " show " not in line and " inspect " not in line]
        return []

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, OSError):
            os.kill(self.pid, signal.SIGKILL)


pytestmark = pytest.mark.skipif(HIERARCHY is None, reason="no control group can be made here")


@pytest.fixture(params=["systemd", pytest.param("docker", marks=pytest.mark.slow)])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path, server: Callable[..., list[str]], free_port: int) -> Iterator[Supervisor]:
    assert HIERARCHY is not None
    unique = f"{os.getpid():08d}{free_port:06d}"
    if request.param == "systemd":
        top = HIERARCHY / "system.slice"
        group, tool = top / f"optimize-test-{unique}.service", "systemctl"
    else:
        top = HIERARCHY / "docker"
        group, tool = top / hashlib.sha256(unique.encode()).hexdigest(), "docker"  # as long as a container's, and nobody else's
    one = Supervisor(tmp_path / "supervisor", tool, group, server(free_port))
    yield one
    one.end()
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            break
        asyncio.run(asyncio.sleep(0.05))
    with contextlib.suppress(OSError):
        top.rmdir()


async def found(box: Box, supervisor: Supervisor, port: int) -> ServerProcess:
    await until(lambda: alive(supervisor.pid))
    for _ in range(100):
        servers = (await box.find_servers(port)).servers
        if match := [one for one in servers if one.pid == supervisor.pid and one.ports]:
            return match[0]
        await asyncio.sleep(0.05)
    raise AssertionError("the server was not found")


@pytest.mark.fault("G1")
async def test_it_is_stopped_and_brought_back_through_its_supervisor(make_box: Callable[..., Box], supervisor: Supervisor, free_port: int) -> None:
    box = make_box(PATH=supervisor.path)
    server = await found(box, supervisor, free_port)
    assert server.supervisor is not None and server.control is not None and " stop " in f"{server.control} "
    first = supervisor.pid
    guard = await box.secure("s", server, minutes=5, **QUICK)
    assert guard.original is not None and guard.original.control is not None
    assert (await box.stop_original("s", server, gpu_wait_s=0)).remaining == ()
    assert not alive(first) and await box.port_free(free_port)
    restored = await box.restore_original("s")
    assert restored.by_guard and restored.pid == supervisor.pid != first and alive(supervisor.pid)
    again = await found(box, supervisor, free_port)
    assert again.supervisor == server.supervisor  # back where it was, not a process of ours
    assert [call.split()[0] for call in supervisor.calls] == [server.control.split()[0]] * 2
    assert "stop" in supervisor.calls[0] and "start" in supervisor.calls[1]


async def test_a_silent_coordinator_loses_the_box_to_the_supervisor(make_box: Callable[..., Box], home: Path, supervisor: Supervisor, free_port: int) -> None:
    box = make_box(PATH=supervisor.path)
    server = await found(box, supervisor, free_port)
    first = supervisor.pid
    await box.secure("s", server, minutes=0.05, **QUICK)
    await box.stop_original("s", server, gpu_wait_s=0)
    try:
        await until(lambda: len(supervisor.calls) >= 2 and supervisor.pid != first and alive(supervisor.pid), 90)
    except AssertionError:
        said = "\n".join(path.read_text() for path in home.rglob("guard.log"))
        raise AssertionError(f"{supervisor.calls}, {first} and now {supervisor.pid}\n{said}") from None
    for _ in range(200):
        status = await box.guard_status("s")
        if status.fired is not None:
            break
        await asyncio.sleep(0.1)
    assert status.fired is not None and status.fired.restored and status.fired.pid == supervisor.pid


async def test_a_supervisor_that_refuses_is_told_and_nothing_is_changed(make_box: Callable[..., Box], supervisor: Supervisor, free_port: int) -> None:
    box = make_box(PATH=supervisor.path)
    server = await found(box, supervisor, free_port)
    first = supervisor.pid
    await box.secure("s", server, minutes=5, **QUICK)
    (supervisor.folder / "broken").touch()
    with pytest.raises(ShimRefused, match="access denied") as refused:
        await box.stop_original("s", server, term_s=1, kill_s=1, gpu_wait_s=0)
    assert refused.value.kind == "supervisor_failed" and alive(first) and supervisor.pid == first
    await box.disarm("s")


@pytest.mark.fault("G1")
async def test_without_its_tool_it_is_left_alone(make_box: Callable[..., Box], supervisor: Supervisor, free_port: int, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    box = make_box(PATH=str(empty))
    server = await found(box, supervisor, free_port)
    assert server.supervisor is not None and server.control is None
    with pytest.raises(ShimRefused) as refused:
        await box.secure("s", server, minutes=5, **QUICK)
    assert refused.value.kind == "supervised" and "--launch" in refused.value.message and alive(supervisor.pid)
