"""Hardware look-up, rooflines, collectives, drafts and what may be called out of reach."""

import csv
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import ROOT, RUNS, SHAPES, gpu, gpus
from test_shape import DEEPSEEK_V3, GPT_OSS, QWEN3_NEXT

from optimizer.ceiling.bounds import best_draft, ceiling
from optimizer.ceiling.collectives import allreduce_us, collectives_of_step
from optimizer.ceiling.decode import attended_tokens, decode_roof, kv_bytes_per_token_per_gpu, weights_read
from optimizer.ceiling.hardware import find_hardware, link_rate, matrix_rate
from optimizer.ceiling.launches import eager_floor_ms
from optimizer.ceiling.predict import COMPUTED, Inputs, computed_ratio, inputs_of, speculation_of
from optimizer.ceiling.prefill import prefill_roof_ms
from optimizer.ceiling.reach import out_of_reach, reachable_by_configuration
from optimizer.ceiling.shape import shape_from_config
from optimizer.ceiling.situation import situation_of
from optimizer.ceiling.speculation import RoundCost, Speculation, acceptance_of, fitted_cost
from optimizer.ceiling.waterfall import bucket_share, observed_efficiency, waterfall
from optimizer.core.roofline import level_ceilings
from optimizer.model.ceiling import Ceiling, NoCeiling, Situation, Waterfall
from optimizer.model.evidence import Evidence, Fact, Missing, evidence
from optimizer.model.measurement import LoadPoint

H200 = gpu("NVIDIA H200")
SHARED = ROOT / ".." / "shared"


def point(rate: float, tpot: float | None = None, concurrency: int = 16) -> LoadPoint:
    metrics = {"output_tokens_per_s": rate} | ({} if tpot is None else {"tpot_p50_ms": tpot})
    return LoadPoint(
        concurrency=concurrency, requests_ok=1, requests_failed=0, prompt_tokens=1, output_tokens=1, window_s=1,
        metrics=metrics,
    )  # fmt: skip


def facts(values: dict[str, object], **labelled: object) -> Evidence:
    found = [Fact(name=name, value=value) for name, value in values.items()]
    for name, (value, concurrency) in labelled.items():
        found.append(Fact(name=name.replace("__", "."), value=value, labels={"concurrency": concurrency}))
    return evidence(found)


# Hardware


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("NVIDIA H200", None, "NVIDIA H200"), ("NVIDIA H100 80GB HBM3", None, "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", None, "NVIDIA H100 PCIe"), ("NVIDIA A100-SXM4-40GB", 40536, "NVIDIA A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "NVIDIA A100 80GB"), ("NVIDIA A100", 81251, "NVIDIA A100 80GB"),
        ("NVIDIA RTX A6000", None, "NVIDIA RTX A6000"), ("NVIDIA L4", None, "NVIDIA L4"),
        ("NVIDIA L40S", None, "NVIDIA L40S"), ("NVIDIA GeForce RTX 4090", None, "NVIDIA GeForce RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "NVIDIA RTX PRO 6000 Blackwell"),
        ("NVIDIA B200", None, "NVIDIA B200"), ("AMD Instinct MI300X", None, "AMD Instinct MI300X"),
    ],
)  # fmt: skip
def test_gpu_names_find_their_data_sheet(name: str, memory: float | None, expected: str) -> None:
    found = find_hardware(gpus(), name, memory)
    assert not isinstance(found, NoCeiling) and found.gpu == expected


@pytest.mark.parametrize("name", [None, "", "NVIDIA L400", "Some GPU"])
def test_an_unknown_gpu_has_no_ceiling(name: str | None) -> None:
    found = find_hardware(gpus(), name)
    if name == "NVIDIA L400":  # a longer name that merely contains a known one must not be taken for it
        assert isinstance(found, NoCeiling)
    assert isinstance(found, NoCeiling) and found.reason


