"""The whole way to a box against a real OpenSSH server: launch, measure-like jobs, lost links at every bad moment, guard."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.errors import AuthRefused, HostKeyChanged, LinkLost
from optimizer.transport.ssh import SSHTransport
from tests import ports

from .conftest import Sshd

Connect = Callable[..., SSHTransport]
SLEEPER = [sys.executable, "-c", "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)"]
LISTENER = [
    sys.executable, "-c",
    "import socket,sys,time\ns=socket.create_server(('127.0.0.1',int(sys.argv[1])))\nprint('up',flush=True)\n"
    "while True:\n c,_=s.accept(); c.sendall(b'pong'); c.close()",
]  # fmt: skip


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


async def test_a_study_like_session(sshd: Sshd, connect: Connect, free_port: int) -> None:
    sshd.start()
    box = Box(connect())
    facts = await box.hello()
    assert facts.home == str(sshd.home) and facts.user == sshd.user
    await box.lock("s1")
    guard = await box.secure("s1", None)
    launched = await box.launch("s1", "1", [*LISTENER, str(free_port)], {"ODD": "it's $(id) `x` \n"}, port=free_port)
    for _ in range(200):
        if (await box.read_log("s1", "1"))[0] == b"up\n":
            break
    assert (await box.listeners(free_port, "s1:1")).only_ours
    host, port = await box.forward(free_port)
    reader, writer = await asyncio.open_connection(host, port)
    assert await reader.read() == b"pong"
    writer.close()
    lines: list[bytes] = []
    job = b"import sys\nfor n in range(1000): print(n)\nprint(sys.stdin.read())"
    result = await box.run_job(job, b"the end", "s1:bench", 20, lines.append)
    assert result.exit == 0 and lines == [*(str(n).encode() for n in range(1000)), b"the end"]
    await box.transport.close()  # the laptop goes; server and guard stay
    assert alive(launched.pid) and alive(guard.pid)
    assert (await box.state("s1", "1")).alive
    assert (await box.sweep("s1", term_s=1)).clean and not alive(launched.pid)
    await box.disarm("s1")
    await box.cleanup("s1")
    await box.unlock("s1")
    assert not (sshd.home / ".optimizer").exists()


async def test_one_session_a_connection(sshd: Sshd, connect: Connect) -> None:
    """A hardened sshd carries one command at a time on a connection (MaxSessions): others go over their own, and none is broken off."""
    sshd.start("MaxSessions 1")
    box = Box(connect())
    await box.lock("s1")
    first = asyncio.create_task(box.run_job(b"import time\nprint('begun', flush=True)\ntime.sleep(2)\nprint('whole')", b"", "s1:j", 60, (lines := []).append))
    while not lines:
        await asyncio.sleep(0.02)
    assert [done.stdout for done in await asyncio.gather(*(box.command(["echo", str(number)]) for number in range(3)))] == [b"0\n", b"1\n", b"2\n"]
    assert not first.done() or lines == [b"begun", b"whole"]
    assert (await first).exit == 0 and lines == [b"begun", b"whole"]
    await box.unlock("s1")
    await box.transport.close()


async def test_user_config_with_agent_and_jump_host(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent here (Debian: openssh-client)")
    sshd.start()
    user_home = tmp_path / "user"
    (user_home / ".ssh").mkdir(parents=True, mode=0o700)
    entry = f"  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n  UserKnownHostsFile {sshd.known_hosts}\n"
    (user_home / ".ssh" / "config").write_text(f"Host gate\n{entry}\nHost box\n{entry}  ProxyJump gate\n")
    monkeypatch.setenv("HOME", str(user_home))
    agent_socket = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", agent_socket], stdout=subprocess.DEVNULL)
    try:
        while not Path(agent_socket).exists():
            await asyncio.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", agent_socket)
        with pytest.raises(AuthRefused):
            await SSHTransport("box").connect()
        subprocess.run(["ssh-add", "-q", str(sshd.key_file)], check=True)
        transport = SSHTransport("box")
        assert (await Box(transport).hello()).home == str(sshd.home)
        await transport.close()
    finally:
        agent.terminate()
        agent.wait()


@pytest.mark.fault("F2")
async def test_host_key_changed_between_two_calls(sshd: Sshd, connect: Connect) -> None:
    sshd.start()
    box = Box(connect())
    await box.hello()
    sshd.stop()
    sshd.new_host_key()
    sshd.start()
    with pytest.raises(HostKeyChanged, match="another host key"):
        await box.hello()
    assert not (sshd.home / ".optimizer").exists()


@pytest.mark.fault("F3")
async def test_key_taken_away_in_mid_study(sshd: Sshd, connect: Connect) -> None:
    sshd.start()
    box = Box(connect())
    await box.hello()
    (sshd.folder / "authorized_keys").write_text("")
    sshd.kill_sessions()
    with pytest.raises(AuthRefused):
        await box.hello()


@pytest.mark.fault("F4")
@pytest.mark.parametrize(("point", "born"), [("claimed", True), ("before_spawn", True), ("spawned", True)])
async def test_server_killed_in_mid_launch(sshd: Sshd, connect: Connect, point: str, born: bool) -> None:
    """The link dies while the shim is between claim and record: it finishes, and reconcile waits for it."""
    sshd.start(OPTIMIZER_PAUSE_AT=point, OPTIMIZER_PAUSE_S="1")
    box = Box(connect())
    call = asyncio.ensure_future(box.launch("s1", "1", SLEEPER))
    while not (sshd.home / ".optimizer/runs/s1/1").exists():
        await asyncio.sleep(0.01)
    sshd.kill_sessions()
    with pytest.raises(LinkLost):
        await call
    state = await box.state("s1", "1")
    assert state.alive is born
    assert not (await box.launch("s1", "1", SLEEPER)).launched
    assert len((await box.sweep("s1", term_s=1)).swept) == 1


@pytest.mark.fault("F4")
async def test_shim_killed_in_mid_launch(sshd: Sshd, connect: Connect) -> None:
    sshd.start(OPTIMIZER_CRASH_AT="before_spawn")
    with pytest.raises(LinkLost):
        await Box(connect()).launch("s1", "1", SLEEPER)
    state = await Box(connect()).state("s1", "1")
    assert state.state == "dead" and state.pids == ()


@pytest.mark.fault("F5")
async def test_job_ends_with_its_link(sshd: Sshd, connect: Connect) -> None:
    sshd.start()
    box = Box(connect())
    lines: list[bytes] = []
    job = b"import os,time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    call = asyncio.ensure_future(box.run_job(job, b"", "s1:bench", 50, lines.append))
    while not lines:
        await asyncio.sleep(0.02)
    pid = int(lines[0])
    sshd.kill_sessions()
    with pytest.raises(LinkLost):
        await call
    end = time.monotonic() + 5
    while alive(pid):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


@pytest.mark.fault("F6")
async def test_link_that_stalls_without_a_reset(sshd: Sshd, connect: Connect) -> None:
    """The server's processes are stopped, as behind a network that swallows every packet: only keepalive can tell."""
    sshd.start()
    box = Box(connect(keepalive_interval=0.3, keepalive_count_max=2))
    await box.hello()
    call = asyncio.ensure_future(box.command(["sleep", "30"]))
    await asyncio.sleep(0.5)
    stopped = sshd.session_pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(LinkLost):
        await call
    assert time.monotonic() - began < 5


