"""Facts of the recorded launches, checked against what their README says happened."""

from pathlib import Path

import pytest

from optimizer.evidence.bundle import Bundle, read_bundle
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog

RECORDINGS = Path(__file__).parents[2] / "recordings"
SGLANG = RECORDINGS / "sglang-0.5.12-h200"
LAUNCHES = sorted(folder.parent for folder in RECORDINGS.glob("*/*/launch.json"))


def bundle(name: str, group: str = "sglang-0.5.12-h200") -> Bundle:
    return read_bundle(RECORDINGS / group / name)


@pytest.mark.parametrize("folder", LAUNCHES, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_every_statistics_line_is_recognised(folder: Path) -> None:
    data = (folder / "server.log").read_bytes()
    assert read_bundle(folder).evidence.unrecognised_lines == 0
    if folder.parent.name.startswith("vllm"):
        vllm = VllmLog()
        vllm.feed(data)
        vllm.statistics.read()
        assert len(vllm.stats) == data.count(b"Avg prompt throughput:")
        assert len(vllm.spec) == data.count(b"SpecDecoding metrics:")
    else:
        sglang = SglangLog()
        sglang.feed(data)
        sglang.steps.read()  # before the window is cut at the line that says ready
        assert len(sglang.decodes) == data.count(b"Decode batch")
        assert len(sglang.prefills) == data.count(b"Prefill batch")


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("tp1-7b-nograph", {"graphs.mode": "none", "graphs.disable_flag": True, "decode.graph_off_share": 1.0,
                            "prefill.graph_used_share": 1.0, "graphs.covers_batch": False, "kv.pool_tokens": 811238}),
        ("tp1-7b-graph4", {"graphs.mode": "full", "graphs.capture_sizes": [1, 2, 4], "graphs.capture_max": 4, "decode.batch_p90": 16.0,
                           "graphs.required_size": 16, "graphs.covers_batch": False}),
        ("tp1-7b-graph32", {"graphs.capture_sizes": [1, 2, 4, 8, 12, 16, 24, 32], "decode.batch_p90": 64.0, "graphs.required_size": 64,
                            "graphs.covers_batch": False, "kv.pool_tokens": 814279, "scheduler.max_running": 4096,
                            "memory.weights_gib": 14.21, "kv.bytes_per_token": 147450, "gpu.memory_free_gib": 11.06,
                            "decode.eager_passes": 256, "decode.graph_passes": 681, "gpu.arch": "sm_90", "topology.gpu_link": "single"}),
        ("tp1-7b-graph32-b", {"decode.graph_off_share": 0.0, "graphs.covers_batch": True, "graphs.prefill_captured": False}),
        ("tp1-7b-nooverlap", {"scheduler.overlap": False, "decode.graph_off_share": 0.0}),
        ("tp1-7b-nextn3-acc2.8", {"spec.method": "mtp", "spec.draft_tokens": 3, "spec.simulated": True, "scheduler.max_running": 48,
                                  "graphs.draft_captured": True}),
        ("tp1-7b-kvlimited", {"kv.pool_tokens": 27743, "kv.preemptions": 8, "queue.depth_p95": 37.0, "decode.graph_off_share": 0.0}),
        ("tp1-7b-oom", {"startup.outcome": "oom", "startup.cause": "oom_kv", "kv.pool_tokens": 904488}),
        ("tp1-7b-badflag", {"startup.outcome": "bad_flag", "startup.cause": "bad_flag"}),
        ("tp1-7b-badspec", {"startup.outcome": "timeout", "startup.cause": "not_ready_in_time", "spec.draft_tokens": 3,
                            "settings.overridden": {"speculative_num_draft_tokens": {"asked": 9, "resolved": 4}}}),
        ("tp2-27b-graph32", {"allreduce.custom": "on", "kv.pool_tokens": 851472, "prefill.graph_used_share": 1.0, "nccl.version": "2.28.9",
                             "topology.gpu_link": "nvlink", "kv.bytes_per_token": 131073, "prefill.graph_passes": 12}),
        ("tp2-27b-nccl-shm", {"allreduce.custom": "off_flag", "nccl.transport": "shm", "nccl.channels": 4, "topology.p2p": "disabled_by_env"}),
        ("tp2-27b-nextn3", {"scheduler.max_running": 48, "kv.pool_tokens": 818621, "prefill.graph_used_share": 0.0,
                            "prefill.eager_passes": 12, "graphs.prefill_captured": True}),
    ],
)  # fmt: skip
def test_sglang_h200(name: str, facts: dict[str, object]) -> None:
    evidence = bundle(name).evidence
    assert {fact: evidence.value(fact) for fact in facts} == facts


