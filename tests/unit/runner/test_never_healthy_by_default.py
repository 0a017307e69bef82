"""What forbids the answer "healthy": a queue as long as the batch, a benchmark that failed, two servers in one log, values that
cannot be, and statements that contradict each other. And a server's own word for why it fell back."""

import json
from pathlib import Path
from typing import Any

import pytest

from optimizer.core.ledger import flips
from optimizer.core.validity import invalidities
from optimizer.evidence.bundle import bundle_from_case, bundle_from_files
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.diagnosis import Diagnosis
from optimizer.model.evidence import Evidence, Fact
from optimizer.report.diagnosis_view import diagnosis_text
from optimizer.runner.diagnose import diagnose

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "recordings"
# A server that serves all it is sent: observed enough to be called healthy, and nothing deviates.
QUIET = {
    "client.output_tps": 2000.0,
    "client.concurrency": 32,
    "decode.batch_p50": 30,
    "decode.batch_p90": 32,
    "scheduler.max_running": 128,
    "kv.usage_p95": 0.3,
    "queue.depth_p95": 0,
}


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(ROOT))


def case(library: Library, *more: tuple[str, Value], **replaced: Value) -> Diagnosis:
    stated = {**QUIET, **{name.replace("__", "."): value for name, value in replaced.items()}}
    rows = [*((name, value) for name, value in stated.items() if value is not None), *more]
    facts = [{"name": name, "value": value} for name, value in rows]
    return diagnose(bundle_from_case(json.dumps({"engine": "vllm", "facts": facts}).encode()), library)


def test_a_quiet_server_is_healthy(library: Library) -> None:
    assert case(library).reason == "healthy"


@pytest.mark.parametrize(("waiting", "reason"), [(0, "healthy"), (31, "healthy"), (32, "evidence_missing"), (12_600, "evidence_missing")])
def test_a_server_with_as_many_waiting_as_running_is_not_healthy(library: Library, waiting: int, reason: str) -> None:
    found = case(library, queue__depth_p95=waiting)
    assert (found.verdict, found.reason) == ("cannot-tell", reason)
    assert (f"{waiting} requests wait" in (found.next_step or "")) is (reason != "healthy")


def test_what_holds_a_queue_back_is_asked_for_where_it_is_unknown(library: Library) -> None:
    below = case(library, queue__depth_p95=12_600).next_step or ""
    assert "Only 32 of at most 128 run" in below
    unknown = case(library, queue__depth_p95=12_600, scheduler__max_running=None, kv__pool_tokens=400_000).next_step or ""
    assert "scheduler.max_running" in unknown
    full = case(library, queue__depth_p95=12_600, scheduler__max_running=32, kv__usage_p95=0.92)
    assert full.verdict == "cannot-tell" and full.reason != "healthy"


@pytest.mark.parametrize(("usage", "capped"), [(0.2, True), (0.5, True), (0.51, True), (0.64, True), (0.83, True), (0.92, False)])
def test_room_for_a_fifth_more_requests_makes_the_limit_the_cause(library: Library, usage: float, capped: bool) -> None:
    found = case(library, queue__depth_p95=12_600, scheduler__max_running=32, kv__usage_p95=usage, client__concurrency=None)
    assert (found.verdict == "diagnosed" and found.hypotheses[0].id == "admission-cap-too-low") is capped


# --- a benchmark that failed ----------------------------------------------------------------------------------------


def evidence(**given: Value) -> Evidence:
    return Evidence(facts=tuple(Fact(name=name.replace("__", "."), value=value) for name, value in given.items()))


@pytest.mark.parametrize(("failed", "sent", "doubted"), [(0, 100, False), (9, 1000, False), (10, 1000, True), (100, 100, True)])
def test_a_benchmark_with_failed_requests_is_not_believed(failed: int, sent: int, doubted: bool) -> None:
    found = [item.code for item in invalidities(evidence(client__failed_requests=failed, client__requests=sent))]
    assert found == (["errors"] if doubted else [])
    assert invalidities(evidence(client__failed_requests=failed)) == ()


def test_a_bundle_of_failed_requests_is_not_healthy(library: Library) -> None:
    row = {"c": 32, "requests": 64, "failed": 64, "duration_s": 10.0, "output_tps": 0.0}
    files = {"launch.json": launch("vllm"), "bench.json": json.dumps([row]).encode()}
    found = diagnose(bundle_from_files(files), library)
    assert found.reason == "evidence_missing" and [item.code for item in found.contaminated] == ["errors"]
    text = diagnosis_text(found)
    assert "must not be believed" in text and "all 64 requests of the benchmark failed" in text and "healthy" not in text
    doubted = case(library, client__requests=64, client__failed_requests=64)
    assert doubted.reason == "evidence_missing" and "measure again" in (doubted.next_step or "")


