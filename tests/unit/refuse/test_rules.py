"""Every rule of the engine reference on an example that it speaks of and on a neighbour that it does not: what is refused, what the
server will make of it, what happens without a word. One row a rule, by its id."""

from typing import Any, NamedTuple

import pytest

from optimizer.core.builds import in_builds
from optimizer.core.refuse import Ground, foreseen, refuse, resolved_form
from optimizer.model.base import Value
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings
from optimizer.model.space import Constraint

from .conftest import facts, library

Changes = dict[str, Value]
BUILDS = ("0.5.23", "0.5.12", "0.5.10.post1", "0.5.8", "0.5.3", "0.4.7", "0.4.6.post5")
EAGLE: Changes = {
    "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
}  # fmt: skip
NGRAM: Changes = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}


class Row(NamedTuple):
    """``speaks`` and ``silent``: changes for which the rule holds and does not. ``makes``: what the server ends with, for
    rules that rewrite. The rest is the ground: facts, what the server resolved before, what the user's own line says."""

    rule: str
    speaks: Changes
    silent: Changes
    makes: Changes = {}
    facts: dict[str, Value] = {}
    effective: Changes = {}
    given: Changes = {}


def tree(topk: int, draft_tokens: int) -> Changes:
    return {**EAGLE, "speculative_eagle_topk": topk, "speculative_num_draft_tokens": draft_tokens}


