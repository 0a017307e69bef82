"""Ends what is ours and proves that it is gone: repeated scans until two in a row are empty, GPU memory back, leftovers
in shared memory removed. Runs on the box. It signals only processes of the launch ids it is asked for; the one
exception is the original server, by its exact identity, and only through ``stop_original``."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterable
from typing import Any

from optimizer.box.plain import family, guarded, holder, look, procfs, store, supervised
from optimizer.box.plain.procfs import Process, Refused
from optimizer.box.plain.store import Folder

GPU_TOLERANCE_MIB = 256
_PAUSE_S = 0.1


def send(pid: int, start_time: int, number: int) -> bool:
    """Signals the process with this identity and no other. With a pid descriptor (Python 3.9, Linux 5.3) the kernel
    closes the gap between check and signal."""
    try:
        handle = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        handle = -1
    try:
        if not procfs.same(pid, start_time):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)  # type: ignore[attr-defined,unused-ignore]
        else:
            os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # it stays in the scan, so the caller reports it as remaining
    finally:
        if handle >= 0:
            os.close(handle)


def _shared_files(pids: Iterable[int]) -> set[bytes]:
    """Files in shared memory and named sockets that these processes hold open or mapped: what they leave when
    killed."""
    sockets = {}
    for row in (procfs.read("/proc/net/unix", 1 << 26) or b"").splitlines()[1:]:
        words = row.split()
        if len(words) > 7 and words[7].startswith((b"/tmp/", b"/dev/shm/")):
            sockets[b"socket:[" + words[6] + b"]"] = words[7]
    found: set[bytes] = set()
    for pid in pids:
        for row in (procfs.read("/proc/%d/maps" % pid, 1 << 26) or b"").splitlines():
            words = row.split(None, 5)
            if len(words) == 6 and words[5].startswith(b"/dev/shm/"):
                found.add(words[5])
        try:
            handles = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        for handle in handles:
            target = procfs.link("/proc/%d/fd/%s" % (pid, handle)) or b""
            if target.startswith(b"/dev/shm/"):
                found.add(target)
            elif target in sockets:
                found.add(sockets[target])
    return found


def _remove_leftovers(paths: set[bytes]) -> list[str]:
    """Unlinks those of ``paths`` that nobody uses any more and that belong to this user."""
    paths = {path for path in paths if os.path.lexists(path)}
    if not paths:
        return []
    in_use = _shared_files(procfs.table())
    removed = []
    for path in sorted(paths - in_use):
        try:
            status = os.lstat(path)
            if status.st_uid == os.geteuid() and (stat.S_ISREG(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
                os.unlink(path)
                removed.append(procfs.text(path))
        except OSError:
            pass  # it vanished meanwhile, or is not ours to remove
    return removed


def end_all(
    scan: Callable[[], dict[int, Process]], term_s: float, kill_s: float
) -> tuple[list[int], list[int], set[bytes]]:
    """SIGTERM, wait ``term_s``, SIGKILL, until two consecutive scans are empty or ``kill_s`` after the first SIGKILL.
    Returns (pids that were seen, pids that remain, leftovers)."""
    known: dict[tuple[int, int], Process] = {}
    told: set[tuple[int, int]] = set()
    leftovers: set[bytes] = set()
    begin, empty = time.monotonic(), 0
    while True:
        current = dict(scan())
        # A child that has left its family (cleaned environment, parent gone) is still known from an earlier scan.
        for one in known.values():
            if procfs.same(one.pid, one.start_time):
                current.setdefault(one.pid, one)
        fresh = [one for one in current.values() if (one.pid, one.start_time) not in known]
        leftovers |= _shared_files(one.pid for one in fresh)
        known.update({(one.pid, one.start_time): one for one in fresh})
        empty = 0 if current else empty + 1
        if empty >= 2:
            break
        elapsed = time.monotonic() - begin
        if elapsed > term_s + kill_s:
            break
        for one in current.values():
            if elapsed >= term_s:
                send(one.pid, one.start_time, signal.SIGKILL)
            elif (one.pid, one.start_time) not in told:
                send(one.pid, one.start_time, signal.SIGTERM)
                told.add((one.pid, one.start_time))
        time.sleep(_PAUSE_S)
    return sorted({pid for pid, _ in known}), sorted(current), leftovers


def _gpu_back(before: list[int] | None, wait_s: float) -> tuple[bool | None, list[int] | None]:
    """(None where there is no reading; else whether memory is back within the tolerance, the last reading)."""
    if not before:
        return None, None
    end = time.monotonic() + wait_s
    while True:
        now = look.gpu_memory_mib()
        if now is None or len(now) != len(before):
            return None, now
        if all(used <= was + GPU_TOLERANCE_MIB for used, was in zip(now, before)):
            return True, now
        if time.monotonic() > end:
            return False, now
        time.sleep(0.5)


def sweep(request: dict[str, Any]) -> dict[str, Any]:
    """Ends every launch under ``prefix`` except those under ``keep``. Request: prefix, keep, term_s, kill_s,
    gpu_wait_s."""
    folder, prefix, keep = Folder(request["root"]), request["prefix"], request.get("keep") or []
    store.launch_parts(prefix)
    if not os.path.isdir(folder.root):
        return _swept(prefix, folder, keep, request)
    with store.Lock(folder, request["lock_wait_s"]):
        return _swept(prefix, folder, keep, request)


def _swept(prefix: str, folder: Folder, keep: list[str], request: dict[str, Any]) -> dict[str, Any]:
    study = store.launch_parts(prefix)[0]
    claims = [claim for claim in folder.claims(prefix)
              if not any(procfs.matches(study + ":" + os.path.basename(claim), one) for one in keep)]  # fmt: skip
    swept, remaining, leftovers = end_all(
        lambda: family.family_of(folder, prefix, keep), float(request["term_s"]), float(request["kill_s"])
    )
    back: bool | None = None
    memory: list[int] | None = None
    removed: list[str] = []
    if swept and not remaining:
        removed = _remove_leftovers(leftovers)
        before: list[int] | None = None
        for claim in claims:
            reading = (store.read_record(os.path.join(claim, "claim.json")) or {}).get("gpu_memory_mib")
            if reading and (before is None or len(before) == len(reading)):
                before = [max(pair) for pair in zip(before or reading, reading)]
        back, memory = _gpu_back(before, float(request["gpu_wait_s"]))
    _wait_for_keepers(claims)
    return {"swept": swept, "remaining": remaining, "gpu_back": back, "gpu_memory_mib": memory, "removed": removed}


def _wait_for_keepers(claims: list[str]) -> None:
    """The keeper of a launch writes how its server ended, and ends; a clean box has none."""
    end = time.monotonic() + 2.0
    for claim in claims:
        record = store.read_record(os.path.join(claim, "started.json")) or {}
        keeper = record.get("keeper")
        if not keeper or record.get("boot_id") != procfs.boot_id():
            continue
        server = (int(record["pid"]), int(record["start_time"]))
        while procfs.same(*keeper) and not procfs.same(*server) and time.monotonic() < end:
            time.sleep(0.01)


def stop_original(request: dict[str, Any]) -> dict[str, Any]:
    """Stops the server that was there before us, and nothing else: exactly (boot_id, pid, start_time) and what descends
    from it. The study's guard must hold it, so that it can come back."""
    folder, study = Folder(request["root"]), store.checked(request["study"], "study id")
    pid, start_time = int(request["pid"]), int(request["start_time"])
    with store.Lock(folder, request["lock_wait_s"]):
        guarded.refuse_fenced(folder, study, int(request["epoch"]))
        holder.refuse_others(folder, study)
        guard = guarded.guard_identity(folder, study)
        held = guard.get("original") if guard else None
        if not held or (held["pid"], held["start_time"]) != (pid, start_time):
            raise Refused("not_secured", "Process %d is not stopped: no guard on the box holds what is needed to bring it back."
                          % pid)  # fmt: skip
        parts = [held, *reversed(held.get("before") or [])]  # the entry first: nothing new comes in while the workers end
        ports = [port for part in parts for port in part["ports"]]
        if request["boot_id"] != procfs.boot_id():
            return {"stopped": [], "remaining": []}
        if not any(procfs.same(int(part["pid"]), int(part["start_time"])) for part in parts):
            _refuse_restarted(ports, folder, study)  # an earlier attempt stopped it, and its supervisor may have started it again
            return {"stopped": [], "remaining": []}
        stopped: set[int] = set()
        left: set[int] = set()
        for part in parts:
            swept, remaining = _stop_one(part, float(request["term_s"]), float(request["kill_s"]))
            stopped.update(swept)
            left.update(remaining)
        _settle_gpu(float(request["gpu_wait_s"]))
        _refuse_restarted(ports, folder, study)
        return {"stopped": sorted(stopped), "remaining": sorted(left)}