def test_a_decode_line_that_prints_no_tokens_beside_running_requests_is_missing_not_zero() -> None:
    evidence = bundle("tp1-7b-kvlimited").evidence
    assert evidence.number("kv.token_readings_missing") == 6
    assert (evidence.number("kv.usage_p95") or 0) > 0.9


def test_captured_is_not_used() -> None:
    """Speculation: prefill graphs were captured for 49 s and every prefill step ran without them."""
    evidence = bundle("tp2-27b-nextn3").evidence
    assert evidence.number("startup.phase_s", stage="graphs_prefill") == 48.81
    assert evidence.value("graphs.prefill_captured") is True
    assert evidence.number("prefill.graph_used_share") == 0


def test_acceptance_is_recomputed_from_the_length() -> None:
    for name, length in (("tp1-7b-nextn3-acc2.8", 2.8), ("tp2-27b-nextn3", 3.3)):
        evidence = bundle(name).evidence
        assert evidence.number("spec.accept_len") == pytest.approx(length, abs=0.06)
        assert evidence.number("spec.accept_share") == pytest.approx((length - 1) / 3, abs=0.02)


def test_levels_are_told_apart() -> None:
    evidence = bundle("tp1-7b-graph32").evidence
    assert [evidence.number("decode.graph_off_share", concurrency=level) for level in (1, 16, 64)] == [0.0, 0.0, 1.0]
    assert evidence.number("decode.step_ms_p50", concurrency=16) == pytest.approx(5.1, abs=0.2)
    assert evidence.number("decode.step_ms_p50", concurrency=64) == pytest.approx(19.0, abs=1.5)
    assert evidence.number("client.output_tps", concurrency=64) == 3017.82
    assert evidence.number("client.output_tps") == 3017.82
    assert evidence.number("client.concurrency") == 64


def test_facts_point_at_their_line() -> None:
    folder = SGLANG / "tp1-7b-graph32"
    lines = (folder / "server.log").read_bytes().split(b"\n")
    data = (folder / "server.log").read_bytes()
    for name in (
        "graphs.capture_sizes",
        "decode.graph_off_share",
        "kv.pool_tokens",
        "decode.batch_p90",
        "scheduler.max_running",
    ):
        fact = read_bundle(folder).evidence.get(name)
        assert fact is not None and fact.line is not None and fact.span is not None
        assert data[slice(*fact.span)] in lines[fact.line - 1]
    fact = read_bundle(folder).evidence.get("graphs.capture_sizes")
    assert fact is not None and (fact.source, fact.line) == ("server.log", 30)


def test_rates_leave_out_the_idle_gap() -> None:
    """The first decode line after the start prints 2.95 tok/s where 211 follow."""
    assert bundle("tp1-7b-graph32").evidence.number("decode.throughput_tps", concurrency=1) == pytest.approx(212, abs=2)


def test_what_is_absent_is_missing_with_a_reason() -> None:
    missing = {item.name: item.reason for item in bundle("tp1-7b-oom").evidence.missing}
    assert "no row" in missing["client.output_tps"]
    assert "gpu.csv" in missing["gpu.sm_util_p50"]
    assert not any(item.name == "kv.pool_tokens" for item in bundle("tp1-7b-oom").evidence.missing)


def test_cpu_build_of_sglang_writes_cpu_graph() -> None:
    evidence = bundle("base", "sglang-0.5.23-cpu").evidence
    assert evidence.value("engine.device") == "cpu"
    assert evidence.value("graphs.mode") == "none"
    assert evidence.number("decode.graph_off_share") == 1.0
    assert evidence.number("scheduler.max_running") == 2048
    assert evidence.value("kernel.attention_backend") == "torch_native"
    assert evidence.number("kv.pool_tokens") == 16384


def test_vllm_cpu() -> None:
    capped = bundle("mns4", "vllm-0.32-cpu").evidence
    assert capped.number("scheduler.max_running") == 4
    assert capped.number("decode.batch_p90") == 4
    assert capped.number("queue.depth_p95") == 12
    assert capped.value("engine.generation") == "V1"
    cycle = bundle("cyc_ngram4", "vllm-0.32-cpu").evidence
    assert cycle.value("spec.method") == "ngram"
    assert cycle.number("spec.draft_tokens") == 4
    assert cycle.number("spec.accept_share") == pytest.approx(0.99, abs=0.01)
    assert cycle.value("scheduler.overlap") is False
    nothing = bundle("ngram", "vllm-0.32-cpu").evidence
    assert nothing.number("spec.accept_len") == 1.0
    assert (nothing.number("spec.draft_share") or 0) < 0.1
    default = {item.name for item in bundle("base", "vllm-0.32-cpu").evidence.missing}
    assert "scheduler.max_running" in default