OFF: Changes = {"disable_cuda_graph": True, "disable_prefill_cuda_graph": True}
ROWS = (
    Row("C0", {"num_continuous_decode_steps": 8}, {"num_continuous_decode_steps": 1}),
    Row("C1", {"cuda_graph_config": {"decode": "full"}, "cuda_graph_max_bs": 64}, {"cuda_graph_max_bs": 64}, {"cuda_graph_max_bs": None}),
    Row("C2", {"pp_size": 2}, {"pp_size": 2, "cuda_graph_backend_prefill": "full"}, {"disable_prefill_cuda_graph": True}),
    Row("C3", {"enable_two_batch_overlap": True, "moe_a2a_backend": "deepep"}, {"moe_a2a_backend": "deepep"}, {"disable_prefill_cuda_graph": True}),
    Row("C4", {"attention_backend": "trtllm_mla"}, {"attention_backend": "trtllm_mla", "prefill_attention_backend": "fa4"},
        {"disable_prefill_cuda_graph": True}, facts={"gpu.arch": "sm_100"}),
    Row("C5", EAGLE, {**EAGLE, "enforce_piecewise_cuda_graph": True}, {"disable_prefill_cuda_graph": True}),
    Row("C6", {"cuda_graph_max_bs": 100}, {"cuda_graph_bs": [1, 2, 4]}),
    Row("C7", {"max_running_requests": 64}, {"max_running_requests": 64, "cuda_graph_max_bs": 64}),
    Row("C8", {"chunked_prefill_size": 16384}, {"chunked_prefill_size": 16384, "mem_fraction_static": 0.85}),
    Row("C9", {"mem_fraction_static": 0.01}, {"mem_fraction_static": 0.7}),
    Row("C10", {"mem_fraction_static": 0.995}, {"mem_fraction_static": 0.9}),
    Row("C11", {"cuda_graph_max_bs": 256, "max_running_requests": 64}, {"cuda_graph_max_bs": 64, "max_running_requests": 64},
        {"cuda_graph_max_bs": 64}),
    Row("C12", {"cuda_graph_max_bs": 8}, {"cuda_graph_max_bs": 32}, facts={"decode.batch_p90": 16}),
    Row("C13a", {"disaggregation_mode": "prefill"}, {"disaggregation_mode": "decode"}, {"disable_cuda_graph": True}),
    Row("C13b", {"disaggregation_mode": "decode"}, {"disaggregation_mode": "prefill"}, {"disable_prefill_cuda_graph": True}),
    Row("C14", {"max_running_requests": 4096}, {"max_running_requests": 512}, {"max_running_requests": 1000}, facts={"kv.pool_tokens": 2000}),
    Row("C15", {"disable_cuda_graph_padding": True, "enable_torch_compile": True}, {"disable_cuda_graph_padding": True}),
    Row("C16a", {"moe_dense_tp_size": 2, "tp_size": 4}, {"moe_dense_tp_size": 4, "tp_size": 4}),
    Row("C16b", {"dp_size": 2, "nnodes": 2}, {"dp_size": 2, "nnodes": 1}),
    Row("C17a", {"pp_size": 2}, {"pp_size": 1}, {"disable_overlap_schedule": True}),
    Row("C17b", {"pp_size": 2, "enable_mixed_chunk": True}, {"pp_size": 2}),
    Row("C18a", {"chunked_prefill_size": 32, "page_size": 64}, {"chunked_prefill_size": 128, "page_size": 64}),
    Row("C18b", {**EAGLE, "enable_mixed_chunk": True}, {"enable_mixed_chunk": True}, {"enable_mixed_chunk": None}),
    Row("C19a", EAGLE, NGRAM, {"disable_overlap_schedule": True}),
    Row("C19b", EAGLE, {**EAGLE, "env.SGLANG_ENABLE_SPEC_V2": 1}, {"disable_overlap_schedule": True}),
    Row("C19c", NGRAM, {"cuda_graph_max_bs": 8}, {"disable_overlap_schedule": True}),
    Row("C20a", {"mamba_radix_cache_strategy": "no_buffer"}, {"mamba_radix_cache_strategy": "extra_buffer"}, {"disable_overlap_schedule": True}),
    Row("C20b", {"mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": 2, **EAGLE},
        {"mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": 64, **EAGLE}),
    Row("C20c", {"mamba_radix_cache_strategy": "extra_buffer", "disable_radix_cache": True}, {"disable_radix_cache": True}),
    Row("C20d", {"mamba_radix_cache_strategy": "no_buffer", **EAGLE},
        {"mamba_radix_cache_strategy": "no_buffer", "disable_radix_cache": True, **EAGLE}),
    Row("C21a", {"enable_dp_attention": True, "dp_size": 2, "tp_size": 2}, {"dp_size": 2}),
    Row("C21b", {"attn_dp_size": 8, "tp_size": 4}, {"attn_dp_size": 4, "tp_size": 4}),
    Row("C22a", {"enable_dp_attention": True, "dp_size": 4, "tp_size": 4}, {"dp_size": 4, "tp_size": 4}, {"attn_dp_size": 4, "dp_size": 1}),
    Row("C22b", {"attn_dp_size": 2, "dp_size": 2, "tp_size": 4}, {"attn_dp_size": 2, "tp_size": 4}),
    Row("C22c", {"enable_dp_attention": True, "dp_size": 8, "tp_size": 4}, {"enable_dp_attention": True, "dp_size": 4, "tp_size": 4}),
    Row("C23a", {"ep_size": 8, "tp_size": 4}, {"ep_size": 4, "tp_size": 4}),
    Row("C23b", {"enable_prefill_cp": True}, {"enable_prefill_cp": True, "cp_strategy": "zigzag"}),
    Row("C24a", {"attention_backend": "flashmla", "page_size": 16}, {"attention_backend": "flashmla", "page_size": 64}, {"page_size": 64}),
    Row("C24b", {"attention_backend": "trtllm_mla", "page_size": 16}, {"attention_backend": "trtllm_mla", "page_size": 32}, {"page_size": 64},
        facts={"gpu.arch": "sm_100"}),
    Row("C24c", {"attention_backend": "trtllm_mha", "page_size": 1}, {"attention_backend": "trtllm_mha", "page_size": 16}, {"page_size": 64}),
    Row("C25a", {"attention_backend": "trtllm_mla"}, {"attention_backend": "fa3"}, facts={"gpu.arch": "sm_90"}),
    Row("C25b", {"attention_backend": "trtllm_mla", "kv_cache_dtype": "fp8_e5m2"}, {"attention_backend": "trtllm_mla", "kv_cache_dtype": "fp8_e4m3"},
        facts={"gpu.arch": "sm_100"}),
    Row("C25c", {"attention_backend": "fa3", "kv_cache_dtype": "fp8_e5m2"}, {"attention_backend": "fa3", "kv_cache_dtype": "fp8_e4m3"},
        {"attention_backend": "triton"}),
    Row("C25d", {"attention_backend": "torch_native"}, {"attention_backend": "triton"}, OFF),
    Row("C25e", {"attention_backend": "flex_attention", **EAGLE}, {"attention_backend": "triton", **EAGLE}),
    Row("C25f", {"decode_attention_backend": "trtllm_mha"}, {"decode_attention_backend": "flashinfer"}, facts={"model.mla": True, "gpu.arch": "sm_100"}),
    Row("C25g", {"prefill_attention_backend": "flashmla"}, {"prefill_attention_backend": "trtllm_mha"}, facts={"model.mla": False, "gpu.arch": "sm_100"}),
    Row("C25h", {"attention_backend": "fa3"}, {"attention_backend": "triton"}, facts={"gpu.arch": "sm_120"}),
    Row("C25i", {"decode_attention_backend": "trtllm_mha"}, {"decode_attention_backend": "fa3"}, facts={"gpu.arch": "sm_86"}),
    Row("C25j", {"decode_attention_backend": "fa4"}, {"decode_attention_backend": "triton"}, facts={"gpu.arch": "sm_120"}),
    Row("C26", {"moe_a2a_backend": "deepep", "tp_size": 8}, {"moe_a2a_backend": "none", "tp_size": 8}, {"ep_size": 8}),
    Row("C27a", {"moe_a2a_backend": "deepep", "deepep_mode": "normal"}, {"moe_a2a_backend": "deepep", "deepep_mode": "auto"}, OFF),
    Row("C27b", {"moe_a2a_backend": "deepep_v2"}, {"moe_a2a_backend": "deepep"}, {"disable_prefill_cuda_graph": True}),
    Row("C28a", {"moe_runner_backend": "flashinfer_cutlass", "quantization": "fp8"},
        {"moe_runner_backend": "flashinfer_cutlass", "quantization": "modelopt_fp4"}),
    Row("C28b", {"moe_runner_backend": "flashinfer_cutedsl", "quantization": "fp8"},
        {"moe_runner_backend": "flashinfer_cutedsl", "quantization": "modelopt_fp4"}),
    Row("C28c", {"moe_runner_backend": "flashinfer_trtllm", "quantization": "awq"}, {"moe_runner_backend": "flashinfer_trtllm", "quantization": "fp8"}),
    Row("C28d", {"moe_runner_backend": "cutlass", "quantization": "fp8", "ep_size": 2, "tp_size": 2}, {"moe_runner_backend": "cutlass", "quantization": "fp8"}),
    Row("C29a", {"moe_runner_backend": "flashinfer_trtllm"}, {"moe_runner_backend": "triton"}, {"disable_shared_experts_fusion": True}),
    Row("C29b", {"moe_runner_backend": "flashinfer_trtllm", "quantization": "modelopt_fp4"}, {"moe_runner_backend": "triton", "quantization": "modelopt_fp4"},
        {"moe_runner_backend": "flashinfer_cutlass"}, facts={"gpu.arch": "sm_120"}),
    Row("C30", {"enable_dp_attention": True, "tp_size": 4}, {"tp_size": 4}, facts={"gpu.arch": "sm_90"}),
    Row("C31", {"enable_two_batch_overlap": True}, {"enable_two_batch_overlap": True, "moe_a2a_backend": "deepep"}),
    Row("C32", {"enable_pdmux": True}, {"enable_pdmux": True, "chunked_prefill_size": -1, "disable_overlap_schedule": True},
        effective={"chunked_prefill_size": 8192, "disable_overlap_schedule": False}),
    Row("C33a", {"enable_priority_scheduling": True, "schedule_policy": "lpm"}, {"enable_priority_scheduling": True, "schedule_policy": "fcfs"}),
    Row("C33b", {"retraction_policy": "priority"}, {"retraction_policy": "priority", "enable_priority_scheduling": True, "schedule_policy": "fcfs"}),
    Row("C33c", {"schedule_conservativeness": -0.5}, {"schedule_conservativeness": 0.5}),
    Row("C34a", {"enable_hierarchical_cache": True, "disable_radix_cache": True}, {"enable_hierarchical_cache": True}),
    Row("C34b", {"enable_lmcache": True, "enable_hierarchical_cache": True}, {"enable_lmcache": True}),
    Row("C34c", {"swa_full_tokens_ratio": 1.5}, {"swa_full_tokens_ratio": 0.8}),
    Row("C35", {**EAGLE, "speculative_algorithm": "NEXTN"}, EAGLE, {"speculative_algorithm": "EAGLE"}),
    Row("C36a", {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, {"speculative_algorithm": "EAGLE"}),
    Row("C36b", {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}, EAGLE),
    Row("C36c", EAGLE, {**EAGLE, "speculative_draft_model_path": "draft"}, facts={"model.mtp_layers": 0}),
    Row("C37", tree(1, 9), EAGLE, {"speculative_num_draft_tokens": 4}),
    Row("C38a", {**tree(4, 8), "page_size": 64, "attention_backend": "flashmla"}, {**tree(4, 8), "page_size": 64, "attention_backend": "fa3"}),
    Row("C38b", {**tree(4, 8), "attention_backend": "trtllm_mha"}, {**EAGLE, "attention_backend": "trtllm_mha"}),
    Row("C38c", {**tree(4, 8), "page_size": 16}, {**tree(4, 8), "page_size": 1}, {"speculative_eagle_topk": 1}),
    Row("C39a", tree(2, 12), tree(2, 11)),
    Row("C39b", tree(4, 38), tree(4, 37)),
    Row("C39c", tree(8, 138), tree(8, 137)),
    Row("C40", EAGLE, {**EAGLE, "max_running_requests": 64}, {"max_running_requests": 48}),
    Row("C41", {**tree(4, 8), "speculative_use_rejection_sampling": True}, {**EAGLE, "speculative_use_rejection_sampling": True}),
    Row("C42a", {**NGRAM, "enable_dp_attention": True}, NGRAM),
    Row("C42b", {"speculative_algorithm": "NGRAM"}, NGRAM, {"speculative_num_draft_tokens": 12}),
    Row("C42c", {"speculative_algorithm": "DFLASH", "pp_size": 2}, {"speculative_algorithm": "DFLASH"}),
    Row("C42d", {**NGRAM, "device": "cpu"}, {**NGRAM, "device": "cuda"}),
    Row("C43", {**tree(4, 8), "speculative_adaptive": True}, {**EAGLE, "speculative_adaptive": True}, {"speculative_adaptive": None}),
    Row("C44", tree(4, 8), EAGLE, {"disable_overlap_schedule": True}),
    Row("C45", {"enable_deterministic_inference": True, "tp_size": 2}, {"enable_deterministic_inference": True, "tp_size": 1},
        {"disable_custom_all_reduce": True, "env.NCCL_MIN_NCHANNELS": 8}),
    Row("C46", {"enable_symm_mem": True}, {"enable_symm_mem": False}, {"env.NCCL_CUMEM_ENABLE": 1, "env.NCCL_NVLS_ENABLE": 1}),
    Row("C47", {"tp_size": 2}, {"tp_size": 2, "env.NCCL_GRAPH_REGISTER": 1}),
    Row("C48", {"enable_hierarchical_cache": True, "hicache_io_backend": "kernel", "decode_attention_backend": "fa3"},
        {"enable_hierarchical_cache": True, "hicache_io_backend": "kernel", "decode_attention_backend": "triton"}, {"hicache_io_backend": "direct"}),
    Row("C49", tree(4, 8), {**tree(4, 8), "attention_backend": "triton"}),
    Row("C50", {"enable_mis": True}, {"enable_mis": False}),
)  # fmt: skip
RULES = {rule.id: rule for rule in library().constraints_for("sglang")}


def ground_of(row: Row, rule: Constraint) -> Ground:
    """A box where nothing else speaks: the newest build that the rule is about, every flag offered, dead settings left to their test."""
    build = next(build for build in BUILDS if in_builds(build, rule.builds) is True)
    parts: dict[str, Any] = {
        "settings": Settings(values=row.given), "evidence": facts(gpu__count=8, parallel__nodes=1, **{key.replace(".", "__"): value for key, value in row.facts.items()}),
        "flags": FlagTable(known=False), "constraints": list(RULES.values()), "engine_version": build, "effective": row.effective,
        "allow_lossy": True,
    }  # fmt: skip
    return Ground(**parts)


def refused_by(changes: Changes, ground: Ground) -> set[str]:
    return {refusal.why.rpartition("(rule ")[2].rstrip(")") for refusal in refuse(changes, ground) if refusal.kind == "infeasible"}


def test_every_rule_has_its_row_and_every_number_of_the_reference_its_rule() -> None:
    assert sorted(row.rule for row in ROWS) == sorted(RULES)
    assert {f"C{number}" for number in range(51)} == {rule.rstrip("abcdefghij") for rule in RULES}


@pytest.mark.parametrize("row", ROWS, ids=[row.rule for row in ROWS])
def test_a_rule_speaks_of_its_example_and_not_of_the_neighbour(row: Row) -> None:
    rule = RULES[row.rule]
    ground = ground_of(row, rule)
    if rule.effect == "start_error":
        assert row.rule in refused_by(row.speaks, ground), f"the server would refuse this, and a launch would be spent on it: {rule.why}"
        assert row.rule not in refused_by(row.silent, ground)
        return
    assert row.rule in {item.rule for item in foreseen(row.speaks, ground)}, rule.why
    assert row.rule not in {item.rule for item in foreseen(row.silent, ground)}
    assert row.rule not in refused_by(row.speaks, ground)
    if rule.effect == "overridden":
        assert row.makes, "an override is predicted with its value"
        resolved = resolved_form(Settings(values=row.speaks), ground).values
        told = next(item for item in foreseen(row.speaks, ground) if item.rule == row.rule)
        assert {name: resolved.get(name) for name in row.makes} == row.makes
        assert {name: told.sets.get(name) for name in row.makes} == row.makes


def test_what_held_before_and_is_not_touched_is_no_news() -> None:
    rule = RULES["C40"]
    ground = ground_of(Row("C40", {}, {}, given=EAGLE), rule)
    assert "C40" not in {item.rule for item in foreseen({"chunked_prefill_size": 64}, ground)}
    assert "C40" in {item.rule for item in foreseen({"speculative_algorithm": "EAGLE3"}, ground)}


def test_a_build_that_nobody_read_is_not_judged() -> None:
    ground = ground_of(ROWS[0], RULES["C0"])
    unread = Ground(**{**vars(ground), "engine_version": "0.9.0"})
    assert foreseen({"pp_size": 2}, unread) == () and refused_by({"schedule_conservativeness": -1.0}, unread) == set()


@pytest.mark.parametrize(
    ("changes", "rule", "makes"),
    [
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "L0", None),
        ({"cache_type_v": "f16", "flash_attn": "off"}, None, None),
        ({"cache_type_v": "q8_0", "flash_attn": "on"}, None, None),
        ({"ubatch_size": 1024, "batch_size": 512}, "L1", 512),
        ({"ubatch_size": 256, "batch_size": 512}, None, 256),
    ],
)
def test_llamacpps_own_rules(changes: Changes, rule: str | None, makes: int | None) -> None:
    ground = Ground(
        settings=Settings(), evidence=facts(), flags=FlagTable(known=False), constraints=library().constraints_for("llamacpp"),
        allow_lossy=True,
    )  # fmt: skip
    spoken = refused_by(changes, ground) | {item.rule for item in foreseen(changes, ground)}
    assert spoken == ({rule} if rule else set())
    assert resolved_form(Settings(values=changes), ground).values.get("ubatch_size") == makes
