"""What can be wrong with the state of a box, its clock, its disk and its tools, with real processes on a scratch home."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.box import guard as guard_module
from optimizer.box.box import Box
from optimizer.box.results import BoxLocked, GuardFired, ServerProcess, ShimRefused
from optimizer.errors import JournalError, LinkLost, NeedsOperator
from optimizer.journal import Journal
from optimizer.model.study import StudySpec
from optimizer.transport.local import LocalTransport
from tests.unit.box.conftest import alive, box, free_port, home, make_box, server, spawn, until

__all__ = ["box", "free_port", "home", "make_box", "server", "spawn"]
QUICK = {"poll_s": 0.1, "listen_wait_s": 10.0}
Server = Callable[..., list[str]]
UNSHARED = shutil.which("unshare") and os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


async def found(box: Box, port: int, pid: int) -> ServerProcess:
    for _ in range(400):
        if match := [one for one in (await box.find_servers(port)).servers if one.pid == pid and one.ports]:
            return match[0]
        await asyncio.sleep(0.05)
    raise AssertionError("the server was not found")


# ---- the guard ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fault("F6")
async def test_a_stall_of_ten_minutes_does_not_fire_the_guard(box: Box) -> None:
    """Two thirds of its patience in silence, as ten minutes are of the fifteen by default; then the link is back."""
    assert StudySpec.model_fields["guard_minutes"].default >= 1.5 * 10
    guard = await box.secure("s1", None, minutes=3 / 60, **QUICK)
    await box.heartbeat("s1", 1)
    await asyncio.sleep(2)
    assert alive(guard.pid) and await box.heartbeat("s1", 2)
    await asyncio.sleep(2)
    assert alive(guard.pid), "the beat after the stall did not count"
    await box.disarm("s1")


@pytest.mark.fault("F38")
@pytest.mark.parametrize("step_s", [3600, -3600])
def test_the_boxs_clock_jumps_and_the_guard_counts_on(tmp_path: Path, step_s: int) -> None:
    """Whenever its clock of the day is read, it has jumped again: neither does it fire at once, nor does it wait for ever."""
    program = f"import runpy, time; real, n = time.time, []\ntime.time = lambda: n.append(1) or real() + {step_s} * len(n)\nrunpy.run_path({guard_module.__file__!r}, run_name='__main__')"
    config = {"root": str(tmp_path), "study": "s", "epoch": 1, "home": str(tmp_path), "original": None, "limit_s": 0.6, "poll_s": 0.05,
              "listen_wait_s": 1.0, "program": "", "bootstrap": "raise SystemExit(1)", "boot_id": "b"}  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(config).encode())
        process.stdin.close()
        for beat in range(9):
            (tmp_path / "beat").write_text(json.dumps({"beat": beat}))
            (tmp_path / "beat").rename(tmp_path / "heartbeat")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert process.poll() is None, process.stdout.read() if process.stdout else b""
        assert process.stdout is not None and b"firing: silent" in process.stdout.readline()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.fault("G4")
async def test_heartbeats_that_cannot_be_written_lose_the_box_to_the_guard(box: Box, home: Path, server: Server, free_port: int, spawn: Callable) -> None:
    """Something stands in the heartbeat's way, as a full disk does: the coordinator is told, and the guard restores."""
    process = spawn(server(free_port), stdout=-3, env={"PATH": os.environ["PATH"]}, cwd="/")
    seen = await found(box, free_port, process.pid)
    guard = await box.secure("s1", seen, minutes=2 / 60, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    (home / ".optimizer/studies/s1/heartbeat").unlink()
    (home / ".optimizer/studies/s1/heartbeat").mkdir()
    with pytest.raises(ShimRefused, match="Cannot write") as refused:
        await box.heartbeat("s1", 1)
    assert refused.value.kind == "unwritable"
    await until(lambda: not alive(guard.pid), 20)
    fired = (await box.guard_status("s1")).fired
    assert fired is not None and fired.reason == "silent" and fired.restored and fired.pid is not None
    os.kill(fired.pid, signal.SIGKILL)


@pytest.fixture
def full_disk(home: Path) -> Iterator[Callable[[], None]]:
    """``~/.optimizer`` on a real small file system; the function fills it."""
    root = home / ".optimizer"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "none", str(root)], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")

    def fill() -> None:
        with contextlib.suppress(OSError), (root / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    yield fill
    subprocess.run(["umount", "-l", str(root)], check=True)


@pytest.mark.fault("G4", "F42")
async def test_a_full_disk_of_the_box_does_not_keep_the_original_down(
    box: Box, home: Path, server: Server, free_port: int, spawn: Callable, full_disk: Callable[[], None]
) -> None:
    process = spawn(server(free_port), stdout=-3, env={"PATH": os.environ["PATH"]}, cwd="/")
    seen = await found(box, free_port, process.pid)
    guard = await box.secure("s1", seen, minutes=2 / 60, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    full_disk()
    assert await box.heartbeat("s1", 1), "room was reserved for what must get through"
    with pytest.raises(ShimRefused) as refused:
        await box.launch("s1", "1", server(0), base="guard")
    assert refused.value.kind == "disk_full"
    await until(lambda: not alive(guard.pid), 30)
    back = [one for one in (await box.find_servers(free_port)).servers if free_port in one.ports]
    assert [one.argv for one in back] == [seen.argv], "the guard died without bringing the original back"
    assert not await box.heartbeat("s1", 2), "what the guard did is written down all the same"
    with pytest.raises(GuardFired):
        await box.launch("s1", "2", server(0), base="guard")


@pytest.mark.fault("G4")
async def test_on_a_full_disk_the_guard_obeys(
    box: Box, home: Path, server: Server, free_port: int, spawn: Callable, full_disk: Callable[[], None]
) -> None:
    process = spawn(server(free_port), stdout=-3, env={"PATH": os.environ["PATH"]}, cwd="/")
    seen = await found(box, free_port, process.pid)
    await box.lock("s1")
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    full_disk()
    restored = await box.restore_original("s1", timeout_s=60)
    assert restored.by_guard and restored.pid != seen.pid
    await box.cleanup("s1")
    await box.unlock("s1")
    assert not (home / ".optimizer/box.lock").exists()


@pytest.mark.slow
@pytest.mark.fault("G2")
@pytest.mark.parametrize("gone", ["directory", "program", "port"])
async def test_what_the_original_needs_is_gone_when_it_is_brought_back(box: Box, tmp_path: Path, server: Server, free_port: int, spawn: Callable, gone: str) -> None:
    """A person is asked, with the reason; what stands in the way is left alone."""
    folder = tmp_path / "work"
    folder.mkdir()
    program = folder / "python"
    program.symlink_to(sys.executable)
    where = folder if gone == "directory" else tmp_path
    process = spawn([str(program), *server(free_port)[1:]], stdout=-3, env={"PATH": os.environ["PATH"]}, cwd=str(where))
    seen = await found(box, free_port, process.pid)
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    process.wait(5)
    stranger = None
    if gone == "port":
        stranger = spawn(server(free_port), stdout=-3)
        await until(lambda: b"listening" in _listening(free_port))
    else:
        shutil.rmtree(folder)
    with pytest.raises(NeedsOperator, match=str(free_port) if gone == "port" else "work") as asked:
        await box.restore_original("s1", timeout_s=60)
    assert "guard.log" in asked.value.hint and "optimize restore --host" in asked.value.hint
    assert stranger is None or stranger.poll() is None
    await box.disarm("s1")


def _listening(port: int) -> bytes:
    import socket

    with socket.socket() as probe:
        return b"listening" if probe.connect_ex(("127.0.0.1", port)) == 0 else b""


@pytest.mark.fault("F46")
async def test_a_box_that_was_given_to_somebody_else_is_not_changed_any_more(box: Box, home: Path, server: Server, free_port: int, spawn: Callable) -> None:
    """Somebody removed our lock and took the box, while our guard lives: nothing is launched or stopped beside them."""
    process = spawn(server(free_port), stdout=-3)
    seen = await found(box, free_port, process.pid)
    await box.lock("mine")
    await box.secure("mine", seen, minutes=5, **QUICK)
    shutil.rmtree(home / ".optimizer/box.lock")
    await Box(LocalTransport(home=home)).lock("theirs")
    with pytest.raises(BoxLocked, match="held by study theirs"):
        await box.launch("mine", "1", server(0), base="guard")
    with pytest.raises(BoxLocked, match="held by study theirs"):
        await box.stop_original("mine", seen)
    assert (await box.state("mine", "1")).state == "not_claimed" and process.poll() is None
    assert not await box.unlock("mine")
    await box.disarm("mine")


# ---- the journal's disk ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("F41", "F42")
def test_the_journals_disk_becomes_full_or_read_only_in_mid_study(tmp_path: Path) -> None:
    """A real small file system. What was acknowledged stays; one error of ours says why; and with the disk back the study goes on."""
    runs = tmp_path / "runs"
    runs.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(runs)], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with Journal.create(runs / "s/journal.db") as journal:
            journal.append("opened", {}, expect=0)
            with pytest.raises(JournalError, match=r"full|space|disk"):
                while True:
                    journal.append("note", {"text": os.urandom(8000).hex()}, expect=journal.last_seq)
            kept = journal.last_seq
            subprocess.run(["mount", "-o", "remount,size=8m", str(runs)], check=True)
            journal.append("note", {"text": "room again"}, expect=kept)
        with Journal.open(runs / "s/journal.db", write=True) as journal:
            assert journal.verify() == kept + 2  # and who took over
        subprocess.run(["mount", "-o", "remount,ro", str(runs)], check=True)
        with pytest.raises(JournalError):
            Journal.open(runs / "s/journal.db", write=True)
        with Journal.open(runs / "s/journal.db", write=False) as journal:
            assert journal.verify() == kept + 2  # reading needs nothing
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


# ---- the link ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("F7")
async def test_a_reply_that_is_cut_off_is_unknown_and_asked_for_again(home: Path, tmp_path: Path) -> None:
    """A link that carries 200 bytes and no more: nobody knows what happened on the box, so nobody claims to."""
    cut = tmp_path / "cut"
    cut.write_text('#!/bin/sh\n"$@" | head -c 40\n')
    cut.chmod(0o755)
    with pytest.raises(LinkLost, match="what happened on the box is unknown"):
        await Box(LocalTransport(home=home, prefix=(str(cut),))).hello()
    assert (await Box(LocalTransport(home=home)).hello()).home == str(home)


@pytest.mark.fault("F11")
@pytest.mark.skipif(not UNSHARED, reason="no mount namespace can be made here")
async def test_home_and_tmp_that_cannot_be_written(home: Path, tmp_path: Path) -> None:
    """Looking needs neither; whatever changes the box is refused by name before it changes anything."""
    script = tmp_path / "read-only"
    script.write_text(f"#!/bin/sh\nexec unshare -m sh -c 'mount --bind \"{home}\" \"{home}\" && mount -o remount,ro,bind \"{home}\" && mount -t tmpfs -o ro none /var/tmp"
                      " && cd / && exec \"$@\"' sh \"$@\"\n")  # fmt: skip
    script.chmod(0o755)
    box = Box(LocalTransport(home=home, prefix=(str(script),), env={"TMPDIR": "/var/tmp"}))
    facts = await box.hello()
    assert not facts.home_writable
    assert (await box.command(["echo", "hi"])).stdout == b"hi\n"
    for change in (box.lock("s1"), box.secure("s1", None), box.launch("s1", "1", ["true"])):
        with pytest.raises(ShimRefused, match="Read-only file system") as refused:
            await change
        assert refused.value.kind == "unwritable"
    assert list(home.iterdir()) == []


# ---- processes that do not end ------------------------------------------------------------------------------------------


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes stand still, in the kernel's uninterruptible sleep, until they are let go."""
    group = Path("/sys/fs/cgroup/freezer") / f"optimize-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no process can be frozen here")
    yield group
    (group / "freezer.state").write_text("THAWED")
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