async def test_guard_outlives_the_link_and_restores_the_original(sshd: Sshd, connect: Connect, free_port: int) -> None:
    sshd.start()
    box = Box(connect())
    log = sshd.folder / "original.log"
    with log.open("ab") as out:
        original = subprocess.Popen([*LISTENER, str(free_port)], stdout=out, stdin=subprocess.DEVNULL, cwd="/")
    try:
        while await box.port_free(free_port):
            await asyncio.sleep(0.02)
        (seen,) = [one for one in (await box.find_servers(free_port)).servers if one.pid == original.pid]
        await box.secure("s1", seen, minutes=5 / 60, poll_s=0.1)
        await box.stop_original("s1", seen, term_s=2)
        original.wait(5)
        launched = await box.launch("s1", "1", [*LISTENER, str(free_port)], port=free_port, base="guard")
        sshd.stop()  # the laptop is closed
        end = time.monotonic() + 20
        while log.read_text() != "up\nup\n":
            assert time.monotonic() < end, log.read_text()
            await asyncio.sleep(0.05)
        assert not alive(launched.pid)
        sshd.start()
        while (status := await box.guard_status("s1")).fired is None:
            await asyncio.sleep(0.05)
        assert status.fired.restored and status.fired.pid is not None
        os.kill(status.fired.pid, signal.SIGKILL)
    finally:
        original.kill()
