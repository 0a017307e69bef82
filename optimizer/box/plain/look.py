"""Looks at the box: what it is, which servers run, what a read-only command or a file says, how busy the GPUs are. Runs
on the box. It starts only the command that it was asked to start, and writes nothing."""

from __future__ import annotations

import base64
import os
import pwd
import re
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any

from optimizer.box.plain import procfs, redact, store, supervised
from optimizer.box.plain.procfs import Refused

GPU_COLUMNS = "timestamp,index,utilization.gpu,utilization.memory,memory.used,power.draw,clocks.sm,temperature.gpu"
# Newer drivers call it clocks_event_reasons and still know this name; one that knows neither is asked without.
GPU_REASONS = ",clocks_throttle_reasons.active"


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _quota_cpus() -> float | None:
    """CPU limit of the own cgroup (v2, then v1), None without a limit."""
    own = procfs.text(procfs.read("/proc/self/cgroup") or b"")
    for line in own.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for folder in ("/sys/fs/cgroup" + path, "/sys/fs/cgroup"):
            words = (procfs.read(folder + "/cpu.max") or b"").split()
            if len(words) == 2 and words[0] != b"max":
                return int(words[0]) / int(words[1])
        if "cpu" in controllers.split(","):
            for folder in ("/sys/fs/cgroup/cpu" + path, "/sys/fs/cgroup/cpu"):
                quota = procfs.read(folder + "/cpu.cfs_quota_us")
                period = procfs.read(folder + "/cpu.cfs_period_us")
                if quota and period and int(quota) > 0:
                    return int(quota) / int(period)
    return None


def _meminfo() -> dict[str, int]:
    rows = {}
    for line in procfs.text(procfs.read("/proc/meminfo") or b"").splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            rows[words[0].rstrip(":")] = int(words[1]) * 1024
    return rows


def hello(request: dict[str, Any]) -> dict[str, Any]:
    """Facts of the box that need no privilege. Bytes and seconds throughout."""
    home = os.path.expanduser("~")
    memory = _meminfo()

    def free(path: str) -> int | None:
        try:
            disk = os.statvfs(path)
        except OSError:
            return None
        return disk.f_bavail * disk.f_frsize

    writable = os.access(home, os.W_OK) and not os.statvfs(home).f_flag & os.ST_RDONLY if os.path.isdir(home) else False
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return {
        "boot_id": procfs.boot_id(),
        "hostname": os.uname().nodename,
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "python": list(sys.version_info[:3]),
        "python_path": sys.executable,
        "user": user,
        "uid": os.geteuid(),
        "home": home,
        "home_writable": bool(writable),
        "root": request["root"],
        "root_fault": store.fault_of(request["root"]),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_quota": _quota_cpus(),
        "memory_bytes": memory.get("MemTotal", 0),
        "memory_available_bytes": memory.get("MemAvailable", 0),
        "disk_free_bytes": free(home),
        "shm_free_bytes": free("/dev/shm"),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "clock_unix_s": time.time(),
        "clock_monotonic_s": time.monotonic(),
        "nvidia_smi": shutil.which("nvidia-smi"),
        "sees_other_processes": procfs.process(1) is not None,
    }


