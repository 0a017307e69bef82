"""Prints how many megabytes a second each parser reads on one core: ``python benchmarks/parsers/speed.py [--megabytes 16]``.

Inputs are the recordings of the test suite, repeated to the wanted size, and whole folders of logs given with ``--logs``.
The aim is 100 MB/s on logs. The first row, splitting bytes at newlines and nothing else, tells how fast the machine is
just now: on a shared one all rows fall and rise with it."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from optimizer.evidence.exits import exit_class
from optimizer.evidence.found import Found
from optimizer.evidence.lines import Piece, iter_lines
from optimizer.evidence.nvidia_smi import csv_facts
from optimizer.evidence.prometheus import metrics_facts, parse_metrics
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog

RECORDINGS = Path(__file__).parents[2] / "tests" / "recordings"
READY = (b"The server is fired up", b"Application startup complete")
ENDING = (b"[shutdown] ", b"SIGTERM received", b"Shutting down")


def sglang(data: bytes) -> None:
    log = SglangLog()
    log.feed(data)
    log.finish([1, 16, 64]).evidence()


def vllm(data: bytes) -> None:
    log = VllmLog()
    log.feed(data)
    log.finish([1, 16]).evidence()


def newlines(data: bytes) -> None:
    data.split(b"\n")


def split(data: bytes) -> None:
    for _ in iter_lines([Piece(data)]):
        pass


def exits(data: bytes) -> None:
    exit_class(data, 1)


def metrics(data: bytes) -> None:
    metrics_facts(Found("metrics.txt"), parse_metrics(data))


def table(data: bytes) -> None:
    csv_facts(Found("gpu.csv"), data, 2, 700.0, 1980.0)


def lines_with(path: str, needle: bytes) -> bytes:
    return b"\n".join(line for line in (RECORDINGS / path).read_bytes().split(b"\n") if needle in line) + b"\n"


def served(seed: bytes, size: int) -> bytes:
    """A log starts once, then serves for hours, and stops once: only what lies between is repeated."""
    cut = max(*(seed.find(ready) for ready in READY), 0)
    cut = seed.find(b"\n", cut) + 1 if cut else 0
    ends = [at for word in ENDING if (at := seed.find(word, cut)) >= 0]
    end = seed.rfind(b"\n", 0, min(ends)) + 1 if ends else len(seed)
    body = seed[cut:end] if end > cut else seed[cut:]
    return (seed[:cut] + body * (size // len(body) + 1))[:size]


def rate(run: Callable[[bytes], None], data: bytes, repeats: int) -> float:
    """MB/s of the fastest of several runs, in processor time."""
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        run(data)
        best = min(best, time.process_time() - began)
    return len(data) / best / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--logs", type=Path, help="a folder of real vLLM logs to read one after another as well")
    options = parser.parse_args()
    size = options.megabytes * 1_000_000
    h200 = "sglang-0.5.12-h200/tp1-7b-kvlimited/server.log"
    nccl = "sglang-0.5.12-h200/tp2-27b-nccl-shm/server.log"
    cpu = "vllm-0.32-cpu/mns4/server.log"
    drafts = "vllm-0.32-cpu/cyc_ngram4/server.log"
    inputs: list[tuple[str, Callable[[bytes], None], bytes]] = [
        ("newlines only (the machine)", newlines, (RECORDINGS / h200).read_bytes()),
        ("lines with place and number", split, (RECORDINGS / h200).read_bytes()),
        ("SGLang log as recorded", sglang, (RECORDINGS / h200).read_bytes()),
        ("SGLang, access lines only", sglang, lines_with(h200, b"POST /v1")),
        ("SGLang, decode lines only", sglang, lines_with(h200, b"Decode batch")),
        ("SGLang, NCCL lines only", sglang, lines_with(nccl, b"NCCL INFO")),
        ("vLLM log as recorded", vllm, (RECORDINGS / cpu).read_bytes()),
        ("vLLM log with drafts", vllm, (RECORDINGS / drafts).read_bytes()),
        ("vLLM, access lines only", vllm, lines_with(cpu, b"HTTP/1.")),
        ("vLLM, statistics lines only", vllm, lines_with(cpu, b"Avg prompt throughput")),
        ("exit class (the last 4 MiB)", exits, (RECORDINGS / "sglang-0.5.12-h200/tp1-7b-oom/server.log").read_bytes()),
        ("metrics", metrics, (RECORDINGS / "sglang-0.5.12-h200/tp2-27b-graph32/metrics.txt").read_bytes()),
        ("gpu.csv", table, (RECORDINGS / "sglang-0.5.12-h200/tp1-7b-kvlimited/gpu.csv").read_bytes()),
    ]
    for name, run, seed in inputs:
        print(f"{name:30} {rate(run, served(seed, size), options.repeats):8.0f} MB/s")
    if options.logs is not None:
        logs = [path.read_bytes() for path in sorted(options.logs.rglob("*.log"))]

        def each(data: bytes) -> None:
            for log in logs:
                vllm(log)

        print(f"{f'{len(logs)} vLLM logs, one by one':30} {rate(each, b''.join(logs), options.repeats):8.0f} MB/s")


if __name__ == "__main__":
    main()