def test_every_entry_is_plausible() -> None:
    assert len(gpus()) >= 14
    for spec in gpus():
        assert 2e4 < spec.memory_mib < 3e5 and 2e11 < spec.hbm_bytes_per_s < 1e13, spec.gpu
        assert spec.flops["bf16"] > 5e13 and spec.source.startswith("https://"), spec.gpu
        assert spec.flops.get("fp8", 2 * spec.flops["bf16"]) == pytest.approx(2 * spec.flops["bf16"], rel=0.03), spec.gpu
        for path, table in spec.allreduce_us.items():
            if path == "custom_eager":
                continue  # bound by the host, flat within its noise
            times = [table[key] for key in sorted(table, key=int)]
            assert times == sorted(times), (spec.gpu, path)  # more GPUs never make it faster
    assert len({spec.gpu for spec in gpus()}) == len(gpus())


def test_formats_without_hardware_run_at_the_next_wider_one() -> None:
    a100 = gpu("NVIDIA A100 80GB")
    assert matrix_rate(a100, "fp8") == matrix_rate(a100, "fp4") == a100.flops["bf16"]
    assert matrix_rate(H200, "fp4") == H200.flops["fp8"] and link_rate(H200) == 450e9


# Rooflines


def test_experts_are_touched_as_the_batch_grows() -> None:
    shape = shape_from_config(DEEPSEEK_V3)
    one, all_of_them = weights_read(shape, 1), weights_read(shape, 10_000)
    assert one == pytest.approx(shape.weight_bytes_dense + 8 * 58 * shape.weight_bytes_per_expert)
    assert all_of_them == pytest.approx(shape.weight_bytes_total - shape.embedding_bytes, rel=1e-6)
    assert one < weights_read(shape, 16) < all_of_them


@pytest.mark.parametrize(("tp", "expected"), [(1, 1.0), (2, 0.5), (8, 0.125), (16, 0.125)])
def test_kv_heads_are_replicated_beyond_their_number(tp: int, expected: float) -> None:
    shape = SHAPES["7b"]
    found = kv_bytes_per_token_per_gpu(shape, Situation(tp=tp, attention_tp=tp))
    assert found == pytest.approx(shape.kv_bytes_per_token * expected)


def test_the_latent_is_not_divided_and_fp8_halves() -> None:
    shape = shape_from_config(DEEPSEEK_V3)
    assert kv_bytes_per_token_per_gpu(shape, Situation(tp=8, attention_tp=8)) == shape.kv_bytes_per_token
    halved = kv_bytes_per_token_per_gpu(shape, Situation(tp=8, attention_tp=8, kv_bytes=1.0))
    assert halved == shape.kv_bytes_per_token / 2


def test_windows_and_selection_bound_what_is_read() -> None:
    gpt = shape_from_config(GPT_OSS)
    assert attended_tokens(gpt, 10_000) == (10_000 + 128) / 2
    sparse = shape_from_config(DEEPSEEK_V3 | {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64})
    assert attended_tokens(sparse, 100_000) == 2048
    dense = shape_from_config(DEEPSEEK_V3)
    situation = Situation(tp=8, attention_tp=8)
    long = [decode_roof(shape, H200, situation, 64, context_tokens=100_000).ms for shape in (sparse, dense)]
    assert long[0] < long[1]


def test_recurrent_state_is_read_and_written() -> None:
    shape = shape_from_config(QWEN3_NEXT)
    plain = shape.model_copy(update={"state_bytes_per_request": 0.0})
    found = [decode_roof(item, H200, Situation(), 64, context_tokens=100).kv_bytes_per_gpu for item in (shape, plain)]
    assert found[0] - found[1] == pytest.approx(64 * 2 * shape.state_bytes_per_request)


def test_a_large_batch_becomes_compute_bound() -> None:
    assert decode_roof(SHAPES["7b"], H200, Situation(), 1).bound == "hbm"
    assert decode_roof(SHAPES["7b"], H200, Situation(), 2000, context_tokens=1).bound == "compute"


@given(batch=st.floats(1, 4096), tp=st.sampled_from([1, 2, 4, 8]), context=st.floats(1, 1e5))
@settings(max_examples=60)
def test_roofs_are_monotone(batch: float, tp: int, context: float) -> None:
    situation = Situation(tp=tp, attention_tp=tp)
    one = decode_roof(SHAPES["27b"], H200, situation, batch, context_tokens=context).ms
    assert decode_roof(SHAPES["27b"], H200, situation, batch * 2, context_tokens=context).ms >= one
    assert decode_roof(SHAPES["27b"], H200, situation, batch, context_tokens=context * 2).ms >= one
    wider = Situation(tp=2 * tp, attention_tp=2 * tp)
    assert decode_roof(SHAPES["27b"], H200, wider, batch, context_tokens=context).ms <= one


