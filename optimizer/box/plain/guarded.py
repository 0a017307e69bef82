"""What a study may still do to a box whose guard watches: the guard's identity, the fence behind which it has put a coordinator, the
coordinator's heartbeat, and whether something else has started the original again. Runs on the box. It reads and refuses; all that
changes the box is built on it."""

from __future__ import annotations

import os
import time
from typing import Any

from optimizer.box.plain import procfs, redact, store
from optimizer.box.plain.procfs import Refused
from optimizer.box.plain.store import Folder


def guard_identity(folder: Folder, study: str) -> dict[str, Any] | None:
    """Record of the study's living guard (pid, start_time, ...), None when it is not alive."""
    record = store.read_record(os.path.join(folder.study(study), "guard.json"))
    if record is None or record.get("boot_id") != procfs.boot_id():
        return None
    return record if procfs.same(int(record["pid"]), int(record["start_time"])) else None


def refuse_fenced(folder: Folder, study: str, epoch: int) -> None:
    """A coordinator whose guard has fired has lost the box until it secures it again."""
    fenced = store.read_record(os.path.join(folder.study(study), "fenced.json"))
    if fenced is not None and int(fenced["epoch"]) >= epoch:
        raise Refused("guard_fired", "The guard took the box back, as the coordinator was silent or somebody restored the box. Nothing was "
                      "changed now.")  # fmt: skip


def shown_of(pid: int) -> list[str]:
    """The command line as ``ps`` shows it. One that was overwritten is padded to the length of the old one: that says nothing."""
    words = [procfs.text(word) for word in procfs.argv(pid)]
    while words and not words[-1] and "::" in words[0]:
        words.pop()
    return words


def running_already(record: dict[str, Any]) -> procfs.Process | None:
    """A living process with the original's command line and directory that nothing of the kind started. A command line of
    the record on the disk has no credentials, so that theirs are not compared."""
    wanted = _comparable(record.get("shown") or record["argv"])
    processes = procfs.table()
    alike = {
        pid for pid in processes
        if procfs.link("/proc/%d/cwd" % pid) == procfs.raw(record["cwd"]) and _comparable(shown_of(pid)) == wanted
    }  # fmt: skip
    if record.get("shown"):
        # A title that a program has put in its command line's place is that of every program of its kind: only the port tells which.
        alike &= _serving(set(record["ports"]))
    tops = [pid for pid in alike if processes[pid].ppid not in alike]
    return processes[min(tops)] if tops else None


def takers(port: int, records: list[dict[str, Any]]) -> list[procfs.Listener]:
    """Who listens on a port where a recorded server is to listen again, or anybody who does where none of them did. A service on the same
    number at another address, and one that was there beside the server, take nothing from it."""
    addresses = {address for record in records for address in (record.get("addresses") or {}).get(str(port), ())}
    beside = {inode for record in records for inode in record.get("beside") or ()}
    return [one for one in procfs.listeners(port) if not addresses
            or (one.inode not in beside and any(procfs.overlaps(one.address, address) for address in addresses))]  # fmt: skip


def recorded(folder: Folder, study: str) -> list[dict[str, Any]]:
    """What the study's record on the disk says of each process of the original server; nothing where there was none."""
    record = store.read_record(os.path.join(folder.study(study), "original.json"))
    return [*(record.get("before") or []), record] if record else []


def _serving(ports: set[int]) -> set[int]:
    """Processes that listen on one of these ports."""
    inodes = {one.inode for one in procfs.listeners() if one.port in ports}
    return {pid for pids in procfs.socket_owners(inodes).values() for pid in pids}


def _comparable(words: list[str]) -> list[str]:
    return [redact.without_numbers(word) for word in redact.hide_arguments(words)[0]]


def refuse_restarted(folder: Folder, study: str) -> None:
    """Raises Refused("restarted") when the original's command line runs again although neither we nor its owner's own supervisor that
    we tell has started it: a loop around it, say. A launch beside it would be measured in its company, or find no memory."""
    home = folder.study(study)
    parts = recorded(folder, study)
    guard = guard_identity(folder, study)
    fenced = store.read_record(os.path.join(home, "fenced.json"))
    if not parts or guard is None or (fenced is not None and int(fenced["epoch"]) >= int(guard["epoch"])):
        return  # nothing to compare with, or the guard is just bringing it back
    for part in parts:
        one = running_already(part)
        if one is None or (one.pid, one.start_time) == (part["pid"], part["start_time"]) or procfs.launch_id(one.pid, folder.root):
            continue
        above = procfs.text(b" ".join(procfs.argv(one.ppid))[:80])
        raise Refused("restarted", "The original server was stopped, and process %d runs its command line again: process %d (%s) above it "
                      "starts it anew. Beside it nothing can be measured. It is left alone; stop what restarts it, then start again."
                      % (one.pid, one.ppid, above or "unknown"), pid=one.pid)  # fmt: skip


def heartbeat(request: dict[str, Any]) -> dict[str, Any]:
    """Writes the coordinator's counter; the guard watches it change. Tells also when something has started the original again."""
    folder = Folder(request["root"])
    path = os.path.join(folder.study(request["study"]), "heartbeat")
    if not os.path.isdir(os.path.dirname(path)):
        raise Refused(
            "not_secured", "Study %s has no guard on this box, so there is nobody to tell." % request["study"]
        )
    store.write_record(path, {"beat": int(request["beat"]), "monotonic_s": time.monotonic()})
    fired = store.read_record(os.path.join(folder.study(request["study"]), "fired.json"))
    if fired is None:
        refuse_restarted(folder, request["study"])
    return {"fired": fired is not None}