DOUBTS: list[tuple[dict[str, Value], str, str]] = [
    ({"client__requests": 100, "client__failed_requests": 30}, "the server's log", "a benchmark, no relaunch"),
    ({"server__in_flight_p90": 400}, "keep it to this study", "a benchmark, no relaunch"),
    ({"validity__kv_pool_ratio": 0.3}, "free it and start again", "one start, with nothing changed"),
    ({"validity__servers_in_log": 2}, "Separate the servers", "one start, with nothing changed"),
]


@pytest.mark.parametrize(("doubt", "first", "cost"), DOUBTS[:3])
def test_a_cause_that_its_contamination_does_not_reach_is_measured_again_before_anything_is_changed(
    library: Library, doubt: dict[str, Value], first: str, cost: str
) -> None:
    eager: dict[str, Value] = {"graphs__disable_flag": True, "graphs__mode": "none", "engine__device": "cuda", "gpu__count": 1}
    clean = case(library, **eager)
    assert clean.verdict == "diagnosed" and clean.next_step == clean.hypotheses[0].next_step and "Before any change" not in (clean.next_step or "")
    found = case(library, **eager, **doubt)
    step = found.next_step or ""
    assert found.contaminated and found.verdict == "diagnosed" and found.hypotheses[0].id == clean.hypotheses[0].id == "cuda-graph-disabled"
    assert step.startswith("Before any change: ") and first in step and step.index(cost) < step.index("Only if cuda-graph-disabled")
    assert step.endswith(found.hypotheses[0].next_step or "?") and "Before any change" in diagnosis_text(found)


@pytest.mark.parametrize(("doubt", "first", "cost"), DOUBTS[1:])
def test_a_queue_that_may_be_somebody_elses_names_no_cause(library: Library, doubt: dict[str, Value], first: str, cost: str) -> None:
    capped: dict[str, Value] = {"queue__depth_p95": 12_600, "scheduler__max_running": 32}
    assert case(library, **capped).verdict == "diagnosed"
    found = case(library, **capped, **doubt)
    assert (found.verdict, found.reason) == ("cannot-tell", "evidence_missing") and found.hypotheses[0].id == "admission-cap-too-low"
    assert first in (found.next_step or "") and (found.next_step or "").endswith(f"Cost: {cost}.") and "Relaunch" not in (found.next_step or "")


def test_a_queue_beside_failed_requests_is_still_the_servers_own(library: Library) -> None:
    found = case(library, queue__depth_p95=12_600, scheduler__max_running=32, client__requests=100, client__failed_requests=30)
    assert found.verdict == "diagnosed" and "Before any change" in (found.next_step or "")


def test_requests_that_fail_because_the_server_hangs_are_the_symptom_and_are_not_measured_again(library: Library) -> None:
    stuck = case(
        library, client__requests=4, client__failed_requests=4, client__output_tps=None, decode__batch_p50=None, decode__batch_p90=None,
        scheduler__stalled=True, queue__depth_p95=1, gpu__sm_util_p50=0, request__tokens=9000, kv__pool_tokens=8000,
    )  # fmt: skip
    assert [item.code for item in stuck.contaminated] == ["errors"]
    if stuck.verdict == "diagnosed":
        assert stuck.next_step == stuck.hypotheses[0].next_step


def test_where_nothing_points_anywhere_what_was_not_seen_is_asked_for(library: Library) -> None:
    """Not a test of some network between hosts that nothing speaks of."""
    found = diagnose(bundle_from_files({"server.log": (RECORDED / "vllm-0.32-cpu/vllm_cpu_0.32_cold_start_compile.log").read_bytes()}), library)
    step = found.next_step or ""
    assert found.reason == "evidence_missing" and "bench.json" in step and "NCCL" not in step and "hosts" not in step


# --- two servers ----------------------------------------------------------------------------------------------------


def launch(engine: str, version: str = "", argv: tuple[str, ...] = ()) -> bytes:
    about: dict[str, Any] = {"name": "a", "engine": engine, "engine_version": version, "gpu": None, "gpu_count": 1, "interconnect": None}
    return json.dumps({**about, "model": None, "argv": list(argv), "env": {}, "ready": True}).encode()


SGLANG = b"""[2026-01-01 10:00:00] server_args=ServerArgs(model_path='m', port=30000, tp_size=1)
[2026-01-01 10:00:30] INFO:     Started server process [100]
[2026-01-01 10:00:40] The server is fired up and ready to roll!
"""
VLLM = (
    b"INFO 07-21 21:04:02 [cli_args.py:300] non-default args: {'max_model_len': 8192}\n"
    b"INFO 07-21 21:04:24 [llm_engine.py:230] Initializing a V0 LLM engine (v0.9.0.1) with config: model='m', kv_cache_dtype=auto\n"
)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_servers_of_one_log_are_counted_once_each(count: int) -> None:
    for log, text in ((SglangLog(), SGLANG), (VllmLog(), VLLM)):
        log.feed(text * count)
        assert log.finish().evidence().value("validity.servers_in_log") == (count if count > 1 else None)


