"""The folder ``~/.optimizer`` on the box: its lock, its claims, its small durable records, and its removal. Runs on the
box. Nothing outside that folder is written or removed here, and no credential is ever stored in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

from optimizer.box.plain import procfs
from optimizer.box.plain.procfs import Refused

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,120}")


def checked(name: Any, what: str) -> str:
    """A study id or key that is safe as one path component."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused(
            "bad_request", "%r is no valid %s: letters, digits, dot, dash, underscore and colon only." % (name, what)
        )
    return name


def launch_parts(launch: str) -> list[str]:
    """``study:key`` -> [study, key]; a key may itself hold colons (roles of a deployment)."""
    study, colon, key = launch.partition(":")
    return [checked(study, "study id")] + ([checked(key, "launch key")] if colon else [])


class Folder:
    """Paths below the root. ``root`` is absolute."""

    def __init__(self, root: str) -> None:
        self.root = root

    def claim(self, study: str, key: str) -> str:
        return os.path.join(self.root, "runs", checked(study, "study id"), checked(key, "launch key"))

    def study(self, study: str) -> str:
        return os.path.join(self.root, "studies", checked(study, "study id"))

    def kept_log(self, study: str) -> str:
        return os.path.join(self.root, "kept", checked(study, "study id") + ".log")

    def claims(self, prefix: str) -> list[str]:
        """Claim folders of all launches that ``prefix`` covers."""
        study = launch_parts(prefix)[0]
        base = os.path.join(self.root, "runs", study)
        try:
            names = sorted(os.listdir(base))
        except OSError:
            return []
        return [os.path.join(base, name) for name in names if procfs.matches(study + ":" + name, prefix)]

    def make(self, path: str) -> str:
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error)
        return path


def unwritable(path: str, error: OSError) -> Refused:
    why = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
    return Refused("disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "unwritable",
                   "Cannot write %s on the box (%s). The tool needs a few MiB below its home directory there: make room, or "
                   "make it writable." % (path, why))  # fmt: skip


RESERVE_BYTES = 1024


def reserve(path: str) -> None:
    """Makes room on the disk for a small record that must be written even when the disk has become full: a file that says nothing."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return  # it has room, and may say something
    except OSError as error:
        raise unwritable(path, error)
    try:
        os.write(handle, b"null".ljust(RESERVE_BYTES))
        os.fsync(handle)
    except OSError as error:
        raise unwritable(path, error)
    finally:
        os.close(handle)


def _write_in_place(path: str, data: bytes) -> bool:
    """On a full disk: over the old record, into the room that it has. Not atomic, but better than not to be told."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        data = data.ljust(os.fstat(handle).st_size)
        written = os.pwrite(handle, data, 0)
        os.fsync(handle)
        return written == len(data)
    except OSError:
        return False
    finally:
        os.close(handle)


def write_record(path: str, record: dict[str, Any]) -> None:
    """Atomic and durable: the whole record or the old one, also after a power cut. On a full disk a record that is there is
    written over."""
    temporary = "%s.%d.new" % (path, os.getpid())
    data = json.dumps(record, sort_keys=True).encode("ascii")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # A file is padded so that what was reserved for it stays reserved.
            if os.write(handle, data.ljust(_size(path))) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(temporary, path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass  # it was never created; the error that matters is raised below
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _write_in_place(path, data):
            raise unwritable(path, error)


def _size(path: str) -> int:
    """Of a file that was reserved; 0 for any other: only those are kept at their size."""
    try:
        size = os.stat(path).st_size
    except OSError:
        return 0
    return size if size == RESERVE_BYTES else 0


def read_record(path: str) -> dict[str, Any] | None:
    """The record, None when there is none. A damaged one counts as none: it was never written whole."""
    data = procfs.read(path)
    if data is None:
        return None
    try:
        record = json.loads(data)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class Lock:
    """One lock for every change on the box: coordinator and guard never act at the same time, and a launch that lost
    its link is over before anybody may call it dead. It is an ``flock``: the kernel frees it with the last holder, and
    a child holds it from its birth until it has become the server."""

    def __init__(self, folder: Folder, wait_s: float) -> None:
        self.folder = folder
        self.wait_s = wait_s
        self.handle = -1

    def __enter__(self) -> Lock:
        path = os.path.join(self.folder.make(self.folder.root), "lock")
        end = time.monotonic() + self.wait_s
        while True:
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                self.folder.make(self.folder.root)  # the folder was tidied away between the two calls
                continue
            except OSError as error:
                raise unwritable(path, error)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The last one to leave removes the file: a lock on a removed file guards nothing.
                if os.path.exists(path) and os.stat(path).st_ino == os.fstat(handle).st_ino:
                    self.handle = handle
                    return self
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.ENOENT):
                    os.close(handle)
                    raise unwritable(path, error)
            os.close(handle)
            if time.monotonic() > end:
                raise Refused("lock_busy", "Another operation of this tool (or the guard) has been at work on the box for %d s; "
                              "nothing was changed. Try again when it has finished." % self.wait_s)  # fmt: skip
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


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


