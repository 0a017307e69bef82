"""An SSH server inside the test process: it runs the client's command through a login shell of choice, in a scratch home."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from optimizer.transport.ssh import SSHTransport


class Server:
    """``shell`` and ``env`` may be changed between calls; ``commands`` records what clients asked to run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.shell = ["sh", "-c"]
        self.env: dict[str, str] = {}
        self.commands: list[str] = []
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key = asyncssh.generate_private_key("ssh-ed25519")
        self.known_hosts = folder / "known_hosts"
        self.key_file = folder / "id_ed25519"
        self.client_key.write_private_key(str(self.key_file))
        self.key_file.chmod(0o600)
        self.port = 0
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._children: list[asyncio.subprocess.Process] = []

    async def start(self, port: int = 0) -> None:
        outer = self

        class Recorder(asyncssh.SSHServer):
            def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
                outer.connections.append(conn)

            def connection_requested(self, *_: Any) -> bool:
                return True  # port forwarding

        self._acceptor = await asyncssh.listen(
            "127.0.0.1", port, server_factory=Recorder, server_host_keys=[self.host_key], process_factory=self._run,
            authorized_client_keys=asyncssh.import_authorized_keys(self.client_key.export_public_key().decode()), encoding=None,
        )  # fmt: skip
        self.port = self._acceptor.get_port()
        self.trust(self.host_key)

    def trust(self, key: asyncssh.SSHKey) -> None:
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key.export_public_key().decode()}")

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self.commands.append(process.command or "")
        # A real python3 first: version managers put shell scripts in its place, which would read our noisy files too.
        path = f"{sys.base_prefix}/bin:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "HOME": str(self.home), **self.env}
        child = await asyncio.create_subprocess_exec(
            *self.shell, process.command or "", env=env, cwd=self.home,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert child.stdin and child.stdout and child.stderr
        self._children.append(child)

        async def feed() -> None:
            with contextlib.suppress(OSError, asyncssh.Error):
                while data := await process.stdin.read(1 << 16):
                    child.stdin.write(data)
                    await child.stdin.drain()
            child.stdin.close()

        async def copy(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
            with contextlib.suppress(OSError, asyncssh.Error):
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()

        feeding = asyncio.ensure_future(feed())
        await asyncio.gather(copy(child.stdout, process.stdout), copy(child.stderr, process.stderr))
        process.exit(await child.wait())
        feeding.cancel()

    async def stop(self) -> None:
        for connection in self.connections:
            connection.abort()
        self.connections.clear()
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
            child._transport.close()  # type: ignore[attr-defined]  # its pipes, before the loop is closed

    def drop(self) -> None:
        """As a network that fails: no goodbye."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()

    def client(self, **options: Any) -> SSHTransport:
        return SSHTransport(
            "127.0.0.1", user="tester", port=self.port, config=[],
            **{"known_hosts": str(self.known_hosts), "client_keys": [self.client_key], "agent_path": None, **options},
        )  # fmt: skip


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    one = Server(tmp_path)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Callable[..., SSHTransport]]:
    made: list[SSHTransport] = []

    def make(**options: Any) -> SSHTransport:
        made.append(server.client(**options))
        return made[-1]

    yield make
    for transport in made:
        await transport.close()