@pytest.mark.fault("F21")
async def test_a_process_that_not_even_a_kill_ends_is_reported_by_its_number(box: Box, server: Server, freezer: Path) -> None:
    launched = await box.launch("s1", "1", server(0))
    (freezer / "cgroup.procs").write_text(str(launched.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    swept = await box.sweep("s1", term_s=0.2, kill_s=1, gpu_wait_s=0)
    assert not swept.clean and swept.remaining == (launched.pid,)
    with pytest.raises(ShimRefused, match=str(launched.pid)) as refused:
        await box.cleanup("s1")
    assert refused.value.kind == "still_running"
    (freezer / "freezer.state").write_text("THAWED")
    assert (await box.sweep("s1", term_s=1, gpu_wait_s=0)).clean and launched.pid and not alive(launched.pid)


# ---- tools and permissions --------------------------------------------------------------------------------------------------


@pytest.mark.fault("F49")
async def test_an_nvidia_smi_that_hangs_costs_its_time_and_nothing_else(make_box: Callable[..., Box], tmp_path: Path) -> None:
    """Its answers count as missing; the process is gone afterwards."""
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 60\n")
    tool.chmod(0o755)
    box = make_box(PATH=f"{tool.parent}:{os.environ['PATH']}")
    assert await asyncio.wait_for(box.sample_gpu(0.5), 30) == ""
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    await until(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.fault("F50")
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can be another user")
async def test_a_server_whose_environment_cannot_be_read_is_not_touched(tmp_path: Path, server: Server, free_port: int, spawn: Callable) -> None:
    """Somebody else's: it could not be started again as it was, so it is not stopped."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no python3 that another user may run")
    process = spawn(server(free_port), stdout=-3)
    nobody = Path("/tmp") / f"optimize-nobody-{os.getpid()}"
    nobody.mkdir(mode=0o777)
    nobody.chmod(0o777)
    try:
        box = Box(LocalTransport(home=nobody, prefix=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"), env={"PATH": "/usr/bin:/bin"}))
        assert (await box.hello()).uid == 65534
        await until(lambda: b"listening" in _listening(free_port))
        servers = await box.find_servers(free_port)
        assert servers.port_owner_hidden or not [one for one in servers.servers if one.pid == process.pid and one.env_readable]
        start = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        wanted = ServerProcess(pid=process.pid, start_time=start, boot_id="b", engine="sglang", argv=("x",), hidden_arguments=0, cwd="/", exe=None, uid=0, ports=(free_port,),
                               env={}, env_readable=False, logs=(), supervisor=None, launch_id=None)  # fmt: skip
        with pytest.raises(ShimRefused, match=r"cannot be read|another user") as refused:
            await box.secure("s1", wanted, **QUICK)
        assert refused.value.kind in ("unreadable", "foreign_user") and process.poll() is None
    finally:
        shutil.rmtree(nobody, ignore_errors=True)
