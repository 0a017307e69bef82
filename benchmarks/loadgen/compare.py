#!/usr/bin/env python3
"""Side by side on one null server: chunks per CPU-second, added latency and the error of the stated rate, of our load generator,
of clients made with httpx and aiohttp, and of the field's tools where they are installed. Same server, same requests, same number
of streams.

    python benchmarks/loadgen/compare.py [--streams 64] [--rounds 3] [--half] [--tools] [--json]

The clients need a Python that has them; the tools each a virtual environment of their own (ignored by git):

    python3 -m venv .clients/plain && .clients/plain/bin/pip install aiohttp httpx uvloop
    python3 -m venv .clients/aiperf && .clients/aiperf/bin/pip install aiperf      # likewise guidellm, genai-bench
    make engines                                                                   # vLLM's and SGLang's own

*Cost*: the null server writes one chunk at a time as fast as it is read; chunks per CPU-second of the client, all of its processes.
Of a tool it is the difference between a small and a large run, so that its start does not count. *Paced*: the same with 64 streams
in step at 20 ms. *Half load*: 100,000 chunks/s, the load at which our own delay is promised. *Delay*: from the server's write to the
client's time stamp (the stamp stands in every 16th event). A tool does not tell its stamps: of those, the p99 of the time between tokens that it states, less
the true 20 ms. *Rate*: what the client states over the server's true rate; a tool's figure includes its ramps. The best of some
rounds counts, since noise of a shared machine can only add; the clients count chunks and stamps and do nothing else, which is less
than ours does.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

TOKENS, GAP_MS, HALF_LOAD = 256, 20.0, 100_000
SMALL_WAVES, LARGE_WAVES, PACED_WAVES = 1, 25, 2
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


def foreign(python, name, url, streams, seconds):
    """Run one foreign client in a process of its own."""
    command = [python, __file__, "--client", name, "--url", url, "--streams", str(streams), "--seconds", str(seconds)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120).stdout)


def ours(python, url, streams, seconds, stamped=False, tokens=TOKENS):
    from optimizer.bench.program import loadgen_program
    from optimizer.transport.base import BOOTSTRAP

    prompts = {"seed": "1", "salt": "1", "vocabulary": "words", "prompt_tokens": 64}
    job = {"base_url": url, "model": "null", "concurrency": streams, "output_tokens": tokens, "prompts": prompts, "stamped": stamped}
    job.update(warmup_min_s=0.5, warmup_max_s=0.5, window_s=seconds)
    done = subprocess.run([python, "-I", "-c", BOOTSTRAP], input=b"%d\n" % len(loadgen_program()) + loadgen_program() + json.dumps(job).encode(), stdout=subprocess.PIPE, check=True, timeout=120)
    summary = json.loads(done.stdout.splitlines()[-1])
    delay = summary["delay_real_ms"]
    at = {"p50": delay[0], "p99": delay[2]} if delay else {}
    return {
        "chunks_per_s": summary["chunks_window"] / summary["measured_s"],
        "cpu_share": summary["cpu_share"],
        "delay_ms": at,
        "lost": sum(summary["errors"].values()),
    }


def client_row(name, run, streams, seconds, rounds):
    """Best of some rounds of each part. ``run(url, stamped)``."""
    from optimizer.bench.calibrate import null_server

    true = streams * TOKENS / ((TOKENS - 1) * GAP_MS / 1000)
    row = {"client": name}
    with null_server("--burst", "1") as url:
        found = [run(url, False) for _ in range(rounds)]
    row["chunks_per_cpu_s"] = round(max(one["chunks_per_s"] / one["cpu_share"] for one in found))
    with null_server("--gap-ms", str(GAP_MS)) as url:
        found = [run(url, False) for _ in range(rounds)]
    row["paced_chunks_per_cpu_s"] = round(max(one["chunks_per_s"] / one["cpu_share"] for one in found))
    row["rate_error"] = round(min((one["chunks_per_s"] / true - 1 for one in found), key=abs), 5)
    with null_server("--gap-ms", str(GAP_MS), "--stamp", "--stamp-every", "16") as url:
        found = [run(url, True) for _ in range(rounds)]
    best = min(found, key=lambda one: one["delay_ms"]["p99"])["delay_ms"]
    row["delay_p50_ms"], row["delay_p99_ms"] = round(best["p50"], 3), round(best["p99"], 3)
    return row


def half_load(python, streams, seconds, rounds):
    """Our delay at half of the promised 200,000 chunks per CPU-second; the round with the least p99 among those that kept the rate."""
    from optimizer.bench.calibrate import null_server

    gap = 1000 * streams / HALF_LOAD
    found = []
    with null_server("--gap-ms", f"{gap:.4f}", "--stamp", "--stamp-every", "16") as url:
        for _ in range(rounds):
            found.append(ours(python, url, streams, seconds, stamped=True, tokens=4096))
    kept = [one for one in found if one["chunks_per_s"] >= 0.97 * HALF_LOAD and not one["lost"]]
    best = min(kept or found, key=lambda one: one["delay_ms"]["p99"])
    return {"chunks_per_s": round(best["chunks_per_s"]), "cpu_share": best["cpu_share"], "delay_p50_ms": round(best["delay_ms"]["p50"], 3),
            "delay_p99_ms": round(best["delay_ms"]["p99"], 3), "rounds": rounds, "rounds_at_rate": len(kept)}  # fmt: skip


def half_text(name, half):
    return (f"{name} at half load: {half['chunks_per_s']:,} chunks/s on {half['cpu_share']:.0%} of a core, delay p50 {half['delay_p50_ms']} ms, "
            f"p99 {half['delay_p99_ms']} ms ({half['rounds_at_rate']} of {half['rounds']} rounds kept the rate)")  # fmt: skip


def tool_row(tool, streams, limit_s):
    """One tool: what it costs beyond its start, and what it says about a server whose rate and gaps are known."""
    import tools

    from optimizer.bench.calibrate import null_server

    row = {"client": tool.name}
    if not tool.program.exists():
        return {**row, "why": f"not installed ({tool.program.relative_to(ROOT)})"}
    try:
        with null_server("--gap-ms", str(GAP_MS)) as url:
            paced = tools.run(tool, url, streams, PACED_WAVES * streams, TOKENS, limit_s)
        true = streams * TOKENS / ((TOKENS - 1) * GAP_MS / 1000)
        row["rate_error"] = round(paced.figures["output_tps"] / true - 1, 5)
        row["stated_itl_p99_over_true_ms"] = round(paced.figures["itl_p99_ms"] - GAP_MS, 3)
        row["stated_ttft_p99_ms"] = round(paced.figures["ttft_p99_ms"], 2)
        with null_server("--burst", "1") as url:
            small = tools.run(tool, url, streams, SMALL_WAVES * streams, TOKENS, limit_s)
            large = tools.run(tool, url, streams, LARGE_WAVES * streams, TOKENS, limit_s)
        chunks = (LARGE_WAVES - SMALL_WAVES) * streams * TOKENS
        row["chunks_per_cpu_s"] = round(chunks / max(1e-3, large.cpu_s - small.cpu_s))
    except RuntimeError as error:
        row["why"] = str(error)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--half", action="store_true", help="only our delay at half of the promised load")
    parser.add_argument("--tools", action="store_true", help="also the field's tools, minutes each")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that one run of a tool may take")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    streams, seconds, rounds = options.streams, options.seconds, options.rounds
    if options.client:
        client = {"httpx": _httpx, "aiohttp": _aiohttp}[options.client]
        print(json.dumps(asyncio.run(_window(client, options.url, streams, seconds))))
        return
    if options.half:
        half = half_load(sys.executable, streams, seconds, rounds)
        print(json.dumps(half) if options.json else half_text("optimize", half))
        return
    import tools

    plain = ROOT / ".clients/plain/bin/python"
    rows = [client_row("optimize", lambda url, stamped: ours(sys.executable, url, streams, seconds, stamped), streams, seconds, rounds)]
    halves = {"optimize": half_load(sys.executable, streams, seconds, rounds)}
    if plain.exists():
        has = subprocess.run([str(plain), "-c", "import uvloop"], capture_output=True, check=False).returncode == 0
        if has:
            rows.append(client_row("optimize + uvloop", lambda url, stamped: ours(str(plain), url, streams, seconds, stamped), streams, seconds, rounds))
            halves["optimize + uvloop"] = half_load(str(plain), streams, seconds, rounds)
        for name in ("aiohttp", "httpx"):
            rows.append(client_row(name, lambda url, stamped, name=name: foreign(str(plain), name, url, streams, seconds), streams, seconds, rounds))
    else:
        rows.append({"client": "aiohttp, httpx", "why": "no .clients/plain"})
    if options.tools:
        rows += [tool_row(tool, streams, options.limit) for tool in tools.TOOLS]
    if options.json:
        print(json.dumps({"rows": rows, "half_load": halves}))
        return
    true = streams * TOKENS / ((TOKENS - 1) * GAP_MS / 1000)
    print(f"{streams} streams; cost unpaced, the rest at {true:,.0f} chunks/s; best of {rounds}; Python {sys.version.split()[0]}")
    print(f"{'client':22} {'chunks/CPU-s':>13} {'paced':>9} {'delay p50':>11} {'delay p99':>11} {'rate error':>11}")
    for row in rows:
        if "why" in row and "rate_error" not in row:
            print(f"{row['client']:22} {row['why']}")
            continue
        cost = f"{row['chunks_per_cpu_s']:,}" if "chunks_per_cpu_s" in row else "-"
        paced = f"{row['paced_chunks_per_cpu_s']:,}" if "paced_chunks_per_cpu_s" in row else "-"
        late = row.get("delay_p99_ms", row.get("stated_itl_p99_over_true_ms"))
        middle = f"{row['delay_p50_ms']:.2f} ms" if "delay_p50_ms" in row else "-"
        note = f"  {row['why']}" if "why" in row else (f"  (states TTFT p99 {row['stated_ttft_p99_ms']} ms)" if "stated_ttft_p99_ms" in row else "")
        print(f"{row['client']:22} {cost:>13} {paced:>9} {middle:>11} {f'{late:.2f} ms':>11} {row['rate_error']:+11.2%}{note}")
    for name, half in halves.items():
        print(half_text(name, half))


if __name__ == "__main__":
    main()
