"""Who may write a journal: which process holds the lease, and whether that process still exists. Judges by boot id, PID
and the PID's start time, or by what a shared database says, never by a clock; never touches the database."""

import os
import socket
import subprocess
from pathlib import Path

from optimizer.model.base import Frozen

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Holder(Frozen):
    """The process that took a lease. ``released`` is true once it closed the journal in an orderly way."""

    epoch: int
    host: str
    pid: int
    pid_start: str
    boot_id: str
    at_utc: str
    released: bool = False
    held: bool | None = None  # what a database says that knows; None: this machine has to be asked

    @property
    def alive(self) -> bool:
        """Whether the holder may still write: the database says so, or else not released, same boot, and the PID is the
        process that took the lease."""
        return self.runs_here if self.held is None else self.held

    @property
    def runs_here(self) -> bool:
        """Whether it is a living process of this machine."""
        if self.released or self.boot_id != boot_id():
            return False
        return process_start(self.pid) == self.pid_start

    @property
    def is_gone_from_here(self) -> bool:
        """Whether it provably ended: it was a process of this very machine (containers share a boot, not a name), and is
        none any more."""
        return self.host == socket.gethostname() and self.boot_id == boot_id() and not self.runs_here

    @property
    def is_this_process(self) -> bool:
        return self.pid == os.getpid() and self.alive

    @property
    def why_stale(self) -> str:
        """Why the lease could be taken over, for the record."""
        if self.released:
            return "released"
        if self.held is False and (self.host != socket.gethostname() or self.runs_here):
            return "connection lost"
        return "rebooted" if self.boot_id != boot_id() else "process gone"


def this_process(epoch: int, at_utc: str) -> Holder:
    """The lease that the calling process would hold."""
    pid = os.getpid()
    return Holder(
        epoch=epoch,
        host=socket.gethostname(),
        pid=pid,
        pid_start=process_start(pid) or "",
        boot_id=boot_id(),
        at_utc=at_utc,
    )


def boot_id() -> str:
    """Identifies this boot of this machine."""
    try:
        return _BOOT_ID.read_text().strip()
    except FileNotFoundError:  # not Linux; macOS moves its boot time with the clock of the day, and has a name for the boot besides
        return _ask("sysctl", "-n", "kern.bootsessionuuid") or _ask("sysctl", "-n", "kern.boottime")


def process_start(pid: int) -> str | None:
    """When the process started, in the kernel's own spelling; None if there is no such process or it is a zombie.

    A zombie counts as gone: it will never run again, and its parent may take hours to reap it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        if _BOOT_ID.exists():
            return None
        return _ask("ps", "-o", "lstart=", "-p", str(pid)) or None
    # The command name stands in parentheses and may hold anything, parentheses included.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def driven_by(pid: int, file: Path) -> tuple[Path, ...] | None:
    """The journals that a process has open when ``file`` is none of them: a copied journal names the process that drives the one it was
    copied from. None where it has it open, or that cannot be seen."""
    try:
        wanted, handles = file.stat(), list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    others = set()
    for handle in handles:
        try:
            status, target = handle.stat(), handle.readlink()
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
            return None
        if target.name == file.name:
            others.add(target)
    return tuple(sorted(others)) or None


def _ask(*argv: str) -> str:
    # In one spelling: a laptop that travels changes its time zone, and a process that started stays the same one.
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"}).stdout.strip()