def command(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one command to its end. ``argv`` list, ``env`` changes (None removes), ``stdin`` base64, ``timeout_s``,
    ``max_bytes`` for each of the two outputs. The command's whole session is killed at the time limit."""
    environment = dict(os.environb)
    for name, value in (request.get("env") or {}).items():
        if value is None:
            environment.pop(procfs.raw(name), None)
        else:
            environment[procfs.raw(name)] = procfs.raw(value)
    cap = int(request["max_bytes"])
    try:
        child = subprocess.Popen(
            [procfs.raw(word) for word in request["argv"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=procfs.raw(request["cwd"]) if request.get("cwd") else None,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return {
            "exit": None,
            "stdout": "",
            "stderr": "",
            "timed_out": False,
            "truncated": False,
            "not_started": _why_not_started(error, request.get("cwd")),
        }
    assert child.stdout is not None and child.stderr is not None
    outputs = {child.stdout: bytearray(), child.stderr: bytearray()}
    open_streams = set(outputs)
    end = time.monotonic() + float(request["timeout_s"])
    truncated, timed_out = False, False
    try:
        while open_streams and not timed_out:
            left = end - time.monotonic()
            ready = select.select(list(open_streams), [], [], max(0.0, min(left, 0.5)))[0]
            for stream in ready:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    open_streams.discard(stream)
                room = cap - len(outputs[stream])
                outputs[stream] += data[: max(0, room)]
                truncated = truncated or len(data) > room
            # A command may leave a child behind that keeps the pipe open: its own end is what counts.
            if not ready and child.poll() is not None:
                break
            timed_out = left <= 0
        if not timed_out:
            try:
                child.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                timed_out = True
    finally:
        if child.poll() is None:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except OSError:
                child.kill()
            child.wait()
    out, err = (bytes(outputs[stream]) for stream in (child.stdout, child.stderr))
    return {
        "exit": None if timed_out else child.returncode,
        "stdout": encode(out),
        "stderr": encode(err),
        "timed_out": timed_out,
        "truncated": truncated,
        "not_started": None,
    }


def _why_not_started(error: Exception, directory: str | None) -> str:
    if directory and not os.path.isdir(procfs.raw(directory)):
        # the kernel shows the directory of a process that has been removed under it so
        return "its working directory %s is gone" % re.sub(r" \(deleted\)$", "", directory)
    if isinstance(error, OSError) and error.filename:
        return "%s: %s" % (procfs.text(os.fsencode(error.filename)), error.strerror)
    return str(error)


_OVERLAP_BYTES = 4096


def _secrets(request: dict[str, Any]) -> list[bytes]:
    """Credentials of the login, and of the processes ``secrets_of`` (pids) whose output is read."""
    pairs = {procfs.text(name): procfs.text(value) for name, value in os.environb.items()}
    values = redact.secrets_of(pairs, [])
    for pid in request.get("secrets_of") or ():
        pairs = {procfs.text(name): procfs.text(value) for name, value in procfs.environ(int(pid)) or ()}
        values += redact.secrets_of(pairs, [procfs.text(word) for word in procfs.argv(int(pid))])
    return values


def read_file(request: dict[str, Any]) -> dict[str, Any]:
    """Part of a regular file: from ``offset`` (negative counts from the end), at most ``max_bytes``. (inode, offset)
    tells a reader that comes back whether it is still the same file. Credentials are masked in place, so offsets are the file's."""
    path = procfs.raw(request["path"])
    if path.startswith(b"~/"):
        path = os.path.expanduser(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused("unreadable", "Cannot read %s on the box: %s." % (procfs.text(path), error.strerror),
                      missing=isinstance(error, FileNotFoundError))  # fmt: skip
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("unreadable", "%s on the box is not a regular file." % procfs.text(path), missing=False)
        offset = int(request["offset"])
        if offset < 0:
            offset = max(0, status.st_size + offset)
        # A credential may straddle the ends of the part: read a little more on both sides, mask, cut.
        before = min(offset, _OVERLAP_BYTES)
        data = os.pread(handle, before + int(request["max_bytes"]) + _OVERLAP_BYTES, offset - before)
        data = redact.mask(data, _secrets(request))[before : before + int(request["max_bytes"])]
        return {"inode": status.st_ino, "size": status.st_size, "offset": offset, "data": encode(data)}
    finally:
        os.close(handle)


# --- servers ---------------------------------------------------------------------------------------------------------

_MODULES = {
    "sglang.launch_server": "sglang",
    "sglang_router.launch_router": "sglang-router",
    "sglang_router.launch_server": "sglang-router",
    "vllm.entrypoints.openai.api_server": "vllm",
}
_COMMANDS = {"llama-server": "llamacpp", "sglang-router": "sglang-router"}
_WITH_SERVE = {"sglang": "sglang", "vllm": "vllm", "sglang.cli.main": "sglang", "vllm.entrypoints.cli.main": "vllm"}


def engine_of(arguments: list[str], also: dict[str, str]) -> str | None:
    """Engine that this command line starts, None for everything else. Only the program counts: a shell, an editor or a
    ``grep`` that merely mentions a server in its arguments is none. ``also`` maps more modules or programs to
    engines."""
    if not arguments:
        return None
    if arguments[0] == "sglang::router":
        return "sglang-router"  # it writes this over its own command line
    name, rest = os.path.basename(arguments[0]), arguments[1:]
    if re.match(r"(python|pypy)[0-9.]*$", name):
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
        if not rest or rest[0] == "-c":
            return None
        name, rest = (rest[1], rest[2:]) if rest[0] == "-m" and len(rest) > 1 else (os.path.basename(rest[0]), rest[1:])
    if name.endswith(".py"):
        name = name[:-3]
    if name in also:
        return also[name]
    if name == "launch_server" and "sglang" in arguments[1 if len(arguments) > 1 else 0]:
        return "sglang"
    if name in _WITH_SERVE and rest[:1] == ["serve"]:
        return _WITH_SERVE[name]
    return _MODULES.get(name) or _COMMANDS.get(name)


def supervisor_of(pid: int) -> str | None:
    """Name of what would start this process again or keeps it apart: a systemd unit or a container. None when its
    control group is also ours, or says nothing."""
    if pid == 1:
        return "its container, whose main process it is"
    own = procfs.read("/proc/self/cgroup")
    theirs = procfs.read("/proc/%d/cgroup" % pid)
    if not theirs or theirs == own:
        return _apart(pid)
    found = None
    for line in procfs.text(theirs).splitlines():
        path = line.split(":", 2)[-1]
        container = re.search(r"(?:docker|libpod|crio|cri-containerd)[-/]([0-9a-f]{12})", path)
        if container or "/kubepods" in path:
            return "container " + (container.group(1) if container else path.rsplit("/", 1)[-1])
        units = [part for part in path.split("/") if part.endswith(".service") and not part.startswith("user@")]
        found = found or (units[-1] if units else None)
    return found or _apart(pid)


APART = "a mount namespace of its own"
NO_NETWORK = "a network namespace of its own"


def _elsewhere(pid: int, kind: str) -> bool:
    """Whether a process lives in another namespace than we do; one that may not be looked at is taken for a neighbour."""
    theirs = procfs.link("/proc/%d/ns/%s" % (pid, kind))
    return theirs is not None and theirs != procfs.link("/proc/self/ns/%s" % kind)


def _apart(pid: int) -> str | None:
    """The program, directory or files of this process are other ones for us, or none: a container without a control group of its own
    (apptainer, enroot, pyxis, unshare). What only its mounts hold is gone when it ends. Or its ports are not ours."""
    if _elsewhere(pid, "net"):
        return NO_NETWORK
    if not _elsewhere(pid, "mnt"):
        return None
    root = b"/proc/%d/root" % pid
    paths = [procfs.link("/proc/%d/exe" % pid), procfs.link("/proc/%d/cwd" % pid)]
    for word in procfs.argv(pid):
        paths += [part for part in word.split(b"=") if part.startswith(b"/")]
    for path in paths:
        try:
            inside = os.stat(root + path) if path is not None else None
        except OSError:
            continue  # not seen there either, or not to be looked at
        try:
            outside = os.stat(path) if path is not None else None
        except OSError:
            outside = None
        if inside is not None and (outside is None or (inside.st_dev, inside.st_ino) != (outside.st_dev, outside.st_ino)):
            return "%s (%s is not the same outside)" % (APART, procfs.text(path or b""))
    return None


def status_ids(pid: int) -> tuple[int, int, list[int]]:
    """(effective uid, effective gid, supplementary groups)."""
    uid, gid = -1, -1
    groups: list[int] = []
    for line in procfs.text(procfs.read("/proc/%d/status" % pid) or b"").splitlines():
        words = line.split()
        if line.startswith("Uid:"):
            uid = int(words[2])
        elif line.startswith("Gid:"):
            gid = int(words[2])
        elif line.startswith("Groups:"):
            groups = [int(word) for word in words[1:]]
    return uid, gid, groups


def output_files(pid: int) -> dict[str, str | None]:
    """Where stdout ("1") and stderr ("2") of a process go, when that is a regular file that still has a name."""
    targets: dict[str, str | None] = {}
    for handle in ("1", "2"):
        path = "/proc/%d/fd/%s" % (pid, handle)
        target = procfs.link(path)
        try:
            opened = os.stat(path)
            named = os.stat(target) if target else None
        except OSError:
            named = None
        regular = named is not None and stat.S_ISREG(opened.st_mode)
        same_file = named is not None and (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)
        targets[handle] = procfs.text(target) if target and regular and same_file else None
    return targets


def lost_output(pid: int) -> str | None:
    """Where a process writes, if that is gone once it ends: a pipe with its reader, or a terminal. None for a file and for nothing."""
    target = procfs.link("/proc/%d/fd/1" % pid) or b""
    if target.startswith((b"/dev/pts/", b"/dev/tty")):
        return "the terminal %s" % procfs.text(target)
    if not target.startswith(b"pipe:"):
        return None
    for reader in sorted(procfs.table()):
        if reader != pid and procfs.link("/proc/%d/fd/0" % reader) == target:
            return "a pipe to process %d (%s)" % (reader, os.path.basename(procfs.text((procfs.argv(reader) or [b"?"])[0])))
    return "a pipe"


def describe(pid: int, processes: dict[int, procfs.Process], ports: list[int], engine: str | None,
             root: str) -> dict[str, Any]:  # fmt: skip
    """Everything about a server that may leave the box."""
    one = processes[pid]
    pairs = procfs.environ(pid)
    arguments, hidden = redact.hide_arguments([procfs.text(word) for word in procfs.argv(pid)])
    uid, _, _ = status_ids(pid)
    directory, program = procfs.link("/proc/%d/cwd" % pid), procfs.link("/proc/%d/exe" % pid)
    return {
        "pid": pid,
        "start_time": one.start_time,
        "boot_id": procfs.boot_id(),
        "engine": engine,
        "argv": arguments,
        "hidden_arguments": len(hidden),
        "cwd": procfs.text(directory) if directory else None,
        "exe": procfs.text(program) if program else None,
        "uid": uid,
        "ports": sorted(set(ports)),
        "env": redact.hide_environment({procfs.text(name): procfs.text(value) for name, value in pairs or ()}),
        "env_readable": pairs is not None,
        "lost_output": lost_output(pid),
        "logs": sorted({path for path in output_files(pid).values() if path}),
        "supervisor": supervisor_of(pid),
        "control": supervised.told(control) if (control := supervised.control_of(pid)) is not None else None,
        "launch_id": procfs.launch_id(pid, root),
    }


def find_servers(request: dict[str, Any]) -> dict[str, Any]:
    """Servers by the look of their command line, and whoever owns ``port``. One entry per server: workers are counted
    to the process that started them."""
    also = request.get("also") or {}
    processes = procfs.table()
    home = os.path.expanduser("~")

    def visible(pid: int) -> bool:
        # Simulated boxes share this machine: theirs are the processes with their home.
        return not request.get("same_home") or dict(procfs.environ(pid) or ()).get(b"HOME") == procfs.raw(home)

    engines: dict[int, str | None] = {}
    for pid in processes:
        engine = engine_of([procfs.text(word) for word in procfs.argv(pid)], also)
        if engine is not None and visible(pid):
            engines[pid] = engine
    listening = procfs.listeners()
    sockets = {one.inode: one.port for one in listening}
    ports: dict[int, set[int]] = {}
    held = procfs.socket_owners(set(sockets))
    for inode, owners in held.items():
        for pid in owners:
            ports.setdefault(pid, set()).add(sockets[inode])
    mains = [pid for pid in engines if not (procfs.ancestors(processes[pid].ppid, processes) & set(engines))]
    trees = {pid: procfs.descendants([pid], processes) | {pid} for pid in mains}
    if request.get("port"):
        covered = set().union(*trees.values()) if trees else set()
        holders = {pid for pid in processes if request["port"] in ports.get(pid, ()) and pid not in covered}
        for pid in sorted(holders):
            if not procfs.ancestors(processes[pid].ppid, processes) & holders:
                mains.append(pid)
                trees[pid] = procfs.descendants([pid], processes) | {pid}
    found = []
    for pid in sorted(mains):
        owned = sorted(set().union(*(ports.get(member, set()) for member in trees[pid])))
        unreached = _unreached(owned, [(one, set(held.get(one.inode, ()))) for one in listening], trees[pid])
        found.append(dict(describe(pid, processes, owned, engines.get(pid), request["root"]), unreached=unreached))
    unknown = (
        bool(request.get("port"))
        and request["port"] in sockets.values()
        and not any(request["port"] in one["ports"] for one in found)
    )
    return {"servers": found, "port_owner_hidden": unknown}


def _unreached(ports: list[int], sockets: list[tuple[procfs.Listener, set[int]]], tree: set[int]) -> dict[str, str]:
    """Port -> why what is sent to it over the loopback does not get to these processes."""
    found = {}
    for port in ports:
        own = [one.address for one, owners in sockets if one.port == port and owners & tree]
        others = [(one, owners) for one, owners in sockets if one.port == port and not owners & tree and procfs.overlaps(one.address, ASKED)]
        if not any(procfs.overlaps(address, ASKED) for address in own):
            found[str(port)] = "it listens at %s alone" % ", ".join(own)
        for one, owners in others[:1]:
            who = "process %d" % min(owners) if owners else "a process of another user"
            found[str(port)] = "there %s listens, at %s" % (who, one.address)
    return found


ASKED = "127.0.0.1"  # where load and questions go, on the box itself
KEY_VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY", "SGLANG_API_KEY")


def server_key(request: dict[str, Any]) -> dict[str, Any]:
    """The API key that the server on ``port`` asks its clients for, from the command line or environment of its process or of
    one above it (workers overwrite their command lines). It goes back over the connection, and nowhere else."""
    sockets = procfs.listeners(int(request["port"]))
    owners = procfs.socket_owners({one.inode for one in sockets})
    processes = procfs.table()
    for pid in sorted({pid for pids in owners.values() for pid in pids}):
        line = [pid]
        while line[-1] in processes and processes[line[-1]].ppid > 1 and len(line) < 64:
            line.append(processes[line[-1]].ppid)
        for one in line:
            words = [procfs.text(word) for word in procfs.argv(one)]
            for at, word in enumerate(words):
                flag, equals, value = word.partition("=")
                if flag == "--api-key":
                    value = value if equals else (words[at + 1] if at + 1 < len(words) else "")
                    if value:
                        return {"key": value}
            for name, value_of in procfs.environ(one) or ():
                if procfs.text(name) in KEY_VARIABLES and value_of:
                    return {"key": procfs.text(value_of)}
    return {"key": None}


# --- GPUs ------------------------------------------------------------------------------------------------------------


def gpu_memory_mib(timeout_s: float = 10.0) -> list[int] | None:
    """Memory in use per GPU. None where there is no nvidia-smi, or it hangs or speaks another language."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=timeout_s,
        )  # fmt: skip
        return [int(float(line)) for line in done.stdout.split()] if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _sampled(columns: str, end: float, rows: bytearray, max_bytes: int) -> int:
    """Its exit status if it ended by itself, else 0."""
    child = subprocess.Popen(
        ["nvidia-smi", "--query-gpu=" + columns, "--format=csv,noheader", "-l", "1"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert child.stdout is not None
    status = 0
    try:
        while time.monotonic() < end and len(rows) < max_bytes:
            if select.select([child.stdout], [], [], max(0.0, min(0.5, end - time.monotonic())))[0]:
                data = os.read(child.stdout.fileno(), 1 << 16)
                if not data:
                    status = child.wait()
                    break
                rows += data
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return status


def sample_gpu(request: dict[str, Any]) -> dict[str, Any]:
    """One line per GPU and second for ``duration_s``, columns as in ``gpu.csv``: time, index, SM utilisation, memory
    utilisation, memory used, power, SM clock, temperature, then the mask of what holds the clock down where the driver
    tells. Empty text where there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return {"csv": "", "available": False}
    end = time.monotonic() + float(request["duration_s"])
    rows = bytearray()
    for columns in (GPU_COLUMNS + GPU_REASONS, GPU_COLUMNS):
        status = _sampled(columns, end, rows, int(request["max_bytes"]))
        if not status:
            break
        del rows[:]  # what it said was an error message
    return {"csv": bytes(rows).decode("utf-8", "replace"), "available": True}
