"""Reads ``/proc``: processes with their identity (pid and start time), environment, descendants, and who listens on
which port. Runs on the box. It never writes and never sends a signal."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from typing import Match, NamedTuple

MARKER = b"OPTIMIZER_LAUNCH_ID"
# Two boxes may share one machine (simulated boxes, containers without a PID namespace): a process is ours only if it
# also belongs to the same folder.
ROOT_MARKER = b"OPTIMIZER_ROOT"


class Refused(Exception):
    """The operation was not done, on purpose or because it cannot be. ``kind`` is for programs, ``message`` for
    people."""

    def __init__(self, kind: str, message: str, **more: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.more = more


class Process(NamedTuple):
    """One line of the process table. ``start_time`` is in clock ticks since boot, so (pid, start_time) is unique per
    boot."""

    pid: int
    ppid: int
    session: int
    state: str
    start_time: int


class Listener(NamedTuple):
    """A listening TCP socket of this network namespace."""

    port: int
    address: str
    inode: int


# A byte that is no UTF-8 travels as a character for private use. A lone surrogate, Python's own way, is no text: neither a database
# nor a file of UTF-8 takes it. Where a real text holds such a character, each of its bytes travels like that.
_CARRIED = 0x10EE00
_NO_TEXT = re.compile("[\udc80-\udcff\U0010ee80-\U0010eeff]")
_BYTE = re.compile("[\U0010ee80-\U0010eeff]")


def text(raw: bytes) -> str:
    """Bytes of the operating system as Unicode text that survives JSON, files and databases, and turns back into the same bytes."""
    decoded = raw.decode("utf-8", "surrogateescape")
    return decoded if decoded.isascii() else _NO_TEXT.sub(_carried, decoded)


def _carried(match: Match[str]) -> str:
    return "".join(chr(_CARRIED + byte) for byte in match.group().encode("utf-8", "surrogateescape"))


def raw(value: str) -> bytes:
    """The bytes that ``text`` made this text of."""
    if not value.isascii():
        value = _BYTE.sub(lambda match: chr(ord(match.group()) - _CARRIED + 0xDC00), value)
    return value.encode("utf-8", "surrogateescape")


def read(path: str, cap: int = 1 << 22) -> bytes | None:
    """Content of a small kernel file, or None when it is gone or not ours to read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = bytearray()
        while len(data) < cap:
            # In small pieces: files under /proc/sys refuse a buffer of megabytes.
            piece = os.read(handle, 1 << 16)
            if not piece:
                break
            data += piece
        return bytes(data)
    except OSError:
        return None
    finally:
        os.close(handle)


def boot_id() -> str:
    return (read("/proc/sys/kernel/random/boot_id") or b"unknown").decode("ascii", "replace").strip()


def process(pid: int) -> Process | None:
    """The living process with this pid; None when there is none or only its zombie is left."""
    data = read("/proc/%d/stat" % pid)
    if not data:
        return None
    try:
        # The command name may hold blanks and brackets: fields are counted from its last closing bracket.
        fields = data[data.rindex(b")") + 2 :].split()
        state = fields[0].decode("ascii", "replace")
        if state in ("Z", "X", "x"):
            return None
        return Process(pid, int(fields[1]), int(fields[3]), state, int(fields[19]))
    except (ValueError, IndexError):
        return None


def _last_pid() -> int:
    """The newest process or thread id of this PID namespace, 0 when unknown."""
    words = (read("/proc/loadavg") or b"").split()
    return int(words[4]) if len(words) == 5 and words[4].isdigit() else 0


def _is_thread(pid: int) -> bool:
    for line in (read("/proc/%d/status" % pid) or b"").splitlines():
        if line.startswith(b"Tgid:"):
            return int(line.split()[1]) != pid
    return True


def table(visit: Callable[[int], None] | None = None) -> dict[int, Process]:
    """All living processes by pid; ``visit`` is called with each at once, before it can be gone.

    Reading /proc takes milliseconds and is no snapshot: a process that forks and exits meanwhile would be missed although
    its child lives. So the ids that were given out during the reading are read as well, until none is new."""
    found: dict[int, Process] = {}

    def look(pid: int) -> None:
        one = process(pid)
        if one is not None:
            found[pid] = one
            if visit is not None:
                visit(pid)

    last = _last_pid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            look(int(name))
    for _ in range(100):
        now = _last_pid()
        if now == last:
            break
        if now < last or now - last > 5000:  # the numbers wrapped around
            fresh = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in found]
        else:
            fresh = [pid for pid in range(last + 1, now + 1) if pid not in found]
        last = now
        for pid in fresh:
            if not _is_thread(pid):
                look(pid)
    return found


def same(pid: int, start_time: int) -> bool:
    """True while the process with this identity lives; a reused pid has another start time."""
    one = process(pid)
    return one is not None and one.start_time == start_time


def environ(pid: int) -> list[tuple[bytes, bytes]] | None:
    """Environment that the process was started with, in its order; None when unreadable."""
    data = read("/proc/%d/environ" % pid, 1 << 24)
    if data is None:
        return None
    pairs = []
    for item in data.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals:
            pairs.append((name, value))
    return pairs


def argv(pid: int) -> list[bytes]:
    data = read("/proc/%d/cmdline" % pid, 1 << 24)
    return data.split(b"\0")[:-1] if data else []


def link(path: str) -> bytes | None:
    try:
        return os.readlink(os.fsencode(path))
    except OSError:
        return None


