"""The worker processes of the simulated engine: one per GPU and a detokenizer, forked from the server, named as the real
ones are, dying with it. They do no work; they make the process tree, and killing one kills the server as it would."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def fork_ranks(gpus: int) -> list[int]:
    """Pids, ranks first. Must be called before any thread or event loop exists."""
    parent = os.getpid()
    titles = ["sglang::scheduler" if gpus == 1 else f"sglang::scheduler_TP{rank}" for rank in range(gpus)]
    return [_fork(title, parent) for title in (*titles, "sglang::detokenizer")]


def _fork(title: str, parent: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(PR_SET_NAME, title.encode()[:15])
        retitle(title)
        if os.getppid() != parent:
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        while True:
            signal.pause()
    finally:
        os._exit(1)


def retitle(title: str) -> None:
    """Overwrite the argument area, so that the command line reads as the real worker's does."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    data = title.encode()[: end - start - 1].ljust(end - start, b"\0")
    ctypes.memmove(start, data, len(data))


def stop_ranks(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