def test_prefill_counts_causal_pairs() -> None:
    shape, tokens = SHAPES["7b"], 4096.0
    expected = (2 * shape.layer_params * tokens + 2 * 36 * 32 * 256 * tokens * tokens / 2) / 989e12 * 1e3
    assert prefill_roof_ms(shape, H200, Situation(prompt_tokens=tokens)) == pytest.approx(expected)
    two = prefill_roof_ms(shape, H200, Situation(prompt_tokens=tokens, tp=2, attention_tp=2))
    assert two == pytest.approx(expected / 2)
    assert prefill_roof_ms(shape, H200, Situation(prompt_tokens=0)) == 0


def test_eager_floor() -> None:
    assert eager_floor_ms(SHAPES["7b"], H200) == pytest.approx(2.6, abs=0.01)
    assert eager_floor_ms(SHAPES["7b"], H200, 1000) == pytest.approx(6.0)


# Collectives


def test_recorded_shared_memory_path() -> None:
    """12 us above the custom path at 10 KiB, 26 us at 160 KiB."""
    for size, extra in ((10 * 1024, 12), (160 * 1024, 26)):
        shm, custom = (allreduce_us(H200, path, 2, size) for path in ("nccl_shm", "custom_graphed"))
        assert shm is not None and custom is not None and shm - custom == pytest.approx(extra, abs=1.5)


def test_collectives_of_a_step() -> None:
    shape = SHAPES["27b"]
    found = collectives_of_step(shape, H200, Situation(tp=2, attention_tp=2, allreduce_path="nccl_shm"), 1)
    assert found is not None and found.count == 128 and found.best_path == "custom_graphed"
    assert found.lost_ms == pytest.approx(1.6, abs=0.15)
    assert collectives_of_step(shape, H200, Situation(), 1) is None  # one GPU
    unknown = collectives_of_step(shape, gpu("NVIDIA L4"), Situation(tp=2, attention_tp=2, allreduce_path="nccl_shm"), 1)
    assert unknown is not None and not unknown.known and unknown.lost_ms == 0  # no figure: nothing is said to be lost
    measured = Situation(tp=2, attention_tp=2, allreduce_path="nccl_shm", allreduce_us=50.0)
    assert collectives_of_step(shape, H200, measured, 1).used_us == 50.0


DEVICES = {
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100 80GB", "NVIDIA H100 80GB HBM3": "NVIDIA H100 SXM",
    "NVIDIA H200": "NVIDIA H200", "NVIDIA B200": "NVIDIA B200", "NVIDIA L40S": "NVIDIA L40S",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "NVIDIA RTX PRO 6000 Blackwell",
}  # fmt: skip


