"""A whole study over SSH, from `~/.ssh/config` to the report; then what goes wrong on the way to a box."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest

from tests.e2e.fastbox import FastBox, check_ledger, entries, listening
from tests.e2e.sshbox import ALIAS, SshBox, ssh_server
from tests.ssh.conftest import SSHD, Sshd
from tests.unit.transport.conftest import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROMOTED = [{"disable_cuda_graph": None, "disable_decode_cuda_graph": None}]


@pytest.fixture
async def server(box: FastBox) -> AsyncIterator[Server]:
    async with ssh_server(box) as one:
        yield one


@pytest.fixture
def there(server: Server, box: FastBox) -> SshBox:
    return SshBox(box, "tester", server.port, server.key_file, server.known_hosts)


@pytest.fixture
def sshd(tmp_path: Path, box: FastBox) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.skip("no sshd here: install Debian's openssh-server to run a study against a real SSH server")
    folder = tmp_path / "sshd"
    folder.mkdir()
    one = Sshd(folder)
    one.start(**box.env)
    yield one
    one.stop()


async def test_a_study_over_ssh(there: SshBox, server: Server) -> None:
    done = await asyncio.to_thread(there, *there.study("remote", "--finish", "restore"))
    assert done.exit == 0, done.err
    assert done.decision == ("met", PROMOTED)
    there.box.assert_clean()
    check_ledger(there.box, "remote")
    assert len(there.box.starts()) == 3
    assert len(set(server.commands)) == 1, "one constant command, whatever the values"
    assert not (there.client / ".optimizer").exists(), "nothing of the box's on this side"
    replayed = await asyncio.to_thread(there, "replay", "remote", "--verify", "--json")
    assert replayed.json["identical"]


@pytest.mark.fault("F4", "F5")
async def test_a_link_that_breaks_in_every_step_costs_nothing_but_time(there: SshBox, server: Server) -> None:
    """Connections are cut again and again; the study ends as if they had held."""
    working = asyncio.create_task(asyncio.to_thread(there, *there.study("cut", "--finish", "restore")))
    cuts = 0
    # Apart enough for a step to end in between on a busy machine: one that is cut at every attempt asks for a person, rightly.
    pauses_s = itertools.chain((4.1, 13.3, 9.7, 7.1), itertools.repeat(5.3))
    while not working.done() and cuts < 4:
        await asyncio.sleep(next(pauses_s))
        if server.connections and not working.done():
            server.drop()
            cuts += 1
    done = await working
    assert cuts >= 3
    assert done.exit == 0, done.err
    assert done.decision == ("met", PROMOTED)
    there.box.assert_clean()
    check_ledger(there.box, "cut")
    unknown = [entry for entry in entries(there.box.runs / "cut") if entry.kind == "outcome" and entry.body["outcome"]["status"] == "unknown"]
    assert unknown, "no step ever lost its link"
    replayed = await asyncio.to_thread(there, "replay", "cut", "--verify", "--json")
    assert replayed.json["identical"]


def test_a_study_through_a_real_sshd(sshd: Sshd, box: FastBox) -> None:
    there = SshBox(box, sshd.user, sshd.port, sshd.key_file, sshd.known_hosts)
    box.serve()
    words = box.study("real", "--finish", "restore", host=ALIAS, launch=False)
    (box.here / "hosts" / f"{ALIAS}.toml").unlink()  # the server that runs there is found, not described
    assert there(*words, OPTIMIZER_CRASH_AT="box.launch.after:2").exit == -9
    done = there("resume", "real", "--json")
    assert done.exit == 0, done.err
    assert done.decision == ("met", PROMOTED)
    box.assert_clean(serving=True)
    assert box.serving_argv() == [box.argv]
    check_ledger(box, "real")
    assert there("replay", "real", "--verify", "--json").json["identical"]


# ---- what goes wrong on the way there ---------------------------------------------------------------------------------


async def refused(there: SshBox, *said: str, code: int = 4) -> None:
    done = await asyncio.to_thread(there, *there.study("never"))
    assert done.exit == code, done.err
    assert "Traceback" not in done.err
    for text in said:
        assert text in done.err, done.err
    assert not list(there.box.runs.glob("*")), "nothing was begun, so nothing is kept"
    there.box.assert_clean()
    assert there.box.starts() == []


async def test_a_refused_key(there: SshBox) -> None:
    other = there.client / ".ssh/other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(other))
    config = there.client / ".ssh/config"
    config.write_text(config.read_text().replace(str(there.key_file), str(other)))
    await refused(there, "accepted none of your SSH keys", "ssh-add")


@pytest.mark.fault("F2")
async def test_a_changed_host_key(there: SshBox) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    (there.client / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{there.port} {other}")
    await refused(there, "another host key", "ssh-keygen -R")


async def test_an_unknown_host_key(there: SshBox) -> None:
    (there.client / ".ssh/known_hosts").write_text("")
    await refused(there, "not among your known hosts", f"ssh {ALIAS}")


@pytest.mark.fault("F12")
async def test_no_python_on_the_box(there: SshBox, server: Server) -> None:
    server.shell = ["/bin/sh", "-c", "PATH=/nowhere; eval \"$0\""]
    await refused(there, "no usable Python", "install")


@pytest.mark.fault("F1")
async def test_nobody_listens(there: SshBox) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        config = there.client / ".ssh/config"
        config.write_text(config.read_text().replace(f"Port {there.port}", f"Port {probe.getsockname()[1]}"))
        await refused(there, "refuses SSH connections")


async def test_a_name_that_does_not_resolve(there: SshBox) -> None:
    config = there.client / ".ssh/config"
    config.write_text(config.read_text().replace("HostName 127.0.0.1", "HostName no-such-box.invalid"))
    await refused(there, "does not resolve")


async def test_an_ssh_configuration_that_cannot_be_read(there: SshBox) -> None:
    (there.client / ".ssh/config").write_text(f"Host {ALIAS}\n  Port many\n")
    await refused(there, "configuration", "~/.ssh/config")


@pytest.mark.fault("F9")
async def test_a_login_that_talks(there: SshBox, server: Server) -> None:
    """A noisy `.bashrc` does not disturb; what the box has is read all the same."""
    server.shell = ["/bin/sh", "-c", "echo Welcome to the machine; echo '@@nonce reply 3'; eval \"$0\""]
    done = await asyncio.to_thread(there, "plan", *there.study("never")[1:3], "--target", "170tps@8", "--json")
    assert done.exit == 0, done.err
    assert done.json["engine"] == "sglang" and done.json["first_command"]
    assert not listening(there.box.port)
    with contextlib.suppress(FileNotFoundError):
        assert there.box.leftovers() == []
