"""Starts a process so that it outlives the connection: double fork, own session, descriptors redirected, errors of
``exec`` reported back. Runs on the box. It decides nothing about what may be started."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from optimizer.box.plain import procfs, store
from optimizer.box.plain.procfs import Refused

_LIMITS = [name for name in ("RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_STACK", "RLIMIT_NPROC", "RLIMIT_CORE")
           if hasattr(resource, name)]  # fmt: skip


def surroundings(pid: int) -> dict[str, Any]:
    """What a process inherited that is neither argument nor environment: CPU affinity, NUMA memory policy, limits, umask. A relaunch
    without them would measure another machine."""
    found: dict[str, Any] = {"affinity": None, "limits": {}, "umask": None, "memory": _memory_policy(pid)}
    for line in (procfs.read("/proc/%d/status" % pid) or b"").splitlines():
        if line.startswith(b"Umask:"):
            found["umask"] = int(line.split()[1], 8)
    try:
        found["affinity"] = sorted(os.sched_getaffinity(pid))
        found["limits"] = {name: list(resource.prlimit(pid, getattr(resource, name))) for name in _LIMITS}
    except OSError:
        return found
    return found


def prepare(surroundings: dict[str, Any], identity: dict[str, Any] | None) -> None:
    """In the child, before it becomes the program: what ``surroundings`` found elsewhere is set here."""
    if surroundings.get("affinity"):
        usable = set(surroundings["affinity"]) & set(range(os.cpu_count() or 1))
        if usable:
            os.sched_setaffinity(0, usable)
    if surroundings.get("memory"):
        _place_memory(*surroundings["memory"])
    if surroundings.get("umask") is not None:
        os.umask(surroundings["umask"])
    for name, (soft, hard) in (surroundings.get("limits") or {}).items():
        try:
            resource.setrlimit(getattr(resource, name), (soft, hard))
        except (OSError, ValueError):
            pass  # a hard limit above ours needs privilege: the process then keeps the login's limit
    if identity and identity["uid"] == os.geteuid() and set(identity["groups"]) != set(os.getgroups()):
        try:
            os.setgroups(identity["groups"])  # what they open, a GPU's device file say, depends on them
        except OSError:
            pass  # only root may: the process then keeps the login's groups
    if identity and identity["uid"] != os.geteuid():
        os.setgroups(identity["groups"])
        os.setgid(identity["gid"])
        os.setuid(identity["uid"])


_POLICY = re.compile(rb"[0-9a-f]+ ([a-z]+(?: [a-z(]+\)?)?)(?:=[a-z|]+)?:([0-9,-]+) ")
_MODES = {"prefer": 1, "bind": 2, "interleave": 3, "prefer (many)": 5, "weighted interleave": 6}
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


def _memory_policy(pid: int) -> list[Any] | None:
    """(mode, NUMA nodes) that ``numactl`` has given the process; None for the kernel's own. The first mapping, the program itself, has
    that of its process; the rest is not read, since the kernel would walk all its pages."""
    match = _POLICY.match(procfs.read("/proc/%d/numa_maps" % pid, 4096) or b"")
    if match is None or match.group(1).decode("ascii") not in _MODES:
        return None
    nodes: list[int] = []
    for part in match.group(2).decode("ascii").split(","):
        first, _, last = part.partition("-")
        nodes += range(int(first), int(last or first) + 1)
    return [match.group(1).decode("ascii"), nodes]


def _place_memory(mode: str, nodes: list[int]) -> None:
    """Sets the caller's memory policy, which the program that it becomes keeps. Where the kernel refuses, it stays as it is."""
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None or mode not in _MODES or not nodes or max(nodes) > 1023:
        return
    try:
        import ctypes
    except ImportError:
        return
    mask = (ctypes.c_uint64 * 17)()
    for node in nodes:
        mask[node // 64] |= 1 << (node % 64)
    ctypes.CDLL(None).syscall(number, _MODES[mode], mask, ctypes.c_ulong(1025))


_PR_SET_CHILD_SUBREAPER = 36


def _adopter() -> Callable[[], bool] | None:
    """What makes the caller adopt every orphan below it, in place of process 1: then a server that leaves its session, cleans its
    environment and forks twice is still found below its keeper. None where this Python cannot ask the kernel for it."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: bool(prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def start(
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: str | None,
    outputs: tuple[int, int],
    keeper: str | None = None,
    stdin: bytes | None = None,
    around: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns pid, start_time and the keeper's identity. ``keeper`` is the file into which a small parent process,
    which stays until the server ends, writes how it ended. ``stdin`` is fed through a pipe and touches no disk; None
    means ``/dev/null``. Raises Refused("exec_failed")."""
    report_r, report_w = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    input_r, input_w = os.pipe() if stdin is not None else (null, -1)
    adopter = _adopter() if keeper else None
    sys.stdout.flush()
    first = os.fork()
    if first == 0:
        _be_parent(argv, env, cwd, outputs, keeper, around or {}, identity, report_w, input_r, adopter)
    os.close(report_w)
    if stdin is not None:
        os.close(input_r)
    try:
        report = b""
        while True:
            data = os.read(report_r, 4096)
            if not data:
                break
            report += data
        lines = {line.split(b" ", 1)[0]: line.split(b" ", 1)[1] for line in report.splitlines() if b" " in line}
        if b"failed" in lines:
            code, _, place = lines[b"failed"].partition(b" ")
            number, where = int(code), procfs.text(place)
            raise Refused("exec_failed", "The box could not start %s: %s (%s)."
                          % (procfs.text(argv[0]) if argv else "an empty command", os.strerror(number), where),
                          errno=errno.errorcode.get(number, str(number)))  # fmt: skip
        if b"pid" not in lines:
            raise Refused(
                "exec_failed", "The box could not start a process: fork failed (out of processes or memory?)."
            )
        pid = int(lines[b"pid"])
        if stdin is not None:
            _feed(input_w, stdin)
    finally:
        os.close(report_r)
        os.close(null)
        if stdin is not None:
            os.close(input_w)
    # The kernel closes our pipe a moment before the new environment can be read: until then nobody could recognise it.
    end = time.monotonic() + 2.0
    while procfs.process(pid) is not None and not procfs.environ(pid) and env and time.monotonic() < end:
        time.sleep(0.001)
    one = procfs.process(pid)
    keeping = procfs.process(first) if keeper else None
    if not keeper:
        os.waitpid(first, 0)
    return {
        "pid": pid,
        # 0 never equals a real start time: a server that has already ended is then simply not found alive.
        "start_time": one.start_time if one else 0,
        "keeper": [first, keeping.start_time] if keeping else None,
        "adopts": b"adopts" in lines,
    }


def _feed(handle: int, data: bytes) -> None:
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    except BrokenPipeError:
        pass  # the process ended without reading: its own end tells more than this write


def _be_parent(
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: str | None,
    outputs: tuple[int, int],
    keeper: str | None,
    around: dict[str, Any],
    identity: dict[str, Any] | None,
    report_w: int,
    input_r: int,
    adopter: Callable[[], bool] | None,
) -> NoReturn:
    """The first child: leaves the login's session, starts the server, and stays as its keeper or ends. Never
    returns."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.setsid()
        if adopter is not None and adopter():
            os.write(report_w, b"adopts 1\n")
        second = os.fork()
        if second == 0:
            _be_server(argv, env, cwd, outputs, around, identity, report_w, input_r)
        os.write(report_w, b"pid %d\n" % second)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        # Everything else goes, the lock above all: only the newborn server may still hold it.
        os.closerange(3, 4096)
        if keeper is None:
            os._exit(0)
        ended = 0
        while ended != second:
            ended, status = os.waitpid(-1, 0)
        signalled = os.WIFSIGNALED(status)
        try:
            store.write_record(keeper, {
                "code": None if signalled else os.WEXITSTATUS(status),
                "signal": os.WTERMSIG(status) if signalled else None,
                "ended_unix_s": time.time(),
            })  # fmt: skip
        except Refused:
            pass  # the claim was cleaned away, or the disk is full: there is nobody left to tell
        while True:  # what the server left behind is found below us, so we stay until it has ended
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass  # nothing is left
    finally:
        os._exit(1)


def _be_server(
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: str | None,
    outputs: tuple[int, int],
    around: dict[str, Any],
    identity: dict[str, Any] | None,
    report_w: int,
    input_r: int,
) -> NoReturn:
    """The second child: becomes the server. Never returns."""
    where = "setting up"
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass  # SIGKILL, SIGSTOP and the C library's own
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
        prepare(around, identity)
        where = "directory %s" % (cwd or "~")
        os.chdir(procfs.raw(cwd) if cwd else os.path.expanduser("~"))
        os.dup2(input_r, 0)
        os.dup2(outputs[0], 1)
        os.dup2(outputs[1], 2)
        where = "exec"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(report_w, b"failed %d %s\n" % (error.errno or 0, procfs.raw(where)))
    except BaseException as error:  # a child must never return into the shim's code
        os.write(report_w, b"failed %d %s\n" % (errno.EINVAL, procfs.raw("%s: %r" % (where, error))))
    finally:
        os._exit(127)