def test_allreduce_times_against_published_tables() -> None:
    """Within a factor 2.5 of the median over versions at every size from 8 KiB to 16 MiB, within 1.5 in the mean."""
    path = SHARED / "data" / "aiconfigurator_nccl_perf.csv"
    if not path.exists():
        pytest.skip("the published tables are not part of the project")
    seen: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    with path.open() as stream:
        for row in csv.DictReader(stream):
            if row["op_name"] == "all_reduce" and row["nccl_dtype"] == "half" and row["device"] in DEVICES:
                size = 2 * int(row["message_size"])
                if 8192 <= size <= 2**24 and int(row["num_gpus"]) in (2, 4, 8):
                    seen[row["device"], int(row["num_gpus"]), size].append(1e3 * float(row["latency"]))
    assert len(seen) > 100
    errors = []
    for (device, count, size), times in seen.items():
        ours = allreduce_us(gpu(DEVICES[device]), "nccl_p2p", count, size)
        assert ours is not None
        errors.append(abs(math.log(ours / sorted(times)[len(times) // 2])))
    assert max(errors) < math.log(2.5)
    assert sum(errors) / len(errors) < math.log(1.5)


# Drafts


def test_acceptance_by_position_and_by_mean() -> None:
    by_mean = acceptance_of(3, 2.8)
    assert by_mean.length(3) == pytest.approx(2.8) and by_mean.length(1) < 2 and by_mean.length(0) == 1
    by_position = acceptance_of(3, 2.0, (0.8, 0.5, 0.3))
    assert by_position.length(3) == pytest.approx(2.6) and by_position.length(5) < 2.6 + 0.6
    assert acceptance_of(3, 1.0).length(8) == 1.0 and acceptance_of(3, 4.0).length(8) == pytest.approx(9, rel=1e-6)
    lying = acceptance_of(2, 1.0, (0.4, 0.9))
    assert lying.reached == (0.4, 0.4)


@given(st.integers(1, 8), st.floats(1, 9))
def test_acceptance_is_never_beyond_the_draft(depth: int, accepted: float) -> None:
    found = acceptance_of(depth, min(accepted, depth + 1.0))
    lengths = [found.length(k) for k in range(12)]
    assert all(1 <= length <= k + 1 + 1e-9 for k, length in enumerate(lengths)) and lengths == sorted(lengths)


def test_depth_follows_acceptance_and_load() -> None:
    cost = RoundCost(0.2, 0.01)
    good, bad = Speculation(acceptance_of(3, 3.8), cost), Speculation(acceptance_of(3, 1.05), cost)
    assert good.best_depth(1) > good.best_depth(32) and bad.best_depth(1) == 0
    assert bad.break_even(3) == 0.0 and good.break_even(3) > 50
    assert Speculation(acceptance_of(3, 3.8), RoundCost(0.1, 0.0)).break_even(3) is None
    level = good.break_even(3)
    assert good.speedup(3, level) == pytest.approx(1.0)


def test_costs_are_fitted_or_scaled() -> None:
    prior = RoundCost(0.2, 0.01)
    assert fitted_cost(3, {}, prior) == prior
    assert fitted_cost(3, {1.0: 1.63, 32.0: 1 + 3 * 0.52}, prior).per_sequence == pytest.approx(0.01, abs=1e-9)
    scaled = fitted_cost(3, {16.0: prior.ratio(3, 16) * 2 - 1}, prior)
    assert scaled.fixed == pytest.approx(0.4) and scaled.per_sequence == pytest.approx(0.02)


def test_no_draft_depth_without_a_draft() -> None:
    assert speculation_of(RUNS["tp1-7b-graph32"].inputs(1)) is None
    depth, rate = best_draft(SHAPES["7b"], H200, Situation(), 1.0, 3)
    assert depth == 3 and rate > 1e3 / 2.92


# Situation


def test_situation_of_a_capped_launch() -> None:
    found = situation_of(
        facts({"scheduler.max_running": 2, "parallel.tp": 2, "graphs.capture_max": 8, "allreduce.custom": "on"}),
        concurrency=16, prompt_tokens=100, output_tokens=100,
    )  # fmt: skip
    assert (found.running, found.tp, found.attention_tp, found.graph_off_share) == (2, 2, 2, 0.0)
    assert "2 requests" in found.running_why and found.allreduce_path == "custom_graphed"
    assert found.context_tokens == 150


def test_a_measured_batch_of_this_level_wins() -> None:
    found = situation_of(
        facts({"scheduler.max_running": 64, "decode.batch_p50": 1.0}, decode__batch_p50=(12.0, 16)),
        concurrency=16, prompt_tokens=1, output_tokens=1,
    )  # fmt: skip
    assert found.running == 12 and found.running_basis == "measured"


@pytest.mark.parametrize(
    ("values", "concurrency", "expected"),
    [
        ({"graphs.disable_flag": True, "graphs.capture_max": 64}, 16, 1.0),
        ({"graphs.mode": "none"}, 16, 1.0),
        ({"graphs.mode": "piecewise"}, 16, 1.0),
        ({"graphs.capture_max": 8}, 16, 1.0),
        ({"graphs.capture_sizes": [1, 2, 32]}, 16, 0.0),
        ({"graphs.capture_max": 32, "decode.graph_off_share": 0.5}, 16, 0.0),  # other levels ran outside
        ({"graphs.capture_max": 32, "decode.graph_off_share": 1.0}, 16, 1.0),  # captured, and never used
        ({"graphs.capture_max": 32, "engine.name": "vllm", "spec.method": "mtp", "spec.draft_tokens": 3}, 16, 1.0),
        ({"graphs.capture_max": 32, "engine.name": "sglang", "spec.method": "mtp", "spec.draft_tokens": 3}, 16, 0.0),
        ({"decode.graph_off_share": 0.4}, 16, 0.4),
        ({}, 16, None),
    ],
)  # fmt: skip
def test_graph_share(values: dict, concurrency: int, expected: float | None) -> None:
    found = situation_of(facts(values), concurrency=concurrency, prompt_tokens=1, output_tokens=1)
    assert found.graph_off_share == expected


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"allreduce.custom": "on", "graphs.disable_flag": True}, "custom_eager"),
        ({"allreduce.custom": "off_flag", "nccl.transport": "shm"}, "nccl_shm"),
        ({"allreduce.custom": "off_flag", "nccl.env": {"NCCL_P2P_DISABLE": "1"}}, "nccl_shm"),
        ({"allreduce.custom": "off_pcie_only"}, "nccl_p2p"),
        ({}, None),
    ],
)
def test_allreduce_path(values: dict, path: str | None) -> None:
    assert situation_of(facts(values), concurrency=1, prompt_tokens=1, output_tokens=1).allreduce_path == path


