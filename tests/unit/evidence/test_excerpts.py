"""Excerpts of real SGLang logs of many versions: which lines were recognised, and what they say."""

from pathlib import Path

import pytest

from optimizer.evidence.exits import exit_class
from optimizer.evidence.sglang_log import SglangLog
from optimizer.model.evidence import Evidence

EXCERPTS = Path(__file__).parent / "excerpts"

# file start -> (decode lines, prefill lines, facts)
TABLE: dict[str, tuple[int, int, dict[str, object]]] = {
    "01": (8, 0, {"decode.batch_max": 46.0, "decode.graph_off_share": 0.25}),
    "02": (
        0,
        0,
        {"graphs.capture_max": 32, "scheduler.max_running": 4096, "kv.pool_tokens": 2980168, "graphs.mode": "full"},
    ),
    "03": (0, 0, {"kernel.moe_config": "other_version"}),
    "04": (0, 0, {"kernel.moe_config": "default"}),
    "05": (3, 0, {"kv.usage_p95": 1.0, "decode.throughput_tps": 429.52}),
    "06": (4, 0, {"kv.usage_p95": 0.94, "queue.depth_p95": 5.0}),
    "07": (0, 0, {"allreduce.custom": "off_pcie_only", "startup.warnings": ["custom_allreduce_off"]}),
    "08": (0, 0, {"nccl.network": "Socket"}),
    "09": (1, 7, {"spec.accept_len": 2.54, "queue.depth_p95": 68.0, "decode.batch_p90": 32.0}),
    "10": (2, 0, {"spec.accept_len": 1.0, "decode.graph_off_share": 1.0}),
    "11": (5, 0, {"decode.graph_off_share": 0.0, "decode.global_batch": 40.0, "decode.rank_imbalance_ratio": 1.0}),
    "12": (
        0,
        0,
        {"model.hybrid_state": True, "kv.dtype": "fp8", "model.quantization": "fp8", "kv.pool_tokens": 879872},
    ),
    "13": (0, 0, {"startup.warnings": ["jit_during_start"]}),
    "14": (0, 0, {}),
    "15": (0, 0, {"memory.weights_gib": 166.59}),
    "16": (0, 0, {}),
    "17": (0, 0, {}),
    "18": (0, 0, {}),
    "19": (2, 0, {"decode.batch_p50": 16.0}),
    "20": (1, 3, {"prefill.throughput_tps": 13663.0}),
    "21": (0, 0, {"kernel.attention_backend": "triton"}),
    "22": (0, 4, {"prefill.tokens_per_step_p50": 512.0}),
    "23": (0, 5, {"prefill.graph_used_share": 0.0}),
    "24": (0, 3, {"prefill.graph_used_share": 0.0}),
    "25": (0, 3, {"prefill.tokens_per_step_p50": 4.0}),
}


def read(path: Path) -> tuple[SglangLog, Evidence]:
    log = SglangLog()
    log.feed(path.read_bytes())
    return log, log.finish().evidence()


@pytest.mark.parametrize("path", sorted(EXCERPTS.glob("*.log")), ids=lambda path: path.stem)
def test_excerpt(path: Path) -> None:
    decodes, prefills, facts = TABLE[path.name[:2]]
    log, evidence = read(path)
    assert (len(log.decodes), len(log.prefills), evidence.unrecognised_lines) == (decodes, prefills, 0)
    assert {name: evidence.value(name) for name in facts} == facts


@pytest.mark.parametrize("path", sorted(EXCERPTS.glob("*.log")), ids=lambda path: path.stem)
def test_a_few_lines_never_support_a_claim_about_the_whole_start(path: Path) -> None:
    _, evidence = read(path)
    assert evidence.value("kv.preemptions") is None
    assert evidence.value("graphs.mode") in (None, "full")


@pytest.mark.parametrize(
    ("start", "cause"),
    [("14", "oom_capture"), ("15", "oom_kv"), ("16", "nccl"), ("18", "crashed"), ("21", "gpu_memory_stuck")],
)
def test_failures(start: str, cause: str) -> None:
    path = next(EXCERPTS.glob(f"{start}_*.log"))
    assert exit_class(path.read_bytes(), 1)[0] == cause


def test_an_unknown_field_set_is_counted_and_shown() -> None:
    log = SglangLog()
    log.feed(
        b"[2026-01-01 00:00:00] Decode batch, #sequences: 4, tempo: 12\n[2026-01-01 00:00:00] Prefill batch, odd: 1\n"
    )
    evidence = log.finish().evidence()
    assert evidence.unrecognised_lines == 2
    assert "server.log:1: " in evidence.unrecognised_examples[0] and "#sequences" in evidence.unrecognised_examples[0]


def test_field_order_and_prefix_do_not_matter() -> None:
    log = SglangLog()
    log.feed(
        b"\x1b[32mworker-0 | [2026-01-01 00:00:01 TP0] Decode batch, #running-req: 3, gen throughput (token/s): 50.0, "
        b"cuda graph: False, #token: 40, token usage: 0.40, #queue-req: 2\x1b[0m\n"
        b"[2026-01-01 00:00:02 DP1 TP1] Decode batch [77], #running-req: 5, #token: 9, token usage: 0.1, npu graph: True, "
        b"gen throughput (token/s): 10, #queue-req: 0,\n"
    )
    evidence = log.finish().evidence()
    assert [item.running for item in log.decodes] == [3, 5]
    assert [item.graph for item in log.decodes] == [False, True]
    assert evidence.number("decode.graph_off_share") == 0.5
