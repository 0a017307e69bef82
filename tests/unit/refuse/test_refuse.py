"""What is never launched, and why: one test for each kind of refusal, and rules that must not overreach."""

import pytest

from optimizer.core.builds import in_builds, version_key
from optimizer.core.refuse import dead_in, point_digest, refuse, resolved_form, screen
from optimizer.engines.registry import engine
from optimizer.model.base import Value
from optimizer.model.settings import Settings

from .conftest import facts, ground, library

SPEC: dict[str, Value] = {
    "speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
}  # fmt: skip


def kinds(changes: dict[str, Value], **more: object) -> list[str]:
    return [refusal.kind for refusal in refuse(changes, ground(**more))]  # type: ignore[arg-type]


# ---- availability ----


def test_a_flag_that_the_build_lacks_is_not_testable_here() -> None:
    (refusal,) = refuse({"cuda_graph_backend_prefill": "full"}, ground("0.5.12"))
    assert refusal.kind == "unavailable" and "--cuda-graph-backend-prefill" in refusal.why
    assert kinds({"cuda_graph_backend_prefill": "full"}, version="0.5.23") == []
    assert kinds({"kv_cache_dtype": "fp4_e2m1"}, version="0.5.23", allow_lossy=True) == ["unavailable"]


# ---- dead settings ----


def test_a_setting_without_a_reader_costs_no_launch() -> None:
    (refusal,) = refuse({"num_continuous_decode_steps": 8}, ground())
    assert refusal.kind == "dead" and "28 releases" in refusal.why and refusal.source
    # Outside the range that was read it is not covered.
    assert refuse({"num_continuous_decode_steps": 8}, ground(engine_version="0.5.99")) == ()
    assert refuse({"num_continuous_decode_steps": 8}, ground(engine_version=None)) == ()


def test_a_dead_setting_in_the_users_own_command_line_is_told() -> None:
    running = ground(given={"num_continuous_decode_steps": 8, "tp_size": 1})
    assert [list(refusal.params) for refusal in dead_in(running.settings, running)] == [["num_continuous_decode_steps"]]


@pytest.mark.parametrize(("version", "killed"), [("0.5.3", True), ("0.5.4", True), ("0.5.5", False), ("0.5.12", False)])
def test_nccl_variables_that_the_server_overwrites(version: str, killed: bool) -> None:
    assert bool(refuse({"env.NCCL_NVLS_ENABLE": 1}, ground(engine_version=version))) is killed


def test_nccl_is_ruled_out_where_it_carries_nothing() -> None:
    one = facts(gpu__count=1)
    assert [item.kind for item in refuse({"env.NCCL_PROTO": "LL"}, ground(evidence=one))] == ["dead"]
    custom = facts(gpu__count=2, parallel__nodes=1, allreduce__custom="on", decode__batch_p90=16)
    assert refuse({"env.NCCL_PROTO": "LL"}, ground(evidence=custom, phase="decode"))[0].kind == "dead"
    # Prefill messages still travel through NCCL, and PCIe boxes have no custom kernel.
    assert refuse({"env.NCCL_PROTO": "LL"}, ground(evidence=custom, phase="prefill")) == ()
    pcie = facts(gpu__count=8, parallel__nodes=1, allreduce__custom="off_pcie_only", decode__batch_p90=16)
    assert refuse({"env.NCCL_PROTO": "LL"}, ground(evidence=pcie, phase="decode")) == ()


def test_an_unknown_fact_never_kills() -> None:
    unknown = facts(gpu__count=2)
    assert refuse({"env.NCCL_PROTO": "LL"}, ground(evidence=unknown, phase="decode")) == ()


def test_graph_sizes_are_dead_while_graphs_are_off() -> None:
    off = {"disable_cuda_graph": True}
    assert kinds({"cuda_graph_max_bs": 64}, given=off) == ["dead"]
    assert kinds({"cuda_graph_max_bs": 64, "disable_cuda_graph": None}, given=off) == []


def test_taking_companions_off_is_no_dead_setting() -> None:
    gone: dict[str, Value] = dict.fromkeys(SPEC)
    result = screen(gone, ground(given=SPEC))
    assert (result.changes, result.refusals) == (gone, ())
    assert kinds({"num_continuous_decode_steps": None}, given={"num_continuous_decode_steps": 4}) == ["dead"]


def test_known_good_set_loses_its_dead_part_only() -> None:
    changes: dict[str, Value] = {"cuda_graph_max_bs": 32, "num_continuous_decode_steps": 4, "env.NCCL_PROTO": "LL"}
    result = screen(changes, ground())
    assert result.changes == {"cuda_graph_max_bs": 32, "env.NCCL_PROTO": "LL"}
    assert [list(refusal.params) for refusal in result.refusals] == [["num_continuous_decode_steps"]]


