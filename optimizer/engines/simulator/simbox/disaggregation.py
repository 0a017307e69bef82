"""The two sides of a split, prefill and decode, as the engine has them: the prefill side runs a bootstrap server, a request
carries its address and a room, and the KV cache of that room travels when the prompt is done. What RDMA does between real
ones is one HTTP request per room here (``/kv``); ``/route`` answers as the engine's own bootstrap server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

FAKE_HOST = "2.2.2.2"  # what the engine's own health requests name instead of a prefill server
NO_ROOM = "Disaggregated request received without bootstrap room id. request.rid={}"
LINK_BYTES_PER_S = 40e9  # one 400 Gbit/s card, less its overhead
SETUP_S = 0.0015
ROUTE = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"


def transfer_s(box: Mapping[str, Any], kv_bytes: float) -> float:
    """Virtual seconds until the KV cache of one prompt is on the other side."""
    return SETUP_S + kv_bytes / float(box.get("disaggregation", {}).get("link_bytes_per_s", LINK_BYTES_PER_S))


class PrefillSide:
    """The bootstrap server. A room is known from the arrival of its request on either side."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._info = {
            "attn_tp_size": args["tp_size"], "attn_cp_size": 1, "dp_size": args["dp_size"], "pp_size": args["pp_size"], "page_size": args["page_size"],
            "kv_cache_dtype": args["kv_cache_dtype"], "follow_bootstrap_room": True, "prefill_http_port": args["port"],
        }  # fmt: skip
        self._host, self._port = str(args["host"]), int(args["disaggregation_bootstrap_port"])
        self._rooms: dict[int, asyncio.Future[int]] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Raises OSError where the port is taken."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def done(self, room: int, tokens: int) -> None:
        """The KV cache of this room can be fetched."""
        future = self._room(room)
        if not future.done():
            future.set_result(tokens)

    @property
    def inflight(self) -> int:
        """Prompts that are done and whose KV cache nobody has fetched yet."""
        return sum(1 for future in self._rooms.values() if future.done())

    def _room(self, room: int) -> asyncio.Future[int]:
        if room not in self._rooms:
            self._rooms[room] = asyncio.get_running_loop().create_future()
        return self._rooms[room]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            words = (await reader.readuntil(b"\r\n\r\n")).split(b" ")
            asked = urlsplit(words[1].decode("latin-1"))
            query = {name: values[0] for name, values in parse_qs(asked.query).items()}
            status, body = await self._answer(asked.path, query)
            writer.write(b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
            pass  # a client that hung up or spoke no HTTP
        finally:
            writer.close()

    async def _answer(self, path: str, query: Mapping[str, str]) -> tuple[int, bytes]:
        if path == "/health":
            return 200, b"OK"
        if path == "/route":
            names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
            if not all(query.get(name) for name in names):
                return 400, b"Missing inputs for bootstrap server."
            return 200, json.dumps(self._info).encode()
        if path == "/kv" and query.get("room", "").isdigit():
            room = int(query["room"])
            try:
                return 200, b"%d" % await asyncio.wait_for(self._room(room), 300.0)
            finally:
                self._rooms.pop(room, None)
        return 404, b""


class DecodeSide:
    """Fetches KV caches; each prefill server is asked for its layout once."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._args = args
        self._known: set[tuple[str, int]] = set()
        self.transferring = 0

    async def fetch(self, host: str, port: int, room: int) -> int:
        """Tokens of the prompt whose KV cache has arrived. Raises OSError or ValueError where it never will."""
        self.transferring += 1
        try:
            if (host, port) not in self._known:
                info = json.loads(await _get(host, port, ROUTE))
                if info["page_size"] != self._args["page_size"] or info["kv_cache_dtype"] != self._args["kv_cache_dtype"]:
                    raise ValueError("prefill and decode differ in page size or KV cache type")
                self._known.add((host, port))
            return int(await _get(host, port, f"/kv?room={room}"))
        finally:
            self.transferring -= 1


async def _get(host: str, port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = head.split(b" ")[1:2]
    if status != [b"200"]:
        raise ConnectionError(f"the bootstrap server {host}:{port} answered {b''.join(status).decode('latin-1') or 'nothing'}")
    return body