def _living(folder: Folder, study: str) -> dict[int, procfs.Process]:
    from optimizer.box.plain import launch  # it needs this module

    return launch.family_of(folder, study)


def cleanup(request: dict[str, Any]) -> dict[str, Any]:
    """Removes what a study left in the folder. Refuses while one of its processes lives, except with ``leave`` (a
    server that is left running on purpose)."""
    folder, study = Folder(request["root"]), checked(request["study"], "study id")
    if not os.path.isdir(folder.root):
        return {"removed": [], "kept": []}
    with Lock(folder, request["lock_wait_s"]):
        living = _living(folder, study)
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


# --- who holds the box -----------------------------------------------------------------------------------------------


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
    if not study or _elsewhere(folder, holder) or _living(folder, study):
        return False  # the guard counts too
    if holder.get("boot_id") != procfs.boot_id():
        return True
    alive = _coordinator_alive(holder)
    if alive is not None:
        return not alive
    beats = [os.path.join(folder.study(study), "heartbeat"), os.path.join(folder.root, "box.lock", "holder.json")]
    last = max((os.stat(path).st_mtime for path in beats if os.path.exists(path)), default=0.0)
    return time.time() - last > patience_s


def lock_box(request: dict[str, Any]) -> dict[str, Any]:
    """Takes ``box.lock`` for a study. The same study and coordinator may take it again (resume)."""
    folder, study = Folder(request["root"]), checked(request["study"], "study id")
    path = os.path.join(folder.root, "box.lock")
    record: dict[str, Any] = dict(_place(), study=study, boot_id=procfs.boot_id(), since_unix_s=time.time())
    record.update({key: value for key, value in request["coordinator"].items() if key.startswith("coordinator_")})
    with Lock(folder, request["lock_wait_s"]):
        holder = read_record(os.path.join(path, "holder.json"))
        taken_over = None
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
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass  # ours already, or taken over: the record below says whose it is now
        except OSError as error:
            raise unwritable(path, error)
        write_record(os.path.join(path, "holder.json"), record)
    return {"taken_over": taken_over}


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
        "gone": holder is not None and _gone(folder, holder, float(request["patience_s"])),
        "elsewhere": _elsewhere(folder, holder) if holder is not None else None,
        "coordinator_alive": _coordinator_alive(holder) if holder is not None else None,
        "left": any(os.path.isdir(path) for path in paths),
    }


def heartbeat(request: dict[str, Any]) -> dict[str, Any]:
    """Writes the coordinator's counter; the guard watches it change. Tells also when something has started the original again."""
    folder = Folder(request["root"])
    path = os.path.join(folder.study(request["study"]), "heartbeat")
    if not os.path.isdir(os.path.dirname(path)):
        raise Refused(
            "not_secured", "Study %s has no guard on this box, so there is nobody to tell." % request["study"]
        )
    write_record(path, {"beat": int(request["beat"])})
    fired = read_record(os.path.join(folder.study(request["study"]), "fired.json"))
    if fired is None:
        from optimizer.box.plain import original  # it needs this module

        original.refuse_restarted(folder, request["study"])
    return {"fired": fired is not None}


def numbers(values: Any) -> Iterator[int]:
    return (int(value) for value in values or ())