def test_two_servers_are_never_healthy(library: Library) -> None:
    found = case(library, validity__servers_in_log=2)
    assert found.reason == "evidence_missing" and [item.code for item in found.contaminated] == ["two_servers"]
    assert (found.next_step or "").startswith("Separate the servers") and "healthy" not in diagnosis_text(found)


# --- values that cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("kv.usage_p95", 7.0), ("queue.depth_p95", -5), ("gpu.sm_util_p50", 240.0)])
def test_an_impossible_value_supports_nothing_and_is_said(library: Library, name: str, value: float) -> None:
    found = case(library, **{name.replace(".", "__"): value})
    assert any(note.startswith(f"{name} = {value}: not used") for note in found.notes)
    used = [line.fact for one in found.hypotheses for line in (*one.evidence, *one.against)]
    assert name not in used
    assert [fact.odd for fact in found.facts if fact.fact == name] == ["impossible"]
    assert found.reason == "evidence_missing" and name in (found.next_step or "")  # it might have been what deviates


def test_of_two_statements_that_contradict_each_other_neither_is_used(library: Library) -> None:
    found = case(library, ("kv.usage_p95", 0.99), queue__depth_p95=400)
    assert any("kv.usage_p95" in note and "contradict" in note and "neither" in note for note in found.notes)
    assert "kv.usage_p95" not in [line.fact for one in found.hypotheses for line in (*one.evidence, *one.against)]
    assert [item.reason for item in found.missing if item.fact == "kv.usage_p95"] == ["the case states both 0.3 and 0.99"]
    doubtful = case(library, ("kv.usage_p95", 0.99))
    assert doubtful.reason == "evidence_missing" and "kv.usage_p95" in (doubtful.next_step or "")
    same = case(library, ("kv.usage_p95", 0.3))
    assert same.reason == "healthy"
    assert not any("contradict" in note for note in same.notes)


@pytest.mark.parametrize(("stated", "noted"), [("0.9.0.1", False), ("v0.9.0.1+cu126", False), ("0.9.1", True), ("main", False), ("", False)])
def test_a_log_of_another_version_is_noted(library: Library, stated: str, noted: bool) -> None:
    found = diagnose(bundle_from_files({"launch.json": launch("vllm", stated), "server.log": VLLM}), library)
    assert (f"launch.json says version {stated}, server.log says 0.9.0.1" in found.notes) is noted


# --- the server's own word for a fallback ---------------------------------------------------------------------------

BASE = (
    b"INFO 07-21 20:40:47 [cli_args.py:300] non-default args: {'max_model_len': 8192}\n"
    b"INFO 07-21 20:41:00 [core.py:65] Initializing a V1 LLM engine (v0.9.0.1) with config: model='m', kv_cache_dtype=auto\n"
    b"INFO 07-21 20:41:01 [cuda.py:217] Using Flash Attention backend on V1 engine.\n"
)
FELL = (
    b"INFO 07-21 21:04:02 [cli_args.py:300] non-default args: {'max_model_len': 8192, 'kv_cache_dtype': 'fp8', 'block_size': 32}\n"
    b"WARNING 07-21 21:04:18 [arg_utils.py:1583] --kv-cache-dtype is not supported by the V1 Engine. Falling back to V0. \n"
    b"INFO 07-21 21:04:24 [llm_engine.py:230] Initializing a V0 LLM engine (v0.9.0.1) with config: model='m', kv_cache_dtype=fp8\n"
)


def test_a_fallback_that_the_log_explains_is_no_drift(library: Library) -> None:
    base, fell = (bundle_from_files({"launch.json": launch("vllm"), "server.log": log}) for log in (BASE, FELL))
    one, both = diagnose(fell, library), diagnose(fell, library, base)
    assert "engine.generation is V0 (a fallback; by kv_cache_dtype) (server.log line 2)" in diagnosis_text(one)
    text = diagnosis_text(both)
    assert "engine.generation V1 -> V0 (towards a fallback; by kv_cache_dtype)" in text and "drift" not in text
    assert "Fell back" not in diagnosis_text(diagnose(base, library))


def test_without_arguments_the_server_s_statement_or_its_logged_arguments_are_to_blame() -> None:
    before = evidence(engine__generation="V1")
    said = Fact(name="startup.fallback", value="kv_cache_dtype", labels={"fact": "engine.generation"})
    after = evidence(engine__generation="V0").merged(Evidence(facts=(said,)))
    (flip,) = flips(before, after, {}, {})
    assert (flip.blame, flip.drift, flip.why) == (("kv_cache_dtype",), False, "the server's own log names it")
    base = evidence(engine__generation="V1", settings__resolved={})
    other = evidence(engine__generation="V0", settings__resolved={"seed": 1, "block_size": 32})
    assert next(flip for flip in flips(base, other, {}, {}) if flip.fact == "engine.generation").blame == ("block_size",)
    # Where the arguments are known and equal, what the server resolved differently is the box's doing.
    asked = evidence(settings__asked={"tp_size": 1})
    assert next(flip for flip in flips(base.merged(asked), other.merged(asked), {}, {}) if flip.fact == "engine.generation").drift
