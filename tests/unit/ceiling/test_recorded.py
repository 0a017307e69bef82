"""Ceilings, waterfalls and computed predictions against launches that were really measured."""

from dataclasses import replace

import pytest
from recorded import EVERY, HEALTHY, RUNS, SHAPES

from optimizer.ceiling.decode import decode_roof, kv_bytes_per_token_per_gpu
from optimizer.ceiling.launches import PRIOR_EFFICIENCY, graphs_gain
from optimizer.ceiling.predict import computed_ratio, speculation_of
from optimizer.ceiling.waterfall import observed_efficiency
from optimizer.model.ceiling import Waterfall

GIB = 2**30


@pytest.mark.gate("S12")
def test_weights_per_gpu_are_exact() -> None:
    """Log: 14.21 and 21.34 GiB."""
    for name, measured in (("tp1-7b-graph32", 14.21), ("tp2-27b-graph32", 21.34)):
        inputs = RUNS[name].inputs(1)
        assert isinstance(inputs.waterfall, Waterfall)
        assert inputs.waterfall.ceiling.weights_bytes_per_gpu / GIB == pytest.approx(measured, rel=0.02)


@pytest.mark.gate("S12")
def test_kv_bytes_per_token_are_exact() -> None:
    """Log: K + V size over #tokens = 147,450 and 131,073."""
    for name, measured in (("tp1-7b-graph32", 147_450), ("tp2-27b-graph32", 131_073)):
        run = RUNS[name]
        assert kv_bytes_per_token_per_gpu(run.shape, run.situation(1)) == pytest.approx(measured, rel=0.001)


@pytest.mark.gate("S12")
@pytest.mark.parametrize(("batch", "roof_ms", "efficiency"), [(1, 2.92, 0.62), (16, 3.03, 0.59), (32, 3.13, 0.56)])
def test_decode_roof_and_efficiency(batch: int, roof_ms: float, efficiency: float) -> None:
    run = RUNS["tp1-7b-graph32-b" if batch == 32 else "tp1-7b-graph32"]
    inputs = run.inputs(batch)
    assert decode_roof(inputs.shape, inputs.hardware, inputs.situation, batch).ms == pytest.approx(roof_ms, abs=0.01)
    assert observed_efficiency(inputs.waterfall) == pytest.approx(efficiency, abs=0.01)


@pytest.mark.gate("S12")
@pytest.mark.parametrize(("name", "concurrency"), EVERY)
def test_no_measurement_beats_its_ceiling(name: str, concurrency: int) -> None:
    found = RUNS[name].inputs(concurrency).waterfall
    assert isinstance(found, Waterfall)
    top = found.ceiling.best_tokens_per_s if found.speculating else found.ceiling.tokens_per_s
    assert found.measured_tokens_per_s < top
    assert not any("beats the roofline" in note for note in found.notes)
    assert found.reachable_tokens_per_s >= found.measured_tokens_per_s * (1 - 1e-9)


@pytest.mark.parametrize(("name", "concurrency"), EVERY)
def test_slices_add_up_to_the_measurement(name: str, concurrency: int) -> None:
    found = RUNS[name].inputs(concurrency).waterfall
    assert isinstance(found, Waterfall)
    total = sum(part.ms for part in found.slices)
    assert total == pytest.approx(1e3 * concurrency / found.measured_tokens_per_s)
    assert found.slices[-1].tokens_per_s_after == pytest.approx(found.measured_tokens_per_s)
    assert all(part.ms >= 0 for part in found.slices) and found.slices[0].bucket == "ceiling"


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("name", HEALTHY)
def test_expected_speed_of_healthy_launches_within_a_quarter(name: str, concurrency: int) -> None:
    found = RUNS[name].inputs(concurrency).waterfall
    assert isinstance(found, Waterfall)
    assert found.ceiling.expected_tokens_per_s == pytest.approx(found.measured_tokens_per_s, rel=0.25)
    assert found.share("eager") == 0 and found.share("queue_cap") == 0


def test_worked_waterfall() -> None:
    """Captured up to 32, concurrency 64: 3.35 + 2.5 + 14.0 + 1.3 ms; one flag holds two thirds of the time."""
    found = RUNS["tp1-7b-graph32"].inputs(64, efficiency=0.57).waterfall
    assert isinstance(found, Waterfall)
    by_bucket = {part.bucket: part.ms for part in found.slices}
    assert by_bucket["ceiling"] == pytest.approx(3.35, abs=0.02)
    assert by_bucket["kernel"] == pytest.approx(2.5, abs=0.1)
    assert by_bucket["eager"] == pytest.approx(14.0, abs=0.1)
    assert by_bucket["prefill"] == pytest.approx(1.3, abs=0.05)
    assert found.share("eager") == pytest.approx(0.66, abs=0.02)