def test_on_a_cpu_graphs_and_collectives_are_dead() -> None:
    cpu = {"device": "cpu"}
    for param in ("disable_cuda_graph", "cuda_graph_max_bs", "disable_custom_all_reduce", "disable_overlap_schedule"):
        changes: dict[str, Value] = {param: 8 if param == "cuda_graph_max_bs" else True}
        assert kinds(changes, version="0.5.23", given=cpu, evidence=facts(gpu__count=0)) == ["dead"], param
    assert kinds({"max_running_requests": 16}, version="0.5.23", given=cpu) == []


# ---- overridden points ----


def test_draft_tokens_are_no_dimension_with_topk_1() -> None:
    running = ground(given={**SPEC, "max_running_requests": 64})
    assert [item.kind for item in refuse({"speculative_num_draft_tokens": 9}, running)] == ["dead"]
    # Beside a change of the steps the engine's own value is put in: all three must be given together.
    result = screen({"speculative_num_steps": 5, "speculative_num_draft_tokens": 9}, running)
    assert result.changes == {"speculative_num_steps": 5, "speculative_num_draft_tokens": 6}
    assert result.resolved.values["speculative_num_draft_tokens"] == 6
    assert refuse({"speculative_num_steps": 5, "speculative_num_draft_tokens": 6}, running) == ()


def test_companions_follow_the_change() -> None:
    running = ground(given={**SPEC, "max_running_requests": 64})
    result = screen({"speculative_num_steps": 5}, running)
    assert result.changes == {"speculative_num_steps": 5, "speculative_num_draft_tokens": 6}


def test_two_points_that_resolve_alike_are_one() -> None:
    running = ground()
    tried = {point_digest(Settings(values=SPEC), running)}
    again = {**SPEC, "speculative_algorithm": "EAGLE", "max_running_requests": 48}
    (refusal,) = refuse(again, running, tried=tried)
    assert refusal.kind == "duplicate"
    assert refuse({**again, "speculative_num_steps": 4, "speculative_num_draft_tokens": 5}, running, tried=tried) == ()


def test_what_runs_already_is_a_duplicate() -> None:
    running = ground(given={"cuda_graph_max_bs": 32})
    assert [item.kind for item in refuse({"cuda_graph_max_bs": 32}, running)] == ["duplicate"]


def test_the_recorded_override_is_predicted() -> None:
    values: dict[str, Value] = {**SPEC, "speculative_num_draft_tokens": 9}
    resolved = resolved_form(Settings(values=values), ground()).values
    assert resolved == {**SPEC, "speculative_algorithm": "EAGLE", "max_running_requests": 48}


def test_an_alias_is_launched_as_asked() -> None:
    result = screen(SPEC, ground())
    assert result.changes["speculative_algorithm"] == "NEXTN"
    assert result.changes["speculative_num_draft_tokens"] == 4


# ---- what the engine refuses ----


@pytest.mark.parametrize(
    "changes",
    [
        {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3},
        {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4},
        {**SPEC, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 16},
        {"enable_torch_compile": True, "disable_cuda_graph_padding": True},
        {"mem_fraction_static": 0.995},
        {"enable_hierarchical_cache": True, "disable_radix_cache": True},
        {"schedule_conservativeness": -1.0},
        {"attention_backend": "flex_attention", **SPEC},
    ],
)
def test_start_errors_are_infeasible(changes: dict[str, Value]) -> None:
    assert "infeasible" in kinds(changes)


@pytest.mark.parametrize(
    "changes",
    [
        SPEC,
        {**SPEC, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 11},
        {"enable_torch_compile": True},
        {"disable_cuda_graph_padding": True},
        {"chunked_prefill_size": 64},
        {"max_running_requests": 4096},
        {"enable_mixed_chunk": True},
    ],
)
def test_good_points_pass(changes: dict[str, Value]) -> None:
    assert refuse(changes, ground()) == ()


def test_a_rule_that_forbids_what_runs_is_not_believed() -> None:
    running = ground(given={"enable_torch_compile": True, "disable_cuda_graph_padding": True})
    assert refuse({"cuda_graph_max_bs": 64}, running) == ()


