"""What is ours is ended, all of it; what is not ours is never signalled."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.plain import procfs, sweep
from optimizer.box.results import ShimRefused

from .conftest import alive
from .test_launch import Server, said

FAST = {"term_s": 0.5, "kill_s": 5, "gpu_wait_s": 1}


async def test_nothing_to_sweep(box: Box, home: Path) -> None:
    swept = await box.sweep("s1")
    assert swept.clean and swept.swept == ()
    assert not (home / ".optimizer").exists()  # looking leaves nothing


@pytest.mark.fault("F19", "F20")
async def test_worker_that_left_its_session_and_worker_that_ignores_sigterm(box: Box, server: Server) -> None:
    launched = await box.launch("s1", "1", server(0, "setsid", "stubborn-worker", "clean-env", "stubborn"))
    workers = (await said(box, "s1", "1"))["workers"]
    assert len(workers) == 3 and all(alive(pid) for pid in workers)
    swept = await box.sweep("s1:1", **FAST)
    assert swept.clean and {launched.pid, *workers} <= set(swept.swept)
    assert not any(alive(pid) for pid in (launched.pid, *workers))
    state = await box.state("s1", "1")
    assert state.state == "dead" and state.exit_signal == signal.SIGKILL
    assert (await box.sweep("s1:1", **FAST)).swept == ()


async def test_worker_with_clean_environment_after_its_parent_is_gone(box: Box, server: Server) -> None:
    """Only the session that the launch created still tells whose it is."""
    await box.launch("s1", "1", server(0, "clean-env", "leave-workers"))
    (worker,) = (await said(box, "s1", "1"))["workers"]
    swept = await box.sweep("s1", **FAST)
    assert swept.swept == (worker,) and not alive(worker)


@pytest.mark.fault("F19")
async def test_a_server_that_becomes_a_daemon_with_a_clean_environment_is_ours(box: Box, server: Server, home: Path) -> None:
    """Neither marker, nor session, nor parent: it is found below the keeper of its launch, which stays as long as it lives."""
    launched = await box.launch("s1", "1", server(0, "daemon"))
    daemon = (await said(box, "s1", "1"))["pid"]
    assert daemon != launched.pid and alive(daemon)
    with pytest.raises(ShimRefused, match=str(daemon)):
        await box.cleanup("s1")
    swept = await box.sweep("s1", **FAST)
    assert daemon in swept.swept and swept.clean and not alive(daemon)
    await box.cleanup("s1")
    assert not (home / ".optimizer").exists()


async def test_a_session_whose_number_somebody_else_has_by_now_is_not_ours(box: Box, server: Server, home: Path, spawn: Callable) -> None:
    """A daemon that led a session of that number and is gone, as daemons are that fork twice: only its child is left."""
    await box.launch("s1", "1", server(0, "leave-workers"))
    await said(box, "s1", "1")
    leader = spawn(server(0, "clean-env", "leave-workers"), stdout=subprocess.PIPE, start_new_session=True)
    (theirs,) = json.loads(leader.stdout.readline())["workers"]
    leader.wait()
    path = home / ".optimizer/runs/s1/1/started.json"
    started = json.loads(path.read_text())
    path.write_text(json.dumps({**started, "pid": leader.pid}))
    try:
        assert (await box.sweep("s1", **FAST)).swept == () and alive(theirs)
    finally:
        os.kill(theirs, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as somebody else")
async def test_a_launch_runs_as_the_user_of_the_original(box: Box, home: Path, free_port: int, spawn: Callable, tmp_path: Path) -> None:
    """What it caches would otherwise be root's, and the original could not write it any more."""
    shared = Path(tempfile.mkdtemp(prefix="optimize-owner-"))
    shared.chmod(0o777)
    code = "import os,socket,sys,time; open(sys.argv[2]+'/%d'%os.getpid(),'w'); s=socket.socket(); s.bind(('127.0.0.1',int(sys.argv[1]))); s.listen(); time.sleep(600)"
    try:
        argv = ["/usr/bin/python3", "-c", code, str(free_port), str(shared)]
        process = spawn(argv, stdout=-3, cwd="/", user=65534, group=65534, extra_groups=[])
        while await box.port_free(free_port):
            await asyncio.sleep(0.02)
        seen = next(one for one in (await box.find_servers(free_port)).servers if one.pid == process.pid)
        await box.secure("s1", seen, poll_s=0.1)
        await box.stop_original("s1", seen, term_s=2)
        launched = await box.launch("s1", "1", argv, cwd="/", port=free_port, base="guard")
        while await box.port_free(free_port):
            await asyncio.sleep(0.02)
        assert (shared / str(launched.pid)).stat().st_uid == 65534
        await box.sweep("s1", **FAST)
        await box.disarm("s1")
    finally:
        shutil.rmtree(shared)


async def test_bystanders_survive(box: Box, server: Server, spawn: Callable, tmp_path: Path) -> None:
    """Same command line, a marker of another box, a longer study name, and no marker: none of them is ours."""
    plain = spawn(server(0), stdout=-3)
    marked = {**os.environ, "OPTIMIZER_LAUNCH_ID": "s1:1"}
    elsewhere = spawn(server(0), stdout=-3, env={**marked, "OPTIMIZER_ROOT": str(tmp_path / "another/.optimizer")})
    no_root = spawn(server(0), stdout=-3, env=marked)
    await box.launch("s1", "7", server(0))
    longer = await box.launch("s1", "70", server(0))
    other = await box.launch("s10", "7", server(0))
    swept = await box.sweep("s1:7", **FAST)
    assert len(swept.swept) == 1
    assert [one.poll() for one in (plain, elsewhere, no_root)] == [None, None, None]
    assert alive(longer.pid) and alive(other.pid)
    assert (await box.sweep("s1", **FAST)).swept == (longer.pid,)
    assert alive(other.pid)