def test_replicas_and_shared_attention() -> None:
    copies = situation_of(facts({"parallel.tp": 2, "parallel.dp": 4}), concurrency=16, prompt_tokens=1, output_tokens=1)
    assert (copies.gpus, copies.replicas, copies.attention_tp) == (8, 4, 2)
    shared = situation_of(
        facts({"parallel.tp": 8, "parallel.dp": 4, "parallel.dp_attention": True}),
        concurrency=16, prompt_tokens=1, output_tokens=1,
    )  # fmt: skip
    assert (shared.gpus, shared.replicas, shared.attention_tp) == (8, 1, 2)


def test_no_draft_is_no_acceptance() -> None:
    found = situation_of(
        facts({"spec.method": "none", "spec.draft_tokens": 3, "spec.accept_len": 2.5}),
        concurrency=1, prompt_tokens=1, output_tokens=1,
    )  # fmt: skip
    assert found.draft_tokens == 0 and found.accept_len == 1


# No ceiling, no numbers


def test_without_a_gpu_everything_says_why() -> None:
    none = find_hardware(gpus(), None)
    found = waterfall(SHAPES["7b"], none, Situation(), point(100.0))
    assert isinstance(found, NoCeiling) and "no GPU" in found.reason
    assert isinstance(ceiling(NoCeiling(reason="no config"), H200, Situation()), NoCeiling)
    assert isinstance(waterfall(SHAPES["7b"], H200, Situation(), point(0.0)), NoCeiling)
    empty = Inputs(Situation(intended=16, running=16), point(100.0), NoCeiling(reason="x"), none, found)
    assert [computed_ratio(name, empty) for name in COMPUTED] == [None] * len(COMPUTED)
    assert computed_ratio("no such name", empty) is None


def test_admission_is_predicted_without_a_gpu() -> None:
    """CPU engines have no roofline, but a queue is a queue."""
    none = NoCeiling(reason="no GPU")
    inputs = Inputs(Situation(intended=16, running=1), point(100.0), none, none, none)
    low, high = computed_ratio("admit_all", inputs)
    assert 1.5 < low < high == 16


def test_inputs_of_evidence() -> None:
    found = inputs_of(
        Evidence(facts=(Fact(name="graphs.disable_flag", value=True),), missing=(Missing(name="x", reason="y"),)),
        SHAPES["7b"], H200, point(704.37, 21.508), prompt_tokens=156, output_tokens=128,
    )  # fmt: skip
    assert isinstance(found.waterfall, Waterfall) and found.waterfall.share("eager") > 0.6
    assert json.loads(json.dumps(found.waterfall.plain())) == found.waterfall.plain()
    assert Waterfall.model_validate(found.waterfall.plain()) == found.waterfall


