"""A reader that the SSH library leaves asleep when the link breaks."""

import asyncio

import asyncssh
import pytest

from optimizer.transport import ssh
from optimizer.transport.ssh import SSHTransport
from tests.unit.transport.conftest import Server


async def test_a_stream_that_outlives_its_connection_is_a_lost_link(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_STREAMS_END_S", 0.1)
    transport: SSHTransport = server.client()
    await transport.connect()
    connection = transport._connection
    assert connection is not None
    process = await connection.create_process("exec sleep 60", encoding=None)
    asleep = asyncio.create_task(asyncio.sleep(60))
    watching = asyncio.create_task(ssh._end_with_channel(connection, process, [asleep]))
    await asyncio.sleep(0.2)
    assert not watching.done()
    server.drop()
    with pytest.raises(asyncssh.ConnectionLost, match="its output did not"):
        await asyncio.wait_for(watching, 10)
    asleep.cancel()
    await transport.close()


async def test_a_command_that_is_being_opened_when_the_connection_ends_has_not_started(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_STREAMS_END_S", 0.1)
    transport = server.client()
    await transport.connect()
    connection = transport._connection
    assert connection is not None
    monkeypatch.setattr(connection, "create_process", lambda *_, **__: asyncio.sleep(60))
    opening = asyncio.create_task(ssh._open(connection, "true"))
    await asyncio.sleep(0.2)
    assert not opening.done()
    server.drop()
    with pytest.raises(ssh._NotStarted, match="the connection ended"):
        await asyncio.wait_for(opening, 10)
    await transport.close()


async def test_output_that_ends_with_its_channel_is_no_lost_link(server: Server) -> None:
    transport = server.client()
    await transport.connect()
    connection = transport._connection
    assert connection is not None
    process = await connection.create_process("echo done", encoding=None)
    reading = asyncio.create_task(process.stdout.read())
    await asyncio.wait_for(ssh._end_with_channel(connection, process, [reading]), 10)
    assert reading.result() == b"done\n"
    await transport.close()
