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


@pytest.mark.parametrize("later_s", [0.0, 0.5])
async def test_calls_that_find_one_connection_dead_go_on_over_one_new_one(server: Server, monkeypatch: pytest.MonkeyPatch, later_s: float) -> None:
    """At the same moment, or one of them when the other has made the new one: it must neither trip over nor end that."""
    transport = server.client()
    await transport.connect()
    first, real, waits = transport._connection, SSHTransport._execute, [0.0, later_s]

    async def execute(connection: asyncssh.SSHClientConnection, *given: object) -> object:
        if connection is first:
            await asyncio.sleep(waits.pop(0))
            raise ssh._NotStarted("the connection ended")
        return await real(connection, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(SSHTransport, "_execute", staticmethod(execute))
    program = b"print('here')"
    job = b"%d\n" % len(program) + program
    done = await asyncio.wait_for(asyncio.gather(transport.run(job, 20), transport.run(job, 20)), 30)
    assert [one.stdout for one in done] == [b"here\n"] * 2
    second = transport._connection
    assert first is not None and first.is_closed() and second is not None and second is not first and not second.is_closed()
    await transport.close()
