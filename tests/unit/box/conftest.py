"""A box that is a scratch home on this machine, and programs to run on it. Every process that a test starts is ended by it."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.transport.local import LocalTransport
from tests import ports

# Listens on a port and, as asked, has a worker that left its session, one that ignores SIGTERM, one with a clean
# environment; or begins anew with a clean environment ("cleaned"), as a daemon too ("daemon").
SERVER = """
import json, os, signal, socket, subprocess, sys, time
port, *options = sys.argv[1:]
if "daemon" in options:
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
if "daemon" in options or "cleaned" in options:
    rest = [option for option in options if option not in ("daemon", "cleaned")]
    os.execve(sys.executable, [sys.executable, sys.argv[0], port, *rest], {})
if "stubborn" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import time\\nwhile True: time.sleep(1)"]
stubborn = [sys.executable, "-c", "import signal,time\\nsignal.signal(15, signal.SIG_IGN)\\nwhile True: time.sleep(1)"]
workers = []
if "setsid" in options:
    workers.append(subprocess.Popen(sleeper, start_new_session=True).pid)
if "stubborn-worker" in options:
    workers.append(subprocess.Popen(stubborn, start_new_session=True).pid)
if "clean-env" in options:
    workers.append(subprocess.Popen(sleeper, env={}).pid)
if int(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if "reuseport" in options:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen()
print(json.dumps({"pid": os.getpid(), "argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "workers": workers,
                  "affinity": sorted(os.sched_getaffinity(0)), "pipe": signal.getsignal(signal.SIGPIPE).name,
                  "fds": sorted(os.listdir("/proc/self/fd"))}), flush=True)
if "leave-workers" in options:
    os._exit(3)
while True:
    time.sleep(1)
"""


def alive(pid: int) -> bool:
    """True for a running process; a zombie is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    end = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


def end_all(mark: bytes) -> None:
    """Kill every process that has this variable in its environment."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The scratch home; whatever still carries its marker afterwards is ended, whoever forgot it."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    end_all(f"OPTIMIZER_ROOT={folder}/.optimizer".encode())
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_box(home: Path) -> Callable[..., Box]:
    """A box with more environment; all boxes of one test share the home."""
    return lambda **env: Box(LocalTransport(env={key: str(value) for key, value in env.items()}, home=home))


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box()


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., list[str]]:
    """server(port, *options) -> its command line."""
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(SERVER))
    return lambda port, *options: [sys.executable, str(script), str(port), *options]


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a foreign process (not ours, no marker) and ends it after the test, with its workers and whoever was started in its
    place: they all have its environment."""
    started: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        environment = {**(os.environ if options.get("env") is None else options["env"]), "SPAWNED_IN": str(tmp_path)}
        process = subprocess.Popen(argv, **{"stdin": subprocess.DEVNULL, **options, "env": environment})
        started.append(process)
        return process

    yield start
    end_all(f"SPAWNED_IN={tmp_path}".encode())
    for process in started:
        process.kill()
        process.wait()
