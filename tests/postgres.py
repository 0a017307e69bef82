"""A real PostgreSQL server for tests: in a scratch folder, on a port of its own, ended with the process that started it. Where
none is installed, the tests that need it skip and say how to install it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from optimizer.journal.place import Database, database
from tests.ports import free_port

FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)) if Path("/usr/lib/postgresql").is_dir() else []
MISSING = "no PostgreSQL server is installed: apt-get install postgresql (or set OPTIMIZE_TEST_POSTGRES to the folder of initdb and postgres)"
HBA = """
local all all trust
host all guarded 127.0.0.1/32 scram-sha-256
host all nobodys 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
"""
CONFIG = """
listen_addresses = '127.0.0.1'
fsync = off
full_page_writes = off
shared_buffers = 16MB
max_connections = 60
jit = off
autovacuum = off
max_wal_size = 128MB
"""


def programs() -> Path | None:
    named = os.environ.get("OPTIMIZE_TEST_POSTGRES")
    if named:
        return Path(named)
    found = shutil.which("initdb")  # Debian keeps the server's programs off the path
    return FOLDERS[-1] if FOLDERS else Path(found).resolve().parent if found else None


def somebody() -> pwd.struct_passwd | None:
    """Whom the server runs as where this process is root, whom PostgreSQL refuses."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def unprivileged() -> list[str]:
    """Words that run a program as that user; it ends with this process."""
    user = somebody()
    switched = [] if user is None else [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["setpriv", *switched, "--pdeathsig", "INT"]


@dataclass
class Server:
    folder: Path
    bin: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def start(self) -> None:
        with (self.folder / "log").open("ab") as out:
            self.process = subprocess.Popen(
                [*unprivileged(), str(self.bin / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + 30
        while subprocess.run([self.bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False).returncode:
            assert time.monotonic() < end and self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.05)

    def stop(self, how: int = 3) -> None:
        """``how``: 2 ends sessions in order (SIGINT), 3 ends them at once (SIGQUIT, like a crash)."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def sql(self, statement: str, name: str = "postgres") -> str:
        """As the superuser, by the server's own client."""
        done = subprocess.run(
            [self.bin / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", name],
            input=statement, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ValueError(done.stderr)
        return done.stdout.strip()

    def new_database(self) -> Database:
        name = f"test{next(self.numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.database(name)

    def database(self, name: str, *, user: str = "postgres", password: str = "", port: int | None = None) -> Database:
        secret = f":{password}" if password else ""
        return database(f"postgresql://{user}{secret}@127.0.0.1:{port or self.port}/{name}")


def name_of(base: Database) -> str:
    return base.url.rpartition("/")[2]


@contextlib.contextmanager
def running() -> Iterator[Server]:
    found = programs()
    if found is None or not (found / "initdb").exists():
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="optimize-pg-"))
    (folder / "owner").write_text(str(os.getpid()))
    for old in folder.parent.glob("optimize-pg-*/owner"):  # of tests that were killed: their server has ended with them
        with contextlib.suppress(OSError):
            if not Path(f"/proc/{old.read_text()}").exists():
                shutil.rmtree(old.parent, ignore_errors=True)
    try:
        if (user := somebody()) is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        subprocess.run(
            [*unprivileged(), str(found / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True, capture_output=True, cwd=folder,
        )  # fmt: skip
        with (folder / "data" / "postgresql.conf").open("a") as config:
            config.write(CONFIG)
        (folder / "data" / "pg_hba.conf").write_text(HBA)
        server = Server(folder, found, free_port())
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Link:
    """A TCP link to a server that a test can cut: ``cut_when`` is given each message of the client and says "before" (it is never
    delivered), "after" (it is, and the answer is lost), or None."""

    def __init__(self, target_port: int) -> None:
        self.target = target_port
        self.cut_when: Callable[[bytes], str | None] = lambda data: None
        self.refusing = False
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.cuts = 0
        self.muted: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.target))
            self.pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                verdict = self.cut_when(data) if from_client else None
                if verdict == "before":
                    self.cuts += 1
                    break
                if verdict == "after":
                    self.cuts += 1
                    self.muted.add(sink)
                    sink.sendall(data)
                    time.sleep(0.1)  # the server acts on it, and nobody hears its answer
                    break
                if source not in self.muted:
                    sink.sendall(data)
        self.cut((source, sink))

    def cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut_all(self) -> None:
        for pair in self.pairs:
            self.cut(pair)
        self.pairs.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut_all()