@given(
    rate=st.floats(1, 1e6), tpot=st.none() | st.floats(0.1, 1e3), running=st.integers(1, 64), off=st.floats(0, 1),
    depth=st.integers(0, 5), accepted=st.floats(1, 6), tp=st.sampled_from([1, 2, 8]), gap=st.none() | st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_a_waterfall_always_adds_up(rate, tpot, running, off, depth, accepted, tp, gap) -> None:
    situation = Situation(
        intended=64, running=running, tp=tp, attention_tp=tp, gpus=tp, graph_off_share=off, draft_tokens=depth,
        accept_len=min(accepted, depth + 1.0), prompt_tokens=500, output_tokens=200, allreduce_path="nccl_p2p",
        idle_gap_share=gap,
    )  # fmt: skip
    found = waterfall(SHAPES["27b"], H200, situation, point(rate, tpot, 64))
    if isinstance(found, NoCeiling):
        assert "contradiction" in found.reason and rate > 1.1 * 64e3 / 9.7 * tp
        return
    assert sum(part.ms for part in found.slices) == pytest.approx(64e3 / rate)
    assert all(part.ms >= 0 for part in found.slices)
    assert found.reachable_tokens_per_s >= rate * (1 - 1e-9)
    rates = [part.tokens_per_s_after for part in found.slices]
    assert rates == sorted(rates, reverse=True)


def test_a_measurement_above_the_roofline_is_reported() -> None:
    """7B on an H200: 2.92 ms a step, 343 tok/s. A few per cent above it are a note; beyond the error of the shape nothing
    that rests on the roofline is said."""
    near = waterfall(SHAPES["7b"], H200, Situation(), point(350.0, 2.85, 1))
    assert isinstance(near, Waterfall) and any("beats the roofline" in note for note in near.notes)
    level = Inputs(situation=Situation(), point=point(350.0, 2.85, 1), shape=SHAPES["7b"], hardware=H200, waterfall=near)
    mixture = replace(level, shape=SHAPES["7b"].model_copy(update={"experts": 8, "experts_per_token": 2}))
    assert [item.contradicts for item in level_ceilings([level, mixture])] == [True, False]
    for rate in (400.0, 20_400.0):
        found = waterfall(SHAPES["7b"], H200, Situation(), point(rate, 1e3 / rate, 1))
        assert isinstance(found, NoCeiling) and found.reason.startswith("contradiction") and "343" in found.reason
    # The same launch under the name of a smaller GPU: 300 GB/s read 14 GB in 47 ms.
    named = waterfall(SHAPES["7b"], gpu("NVIDIA L4"), Situation(), point(203.87, 4.709, 1))
    assert isinstance(named, NoCeiling) and "NVIDIA L4" in named.reason


def test_skewed_routing_and_accepted_drafts_are_no_contradiction() -> None:
    """Uniform routing is an assumption and a draft of three may deliver four tokens a round: neither is accused."""
    mixture = SHAPES["7b"].model_copy(
        update={"experts": 64, "experts_per_token": 2, "moe_layers": 36, "weight_bytes_per_expert": 20e6}
    )
    uniform = ceiling(mixture, H200, Situation(intended=32))
    assert isinstance(uniform, Ceiling)
    busy = Situation(intended=32, running=32)
    assert isinstance(waterfall(mixture, H200, busy, point(1.5 * uniform.tokens_per_s, None, 32)), Waterfall)
    drafting = Situation(draft_tokens=3, accept_len=3.3)
    assert isinstance(waterfall(SHAPES["7b"], H200, drafting, point(800.0, 1.25, 1)), Waterfall)
    assert isinstance(waterfall(SHAPES["7b"], H200, drafting, point(1600.0, 0.6, 1)), NoCeiling)


def test_the_roofline_of_drafts_holds_their_accepted_length() -> None:
    """Recorded: 214.5 tok/s of a plain roofline of 209 (27B on two, three drafts, 3.3 tokens a round)."""
    found = RUNS["tp2-27b-nextn3"].inputs(1).waterfall
    assert isinstance(found, Waterfall)
    plain = RUNS["tp2-27b-graph32"].inputs(1).waterfall.ceiling.tokens_per_s
    assert 2.5 * plain < found.ceiling.tokens_per_s < 3.3 * plain
    assert found.measured_tokens_per_s < found.ceiling.tokens_per_s < found.ceiling.best_tokens_per_s


def test_what_the_facts_do_not_measure_is_said_and_not_called_kernel_silently() -> None:
    coarse = SHAPES["27b"].model_copy(update={"layers": 0, "hidden": 0})
    two = Situation(tp=2, gpus=2, attention_tp=2, allreduce_path="nccl_shm", overlap=False)
    found = waterfall(coarse, H200, two, point(104.22, 9.343, 1))
    assert isinstance(found, Waterfall)
    assert any(note.startswith("collectives (here over nccl_shm): cannot tell") for note in found.notes)
    assert any(note.startswith("host:") for note in found.notes)
    assert found.slices[-1].why.endswith("and collectives, and host time")
    measured = two.model_copy(update={"idle_gap_share": 0.1, "tp": 1})
    profiled = waterfall(SHAPES["27b"], H200, measured, point(50.0, 20.0, 1))
    assert isinstance(profiled, Waterfall) and not profiled.notes and profiled.share("host") > 0


# Out of reach


def test_hard() -> None:
    found = out_of_reach(1000, 200, RUNS["tp1-7b-graph32"].inputs(1).waterfall, [("kernel", 100.0)])
    assert found.kind == "hard" and "roofline" in found.sentence and "1,000" in found.sentence


def test_configuration() -> None:
    healthy = RUNS["tp1-7b-graph32"].inputs(16).waterfall
    found = out_of_reach(5000, 2593, healthy, [("eager", 5.0), ("queue_cap", 3.0), ("none", 1.05)])
    assert found.kind == "configuration" and "kernels" in found.sentence and "by configuration" in found.sentence
    assert found.reachable_tokens_per_s == pytest.approx(2593 * 1.05)  # empty buckets give nothing
    assert "measured 2,593 tok/s; if each idea that is open paid the most that it predicts, about 2,723 tok/s" in found.sentence
    none = out_of_reach(5000, 24.523, healthy, [])
    assert "measured 24.52 tok/s; no idea that could add to it is open" in none.sentence
    old = out_of_reach(5000, 2593, healthy, [("none", 1.05)], first_words=True).sentence
    assert old.startswith("This box cannot reach 5,000 tok/s by configuration: measured 2,593, configuration could reach 2,723; the largest loss")
    assert "% of" in old and " % of" not in old


def test_within_reach() -> None:
    eager = RUNS["tp1-7b-nograph"].inputs(16).waterfall
    assert out_of_reach(2000, 704, eager, [("eager", 5.0)]).kind == "none"
    assert out_of_reach(700, 704, eager, []).kind == "none"  # met already
    assert out_of_reach(2000, 704, NoCeiling(reason="x"), [("eager", 5.0)]).kind == "none"
    assert out_of_reach(2000, 704, None, [("eager", 2.0)]).kind == "configuration"


def test_ideas_of_one_bucket_share_it() -> None:
    eager = RUNS["tp1-7b-nograph"].inputs(16).waterfall
    assert isinstance(eager, Waterfall)
    cap = 704 / (1 - eager.share("eager"))
    assert reachable_by_configuration(704, eager, [("eager", 50.0)]) == pytest.approx(cap)
    assert reachable_by_configuration(704, eager, [("eager", 50.0), ("eager", 50.0)]) == pytest.approx(cap)
    assert reachable_by_configuration(704, eager, [("eager", 1.5), ("drafts", 2.0)]) == pytest.approx(704 * 3)


def test_buckets_without_a_limit() -> None:
    plain, drafting = RUNS["tp1-7b-graph32"].inputs(16).waterfall, RUNS["tp2-27b-nextn3"].inputs(1).waterfall
    assert bucket_share(plain, "none") is None and bucket_share(plain, "drafts") is None
    assert bucket_share(drafting, "drafts") > 0.1
    assert bucket_share(plain, "host") == plain.share("kernel")
    assert observed_efficiency(drafting) is None and 0.5 < observed_efficiency(plain) < 0.7


def test_shared_models_agree_with_the_table() -> None:
    folder = SHARED / "gpu-kit" / "models"
    if not folder.exists():
        pytest.skip("the model configurations are not part of the project")
    for name, shape in (("dense-7b-mtp", SHAPES["7b"]), ("dense-27b-mtp", SHAPES["27b"])):
        found = shape_from_config(json.loads(Path(folder / name / "config.json").read_text()))
        assert found.model_copy(update={"name": ""}) == shape.model_copy(update={"name": ""})
