"""When a piece of an answer came: as the kernel received it, not when this process got round to reading it."""

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from optimizer.bench.plain.wires import Wire, Wires

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stamps are Linux's")


class Heard:
    """Stands where a connection stands."""

    def __init__(self) -> None:
        self.pieces, self.lost = list[tuple[bytes, float]](), list[object]()

    def connection_made(self, wire: Any) -> None:
        self.wire = wire

    def received(self, data: bytes, now: float) -> None:
        self.pieces.append((data, now))

    def connection_lost(self, error: object) -> None:
        self.lost.append(error)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as mine:
        theirs, _ = listener.accept()
        mine.setblocking(False)
        with theirs:
            yield mine, theirs


def test_a_late_reader_says_when_it_came(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = pair
    loop = asyncio.new_event_loop()
    wires = Wires(loop)  # type: ignore[no-untyped-call]

    async def run() -> tuple[Heard, float]:
        heard = Heard()
        Wire(wires, mine, heard)  # type: ignore[no-untyped-call]
        await asyncio.sleep(0.02)  # the first stamp of a machine switches stamping on
        theirs.send(b"first")
        await asyncio.sleep(0.02)
        sent = time.monotonic()
        theirs.send(b"second")
        time.sleep(0.2)  # busy elsewhere
        await asyncio.sleep(0.02)
        theirs.close()
        await asyncio.sleep(0.02)
        return heard, sent

    try:
        heard, sent = loop.run_until_complete(run())
    finally:
        wires.close()  # type: ignore[no-untyped-call]
        loop.close()
    assert wires.told
    assert [data for data, _ in heard.pieces] == [b"first", b"second"]
    assert 0 <= heard.pieces[1][1] - sent + 0.0005 < 0.1  # half of what it was late, and never before it was sent
    assert heard.lost == [None] and heard.wire.is_closing()


def test_more_than_the_socket_takes_at_once_is_sent_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = pair
    loop = asyncio.new_event_loop()
    wires = Wires(loop)  # type: ignore[no-untyped-call]
    message = bytes(range(256)) * 40_000

    async def run() -> bytes:
        wire: Any = Wire(wires, mine, Heard())  # type: ignore[no-untyped-call]
        wire.write(message[:9_000_000])
        wire.write(message[9_000_000:])
        theirs.setblocking(False)
        got = b""
        while len(got) < len(message):
            got += await asyncio.wait_for(loop.sock_recv(theirs, 1 << 20), 5)
        wire.abort()
        await asyncio.sleep(0)
        return got

    try:
        assert loop.run_until_complete(run()) == message
    finally:
        wires.close()  # type: ignore[no-untyped-call]
        loop.close()