@pytest.mark.parametrize(("concurrency", "measured"), [(1, 204 / 38), (16, 2593 / 704)])
def test_graph_gain_from_the_eager_launch_alone(concurrency: int, measured: float) -> None:
    """Predicted before any graphed launch exists: within a factor 1.5 of what graphs then gave, and inside the interval."""
    inputs = RUNS["tp1-7b-nograph"].inputs(concurrency)
    roof = decode_roof(inputs.shape, inputs.hardware, inputs.situation, concurrency).ms
    gain = graphs_gain(inputs.round_ms, inputs.per_token_ms, roof, PRIOR_EFFICIENCY)
    assert measured / 1.5 < gain < measured * 1.5
    low, high = computed_ratio("graphs_on", inputs)
    assert low < measured < high
    assert computed_ratio("graphs_on", RUNS["tp1-7b-graph32"].inputs(concurrency)) is None


@pytest.mark.parametrize("concurrency", [1, 16])
def test_collectives_over_shared_memory(concurrency: int) -> None:
    """Measured: TPOT 9.343 against 7.758 ms at 1, 11.717 against 8.335 ms at 16."""
    slow, fast = RUNS["tp2-27b-nccl-shm"], RUNS["tp2-27b-graph32"]
    measured = slow.points[concurrency][1] - fast.points[concurrency][1]
    found = slow.inputs(concurrency).waterfall
    assert isinstance(found, Waterfall)
    lost = sum(part.ms for part in found.slices if part.bucket == "collectives")
    assert lost == pytest.approx(measured, rel=0.15)
    assert fast.inputs(concurrency).waterfall.share("collectives") == 0
    low, high = computed_ratio("best_collectives", slow.inputs(concurrency))
    assert low < fast.points[concurrency][0] / slow.points[concurrency][0] < high


@pytest.mark.parametrize(("concurrency", "measured"), [(1, 1.62), (16, 1.26), (32, 0.99)])
def test_draft_gain_from_the_speculative_launch_alone(concurrency: int, measured: float) -> None:
    """TPOT ratio against the plain launch: wins at 1 and 16, nothing left at 32."""
    run = RUNS["tp1-7b-nextn3-acc2.8"]
    rounds = {float(level): tpot * 2.8 for level, (_, tpot) in run.points.items()}
    found = speculation_of(run.inputs(1), rounds)
    assert found.speedup(3, concurrency) == pytest.approx(measured, rel=0.1)
    assert (found.speedup(3, concurrency) > 1.05) == (measured > 1.05)


def test_break_even_and_depth_of_the_draft() -> None:
    run = RUNS["tp1-7b-nextn3-acc2.8"]
    found = speculation_of(run.inputs(1), {float(level): tpot * 2.8 for level, (_, tpot) in run.points.items()})
    assert 20 < found.break_even(3) < 40
    assert found.best_depth(1) >= 2 and found.best_depth(64) == 0
    assert found.best_depth(1) >= found.best_depth(16) >= found.best_depth(32)


@pytest.mark.parametrize(("concurrency", "measured"), [(1, 2.1), (16, 1.65)])
def test_draft_gain_of_the_larger_model(concurrency: int, measured: float) -> None:
    run = RUNS["tp2-27b-nextn3"]
    found = speculation_of(run.inputs(1), {float(level): tpot * 3.3 for level, (_, tpot) in run.points.items()})
    assert found.speedup(3, concurrency) == pytest.approx(measured, rel=0.1)


def test_a_small_pool_is_a_queue() -> None:
    inputs = RUNS["tp1-7b-kvlimited"].inputs(64)
    assert inputs.waterfall.share("queue_cap") > 0.3
    assert "27 of 64" in next(part.why for part in inputs.waterfall.slices if part.bucket == "queue_cap")
    low, high = computed_ratio("admit_all", inputs)
    assert 1.1 < low < high < 2.5


def test_shapes_match_the_checkpoints() -> None:
    assert SHAPES["7b"].total_params == 7_622_098_944 and SHAPES["7b"].mtp_layers == 1
    assert SHAPES["27b"].total_params == pytest.approx(22.69e9, rel=0.001)


def test_direction_of_a_change_of_depth() -> None:
    """At 32 three drafts are too many; a run that drafted one token only, nearly always accepted, wants more."""
    loaded = RUNS["tp1-7b-nextn3-acc2.8"].inputs(32)
    assert computed_ratio("draft_shallower", loaded)[1] > 1 and computed_ratio("draft_deeper", loaded) is None
    assert computed_ratio("drafts_off", loaded)[1] > 1
    idle = RUNS["tp1-7b-nextn3-acc2.8"].inputs(1)
    assert computed_ratio("draft_shallower", idle) is None and computed_ratio("drafts_off", idle) is None
    short = replace(RUNS["tp1-7b-graph32"], points={1: (280.0, 3.4)}, facts={"draft_tokens": 1, "accept_len": 1.85})
    low, high = computed_ratio("draft_deeper", short.inputs(1))
    assert 1.05 < low < high < 2.5 and computed_ratio("draft_shallower", short.inputs(1)) is None
    assert computed_ratio("drafts_on", short.inputs(1)) is None  # it drafts already


@pytest.mark.parametrize("concurrency", [1, 16])
def test_drafts_of_the_own_layer_are_predicted_before_they_run(concurrency: int) -> None:
    """Measured TPOT ratios with A = 2.8: 1.62 at 1 and 1.26 at 16."""
    low, high = computed_ratio("drafts_on", RUNS["tp1-7b-graph32"].inputs(concurrency))
    assert low < {1: 1.62, 16: 1.26}[concurrency] < high
