"""SGLang's router as a process: ``python -m sglang_router.launch_router``. It speaks what version 0.3.2 speaks (recorded): waits for
its workers, gives each request a room, sends it to one prefill and one decode server and passes on what the decode server answers.
Plain workers share the requests in turn."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .ranks import retitle

DEFAULT_BOOTSTRAP_PORT = 8998
CHECK_EVERY_S = 0.2
GENERATE = ("/generate", "/v1/completions", "/v1/chat/completions")
BAD_PREFILL = "Prefill server error: error sending request for url ({}). This will cause decode timeout."


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch_router.py", description="SGLang Router - High-performance request distribution across worker nodes")
    parser.add_argument("--host", default="0.0.0.0", help="Host address to bind the router server.")
    parser.add_argument("--port", type=int, default=30000, help="Port number to bind the router server.")
    parser.add_argument("--worker-urls", nargs="*", default=[], help="List of worker URLs.")
    parser.add_argument("--pd-disaggregation", action="store_true", help="Enable PD (Prefill-Decode) disaggregated mode.")
    parser.add_argument("--prefill", nargs="+", action="append", default=[], help="Prefill server URL and optional bootstrap port.")
    parser.add_argument("--decode", nargs=1, action="append", default=[], help="Decode server URL.")
    choices = ["random", "round_robin", "cache_aware", "power_of_two"]
    for name in ("--policy", "--prefill-policy", "--decode-policy"):
        parser.add_argument(name, choices=choices, default="cache_aware" if name == "--policy" else None, help="Load balancing policy.")
    parser.add_argument("--worker-startup-timeout-secs", type=int, default=1800, help="Timeout in seconds for worker startup.")
    parser.add_argument("--worker-startup-check-interval", type=int, default=30, help="Interval in seconds between checks for worker startup.")
    parser.add_argument("--prometheus-port", type=int, default=29000, help="Port to expose Prometheus metrics.")
    parser.add_argument("--prometheus-host", default="0.0.0.0", help="Host address to bind the Prometheus metrics server.")
    parser.add_argument("--request-timeout-secs", type=int, default=1800, help="Request timeout in seconds.")
    parser.add_argument("--log-level", default="info", help="Log level.")
    parser.add_argument("--log-dir", default=None, help="Directory to store log files.")
    parser.add_argument("--api-key", default=None, help="The api key used for the authorization with the worker.")
    parser.add_argument("--disable-retries", action="store_true", help="Disable all retries.")
    parser.add_argument("--disable-circuit-breaker", action="store_true", help="Disable circuit breaker.")
    return parser


class Worker:
    def __init__(self, url: str, kind: str, bootstrap_port: int | None = None) -> None:
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise SystemExit(f"Error starting router: invalid worker URL {url!r}")
        self.url, self.kind, self.bootstrap_port = url.rstrip("/"), kind, bootstrap_port
        self.host, self.port = parts.hostname, parts.port
        self.healthy = False
        self.model = ""
        self.load = 0


class Answer:
    """Head of an answer; the body is read with ``pieces``."""

    def __init__(self, status: int, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status, self.head, self.reader, self.writer = status, head, reader, writer
        lines = {line.partition(b":")[0].strip().lower(): line.partition(b":")[2].strip() for line in head.split(b"\r\n")[1:]}
        self.chunked = lines.get(b"transfer-encoding", b"").lower() == b"chunked"
        self.length = int(lines.get(b"content-length", b"0") or 0)

    async def pieces(self) -> Any:
        """The body as it comes, in the framing in which it comes."""
        if not self.chunked:
            if self.length:
                yield await self.reader.readexactly(self.length)
            return
        while True:
            line = await self.reader.readline()
            size = int(line.split(b";")[0], 16)
            yield line + await self.reader.readexactly(size + 2)
            if size == 0:
                return

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])


async def send(worker: Worker, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Raises OSError or IncompleteReadError when nobody answers."""
    reader, writer = await asyncio.open_connection(worker.host, worker.port, limit=1 << 20)
    kept = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name in ("authorization", "content-type"))
    head = f"{method} {path} HTTP/1.1\r\nhost: {worker.host}:{worker.port}\r\naccept: */*\r\n{kept}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode("latin-1") + body)
    answered = await reader.readuntil(b"\r\n\r\n")
    return Answer(int(answered.split(b" ")[1]), answered[:-2], reader, writer)


