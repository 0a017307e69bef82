"""A box that is a container: its own network, processes and mounts, made with the kernel's namespaces and entered by a prefix, from
this machine and over SSH. Needs root; what a prefix may be does not."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.errors import PythonMissing, UsageError
from optimizer.model.study import HostSpec
from optimizer.runner.hosts import HostDescription, parse_host, resolved_host
from optimizer.transport.base import command, prefix_of
from optimizer.transport.local import LocalTransport
from optimizer.transport.ssh import SSHTransport
from tests.ports import free_port

from .conftest import Server

# Process 1 of the container: brings its loopback up, says so, and collects the orphans, as `docker run --init` does.
INIT = """
import fcntl, os, signal, socket, struct, sys, time
handle = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
request = struct.pack("16sh14x", b"lo", 0)
flags = struct.unpack_from("h", fcntl.ioctl(handle, 0x8913, request), 16)[0]
fcntl.ioctl(handle, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))
open(sys.argv[1], "w").write("up")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    time.sleep(60)
"""
SERVER = """
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
while True:
    connection, _ = listener.accept()
    received = b""
    while len(received) < 300000:
        data = connection.recv(65536)
        if not data:
            break
        received += data
    connection.sendall(received[::-1])
    connection.close()
"""

ROOT = Path(__file__).parents[3]


def can_contain() -> bool:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        return False
    return subprocess.run(["unshare", "-n", "-p", "-m", "--fork", "--mount-proc", "true"], capture_output=True, check=False).returncode == 0


contained = pytest.mark.skipif(not can_contain(), reason="no namespaces here (root, unshare and nsenter)")


@pytest.fixture
def container(tmp_path: Path) -> Iterator[str]:
    """The prefix that enters it."""
    up = tmp_path / "up"
    keeper = subprocess.Popen(["unshare", "-n", "-p", "-m", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", INIT, str(up)])
    end = time.monotonic() + 10
    while not up.exists():
        assert time.monotonic() < end and keeper.poll() is None
        time.sleep(0.02)
    [pid] = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()
    yield f"nsenter -t {pid} -n -p -m --"
    keeper.send_signal(signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)
    keeper.wait()


async def a_session(transport: LocalTransport | SSHTransport, home: Path) -> None:
    """Launch inside, prove identity, reach its port from here, sweep: as a study does."""
    box, port = Box(transport), free_port()
    await box.lock("s")
    await box.secure("s", None, minutes=5)
    program = home / "server.py"
    program.write_text(textwrap.dedent(SERVER))
    launched = await box.launch("s", "1", [sys.executable, str(program), str(port)], port=port)
    assert launched.alive and launched.pid is not None and launched.pid < 1000  # a process number of the container's own
    for _ in range(100):
        if (await box.listeners(port, "s:1")).listeners:
            break
        await asyncio.sleep(0.05)
    assert (await box.listeners(port, "s:1")).only_ours
    with socket.socket() as outside:
        assert outside.connect_ex(("127.0.0.1", port)) != 0  # nobody listens there on this machine
    host, here = await box.forward(port)
    assert (host, here) == await box.forward(port) and here != port

    async def ask(payload: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, here)
        writer.write(payload)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(-1), 20)
        writer.close()
        return answer

    payload = bytes(range(256)) * 1000
    answers = [await ask(payload), await ask(b"short")]
    assert answers == [payload[::-1], b"trohs"]
    assert (await box.sweep("s:1", gpu_wait_s=0)).clean
    assert await box.port_free(port)
    await box.disarm("s")
    await box.cleanup("s")
    await box.unlock("s")
    nobody = await asyncio.open_connection(host, here)
    nobody[1].write(b"x")
    assert await asyncio.wait_for(nobody[0].read(-1), 20) == b""  # as a port where nobody listens
    nobody[1].close()


@contained
async def test_a_session_in_a_container_of_this_machine(container: str, tmp_path: Path) -> None:
    transport = LocalTransport(home=tmp_path, prefix=prefix_of(container))
    await a_session(transport, tmp_path)
    await transport.close()


@contained
async def test_a_session_in_a_container_over_ssh(container: str, server: Server, connect: Callable[..., SSHTransport]) -> None:
    transport = connect(prefix=prefix_of(container))
    await a_session(transport, server.home)
    assert all(line.startswith(f"{container} python3 -I -c ") for line in server.commands)


@contained
def test_the_main_process_of_a_container_is_not_stopped(container: str) -> None:
    """Whoever stops it stops the container, and with it the way back."""
    code = "from optimizer.box.plain import look; print(look.supervisor_of(1))"
    done = subprocess.run([*container.split(), sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "its container, whose main process it is" in done.stdout


async def test_a_container_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PythonMissing, match="no-such-tool"):
        await LocalTransport(prefix=("no-such-tool-of-anybody", "exec", "-i", "x")).run(b"", 5)
    with pytest.raises(PythonMissing, match="reaches no usable Python"):
        await LocalTransport(prefix=("false",)).run(b"", 5)


async def test_secrets_among_the_words_that_enter_a_container_are_not_repeated() -> None:
    words = ("false", "exec", "-e", "HF_TOKEN=hf_abcdefghijklmnopqrst", "-e", "MY_PW=hunter2pw", "--env=API_KEY=plain1key", "-i", "nope")
    with pytest.raises(PythonMissing) as told:
        await LocalTransport(prefix=words).run(b"", 5)
    text = " ".join(told.value.parts)
    assert "HF_TOKEN=«redacted:" in text and not [word for word in ("hf_abc", "hunter2pw", "plain1key") if word in text]
    with pytest.raises(UsageError) as refused:
        parse_host("bob:hunter2pw@gpu")
    assert "hunter2pw" not in " ".join(refused.value.parts) and "bob:…@gpu" in refused.value.message


@pytest.mark.parametrize(
    "text",
    ["docker exec -i sglang", "docker exec --interactive sglang", "podman exec -i -u 1000 vllm", "kubectl exec -i -n llm pod-0 -c server --", "nsenter -t 12 -n -p -m --",
     "sudo docker exec -i a_b.c", "ssh -i key"],
)  # fmt: skip
def test_prefixes_that_are_understood(text: str) -> None:
    assert prefix_of(text) == tuple(text.split())
    assert command("python3", prefix_of(text)) == f"{text} {command()}"


@pytest.mark.parametrize(
    ("text", "said"),
    [("docker exec sglang", "-i"), ("kubectl exec pod-0 --", "-i"), ("docker exec -i x; rm -rf /", "plain words"), ("docker exec -i $(id)", "plain words"),
     ("docker exec -i 'a'", "plain words"), ("docker exec -i a\\b", "plain words"), ("-i docker", "plain words"), ("", "plain words"), ("docker exec -i ~", "plain words"),
     ("docker exec -i !x", "plain words"), ("A=1 docker exec -i x", "plain words"), ("docker exec -i a*", "plain words")],
)  # fmt: skip
def test_prefixes_that_a_shell_could_read_otherwise_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        prefix_of(text)
    assert said in refused.value.message + refused.value.hint


def test_a_host_file_may_name_the_container() -> None:
    host = HostSpec(name="box", kind="ssh")
    described = HostDescription(inside="docker exec -i sglang", ssh="box.lan")
    assert resolved_host(host, described) == HostSpec(name="box.lan", kind="ssh", prefix=("docker", "exec", "-i", "sglang"))
    assert resolved_host(host, described, "docker exec -i other").prefix[-1] == "other"
    with pytest.raises(UsageError):
        resolved_host(HostSpec(name="sim:x", kind="sim"), HostDescription(), "docker exec -i x")