async def test_a_role_is_swept_with_its_deployment(box: Box, server: Server) -> None:
    pids = {(await box.launch("s1", key, server(0))).pid for key in ("3:router", "3:decode")}
    assert set((await box.sweep("s1:3", **FAST)).swept) == pids


FORKER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
end = time.time() + float(sys.argv[1])
while time.time() < end:      # a new generation every 10 ms, each in its own session
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.01)
time.sleep(60)
"""


async def test_processes_that_fork_while_they_are_swept(box: Box) -> None:
    await box.launch("s1", "1", [sys.executable, "-c", FORKER, "3"])
    while (await box.read_log("s1", "1"))[0] != b"up\n":
        pass
    swept = await box.sweep("s1", term_s=0.2, kill_s=10)
    assert swept.clean and swept.swept
    await asyncio.sleep(0.3)
    assert (await box.sweep("s1", **FAST)).swept == ()


def test_a_reused_pid_is_not_signalled() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        one = procfs.process(child.pid)
        assert one is not None
        assert not sweep.send(child.pid, one.start_time + 1, signal.SIGKILL)
        assert child.poll() is None
        assert sweep.send(child.pid, one.start_time, signal.SIGKILL)
        assert child.wait(5) == -signal.SIGKILL
        assert not sweep.send(child.pid, one.start_time, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


@pytest.mark.fault("F21")
def test_what_survives_a_kill_is_reported() -> None:
    """A process in uninterruptible sleep cannot be made here: one that the kernel will not let us end stands in."""
    me = procfs.process(os.getpid())
    assert me is not None
    stuck = procfs.Process(1, 0, 1, "D", procfs.process(1).start_time)  # type: ignore[union-attr]
    real_send, sweep.send = sweep.send, lambda *_: False
    try:
        seen, remaining, _ = sweep.end_all(lambda: {1: stuck}, 0.0, 0.3)
    finally:
        sweep.send = real_send
    assert (seen, remaining) == ([1], [1])


async def test_shared_memory_of_a_killed_server_is_removed_and_nobody_elses(box: Box) -> None:
    theirs = shared_memory.SharedMemory(create=True, size=4096)
    code = (
        "from multiprocessing import shared_memory, resource_tracker as t; import time\n"
        "m = shared_memory.SharedMemory(create=True, size=1 << 20); t.unregister(m._name, 'shared_memory')\n"
        f"o = shared_memory.SharedMemory(name='{theirs.name}'); t.unregister(o._name, 'shared_memory')\n"
        "print(m.name, flush=True); time.sleep(60)"
    )
    try:
        await box.launch("s1", "1", [sys.executable, "-c", code])
        name = b""
        while not name.endswith(b"\n"):
            name, _ = await box.read_log("s1", "1")
        ours = Path("/dev/shm") / name.decode().strip()
        assert ours.exists()
        swept = await box.sweep("s1", **FAST)
        assert str(ours) in swept.removed and not ours.exists()
        assert Path("/dev/shm", theirs.name).exists()  # still open in this process
    finally:
        theirs.close()
        theirs.unlink()


@pytest.fixture
def fake_gpu(tmp_path: Path) -> tuple[Path, Path]:
    """(folder for PATH, file that holds the memory in use): a stand-in for nvidia-smi."""
    folder, used = tmp_path / "bin", tmp_path / "used"
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {used}\n")
    tool.chmod(0o755)
    used.write_text("1000\n4\n")
    return folder, used


@pytest.mark.fault("F22")
async def test_gpu_memory_must_come_back(
    make_box: Callable[..., Box], server: Server, fake_gpu: tuple[Path, Path]
) -> None:
    folder, used = fake_gpu
    box = make_box(PATH=f"{folder}:{os.environ['PATH']}")
    for key, later, back in (("1", "1200\n200\n", True), ("2", "1300\n4\n", False)):
        used.write_text("1000\n4\n")
        await box.launch("s1", key, server(0))
        used.write_text("80000\n80000\n")
        call = asyncio.ensure_future(box.sweep(f"s1:{key}", term_s=1, gpu_wait_s=2))
        await asyncio.sleep(0.7)
        used.write_text(later)
        swept = await call
        assert swept.gpu_back is back and swept.clean is back
        assert swept.gpu_memory_mib == tuple(int(line) for line in later.split())


@pytest.mark.fault("F49")
@pytest.mark.parametrize("answer", ["exit 9", "echo 'pas de GPU'", "echo '[N/A]'"])
async def test_an_nvidia_smi_that_cannot_be_read_is_unknown_not_fine(
    make_box: Callable[..., Box], server: Server, fake_gpu: tuple[Path, Path], answer: str
) -> None:
    folder, _ = fake_gpu
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
    box = make_box(PATH=f"{folder}:{os.environ['PATH']}")
    await box.launch("s1", "1", server(0))
    assert (await box.sweep("s1", **FAST)).gpu_back is None
