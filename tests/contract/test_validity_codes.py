"""Every reason for which a measurement is not used is produced by a test, by a server, box or log that gives cause for it."""

import ast
from functools import cache
from pathlib import Path

import pytest

from optimizer.model.measurement import ValidityCode

TESTS = Path(__file__).parents[1]
PRODUCED_BY: dict[ValidityCode, tuple[str, str]] = {
    ValidityCode.ERRORS: ("unit/bench/test_loadgen_runs.py", "test_each_fault_has_its_class_and_ends"),
    ValidityCode.WRONG_SERVER: ("unit/box/test_measured_port.py", "test_a_port_that_is_not_ours_alone"),
    ValidityCode.FOREIGN_TRAFFIC: ("unit/validity/test_beside_the_load.py", "test_foreign_requests_are_seen_at_the_server"),
    ValidityCode.CLIENT_BOUND: ("unit/validity/test_client.py", "test_a_load_generator_that_is_starved_says_so"),
    ValidityCode.CACHED_PREFIX: ("unit/bench/test_loadgen_runs.py", "test_cached_prefix_is_held_against_the_declared_share"),
    ValidityCode.OUTPUT_LENGTH: ("unit/bench/test_loadgen_runs.py", "test_fewer_tokens_than_asked_are_another_workload"),
    ValidityCode.NEVER_STEADY: ("faults/test_measuring.py", "test_a_rate_that_never_settles"),
    ValidityCode.TOO_FEW_REQUESTS: ("unit/bench/test_loadgen_runs.py", "test_a_handful_of_chunks_is_no_rate"),
    ValidityCode.THROTTLED: ("unit/validity/test_beside_the_load.py", "test_a_throttled_gpu"),
    ValidityCode.FOREIGN_PROCESS: ("unit/validity/test_beside_the_load.py", "test_a_process_that_comes_to_the_gpu_during_the_load"),
    ValidityCode.CLOCK_STEP: ("unit/validity/test_client.py", "test_a_clock_that_jumps_in_the_window"),
    ValidityCode.OVER_SATURATED: ("unit/validity/test_client.py", "test_a_load_beyond_the_server"),
    ValidityCode.USAGE_MISSING: ("unit/bench/test_loadgen_runs.py", "test_missing_usage_is_flagged_and_counted"),
    ValidityCode.TWO_SERVERS: ("unit/core/test_validity.py", "test_two_servers_in_one_log"),
    ValidityCode.START_FAILED: ("unit/core/test_validity.py", "test_a_failed_start_behind_a_recorded_success"),
    ValidityCode.KV_POOL_SHRUNK: ("unit/core/test_validity.py", "test_the_pool_against_the_one_that_the_same_settings_gave"),
    ValidityCode.MEMBER_LOST: ("unit/validity/test_members.py", "test_a_worker_that_does_not_answer_and_one_that_the_router_dropped"),
    ValidityCode.INTERRUPTED: ("unit/bench/test_loadgen_runs.py", "test_a_signal_ends_the_run_with_what_was_measured"),
}


@cache
def functions(path: str) -> dict[str, str]:
    """The test functions of a file, with their decorators, as text."""
    source = (TESTS / path).read_text(encoding="utf-8")
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = "\n".join(ast.unparse(mark) for mark in node.decorator_list)
            found[node.name] = marks + "\n" + ast.unparse(node)
    return found


def test_the_list_is_whole() -> None:
    assert set(PRODUCED_BY) == set(ValidityCode)


@pytest.mark.parametrize("code", ValidityCode)
def test_a_test_asserts_it_by_its_name(code: ValidityCode) -> None:
    path, name = PRODUCED_BY[code]
    assert name in functions(path), f"{path} has no {name}"
    text = functions(path)[name]
    said = f"ValidityCode.{code.name}"
    assert "skip" not in text, f"{path}::{name} is not part of every run"
    assert "assert" in text and said in text.replace(f"{said} not in", ""), f"{path}::{name} does not assert {code.name}"
