"""A real OpenSSH server on loopback, as this user, with throw-away keys and a scratch home."""

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from optimizer.transport.ssh import SSHTransport
from tests.ports import free_port

SSHD = shutil.which("sshd") or next(
    (path for path in ["/usr/sbin/sshd", "/usr/local/sbin/sshd"] if Path(path).exists()), None
)


class Sshd:
    """``set_env`` lines reach every session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.user = getpass.getuser()
        self.port = free_port()
        self.client_key = asyncssh.generate_private_key("ssh-ed25519")
        self.key_file = folder / "id_ed25519"
        self.client_key.write_private_key(str(self.key_file))
        self.key_file.chmod(0o600)
        (folder / "authorized_keys").write_bytes(self.client_key.export_public_key())
        self.known_hosts = folder / "known_hosts"
        self.process: subprocess.Popen[bytes] | None = None
        self.new_host_key()
        self.trust()

    def new_host_key(self) -> None:
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        path = self.folder / "host_key"
        path.unlink(missing_ok=True)
        self.host_key.write_private_key(str(path))
        path.chmod(0o600)

    def trust(self) -> None:
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_key.export_public_key().decode()}")

    def start(self, *lines: str, **set_env: str) -> None:
        """``lines``: more of its configuration."""
        env = {"HOME": str(self.home), "PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}", **set_env}
        config = self.folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host_key\nPidFile none\nStrictModes no\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100\n"
            "SetEnv " + " ".join(f'"{name}={value}"' for name, value in env.items()) + "\n"
            + "".join(f"{line}\n" for line in lines)
        )
        assert SSHD is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation folder
        log = (self.folder / "sshd.log").open("ab")
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.process.poll() is not None:
                break
            subprocess.run(["sleep", "0.02"], check=False)
        pytest.fail(f"sshd did not start: {(self.folder / 'sshd.log').read_text()}")

    def session_pids(self) -> list[int]:
        """The server's own processes that serve connections."""
        assert self.process is not None
        parents, found = [self.process.pid], []
        while parents:
            children = Path(f"/proc/{parents[0]}/task/{parents.pop(0)}/children")
            with contextlib.suppress(OSError):
                for pid in map(int, children.read_text().split()):
                    if b"sshd" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                        found.append(pid)
                        parents.append(pid)
        return found

    def kill_sessions(self) -> None:
        for pid in self.session_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.kill_sessions()
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.skip("no sshd here: install Debian's openssh-server to run the tests against a real SSH server")
    server = Sshd(tmp_path)
    yield server
    server.stop()
    mark = f"OPTIMIZER_ROOT={server.home}/.optimizer".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture
async def connect(sshd: Sshd) -> AsyncIterator[Callable[..., SSHTransport]]:
    made: list[SSHTransport] = []

    def make(**options: Any) -> SSHTransport:
        made.append(
            SSHTransport(
                "127.0.0.1",
                user=sshd.user,
                port=sshd.port,
                config=[],
                **{
                    "known_hosts": str(sshd.known_hosts),
                    "client_keys": [sshd.client_key],
                    "agent_path": None,
                    **options,
                },
            )
        )
        return made[-1]

    yield make
    for transport in made:
        await transport.close()
    await asyncio.sleep(0)
