"""Which study holds the box, taking and giving it back, and removing what a study left in the folder. Runs on the box. A holder is
replaced only with proof that it is gone."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

from optimizer.box.plain import look, procfs
from optimizer.box.plain.family import family_of
from optimizer.box.plain.procfs import Refused
from optimizer.box.plain.store import Folder, Lock, checked, read_record, refuse_unsafe, unwritable, write_record

STRANGER_S = 30.0


def tidy(folder: Folder) -> None:
    """Removes folders that became empty, and with the last of them the root and its lock file. The caller holds the
    lock."""
    for name in ("runs", "studies", "kept"):
        try:
            os.rmdir(os.path.join(folder.root, name))
        except OSError:
            pass  # absent or still in use, both are fine
    try:
        if set(os.listdir(folder.root)) <= {"lock"}:
            os.unlink(os.path.join(folder.root, "lock"))
            os.rmdir(folder.root)
    except OSError:
        pass  # somebody has just begun to use it again


def cleanup(request: dict[str, Any]) -> dict[str, Any]:
    """Removes what a study left in the folder. Refuses while one of its processes lives, except with ``leave`` (a
    server that is left running on purpose)."""
    folder, study = Folder(request["root"]), checked(request["study"], "study id")
    if not os.path.isdir(folder.root):
        return {"removed": [], "kept": []}
    with Lock(folder, request["lock_wait_s"]):
        living = family_of(folder, study)
        if living and not request.get("leave"):
            raise Refused("still_running", "%d processes of study %s still run (%s); its files stay until they are gone."
                          % (len(living), study, ", ".join(str(pid) for pid in sorted(living)[:8])))  # fmt: skip
        removed = []
        for path in (os.path.join(folder.root, "runs", study), folder.study(study)):
            for _ in range(3):  # the keeper of a launch may be writing its last line
                if os.path.isdir(path):
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
            if os.path.isdir(path):
                raise Refused("unwritable", "Could not remove %s on the box. Remove it by hand." % path)
        kept = folder.kept_log(study)
        tidy(folder)
    return {"removed": sorted(set(removed)), "kept": [kept] if os.path.exists(kept) else []}


def _place() -> dict[str, str]:
    """What tells this box from another one, or from a container of it, that has the same home directory."""
    return {"hostname": os.uname().nodename, "pid_namespace": procfs.text(procfs.link("/proc/self/ns/pid") or b"")}


def _elsewhere(folder: Folder, holder: dict[str, Any]) -> str | None:
    """Where the study that holds this folder is at work, if that is not here: a home directory can be shared by machines, and by a
    machine and its containers. What it wrote is about processes of that place, and says nothing about ours."""
    here, name = _place(), holder.get("hostname")
    if name is None:  # of an older version
        return None
    if name != here["hostname"]:
        return str(name)
    study = str(holder.get("study", ""))
    if holder.get("pid_namespace") != here["pid_namespace"] and study and procfs.family(study, folder.root):
        return "%s, in another container" % name
    return None


def refuse_elsewhere(folder: Folder, holder: dict[str, Any] | None) -> None:
    """Nothing is done to a study from a place that cannot see its processes."""
    place = _elsewhere(folder, holder) if holder is not None else None
    if holder is not None and place is not None:
        raise Refused("box_locked", "Study %s (coordinator %s) is at work on %s, whose home directory this one shares: what it left in %s is "
                      "about processes that cannot be seen from here. Use one of them at a time, enter its container with --inside, or "
                      "give one another HOME. If that machine is gone for good, remove %s by hand."
                      % (holder.get("study"), holder.get("coordinator_name"), place, folder.root, folder.root), holder=holder)  # fmt: skip


def _coordinator_alive(holder: dict[str, Any]) -> bool | None:
    """None where it is on another machine."""
    if holder.get("coordinator_boot_id") != procfs.boot_id() or not holder.get("coordinator_pid"):
        return None
    return procfs.same(int(holder["coordinator_pid"]), int(holder["coordinator_start_time"]))


def _gone(folder: Folder, holder: dict[str, Any], patience_s: float) -> bool:
    """True only with proof that the holder's coordinator is gone and that nothing of its study lives."""
    study = str(holder.get("study", ""))
    if not study or _elsewhere(folder, holder) or family_of(folder, study):
        return False  # the guard counts too
    if holder.get("boot_id") != procfs.boot_id():
        return True
    alive = _coordinator_alive(holder)
    if alive is not None:
        return not alive
    return _silent_s(folder, study, holder) > patience_s


def _silent_s(folder: Folder, study: str, holder: dict[str, Any]) -> float:
    """Seconds since the holder was heard of. This boot's monotonic clock, as the guard counts: a clock of the day that is set is no
    silence, nor does it hide one."""
    beat = read_record(os.path.join(folder.study(study), "heartbeat")) or {}
    heard = [float(one["monotonic_s"]) for one in (beat, holder) if "monotonic_s" in one]
    if heard:
        return time.monotonic() - max(heard)
    paths = [os.path.join(folder.study(study), "heartbeat"), os.path.join(folder.root, "box.lock", "holder.json")]  # an older version's
    return time.time() - max((os.stat(path).st_mtime for path in paths if os.path.exists(path)), default=0.0)


