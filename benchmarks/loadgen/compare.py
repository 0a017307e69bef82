#!/usr/bin/env python3
"""Side by side on one null server: chunks per CPU-second, added latency and the error of the measured rate, of our
load generator and of clients made with httpx and aiohttp (where they can be imported). Same server, same requests,
same number of streams.

    python benchmarks/loadgen/compare.py [--streams 64] [--seconds 4] [--json]
 Three parts. *Cost*: the null server writes one chunk at a time as fast as it is read; the figure is chunks per
CPU-second of the client. *Delay*: paced streams with stamped events; the figure is from the server's write to the
client's time stamp. *Rate*: paced streams; the figure is the client's rate over the server's true one. The other
clients count chunks and time stamps and do nothing else, which is less than ours does. Each client is a process of
its own.
"""

import argparse
import asyncio
import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from optimizer.bench.calibrate import LOADGEN, null_server

TOKENS = 256
BODY = {
    "model": "null",
    "prompt": "time " * 64,
    "max_tokens": TOKENS,
    "stream": True,
    "temperature": 0,
    "stream_options": {"include_usage": True},
}


class Seen:
    """What a foreign client saw in its window."""

    def __init__(self):
        self.chunks, self.delays, self.on = 0, [], False

    def line(self, line, pattern=re.compile(rb'"stamp":"(\d+)"')):
        now = time.monotonic()
        if self.on and b'"text":"a' in line:
            self.chunks += 1
            found = pattern.search(line)
            if found:
                self.delays.append(now - int(found.group(1)) / 1e9)


async def _httpx(url, streams, seen, stop):
    import httpx

    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:

        async def one():
            while not stop.is_set():
                async with client.stream("POST", url + "/v1/completions", json=BODY) as answer:
                    async for line in answer.aiter_lines():
                        seen.line(line.encode())
                        if stop.is_set():
                            return

        await asyncio.gather(*(one() for _ in range(streams)))


async def _aiohttp(url, streams, seen, stop):
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=streams)) as client:

        async def one():
            while not stop.is_set():
                async with client.post(url + "/v1/completions", json=BODY) as answer:
                    async for line in answer.content:
                        seen.line(line)
                        if stop.is_set():
                            return

        await asyncio.gather(*(one() for _ in range(streams)))


async def _window(client, url, streams, seconds):
    seen, stop = Seen(), asyncio.Event()
    task = asyncio.ensure_future(client(url, streams, seen, stop))
    await asyncio.sleep(0.5)
    seen.on, cpu, began = True, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu, took = time.process_time() - cpu, time.monotonic() - began
    seen.on = False
    stop.set()
    await task
    delays = sorted(seen.delays)
    at = {name: 1000 * delays[int(q * (len(delays) - 1))] for name, q in (("p50", 0.5), ("p99", 0.99)) if delays}
    return {"chunks_per_s": seen.chunks / took, "cpu_share": cpu / took, "delay_ms": at}


def foreign(name, url, streams, seconds):
    """Run one foreign client in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--client",
        name,
        "--url",
        url,
        "--streams",
        str(streams),
        "--seconds",
        str(seconds),
    ]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def ours(url, streams, seconds):
    prompts = {"seed": "1", "salt": "1", "vocabulary": "words", "prompt_tokens": 64}
    job = {
        "base_url": url,
        "model": "null",
        "concurrency": streams,
        "output_tokens": TOKENS,
        "prompts": prompts,
        "stamped": "stamp" in url,
    }
    job.update(base_url=url.split("#")[0], warmup_min_s=0.5, warmup_max_s=0.5, window_s=seconds)
    done = subprocess.run(
        [sys.executable, str(LOADGEN)], input=json.dumps(job).encode(), stdout=subprocess.PIPE, check=True
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    delay = summary["delay_real_ms"]
    at = {"p50": delay[0], "p99": delay[2]} if delay else {}
    return {
        "chunks_per_s": summary["chunks_window"] / summary["measured_s"],
        "cpu_share": summary["cpu_share"],
        "delay_ms": at,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    streams, seconds = options.streams, options.seconds
    if options.client:
        client = {"httpx": _httpx, "aiohttp": _aiohttp}[options.client]
        print(json.dumps(asyncio.run(_window(client, options.url, streams, seconds))))
        return
    clients = {"optimize": ours}
    for name in ("aiohttp", "httpx"):
        if importlib.util.find_spec(name):
            clients[name] = lambda url, n, s, name=name: foreign(name, url.split("#")[0], n, s)
    gap_ms = 20.0
    true_rate = streams * TOKENS / ((TOKENS - 1) * gap_ms / 1000)
    rows = []
    for name, run in clients.items():
        with null_server("--burst", "1") as url:
            cost = run(url, streams, seconds)
        with null_server("--gap-ms", str(gap_ms), "--stamp") as url:
            delay = run(url + "#stamp", streams, seconds)
        with null_server("--gap-ms", str(gap_ms)) as url:
            paced = run(url, streams, seconds)
        rows.append(
            {
                "client": name,
                "chunks_per_cpu_s": round(cost["chunks_per_s"] / cost["cpu_share"]),
                "paced_chunks_per_cpu_s": round(paced["chunks_per_s"] / paced["cpu_share"]),
                "delay_p50_ms": round(delay["delay_ms"]["p50"], 3),
                "delay_p99_ms": round(delay["delay_ms"]["p99"], 3),
                "rate_error": round(paced["chunks_per_s"] / true_rate - 1, 5),
            }
        )
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{streams} streams; cost unpaced, the rest at {true_rate:,.0f} chunks/s; Python {sys.version.split()[0]}")
    print(f"{'client':10} {'chunks/CPU-s':>14} {'paced':>10} {'delay p50':>11} {'delay p99':>11} {'rate error':>11}")
    for row in rows:
        delay = f"{row['delay_p50_ms']:8.2f} ms {row['delay_p99_ms']:8.2f} ms"
        print(
            f"{row['client']:10} {row['chunks_per_cpu_s']:14,} {row['paced_chunks_per_cpu_s']:10,} {delay} {row['rate_error']:+11.2%}"
        )


if __name__ == "__main__":
    main()
