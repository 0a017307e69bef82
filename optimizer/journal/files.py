"""The journal as a file: how it is connected to, what makes it acceptable (SQLite's version, a local disk, our mark),
how a closed copy is made, and what SQLite's errors mean to the user. Knows nothing of entries or leases."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError
from optimizer.journal import schema
from optimizer.journal.refusals import refused

# How long an append waits for another connection to finish.
BUSY_TIMEOUT_MS = 30_000

# File systems on which SQLite's locks or its shared memory cannot be relied upon.
REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "fuse.sshfs", "afs", "ceph", "glusterfs", "fuse.glusterfs"}
)

_MOUNTS = Path("/proc/self/mountinfo")
_MAGIC = b"SQLite format 3\x00"


def check_sqlite() -> None:
    """Raise JournalError if the SQLite library lacks what the schema needs."""
    if sqlite3.sqlite_version_info < schema.SQLITE_MIN:
        wanted = ".".join(map(str, schema.SQLITE_MIN))
        raise JournalError(
            f"This Python's SQLite is {sqlite3.sqlite_version}; the journal needs {wanted} or later.",
            hint="Use a Python that was built with a newer SQLite.",
        )


def check_local(folder: Path) -> None:
    """Raise JournalError if ``folder`` lies on a network file system."""
    kind = filesystem(folder)
    if kind in REMOTE:
        raise JournalError(
            f"{folder} lies on a network file system ({kind}), where a journal can be damaged by a second machine.",
            hint="Choose a folder on a local disk with --runs.",
        )


def filesystem(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Type of the file system that holds ``folder``; empty where the system does not tell."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    target = str(folder.resolve())
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split(" ")[4].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts on one point the later one counts
            best, kind = point, right.split(" ")[0]
    return kind


def check_ours(path: Path) -> int:
    """The file's format version. Raises JournalError if it is absent, JournalCorrupt if it is not a journal of ours."""
    if is_unfinished(path):
        raise JournalCorrupt(
            f"{path} holds no entry: its study is just being begun, or was ended before its first entry.",
            why="It holds no decision, and nothing was done in it.", hint="Ask again in a moment; if it stays so, delete its folder and start again.",
        )
    with explained(path), contextlib.closing(connected(path, write=False)) as connection:
        mark = connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if mark != schema.APPLICATION_ID or version < 1:
        raise JournalCorrupt(f"{path} is a SQLite file, but not a journal.", hint="Name the folder of a study.")
    return version


def is_unfinished(path: Path) -> bool:
    """Whether the creation of this file was interrupted before anything was in it. Raises JournalError if it is absent
    or unreadable, JournalCorrupt if it is no SQLite file."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise JournalError(
            f"There is no journal at {path}.", hint="`optimize studies` lists those there are."
        ) from None
    except OSError as error:
        raise JournalError(
            f"{path} cannot be read: {error.strerror}.", hint="Check the folder's permissions."
        ) from error
    if not header:
        return True
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise JournalCorrupt(f"{path} is not a journal: it is no SQLite file.", hint="Name the folder of a study.")
    with explained(path), contextlib.closing(connected(path, write=False)) as connection:
        return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def holds_nothing(path: Path) -> bool:
    """Whether this file is a journal without an entry, or its creation was interrupted before that: whoever begins a study of its name may
    take it over. Raises as :func:`is_unfinished`."""
    if is_unfinished(path):
        return True
    with explained(path), contextlib.closing(connected(path, write=False)) as connection:
        if connection.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID:
            return False
        return connection.execute("SELECT 1 FROM entry LIMIT 1").fetchone() is None


def connected(path: Path, *, write: bool) -> sqlite3.Connection:
    """A connection in autocommit mode. A reader of a file that nobody writes pins it as immutable, so that nothing is
    created beside it and read-only media work."""
    if write:
        mode = "mode=rwc"
    elif has_wal(path):
        mode = "mode=ro"
    else:
        mode = "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True, isolation_level=None)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA foreign_keys = ON")
    if write:
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # NORMAL survives kill -9 but may lose commits on power loss
    return connection


def has_wal(path: Path) -> bool:
    """Whether newer entries may stand in the write-ahead log beside the file."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def is_pinned(connection: sqlite3.Connection) -> bool:
    """Whether the connection treats its file as immutable (then it sees no later writes)."""
    return connection.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal",)


@contextlib.contextmanager
def drafted(dest: Path) -> Iterator[sqlite3.Connection]:
    """A new database that appears as ``dest`` when the block ends well: whole, durable, and never over something that is
    there."""
    if dest.exists():
        raise JournalError(f"{dest} exists already.", hint="Export to another place.")
    dest.parent.mkdir(parents=True, exist_ok=True)
    draft = dest.with_name(f".{dest.name}.{os.getpid()}.part")
    try:
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as copy:
            yield copy
        descriptor = os.open(draft, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(draft, dest)  # unlike rename, refuses to overwrite
        sync_folder(dest.parent)
    except FileExistsError:
        raise JournalError(f"{dest} exists already.", hint="Export to another place.") from None
    finally:
        draft.unlink(missing_ok=True)


def closed_copy(connection: sqlite3.Connection, dest: Path) -> None:
    """Copy the database to ``dest`` by SQLite's backup interface, as one file without a write-ahead log."""
    with drafted(dest) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
        # The writer of the original does not hold the copy.
        copy.execute("UPDATE lease SET released_utc = at_utc WHERE released_utc IS NULL")


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise refused(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise AnotherWriter(
                f"{path} is locked by another process ({error}).", hint="Close the program that uses it."
            ) from error
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise JournalCorrupt(
                f"{path} is damaged: {error}.", hint="Restore the study's folder from a copy."
            ) from error
        if name.startswith("SQLITE_FULL"):
            raise JournalError(
                f"No space left for {path}; the entry was not written.",
                hint="Free some disk space, then `optimize resume`.",
            ) from error
        if name.startswith(("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            raise JournalError(
                f"{path} cannot be written or read: {error}.",
                hint="Check the disk and the folder's permissions, then `optimize resume`.",
            ) from error
        raise JournalError(
            f"SQLite refuses to use {path}: {error}.", hint="This is a bug; please report it."
        ) from error