def launch_id(pid: int, root: str) -> str | None:
    """Launch id of a process of ours; None for everybody else's."""
    pairs = dict(environ(pid) or ())
    if MARKER in pairs and pairs.get(ROOT_MARKER) == raw(root):
        return text(pairs[MARKER])
    return None


def matches(launch: str, prefix: str) -> bool:
    """``study`` matches ``study:7`` and ``study:7:router``; ``study:7`` does not match ``study:70``."""
    return launch == prefix or launch.startswith(prefix + ":")


def descendants(roots: Iterable[int], processes: dict[int, Process]) -> set[int]:
    """Pids below ``roots`` (without them)."""
    children: dict[int, list[int]] = {}
    for one in processes.values():
        children.setdefault(one.ppid, []).append(one.pid)
    below: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in below:
                below.add(child)
                queue.append(child)
    return below


def ancestors(pid: int, processes: dict[int, Process]) -> set[int]:
    above: set[int] = set()
    while pid in processes and pid not in above:
        above.add(pid)
        pid = processes[pid].ppid
    return above


def family(
    prefix: str, root: str, keep: Iterable[str] = (), sessions: Iterable[int] = (), keepers: Iterable[int] = ()
) -> dict[int, Process]:
    """Living processes of the launches under ``prefix``: those with the marker, what descends from them, and the
    members of the sessions that they lead (an engine may start a child with a cleaned environment). ``sessions`` are
    session ids that a launch is known to have created, for the case that its leader is gone. ``keepers`` are processes below
    which everything is a launch's, whatever its environment and session. Launches under ``keep`` are left out with their
    descendants, and so are the caller and its ancestors."""
    marked: set[int] = set()
    kept: set[int] = set()

    def tell(pid: int) -> None:
        # At once: one that forks and exits every few milliseconds is gone before the whole table is read.
        launch = launch_id(pid, root)
        if launch is not None:
            (kept if any(matches(launch, one) for one in keep) else marked if matches(launch, prefix) else set()).add(pid)

    processes = table(tell)
    led = {pid for pid in marked if processes[pid].session == pid} | set(sessions)
    ours = set(marked) | {pid for pid, one in processes.items() if one.session in led}
    ours |= descendants(ours, processes) | descendants(keepers, processes)
    ours -= kept | descendants(kept, processes)
    ours -= ancestors(os.getpid(), processes)
    ours.discard(1)
    return {pid: processes[pid] for pid in ours}


def _address(word: bytes) -> str:
    """``0100007F`` or its IPv6 sibling, as the kernel prints it: 32-bit words in the machine's byte order."""
    data = bytes.fromhex(word.decode("ascii"))
    words = struct.unpack(">%dI" % (len(data) // 4), data)
    packed = struct.pack("=%dI" % len(words), *words)
    if len(packed) == 4:
        return ".".join(str(byte) for byte in packed)
    return ":".join("%x" % group for group in struct.unpack(">8H", packed))


def listeners(port: int | None = None) -> list[Listener]:
    """Listening TCP sockets, IPv4 and IPv6, all or those of one port. Raises Refused when the kernel's table is hidden:
    "nobody listens" must never be the answer to "cannot see"."""
    found, readable = [], False
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        data = read(name, 1 << 26)
        if data is None:
            continue
        readable = True
        for row in data.splitlines()[1:]:
            fields = row.split()
            if len(fields) > 9 and fields[3] == b"0A":
                address, _, number = fields[1].rpartition(b":")
                one = Listener(int(number, 16), _address(address), int(fields[9]))
                if port is None or one.port == port:
                    found.append(one)
    if not readable:
        raise Refused("unreadable", "The table of listening ports (/proc/net/tcp) cannot be read on the box, so nobody can "
                      "tell who owns a port. Run the tool as a user who may read it.")  # fmt: skip
    return found


_EVERYWHERE = ("0.0.0.0", "0:0:0:0:0:0:0:0")


def overlaps(one: str, other: str) -> bool:
    """Whether two listeners on one port number would get in each other's way: at the same address, or one of them at all addresses (that
    of IPv6 takes IPv4's too, unless it is told not to). Nobody is in the way of a service on another address of the machine."""
    one, other = (_plain_v4(address) for address in (one, other))
    return one == other or any(a == _EVERYWHERE[1] or (a == _EVERYWHERE[0] and (":" not in b or b == _EVERYWHERE[1]))
                               for a, b in ((one, other), (other, one)))  # fmt: skip


def _plain_v4(address: str) -> str:
    """An IPv4 address that is written as one of IPv6, as IPv4's."""
    if not address.startswith("0:0:0:0:0:ffff:"):
        return address
    high, low = (int(group, 16) for group in address.split(":")[-2:])
    return "%d.%d.%d.%d" % (high >> 8, high & 255, low >> 8, low & 255)


def socket_owners(inodes: set[int]) -> dict[int, list[int]]:
    """inode -> pids that hold this socket open. A socket of another user's process has no visible owner."""
    owners: dict[int, list[int]] = {}
    if not inodes:
        return owners
    wanted = {("socket:[%d]" % inode).encode("ascii"): inode for inode in inodes}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            handles = os.listdir("/proc/%s/fd" % name)
        except OSError:
            continue
        for handle in handles:
            inode = wanted.get(link("/proc/%s/fd/%s" % (name, handle)) or b"")
            if inode is not None and int(name) not in owners.setdefault(inode, []):
                owners[inode].append(int(name))
    return owners
