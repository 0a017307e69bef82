"""The memory model: what must fail is refused, what may work is allowed, and what nobody knows is allowed too."""

import pytest

from optimizer.core.fits import fits
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact

GIB_141 = {"gpu.memory_mib": 143771, "gpu.count": 8}


def facts(**values: Value) -> Evidence:
    return Evidence(facts=tuple(Fact(name=name.replace("__", "."), value=value) for name, value in values.items()))


def test_a_layout_needs_a_gpu_for_each_rank() -> None:
    asked = {"tp_size": 8, "dp_size": 2}
    assert "needs 16 GPUs" in fits({}, asked, facts(), GIB_141).why
    assert fits({}, {"tp_size": 4, "dp_size": 2}, facts(), GIB_141).fits is None
    assert fits({}, {**asked, "enable_dp_attention": True}, facts(), GIB_141).fits is None
    assert fits({}, {"tensor_parallel_size": 4, "pipeline_parallel_size": 4}, facts(), GIB_141).fits is False
    assert fits({}, asked, facts(parallel__nodes=2), GIB_141).fits is None
    assert fits({}, asked, facts(), {}).fits is None


def test_a_layout_has_the_gpus_that_the_environment_shows() -> None:
    """Of a box of eight, each worker of a deployment sees its own."""
    box = {**GIB_141, "gpu.visible": 4, "gpu.visible.prefill": 2}
    assert fits({}, {"tp_size": 4}, facts(), box).fits is None
    assert "CUDA_VISIBLE_DEVICES shows the server 4" in fits({}, {"tp_size": 8}, facts(), box).why
    assert fits({}, {"tp_size": 4, "prefill.tp_size": 2}, facts(), box).fits is None
    assert "The layout of prefill needs 4 GPUs" in fits({}, {"prefill.tp_size": 4}, facts(), box).why


@pytest.mark.parametrize(("gpus", "fit"), [(8, None), (4, None), (2, False), (1, False)])
def test_fewer_gpus_have_to_hold_the_weights(gpus: int, fit: bool | None) -> None:
    """671 B parameters of one byte: 84 GiB on each of eight GPUs, too much for two of 140."""
    found = fits({"tp_size": 8}, {"tp_size": gpus}, facts(memory__weights_gib=65.0), GIB_141)
    assert found.fits is fit, found.why


def test_the_engine_s_own_share_limits_the_weights_of_another_layout() -> None:
    measured = facts(memory__weights_gib=65.0)
    before = {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.9}
    assert fits(before, {**before, "tensor_parallel_size": 2}, measured, {"gpu.memory_mib": 81920}).fits is False
    assert fits(before, {**before, "tensor_parallel_size": 2}, measured, GIB_141).fits is None
    assert fits(before, {**before, "tensor_parallel_size": 2, "quantization": "fp8"}, measured, {"gpu.memory_mib": 81920}).fits is None


def test_larger_steps_take_the_cache_of_one_request() -> None:
    """A card with 3 GiB of KV beside 1.3 GiB of activations at 8,192 tokens (the proportions of a recorded start)."""
    measured = facts(memory__weights_gib=15.0, memory__kv_gib=3.0, kv__pool_tokens=24_000, model__max_context_tokens=8192)
    before = {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 8192}
    box = {"gpu.memory_mib": 1024 * (15 + 3 + 1.3) / 0.9}
    assert fits(before, {**before, "max_num_batched_tokens": 16384}, measured, box).fits is None
    refused = fits(before, {**before, "max_num_batched_tokens": 65536}, measured, box)
    assert refused.fits is False and "activations" in refused.why
    assert fits(before, {**before, "max_num_batched_tokens": 4096}, measured, box).fits is None


def test_graphs_and_pool_together() -> None:
    measured = facts(memory__weights_gib=14.2, gpu__memory_free_gib=2.0, graphs__capture_memory_gib=1.0)
    before = {"mem_fraction_static": 0.9, "cuda_graph_max_bs": 8}
    assert fits(before, {**before, "cuda_graph_max_bs": 16}, measured, GIB_141).fits is None
    assert fits(before, {"mem_fraction_static": 0.91, "cuda_graph_max_bs": 512}, measured, GIB_141).fits is False


def test_what_is_unknown_is_allowed() -> None:
    assert fits({}, {"mem_fraction_static": 0.99}, facts(), GIB_141).fits is None
    assert fits({}, {"max_num_batched_tokens": 65536}, facts(), {}).fits is None


@pytest.mark.parametrize("laid_out", [{}, {"ep_size": 8}, {"dp_size": 2, "enable_dp_attention": True}])
def test_experts_and_attention_laid_out_otherwise_leave_each_gpu_its_part_of_the_weights(laid_out: dict[str, Value]) -> None:
    before, measured = {"tp_size": 8, "mem_fraction_static": 0.9}, facts(memory__weights_gib=100.0)
    assert fits(before, {**before, "mem_fraction_static": 0.5, **laid_out}, measured, GIB_141).fits is False
    assert fits(before, {**before, **laid_out}, measured, GIB_141).fits is None
    fewer = {"tensor_parallel_size": 8, "data_parallel_size": 4, "enable_expert_parallel": True, "gpu_memory_utilization": 0.5}
    assert fits({**fewer, "data_parallel_size": 1}, fewer, measured, {"gpu.memory_mib": 143771}).fits is None, "vLLM spreads experts over both"
