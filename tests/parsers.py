"""Every parser of untrusted bytes as a function of those bytes alone: what fuzzing and hostile input are run through."""

from __future__ import annotations

import contextlib
import json

from optimizer.errors import EvidenceError
from optimizer.evidence.argv import argv_facts
from optimizer.evidence.bundle import bundle_from_case, bundle_from_files
from optimizer.evidence.exits import exit_class
from optimizer.evidence.found import Found
from optimizer.evidence.lines import Piece, iter_lines
from optimizer.evidence.literal import arguments
from optimizer.evidence.llamacpp_log import LlamacppLog
from optimizer.evidence.nccl_log import NcclLog
from optimizer.evidence.nvidia_smi import csv_facts, query_facts, topo_facts
from optimizer.evidence.prometheus import metrics_facts, parse_metrics, series_facts
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog
from optimizer.evidence.which_engine import engine_of_log
from optimizer.model.evidence import Evidence

LEVELS = [1, 8, 64]
_FILES = ("server.log", "metrics.txt", "server_info.json", "bench.json", "gpu.csv", "topo.txt", "nvidia-smi-q.txt", "config.json")


def sglang(data: bytes) -> Evidence:
    log = SglangLog()
    log.feed(data)
    return log.finish(LEVELS).evidence()


def vllm(data: bytes) -> Evidence:
    log = VllmLog()
    log.feed(data)
    return log.finish(LEVELS).evidence()


def llamacpp(data: bytes) -> Evidence:
    log = LlamacppLog()
    log.feed(data)
    return log.finish().evidence()


def nccl(data: bytes) -> None:
    log = NcclLog(Found("x"))
    for line in iter_lines([Piece(data)]):
        log.line(line)
    log.finish()


def metrics(data: bytes) -> None:
    metrics_facts(Found("x"), parse_metrics(data), parse_metrics(data))
    series_facts(Found("x"), data)


def gpu(data: bytes) -> None:
    csv_facts(Found("x"), data, 2, 700.0, 1980.0)
    query_facts(Found("x"), data, under_load=True)
    topo_facts(Found("x"), data, 2)


def exits(data: bytes) -> None:
    exit_class(data, 1)


def which(data: bytes) -> None:
    engine_of_log((Piece(data),))


def text(data: bytes) -> None:
    arguments(data.decode("utf-8", "replace"))
    argv_facts(Found("x"), data.decode("utf-8", "replace").split(), "vllm")
    argv_facts(Found("x"), data.decode("utf-8", "replace").split(), "sglang")


def files(data: bytes) -> None:
    launch = json.dumps({"engine": "sglang", "argv": ["a"]}).encode()
    bundle_from_files({"launch.json": launch, **dict.fromkeys(_FILES, data)})


def case(data: bytes) -> None:
    with contextlib.suppress(EvidenceError):
        bundle_from_case(data)
    bundle_from_case(json.dumps({"engine": "vllm", "log_lines": [data.decode("utf-8", "replace")]}).encode())