def lock_box(request: dict[str, Any]) -> dict[str, Any]:
    """Takes ``box.lock`` for a study. The same study and coordinator may take it again (resume)."""
    folder, study = Folder(request["root"]), checked(request["study"], "study id")
    refuse_unsafe(folder)
    path = os.path.join(folder.root, "box.lock")
    record: dict[str, Any] = dict(_place(), study=study, boot_id=procfs.boot_id(), since_unix_s=time.time(),
                                  monotonic_s=time.monotonic())  # fmt: skip
    record.update({key: value for key, value in request["coordinator"].items() if key.startswith("coordinator_")})
    with Lock(folder, request["lock_wait_s"]):
        holder = read_record(os.path.join(path, "holder.json"))
        taken_over, same_one = None, False
        if holder is not None:
            refuse_elsewhere(folder, holder)
            machines = {one["coordinator_machine"] for one in (holder, record) if one.get("coordinator_machine")}
            same_one = holder.get("study") == study and holder.get("coordinator_name") == record.get("coordinator_name") and len(machines) < 2
            alive = (
                holder.get("coordinator_boot_id") == procfs.boot_id()
                and (holder.get("coordinator_pid"), holder.get("coordinator_start_time"))
                != (record.get("coordinator_pid"), record.get("coordinator_start_time"))
                and procfs.same(int(holder.get("coordinator_pid") or 0), int(holder.get("coordinator_start_time") or 0))
            )
            if alive or not (same_one or _gone(folder, holder, float(request["patience_s"]))):
                raise Refused("box_locked", "This box is held by study %s (coordinator %s). Two coordinators on one box would "
                              "measure each other. Wait for it, or end it with `optimize stop %s`."
                              % (holder.get("study"), holder.get("coordinator_name"), holder.get("study")),
                              holder=holder)  # fmt: skip
            taken_over = None if same_one else holder
        if not same_one:  # who holds the box already may always end what it has begun
            refuse_strangers(request)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass  # ours already, or taken over: the record below says whose it is now
        except OSError as error:
            raise unwritable(path, error)
        write_record(os.path.join(path, "holder.json"), record)
    return {"taken_over": taken_over}


def strangers(bootstrap: str, age_s: float) -> list[dict[str, Any]]:
    """Guards and jobs of this tool that other users have on this box, in homes that we may not see: pid and uid. Their command line is
    the same as ours everywhere; a call that only looks is over before ``age_s``."""
    words, now = procfs.raw(bootstrap), float((procfs.read("/proc/uptime") or b"0").split()[0])
    found = []
    for one in procfs.table().values():
        if procfs.argv(one.pid)[-1:] != [words]:
            continue
        uid = look.status_ids(one.pid)[0]
        old = now - one.start_time / os.sysconf("SC_CLK_TCK") >= age_s
        if uid not in (-1, os.geteuid()) and old:
            found.append({"pid": one.pid, "uid": uid})
    return found


def refuse_strangers(request: dict[str, Any]) -> None:
    """Two studies on one box measure each other, whoever they belong to."""
    for one in strangers(request.get("bootstrap") or "", float(request.get("stranger_s", STRANGER_S))) if request.get("bootstrap") else []:
        raise Refused("box_locked", "A study of another user (uid %d) is at work on this box: process %d is its guard, or a load of it. Two "
                      "studies on one box would measure each other. Wait for it, or ask that user to end it." % (one["uid"], one["pid"]))  # fmt: skip


def refuse_others(folder: Folder, study: str) -> None:
    """A box that has meanwhile been given to another study is no longer ours to change."""
    holder = read_record(os.path.join(folder.root, "box.lock", "holder.json"))
    if holder is not None and holder.get("study") != study:
        raise Refused("box_locked", "This box is held by study %s (coordinator %s) by now; study %s changes nothing on it any more."
                      % (holder.get("study"), holder.get("coordinator_name"), study), holder=holder)  # fmt: skip


def unlock_box(request: dict[str, Any]) -> dict[str, Any]:
    """Gives the box back if this study holds it; nothing happens otherwise."""
    folder, study = Folder(request["root"]), checked(request["study"], "study id")
    if not os.path.isdir(folder.root):
        return {"unlocked": False}
    with Lock(folder, request["lock_wait_s"]):
        path = os.path.join(folder.root, "box.lock")
        holder = read_record(os.path.join(path, "holder.json"))
        mine = os.path.isdir(path) and (holder is None or holder.get("study") == study)
        if mine:
            shutil.rmtree(path, ignore_errors=True)
        tidy(folder)
    return {"unlocked": mine}


def box_holder(request: dict[str, Any]) -> dict[str, Any]:
    """Who holds the box now, and whether anything of that study still lives. ``study``: whether that one has files here (``left``)."""
    folder = Folder(request["root"])
    holder = read_record(os.path.join(folder.root, "box.lock", "holder.json"))
    paths = []
    if request.get("study"):
        study = checked(request["study"], "study id")
        paths = [folder.study(study), os.path.join(folder.root, "runs", study)]
    return {
        "holder": holder,
        "strangers": strangers(request["bootstrap"], STRANGER_S) if request.get("bootstrap") else [],
        "gone": holder is not None and _gone(folder, holder, float(request["patience_s"])),
        "elsewhere": _elsewhere(folder, holder) if holder is not None else None,
        "coordinator_alive": _coordinator_alive(holder) if holder is not None else None,
        "left": any(os.path.isdir(path) for path in paths),
    }