def test_vllm_rules() -> None:
    cpu = {"device": "cpu", "max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 2048}
    vllm = ground("0.32.0", effective=cpu, evidence=facts(gpu__count=0))
    assert [item.kind for item in refuse({"max_num_seqs": 4096}, vllm)] == ["infeasible"]
    assert [item.kind for item in refuse({"enable_chunked_prefill": False, "max_num_batched_tokens": 512}, vllm)] == [
        "infeasible"
    ]
    assert [item.kind for item in refuse({"max_cudagraph_capture_size": 64}, vllm)] == ["dead"]
    ngram: dict[str, Value] = {"speculative_config.method": "ngram", "speculative_config.num_speculative_tokens": 4}
    assert refuse(ngram, vllm) == ()
    assert [item.kind for item in refuse({"speculative_config.num_speculative_tokens": 4}, vllm)] == ["dead"]
    assert [item.kind for item in refuse({"speculative_config.method": "ngram"}, vllm)] == ["infeasible"]
    gpu = ground("0.32.0", effective={**cpu, "device": "cuda"}, evidence=facts(gpu__count=1))
    assert "infeasible" in [item.kind for item in refuse({**ngram, "async_scheduling": True}, gpu)]


def test_more_ranks_than_gpus() -> None:
    vllm = ground("0.32.0", evidence=facts(gpu__count=1, parallel__nodes=1), box={"gpu.count": 4})
    assert refuse({"tensor_parallel_size": 4}, vllm) == ()
    assert [item.kind for item in refuse({"tensor_parallel_size": 8}, vllm)] == ["infeasible"]


# ---- memory ----


def test_a_launch_that_cannot_fit_is_refused() -> None:
    measured = facts(memory__weights_gib=14.21, gpu__memory_free_gib=11.06, gpu__count=1)
    running = ground(
        evidence=measured, effective={"mem_fraction_static": 0.91, "tp_size": 1}, box={"gpu.memory_mib": 143771}
    )
    assert refuse({"mem_fraction_static": 0.94}, running) == ()
    (refusal,) = refuse({"mem_fraction_static": 0.9895}, running)
    assert refusal.kind == "infeasible" and "run out of memory" in refusal.why
    (refusal,) = refuse({"mem_fraction_static": 0.1}, running)
    assert "less than the weights" in refusal.why
    # recorded: 0.13 starts, with a small pool
    assert refuse({"mem_fraction_static": 0.13}, running) == ()
    # Another parallel layout: the measured weights say nothing.
    assert refuse({"mem_fraction_static": 0.1, "tp_size": 2}, running) == ()


def test_without_measurements_memory_is_allowed() -> None:
    assert refuse({"mem_fraction_static": 0.94}, ground()) == ()


# ---- lossy ----


def test_lossy_settings_need_consent() -> None:
    assert kinds({"kv_cache_dtype": "fp8_e5m2"}) == ["lossy"]
    assert kinds({"kv_cache_dtype": "fp8_e5m2"}, allow_lossy=True) == []
    assert kinds({"kv_cache_dtype": None}, given={"kv_cache_dtype": "fp8_e5m2"}) == []


# ---- versions ----


def test_version_order() -> None:
    ordered = [
        "0.4.6",
        "0.4.6.post5",
        "0.4.7",
        "0.5.10rc1",
        "0.5.10",
        "0.5.10.post1",
        "0.5.11.dev3+g12",
        "0.5.11",
        "0.5.12",
        "1.0",
    ]
    keys = [version_key(version) for version in ordered]
    assert all(key is not None for key in keys)
    assert keys == sorted(keys)  # type: ignore[type-var]
    assert version_key("v0.5.12+cu130") == version_key("0.5.12.0")
    assert version_key("main") is None


@pytest.mark.parametrize(
    ("version", "builds", "answer"),
    [
        ("0.5.12", ">=0.4.6.post5,<=0.5.23", True),
        ("0.4.6", ">=0.4.6.post5,<=0.5.23", False),
        ("0.5.24", ">=0.4.6.post5,<=0.5.23", False),
        ("0.5.12", None, True),
        (None, "<=0.5.4", None),
        ("unknown", "<=0.5.4", None),
        ("0.5.12", "about 0.5", None),
        ("0.5.4", "!=0.5.4", False),
    ],
)
def test_build_ranges(version: str | None, builds: str | None, answer: bool | None) -> None:
    assert in_builds(version, builds) is answer


# ---- the knowledge itself ----


def test_all_rules_of_the_reference_are_there() -> None:
    ids = {rule.id.rstrip("abcde") for rule in library().constraints_for("sglang")}
    assert {f"C{number}" for number in range(51)} <= ids


def test_recorded_healthy_launches_break_no_rule() -> None:
    """Every launch that really started must pass every start_error rule of its build."""
    import json

    from .conftest import recordings, table

    checked = 0
    for path in sorted(recordings().glob("*/*/launch.json")):
        launch = json.loads(path.read_text(encoding="utf-8"))
        if launch["engine"] not in ("sglang", "vllm") or not launch["ready"]:
            continue
        version = launch["engine_version"]
        given = engine(launch["engine"]).parse_launch(launch["argv"], launch["env"], table(version)).values
        empty = ground(version, evidence=facts(gpu__count=launch["gpu_count"]))
        found = [item for item in refuse(given, empty) if item.kind == "infeasible"]
        assert found == [], path
        checked += 1
    assert checked >= 20