class Router:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        pairs = [Worker(words[0], "prefill", int(words[1]) if len(words) > 1 and words[1] != "none" else None) for words in args.prefill]
        pairs += [Worker(words[0], "decode") for words in args.decode]
        self.workers = pairs if args.pd_disaggregation else [Worker(url, "regular") for url in args.worker_urls]
        if args.pd_disaggregation and {one.kind for one in self.workers} != {"prefill", "decode"}:
            raise SystemExit("Error starting router: PD disaggregation mode requires --prefill and --decode")
        self._turns = {kind: itertools.count() for kind in ("prefill", "decode", "regular")}

    async def run(self) -> None:
        server = await asyncio.start_server(self._serve, self.args.host, self.args.port, limit=64 << 20)
        say(f"Starting router on {self.args.host}:{self.args.port} | mode: {'PrefillDecode' if self.args.pd_disaggregation else 'Regular'}")
        async with server:
            await self._watch()

    async def _watch(self) -> None:
        """Workers are asked until they are healthy, and from then on now and then."""
        while True:
            for worker in self.workers:
                try:
                    ok = (await asyncio.wait_for(send(worker, "GET", "/health", b"", {}), 5)).status == 200
                    if ok and not worker.model:
                        listed = json.loads(await (await send(worker, "GET", "/v1/models", b"", {})).whole())
                        worker.model = str(listed["data"][0]["id"])
                except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError, KeyError, IndexError):
                    ok = False
                if ok and not worker.healthy:
                    say("Activated 1 worker(s) (marked as healthy)")
                worker.healthy = ok
            await asyncio.sleep(CHECK_EVERY_S if not all(worker.healthy for worker in self.workers) else 5.0)

    def _next(self, kind: str) -> Worker | None:
        able = [worker for worker in self.workers if worker.kind == kind and worker.healthy]
        return able[next(self._turns[kind]) % len(able)] if able else None

    @property
    def ready(self) -> bool:
        return all(self.has(kind) for kind in {worker.kind for worker in self.workers})

    def has(self, kind: str) -> bool:
        return any(worker.healthy for worker in self.workers if worker.kind == kind)

    # --- one client -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                headers = {line.partition(":")[0].strip().lower(): line.partition(":")[2].strip() for line in head[1:] if line}
                body = await reader.readexactly(int(headers.get("content-length") or 0))
                await self._handle(writer, method, target.partition("?")[0], headers, body)
                await writer.drain()
                if headers.get("connection", "").lower() == "close":
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return  # the client is gone, or spoke no HTTP
        finally:
            writer.close()

    async def _handle(self, writer: asyncio.StreamWriter, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if path in GENERATE and method == "POST":
            await self._generate(writer, path, headers, body)
        elif path in ("/health", "/liveness"):
            reply(writer, 200, b"OK")
        elif path == "/readiness":
            healthy = sum(worker.healthy for worker in self.workers)
            state = {"status": "ready" if self.ready else "not ready", "healthy_workers": healthy, "total_workers": len(self.workers)}
            reply(writer, 200 if self.ready else 503, json.dumps(state).encode())
        elif path == "/health_generate":
            reply(writer, 200 if self.ready else 503, b"At least one router has healthy workers" if self.ready else b"No healthy workers")
        elif path == "/v1/models":
            names = list(dict.fromkeys(worker.model for worker in self.workers if worker.model))
            rows = [{"id": name, "object": "model", "owned_by": "local"} for name in names]
            reply(writer, 200, json.dumps({"object": "list", "data": rows}).encode())
        elif path == "/get_server_info":
            reply(writer, 200, json.dumps({"router_manager": True, "routers_count": 1, "workers_count": len(self.workers)}).encode())
        elif path == "/workers":
            worker_rows = [
                {"url": one.url, "model_id": one.model, "worker_type": one.kind, "is_healthy": one.healthy, "load": one.load, "connection_mode": "HTTP",
                 **({"bootstrap_port": one.bootstrap_port} if one.bootstrap_port else {})}
                for one in self.workers
            ]  # fmt: skip
            reply(writer, 200, json.dumps({"workers": worker_rows, "total": len(worker_rows)}).encode())
        elif path == "/flush_cache" and method == "POST":
            flushed = [(await send(worker, "POST", path, b"", headers)).status == 200 for worker in self.workers]
            reply(writer, 200 if all(flushed) else 206, json.dumps({"status": "success", "workers_flushed": sum(flushed)}).encode())
        else:
            reply(writer, 404, b"")

    async def _generate(self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: bytes) -> None:
        if not self.args.pd_disaggregation:
            worker = self._next("regular")
            if worker is None:
                reply(writer, 503, failure("no_available_workers", "No available workers (all circuits open or unhealthy)"))
                return
            await self._relay(writer, worker, path, headers, body)
            return
        prefill, decode = self._next("prefill"), self._next("decode")
        if prefill is None or decode is None:
            reply(writer, 503, failure("no_available_pair", "No available prefill and decode workers"))
            return
        asked = json.loads(body)
        asked |= {"bootstrap_host": prefill.host, "bootstrap_port": prefill.bootstrap_port, "bootstrap_room": random.getrandbits(63)}
        both = json.dumps(asked).encode()
        first = asyncio.create_task(self._drained(prefill, path, headers, both))
        try:
            await self._relay(writer, decode, path, headers, both, first)
        finally:
            first.cancel()

    async def _drained(self, prefill: Worker, path: str, headers: dict[str, str], body: bytes) -> int:
        """The prefill server's own answer is not passed on: it holds the first token, which the decode server also has."""
        prefill.load += 1
        try:
            answer = await send(prefill, "POST", path, body, headers)
            await answer.whole()
            answer.writer.close()
            return answer.status
        finally:
            prefill.load -= 1

    async def _relay(
        self, writer: asyncio.StreamWriter, worker: Worker, path: str, headers: dict[str, str], body: bytes, first: asyncio.Task[int] | None = None
    ) -> None:
        worker.load += 1
        answer: Answer | None = None
        sending = asyncio.create_task(send(worker, "POST", path, body, headers))
        try:
            if first is not None:
                await asyncio.wait({first, sending}, return_when=asyncio.FIRST_EXCEPTION)
                if first.done() and first.exception() is not None:
                    reply(writer, 502, failure("prefill_server_error", BAD_PREFILL.format(f"{path}")))
                    return
            answer = await sending
            kept = [line for line in answer.head.split(b"\r\n") if line and not line.lower().startswith(b"connection:")]
            writer.write(b"\r\n".join(kept) + b"\r\n\r\n")
            async for piece in answer.pieces():
                writer.write(piece)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError) as error:
            if answer is not None:
                raise  # the head is out: all that is left is to hang up, as the router does
            reply(writer, 502, failure("decode_server_error", f"Decode server error: {error}"))
        finally:
            worker.load -= 1
            sending.cancel()
            if answer is not None:
                answer.writer.close()


def failure(code: str, message: str) -> bytes:
    return json.dumps({"error": {"type": "Bad Gateway", "code": code, "message": message}}).encode()


def reply(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    kind = b"content-type: application/json\r\n" if body[:1] in b"{[" and body else b""
    writer.write(b"HTTP/1.1 %d %s\r\n%bcontent-length: %d\r\n\r\n" % (status, b"OK" if status == 200 else b"Error", kind, len(body)) + body)


def say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(2, f"{stamp}  INFO smg: {text}\n".encode())


def main(argv: list[str], home: Path) -> None:
    args = build_parser().parse_args(argv)
    router = Router(args)
    box: dict[str, Any] = json.loads((home / "box.json").read_text())
    if box.get("router", {}).get("titled", True):
        retitle("sglang::router")
    try:
        asyncio.run(router.run())
    except KeyboardInterrupt:
        sys.exit(0)
