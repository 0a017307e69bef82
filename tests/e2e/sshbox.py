"""The fast box behind SSH: a client home with ``~/.ssh`` and a host file, as a person would have them. The server is either an
asyncssh server in this process or a real sshd."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.fastbox import Done, FastBox
from tests.unit.transport.conftest import Server

ALIAS = "gpu-box"


@asynccontextmanager
async def ssh_server(box: FastBox) -> AsyncIterator[Server]:
    """An SSH server in this process whose logins are the fast box's."""
    folder = box.folder / "asyncssh"
    folder.mkdir()
    one = Server(folder)
    one.env = dict(box.env)
    await one.start()
    yield one
    await one.stop()


@dataclass
class SshBox:
    """``box`` as reached through ``~/.ssh/config`` of ``client``. ``user``, ``port`` and keys are the server's."""

    box: FastBox
    user: str
    port: int
    key_file: Path
    known_hosts: Path
    alias: str = ALIAS

    def __post_init__(self) -> None:
        self.client = self.box.folder / "client"
        ssh = self.client / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        (ssh / "config").write_text(
            f"Host {self.alias}\n  HostName 127.0.0.1\n  Port {self.port}\n  User {self.user}\n  IdentityFile {self.key_file}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {ssh}/known_hosts\n"
        )
        (ssh / "known_hosts").write_bytes(self.known_hosts.read_bytes())
        hosts = self.box.here / "hosts"
        hosts.mkdir()
        argv = ", ".join(json.dumps(word) for word in self.box.argv)
        (hosts / f"{self.alias}.toml").write_text(f"launch = [{argv}]\ncwd = {json.dumps(str(self.box.home))}\n")

    @property
    def env(self) -> dict[str, str]:
        """The tool's own environment: nothing of the box's."""
        return {"HOME": str(self.client), "PYTHONPATH": "", "PATH": "/usr/bin:/bin"}

    def study(self, name: str, *words: str) -> list[str]:
        """The words of a `run` whose server is described by ``hosts/ALIAS.toml``."""
        all_words = self.box.study(name, *words, host=self.alias)
        at = all_words.index("--launch")
        return all_words[:at] + all_words[at + 2 :]

    def __call__(self, *words: str, **env: str) -> Done:
        return self.box(*words, **{**self.env, **env})
