"""The constant command through any login shell, and one clear error for each way in which SSH can fail."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from optimizer.box.box import Box
from optimizer.errors import AuthRefused, BoxError, HostKeyChanged, HostUnknown, LinkLost, PythonMissing, UsageError
from optimizer.transport.base import BOOTSTRAP, command
from optimizer.transport.connect import connect as connect_to
from optimizer.transport.local import LocalTransport
from optimizer.transport.ssh import PYTHONS, SSHTransport

from .conftest import Server

Connect = Callable[..., SSHTransport]
SHELLS = ["sh", "bash", "dash", "zsh", "fish", "tcsh"]


def test_the_command_is_constant_and_harmless_to_every_shell() -> None:
    line = command()
    assert line == f"python3 -I -c '{BOOTSTRAP}'"
    assert line.isascii() and not set(line) & set('!\\$\n`"*?~{}')
    assert line.count("'") == 2


@pytest.mark.fault("F10", "H13", "H14", "H15", "H16", "H17")
@pytest.mark.parametrize("shell", SHELLS)
async def test_login_shells(server: Server, connect: Connect, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    server.shell = [shell, "-c"]
    hostile = ["; rm -rf ~", "$(id)", "`id`", "two\nlines", "-x", "it's", 'say "x"', "!!", "\\", "bad \udcff"]
    output = await Box(connect()).command(["printf", "%s\\0", *hostile])
    assert output.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] == hostile
    assert set(server.commands) == {command()}  # no value ever travelled in a command line


@pytest.mark.fault("F9")
async def test_noisy_login_script(server: Server, connect: Connect) -> None:
    noise = server.folder / "rc"
    noise.write_text(
        "echo 'Welcome to the box!'; echo '@@00 reply 2'; echo '{}'; printf 'no line end \\377'; echo oops >&2\n"
    )
    server.shell, server.env = ["bash", "-c"], {"BASH_ENV": str(noise)}
    assert (await Box(connect()).command(["echo", "hi"])).stdout == b"hi\n"


async def test_unknown_name() -> None:
    with pytest.raises(HostUnknown, match="does not resolve"):
        await SSHTransport("no-such-host.invalid", config=[]).connect()


@pytest.mark.fault("F1")
async def test_refused_connection(server: Server, connect: Connect) -> None:
    await server.stop()
    with pytest.raises(HostUnknown, match="refuses"):
        await connect().connect()


async def test_silent_host(connect: Connect) -> None:
    """Accepts the connection and never says a word."""
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    transport = SSHTransport("127.0.0.1", port=port, config=[], connect_timeout=0.3, login_timeout=0.3)
    with pytest.raises(HostUnknown):
        await transport.connect()
    silent.close()


@pytest.mark.fault("F2")
async def test_changed_host_key(server: Server, connect: Connect) -> None:
    server.trust(asyncssh.generate_private_key("ssh-ed25519"))
    with pytest.raises(HostKeyChanged, match="another host key"):
        await connect().connect()
    assert server.commands == []


async def test_unknown_host_key(server: Server, connect: Connect) -> None:
    server.known_hosts.write_text("")
    with pytest.raises(HostKeyChanged, match="not among your known hosts") as caught:
        await connect().connect()
    assert "Connect once with `ssh" in caught.value.hint


async def test_host_keys_are_always_checked(server: Server) -> None:
    with pytest.raises(ValueError, match="known_hosts=None"):
        server.client(known_hosts=None)


async def test_refused_key(server: Server, connect: Connect) -> None:
    with pytest.raises(AuthRefused, match="accepted none of your SSH keys"):
        await connect(client_keys=[asyncssh.generate_private_key("ssh-ed25519")]).connect()


async def test_broken_ssh_config(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  Port many\n")
    with pytest.raises(BoxError):
        await SSHTransport("127.0.0.1", config=[config]).connect()


async def test_user_port_key_and_jump_host_from_the_ssh_config(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "config"
    entry = f"  HostName 127.0.0.1\n  Port {server.port}\n  User tester\n  IdentityFile {server.key_file}\n"
    entry += f"  UserKnownHostsFile {server.known_hosts}\n"
    config.write_text(f"Host gate\n{entry}\nHost box\n{entry}  ProxyJump gate\n")
    transport = SSHTransport("box", config=[config], agent_path=None)
    try:
        assert (await Box(transport).hello()).home == str(server.home)
        assert len(server.connections) == 2  # the gate, and the box through it
    finally:
        await transport.close()


def fake_path(server: Server, **programs: str) -> None:
    """A PATH with nothing but these programs, each a shell script."""
    folder = server.folder / "bin"
    folder.mkdir()
    for name, text in programs.items():
        (folder / name.replace("_", ".")).write_text("#!/bin/sh\n" + text)
        (folder / name.replace("_", ".")).chmod(0o755)
    server.shell, server.env = ["/bin/sh", "-c"], {"PATH": str(folder)}


@pytest.mark.fault("F12")
async def test_no_python(server: Server, connect: Connect) -> None:
    fake_path(server)
    with pytest.raises(PythonMissing, match="not found") as caught:
        await connect().connect()
    assert "install python3" in caught.value.hint
    assert len(server.commands) == len(PYTHONS)


@pytest.mark.fault("F12")
async def test_old_python3_and_a_newer_one_beside_it(server: Server, connect: Connect) -> None:
    real = f"{sys.base_prefix}/bin/python3"
    fake_path(server, python3="exit 64\n", python3_11=f'exec {real} "$@"\n')
    transport = connect()
    assert (await Box(transport).command(["/bin/echo", "hi"])).stdout == b"hi\n"
    assert server.commands[-1].startswith("python3.11 ")


@pytest.mark.fault("F10")
async def test_account_without_a_shell(server: Server, connect: Connect) -> None:
    server.shell = ["sh", "-c", "echo This account is currently not available.; exit 1"]
    with pytest.raises(PythonMissing, match="not available"):
        await connect().connect()


@pytest.mark.fault("F9")
@pytest.mark.parametrize(
    ("start_file", "told"),
    [("cat >/dev/null;", "read the standard input"), ("exec >/dev/null;", "keep the answer"), ("exit 3;", "exit status 3"),
     ("exec sh 2>/dev/null;", "another shell|exit status")],
)  # fmt: skip
async def test_start_files_that_get_in_the_way_are_named(server: Server, connect: Connect, start_file: str, told: str) -> None:
    """Not a Python that is missing, which the person would install in vain."""
    server.shell = ["sh", "-c", f'{start_file} eval "$0"']
    with pytest.raises(PythonMissing, match=told) as caught:
        await connect().connect()
    assert "install" not in str(caught.value) and "interactive shells only" in caught.value.hint


async def test_link_that_dies_in_mid_call(server: Server, connect: Connect) -> None:
    box = Box(connect())
    await box.hello()
    call = asyncio.ensure_future(box.command(["sleep", "8"]))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    server.drop()
    with pytest.raises(LinkLost, match="unknown") as caught:
        await call
    assert caught.value.retryable and time.monotonic() - began < 5
    # ... and the next call connects again.
    assert (await box.command(["echo", "back"])).stdout == b"back\n"


async def test_link_that_cannot_be_made_again_is_lost_not_unknown(server: Server, connect: Connect) -> None:
    box = Box(connect())
    await box.hello()
    await server.stop()
    with pytest.raises(LinkLost, match="could not be made again"):
        await box.hello()


@pytest.mark.fault("F3")
async def test_a_key_that_is_taken_away_in_mid_study(server: Server, connect: Connect) -> None:
    """Neither lost nor unknown: the next call says that no key is accepted, and nothing is tried again by itself."""
    box = Box(connect())
    await box.hello()
    port, asked = server.port, len(server.commands)
    await server.stop()
    server.client_key = asyncssh.generate_private_key("ssh-ed25519")  # what the server accepts from now on
    await server.start(port)
    with pytest.raises(AuthRefused, match="accepted none of your SSH keys") as refused:
        await box.hello()
    assert not refused.value.retryable and len(server.commands) == asked


@pytest.mark.fault("F5")
async def test_a_link_that_dies_while_a_job_runs_ends_the_job(server: Server, connect: Connect) -> None:
    """Half a window is never joined to another: the load ends with its link, and whoever asked is told that it is unknown."""
    box, lines = Box(connect()), []
    job = b"import os,time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    call = asyncio.ensure_future(box.run_job(job, b"", "s1:9-load", 50, lines.append))
    while not lines:
        await asyncio.sleep(0.02)
    server.drop()
    with pytest.raises(LinkLost):
        await call
    assert (await box.sweep("s1:9-load", term_s=1, gpu_wait_s=0)).clean
    assert not Path(f"/proc/{int(lines[0])}").exists()


async def test_box_that_stalls_is_given_up(server: Server, connect: Connect) -> None:
    server.env = {}
    transport = connect()
    await transport.connect()
    program = b"import time\ntime.sleep(30)\n"
    done = await transport.run(b"%d\n" % len(program) + program, 0.5)
    assert done.timed_out and done.exit is None


async def test_output_is_bytes_and_bounded_only_by_the_reader(connect: Connect) -> None:
    transport = connect()
    program = (
        b"import sys\nsys.stdout.buffer.write(bytes(range(256)) * 1000)\nsys.stderr.write('e' * 200000)\nsys.exit(5)\n"
    )
    done = await transport.run(b"%d\n" % len(program) + program, 20)
    assert (
        done.exit == 5 and done.stdout == bytes(range(256)) * 1000 and len(done.stderr) <= 65536 and not done.timed_out
    )
    pieces: list[bytes] = []
    done = await transport.run(b"%d\n" % len(program) + program, 20, pieces.append)
    assert b"".join(pieces) == bytes(range(256)) * 1000 and done.stdout == b""


async def test_an_error_of_the_reader_is_raised_and_ends_the_command(connect: Connect) -> None:
    def refuse(data: bytes) -> None:
        raise MemoryError("too much")

    program = b"import time\nprint('x', flush=True)\ntime.sleep(30)\n"
    for transport in (connect(), LocalTransport()):
        began = time.monotonic()
        with pytest.raises(MemoryError):
            await transport.run(b"%d\n" % len(program) + program, 20, refuse)
        assert time.monotonic() - began < 5


async def test_forwarded_port(connect: Connect) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"pong")
        writer.close()

    there = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = there.sockets[0].getsockname()[1]
    transport = connect()
    host, local = await transport.forward(port)
    assert local != port and (host, local) == await transport.forward(port)
    reader, writer = await asyncio.open_connection(host, local)
    assert await reader.read() == b"pong"
    writer.close()
    there.close()


@pytest.mark.fault("H23")
@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "-oProxyCommand=x", "a%b", "a@b@c", "@x", "a\nb", "x;y", "host:99999999", "sim:x/..", "a/b"],
)
async def test_what_is_no_host_name_is_refused_before_anything_is_opened(name: str) -> None:
    with pytest.raises(UsageError, match="no host name"):
        await connect_to(name)


async def test_localhost_needs_no_ssh() -> None:
    assert isinstance(await connect_to("localhost"), LocalTransport)
