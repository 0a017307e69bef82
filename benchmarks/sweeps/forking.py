"""A process that has loaded the product once and forks a new one of it for each command: most of what a short life of the tool costs is
loading it. What is forked is a process like any other: a session, streams, folder, environment and words of its own, the same way out, and
a SIGKILL ends it as it ends any. What only a new interpreter can show (another hash seed, the loading itself) it does not show, so a share
of the cases is run with new ones."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

REQUEST_BYTES = 1 << 20
# Not the product's command line.
ELSEWHERE = ("optimizer.box.plain", "optimizer.bench.plain", "optimizer.engines.simulator.simbox", "optimizer.__main__", "optimizer.box.shim",
             "optimizer.box.guard", "optimizer.bench.loadgen", "optimizer.bench.nullserver", "optimizer.mcp_server", "optimizer.testing")  # fmt: skip


class Forked:
    """A command that was started; what a sweep needs of :class:`subprocess.Popen`."""

    def __init__(self, args: Sequence[str], status: IO[str]) -> None:
        self.args = list(args)
        self.returncode: int | None = None
        self.cpu_s = 0.0
        self._status = status
        self.pid = int(status.readline())

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises :class:`subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and _readable(self._status, timeout):
            words = self._status.readline().split()
            if len(words) != 2:
                raise RuntimeError(f"nobody knows how {self.pid} ended: its parent is gone")
            self.returncode, self.cpu_s = int(words[0]), float(words[1])
            self._status.close()
        return self.returncode


def _readable(handle: IO[str], timeout: float | None) -> bool:
    import select

    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


class Forks:
    """The process that has loaded the product. Ends with whoever started it."""

    def __init__(self, folder: Path) -> None:
        """``folder``: its home, so that whoever looks for what lives below a folder finds it, and what it forks."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {"HOME": str(folder), "PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": paths, "LANG": "C.UTF-8",
               "OPENBLAS_NUM_THREADS": "1"}  # numpy's: a process of several threads cannot be forked whole
        self._process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], env=env, cwd=folder, stdin=subprocess.DEVNULL,
                                         pass_fds=[theirs.fileno()], start_new_session=True)  # fmt: skip
        theirs.close()
        if self._ours.recv(16) != b"ready":
            raise RuntimeError(f"the product could not be loaded: exit {self._process.wait()}")

    def start(self, words: Sequence[str], env: Mapping[str, str], cwd: Path, out: IO[str], err: IO[str]) -> Forked:
        reading, writing = os.pipe()
        request = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd)}).encode()
        assert len(request) < REQUEST_BYTES
        socket.send_fds(self._ours, [request], [out.fileno(), err.fileno(), writing])
        os.close(writing)
        return Forked(words, os.fdopen(reading))

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


def load_everything() -> None:
    """Whatever a command may come to need, and the playbooks, which are told apart by their texts. No thread is begun."""
    import optimizer

    for module in pkgutil.walk_packages(optimizer.__path__, "optimizer."):
        if not module.name.startswith(ELSEWHERE):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # an extra that is not installed
                if str(error.name).startswith("optimizer"):
                    raise
    from optimizer.engines.registry import engines
    from optimizer.knowledge.library import load_library
    from optimizer.knowledge.load import find_knowledge

    engines()
    load_library(find_knowledge(Path(__file__).parents[2]))
    alone = len(list(Path("/proc/self/task").iterdir()))
    assert alone == 1, f"{alone} threads: what is forked would lack all but one of them"


def serve(handle: int) -> dict[str, Any] | None:
    """Forks for each request that comes in; returns None when nobody can ask any more, and, in each process that is to be the tool,
    what it shall be."""
    asked = socket.socket(fileno=handle)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    asked.send(b"ready")
    while True:
        request, handles, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 3)
        if not request:
            return None
        if os.fork() == 0:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _attended(json.loads(request), *handles)
        for one in handles:
            os.close(one)


def _attended(request: dict[str, Any], out: int, err: int, status: int) -> dict[str, Any]:
    """In the parent of one command, which tells its process id and how it ended, and in the command itself, where this returns."""
    os.setsid()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.read(ready, 1)  # until its id is told, so that whoever asked can signal it from its first step on
        os.close(ready)
        os.close(status)
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        return request
    os.close(out)
    os.close(err)
    os.write(status, f"{pid}\n".encode())
    os.close(told)
    _, ended, used = os.wait4(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        os.write(status, f"{os.waitstatus_to_exitcode(ended)} {used.ru_utime + used.ru_stime:.3f}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    load_everything()
    become = serve(int(sys.argv[1]))
    if become is not None:  # from here on this is the tool, and it ends as that does
        from optimizer.__main__ import main

        sys.argv = ["optimize", *become["words"]]
        main()
