"""After a load that came to nothing each part of a launch is asked whether it still answers: real sockets, one of which hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from optimizer.engines.registry import engine
from optimizer.runner import silence
from optimizer.runner.context import Served, Worker
from optimizer.runner.silence import silent_part


class Here:
    """A box whose ports are this machine's."""

    api_key = None

    async def forward(self, port: int) -> tuple[str, int]:
        return "127.0.0.1", port


@pytest.fixture
async def listening() -> AsyncIterator[Callable[..., Any]]:
    """await listening(status) -> the port of a server that answers everything with it, or of one that hangs (None)."""
    servers = []

    async def made(status: int | None) -> int:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            if status is None:
                await asyncio.sleep(60)
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % (status or 0))
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield made
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("prefill", "decode", "router", "expected"),
    [
        (200, 200, 200, ""),
        (200, None, 503, "decode on port"),
        (503, 200, 503, "prefill on port"),
        (200, 200, None, "The router on port"),
        (200, 200, 503, ""),
    ],
)
async def test_the_part_that_hangs_is_named(listening: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, prefill: int, decode: int | None, router: int | None, expected: str) -> None:
    monkeypatch.setattr(silence, "PAUSE_S", 0.0)
    adapter = Quick(engine("sglang"))
    workers = [Worker(name=name, role=name, port=await listening(status), argv=(), env={}) for name, status in (("decode", decode), ("prefill", prefill))]
    served = Served(port=await listening(router), model="m", workers=tuple(workers))
    said = await silent_part(Here(), adapter, served)  # type: ignore[arg-type]
    assert said.startswith(expected) and bool(said) == bool(expected)


class Quick:
    """The engine, with less patience for one health check."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def ready(self, *where: Any) -> Any:
        return self.real.ready(*where).model_copy(update={"timeout_s": 1.0})
