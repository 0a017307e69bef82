"""Every evidence parser on mutated real files and on values of any shape: nothing escapes but the project's own errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.errors import OptimizerError
from optimizer.evidence.argv import argv_facts, env_facts, speculation_facts
from optimizer.evidence.exits import classify
from optimizer.evidence.found import Found
from optimizer.evidence.lines import Piece
from optimizer.evidence.literal import arguments, literal
from optimizer.evidence.prometheus import metrics_facts, parse_metrics, series_facts
from optimizer.evidence.server_info import sglang_info_facts, vllm_info_facts
from optimizer.evidence.sglang_args import kv_dtype, quantization, setting_facts
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog
from tests.parsers import nccl

TESTS = Path(__file__).parents[1]
SHARED = TESTS.parents[1] / "shared"


@cache
def corpus() -> list[bytes]:
    """Real logs and metrics of every build: the recordings, the excerpts, and the shared references where they are."""
    files = [path for folder in (TESTS / "recordings", TESTS / "unit/evidence/excerpts", SHARED / "reference") if folder.is_dir()
             for pattern in ("*.log", "metrics.txt") for path in sorted(folder.rglob(pattern))]  # fmt: skip
    assert len(files) > 60
    return [path.read_bytes() for path in files]


def sglang(data: bytes) -> None:
    log = SglangLog()
    log.feed([Piece(data), Piece(data[::-1], len(data), None)])
    log.finish([1, 8]).evidence()


def vllm(data: bytes) -> None:
    log = VllmLog()
    log.feed([Piece(data), Piece(data[::-1], len(data), None)])
    log.finish([1, 8]).evidence()


def exits(data: bytes) -> None:
    for code in (None, 0, 1, -9):
        classify([Piece(data)], code)


def metrics(data: bytes) -> None:
    metrics_facts(Found("x"), parse_metrics(data), parse_metrics(data[: len(data) // 2]))
    series_facts(Found("x"), data)
    series_facts(Found("x"), b"num_requests_running,a,kv_cache_usage_pct\n" + data)


def texts(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    arguments(text)
    literal(text)
    for engine in ("sglang", "vllm", "llamacpp", ""):
        argv_facts(Found("x"), text.split(), engine)
    kv_dtype(text)
    quantization(text)


PARSERS: list[Callable[[bytes], None]] = [sglang, vllm, nccl, exits, metrics, texts]
junk = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\r", b"\n", b"\x1b[31m", b"\0", b"nan", b"inf", b"-1", b"9" * 30, b"1e999", b"] ", b"[2026-01-01 00:00:00] ", b"\xff\xfe", b"%", b": "]),
)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_files(parser: Callable[[bytes], None], data: st.DataObject) -> None:
    """A stretch of a real file with a few places overwritten, and the start of another file behind it."""
    files = corpus()
    seed = data.draw(st.sampled_from(files))
    begin = data.draw(st.integers(0, max(0, len(seed) - 1)))
    text = bytearray(seed[begin : begin + data.draw(st.integers(0, 6000))])
    for _ in range(data.draw(st.integers(0, 12))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 20))] = data.draw(junk)
    text += data.draw(st.sampled_from(files))[: data.draw(st.integers(0, 2000))]
    parser(bytes(text))


names = st.one_of(
    st.sampled_from(["tp_size", "dp_size", "max_running_requests", "speculative_algorithm", "speculative_num_draft_tokens", "page_size", "quantization",
                     "kv_cache_dtype", "cuda_graph_bs", "piecewise_cuda_graph_tokens", "attention_backend", "disable_cuda_graph", "internal_states", "version",
                     "data", "startup_time", "memory_usage", "decode_cuda_graph_bs", "max_total_num_tokens", "avg_spec_accept_length", "cpu_offload_gb",
                     "mem_fraction_static", "enable_lora", "method", "num_speculative_tokens", "speculative_config", "model", "context_length", "device"]),
    st.text(max_size=8),
)  # fmt: skip
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.sampled_from(["auto", "NEXTN", "fp8", "disabled", "null"])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)


@pytest.mark.fault("H32")
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(settings_of=st.dictionaries(names, values, max_size=10))
def test_values_of_any_shape(settings_of: dict[str, Any]) -> None:
    setting_facts(Found("x"), settings_of)
    sglang_info_facts(Found("x"), settings_of)
    vllm_info_facts(Found("x"), settings_of)
    speculation_facts(Found("x"), settings_of)
    env_facts(Found("x"), {key: str(value) for key, value in settings_of.items()})


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(st.one_of(st.sampled_from(["-", "--", "-m", "--tp", "-tp", "--no-", "--x=", "=", "-1", "{", "{'a'", "--speculative-config", "[1", "--kv-cache-dtype"]), st.text(max_size=10)), max_size=12))
def test_command_lines_of_any_words(words: list[str]) -> None:
    for engine in ("sglang", "vllm", "llamacpp", "other"):
        try:
            argv_facts(Found("x"), words, engine)
        except OptimizerError:
            continue
