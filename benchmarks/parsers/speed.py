"""Prints how many megabytes a second each parser reads on one core: ``python benchmarks/parsers/speed.py [--megabytes 16]``.

Inputs are the recordings of the test suite, repeated to the wanted size. The aim is 100 MB/s on logs."""

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


def sglang(data: bytes) -> None:
    log = SglangLog()
    log.feed(data)
    log.finish([1, 16, 64]).evidence()


def vllm(data: bytes) -> None:
    log = VllmLog()
    log.feed(data)
    log.finish([1, 16]).evidence()


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=16)
    size = parser.parse_args().megabytes * 1_000_000
    h200 = "sglang-0.5.12-h200/tp1-7b-kvlimited/server.log"
    cpu = "vllm-0.32-cpu/mns4/server.log"
    inputs: list[tuple[str, Callable[[bytes], None], bytes]] = [
        ("lines only, SGLang log", split, (RECORDINGS / h200).read_bytes()),
        ("SGLang log as recorded", sglang, (RECORDINGS / h200).read_bytes()),
        ("SGLang, access lines only", sglang, lines_with(h200, b"POST /v1")),
        ("SGLang, decode lines only", sglang, lines_with(h200, b"Decode batch")),
        ("vLLM log as recorded", vllm, (RECORDINGS / cpu).read_bytes()),
        ("vLLM, statistics lines only", vllm, lines_with(cpu, b"Avg prompt throughput")),
        ("exit class (last 512 KiB)", exits, (RECORDINGS / "sglang-0.5.12-h200/tp1-7b-oom/server.log").read_bytes()),
        ("metrics", metrics, (RECORDINGS / "sglang-0.5.12-h200/tp2-27b-graph32/metrics.txt").read_bytes()),
        ("gpu.csv", table, (RECORDINGS / "sglang-0.5.12-h200/tp1-7b-kvlimited/gpu.csv").read_bytes()),
    ]
    for name, run, seed in inputs:
        # A log starts once and then serves for hours: only what follows the start is repeated.
        cut = max(seed.find(b"The server is fired up"), seed.find(b"Application startup complete"), 0)
        cut = seed.find(b"\n", cut) + 1 if cut else 0
        body = seed[cut:]
        data = (seed[:cut] + body * (size // len(body) + 1))[:size]
        began = time.process_time()
        run(data)
        took = time.process_time() - began
        print(f"{name:30} {len(data) / took / 1e6:8.0f} MB/s")


if __name__ == "__main__":
    main()