def _stop_one(held: dict[str, Any], term_s: float, kill_s: float) -> tuple[set[int], list[int]]:
    """Ends one recorded process with what descends from it: (everything that was seen, what remains)."""
    pid, start_time = int(held["pid"]), int(held["start_time"])

    def scan() -> dict[int, Process]:
        processes = procfs.table()
        main = processes.get(pid)
        if main is None or main.start_time != start_time:
            return {}
        below = procfs.descendants([pid], processes) | {pid}
        spared = procfs.ancestors(os.getpid(), processes)
        return {one: processes[one] for one in below - spared}

    # The main process first: an engine shuts its workers down itself, and in order.
    everyone = scan()
    if not everyone:
        return set(), []
    if held.get("control"):
        supervised.stop(held["control"], pid, start_time, term_s + kill_s)
    else:
        send(pid, start_time, signal.SIGTERM)
    end = time.monotonic() + term_s
    while procfs.same(pid, start_time) and time.monotonic() < end:
        everyone.update(scan())
        time.sleep(_PAUSE_S)
    known = list(everyone.values())
    swept, remaining, _ = end_all(
        lambda: {one.pid: one for one in known if procfs.same(one.pid, one.start_time)} if not procfs.same(pid, start_time) else scan(),
        min(5.0, term_s), kill_s,
    )  # fmt: skip
    return set(everyone) | set(swept), remaining


def _settle_gpu(wait_s: float) -> None:
    """Waits until the drivers have given the memory back: until a reading no longer falls."""
    end, last = time.monotonic() + wait_s, look.gpu_memory_mib()
    while last is not None and time.monotonic() < end:
        time.sleep(1.0)
        now = look.gpu_memory_mib()
        if now is None or sum(now) >= sum(last) - 64:
            return
        last = now


def _refuse_restarted(ports: list[int], folder: Folder, study: str) -> None:
    originals = guarded.recorded(folder, study)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        guarded.refuse_restarted(folder, study)
        for port in ports:
            if guarded.takers(port, originals):
                raise Refused("restarted", "The original server was stopped, and something on the box started a server on port "
                              "%d again at once. Stop it through its supervisor, then try again." % port)  # fmt: skip
        time.sleep(0.2)
