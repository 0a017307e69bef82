"""A small closed-loop client for the simulated servers: raw sockets on asyncio, tokens counted from the usage field."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from optimizer.engines.simulator import SimBox, prepare_box
from tests.ports import free_port


@dataclass
class Running:
    box: SimBox
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def text(self) -> str:
        return re.sub(r"\r", "\n", self.log.read_text())

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def start(
    root: Path, name: str, scale: float, *extra: str, drop: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> Running:
    box = prepare_box(name, root, scale)
    port = free_port()
    argv = [part for part in box.argv if part not in drop]
    argv[argv.index("--port") + 1] = str(port)
    argv += extra
    log = box.home / f"server-{port}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv,
            env={**box.env, **box.launch_env, **(env or {})},
            cwd=box.cwd,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
        )
    return Running(box, process, port, log)


async def until_ready(server: Running, limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise AssertionError(f"the server ended with {server.process.returncode}:\n{server.text()[-2000:]}")
        try:
            status, _ = await request(server.port, "GET", "/health_generate")
        except OSError:
            status = 0
        if status == 200:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not ready in time:\n" + server.text()[-2000:])


async def request(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b"" if body is None else json.dumps(body).encode()
    writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    raw = await reader.read()
    writer.close()
    head, _, payload = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        payload = b"".join(chunks(payload))
    return int(head.split()[1]), payload


def chunks(payload: bytes) -> list[bytes]:
    out, at = [], 0
    while True:
        end = payload.index(b"\r\n", at)
        size = int(payload[at:end], 16)
        if not size:
            return out
        out.append(payload[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


async def rate(server: Running, concurrency: int, prompt: int, output: int, warm_s: float, window_s: float) -> float:
    """Output tokens per second of the server's time over the window."""
    scale = server.box.time_scale
    counted = 0.0
    begin = time.monotonic() + warm_s / scale
    end = begin + window_s / scale

    async def worker(number: int) -> None:
        nonlocal counted
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        serial = 0
        while time.monotonic() < end:
            serial += 1
            words = f"w{number} s{serial} p{os.getpid()} " + "day " * (prompt - 3)
            body = {
                "model": "x",
                "prompt": words,
                "max_tokens": output,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
            data = json.dumps(body).encode()
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            before = 0
            while True:
                size = int(await reader.readline(), 16)
                event = await reader.readexactly(size + 2)
                if not size:
                    break
                found = re.findall(rb'"completion_tokens":(\d+)', event)
                if found:
                    total = int(found[-1])
                    if begin <= time.monotonic() < end:
                        counted += total - before
                    before = total
            assert before == output
        writer.close()

    await asyncio.gather(*(worker(number) for number in range(concurrency)))
    return counted / window_s
