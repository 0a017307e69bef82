"""The threads of processes as the kernel counts them. Runs on the box; it reads ``/proc`` and attaches to nothing."""

from __future__ import annotations

import os

from optimizer.box.plain import procfs

MAX_THREADS = 8192
HZ = os.sysconf("SC_CLK_TCK")


class Seen:
    """One look at a thread: CPU ticks so far, its state, and in which kernel function it waits (empty where that was not read)."""

    __slots__ = ("state", "ticks", "waits")

    def __init__(self, ticks: int, state: str, waits: str) -> None:
        self.ticks = ticks
        self.state = state
        self.waits = waits


def fields(data: bytes) -> list[bytes]:
    """Fields of a stat file from the state on: the name before them may hold blanks and brackets."""
    at = data.rfind(b")")
    return data[at + 2 :].split() if at > 0 else []


def ticks_of(data: bytes) -> int | None:
    """CPU ticks, of the user and of the kernel, by a stat file; None where it is none."""
    row = fields(data)
    try:
        return int(row[11]) + int(row[12])
    except (ValueError, IndexError):
        return None


def threads(pids: list[int], where: bool = False) -> dict[tuple[int, int], Seen]:
    """(process, thread) -> what it has used so far; ``where``: and where it waits, which is one more file for each."""
    found: dict[tuple[int, int], Seen] = {}
    for pid in pids:
        try:
            names = os.listdir("/proc/%d/task" % pid)
        except OSError:
            continue
        for name in names:
            if len(found) >= MAX_THREADS:
                return found
            data = procfs.read("/proc/%d/task/%s/stat" % (pid, name), 4096) or b""
            ticks = ticks_of(data)
            if ticks is None:
                continue
            state, waits = fields(data)[0].decode("ascii", "replace"), ""
            if where and state != "R":
                waits = (procfs.read("/proc/%d/task/%s/wchan" % (pid, name), 128) or b"").decode("ascii", "replace").strip()
            found[pid, int(name)] = Seen(ticks, state, "" if waits == "0" else waits)
    return found
