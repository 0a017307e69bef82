"""The folder ``~/.optimizer`` on the box: its lock, its claims and its small durable records. Runs on the
box. Nothing outside that folder is written here, and no credential is ever stored in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
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


def fault_of(root: str) -> str | None:
    """Why this folder must not be used, if it is there: what lies in it decides what is started and stopped on the box."""
    try:
        status = os.lstat(root)
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return "%s on the box is no folder. The tool keeps its records there: move it away." % root
    if status.st_uid != os.geteuid():
        return ("%s on the box belongs to another user (uid %d), who could have other commands started from it. Remove it, or take it over: "
                "chown -R %d %s" % (root, status.st_uid, os.geteuid(), root))  # fmt: skip
    if status.st_mode & 0o022:
        return ("%s on the box can be written by others (mode %o), who could have other commands started from it. If you trust what is "
                "in it: chmod 700 %s" % (root, stat.S_IMODE(status.st_mode), root))  # fmt: skip
    return None


def refuse_unsafe(folder: Folder) -> None:
    fault = fault_of(folder.root)
    if fault is not None:
        raise Refused("unwritable", fault)


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


def numbers(values: Any) -> Iterator[int]:
    return (int(value) for value in values or ())
