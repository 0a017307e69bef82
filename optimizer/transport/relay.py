"""Ports of a container that shares no network with its host: each connection to a port here becomes one run of a small program
inside, which connects there and passes the bytes on both ways. It carries bytes and understands none of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from optimizer.errors import OptimizerError

_CHUNK = 1 << 16
# Runs inside, Python 3.8 or newer: standard input to the port, the port to standard output.
_PROGRAM = """
import os, socket, sys, threading
port = int(sys.stdin.buffer.readline())
there = socket.create_connection(("127.0.0.1", port), 10)
there.settimeout(None)
def send():
    while True:
        data = sys.stdin.buffer.read1(65536)
        if not data:
            break
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while True:
    data = there.recv(65536)
    if not data:
        break
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
os._exit(0)
"""


class _Writer(Protocol):
    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...


class Stream(NamedTuple):
    """A running command: its output, its input, how to close that input, and how to give the whole thing up."""

    read: Callable[[int], Awaitable[bytes]]
    writer: _Writer
    end_input: Callable[[], None]
    leave: Callable[[], Awaitable[None]]


def opening(port: int) -> bytes:
    """What the constant command reads first: the program, then the port; the connection's own bytes follow."""
    program = _PROGRAM.encode("ascii")
    return b"%d\n" % len(program) + program + b"%d\n" % port


class Relay:
    """Listens on a free port of this machine's loopback until ``close``."""

    def __init__(self, start: Callable[[], Awaitable[Stream]], port: int) -> None:
        self._start, self._port = start, port
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._pass_on(reader, writer)
        finally:
            self._running.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inside = await self._start()
        except (OSError, OptimizerError):
            return  # the caller sees a connection that closes, as from a port where nobody listens

        async def upwards() -> None:
            with contextlib.suppress(OSError):
                inside.writer.write(opening(self._port))
                while data := await reader.read(_CHUNK):
                    inside.writer.write(data)
                    await inside.writer.drain()
                inside.end_input()

        sending = asyncio.create_task(upwards())
        try:
            with contextlib.suppress(OSError):
                while data := await inside.read(_CHUNK):
                    writer.write(data)
                    await writer.drain()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await inside.leave()
