"""What a real llama-server says in its log, on /props and on /metrics, and how a failed start is named."""

from pathlib import Path

import pytest

from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.exits import exit_class
from optimizer.evidence.found import Found
from optimizer.evidence.llamacpp_log import LlamacppLog
from optimizer.evidence.prometheus import metrics_facts, parse_metrics, series_facts
from optimizer.model.evidence import Evidence

RECORDED = Path(__file__).parents[2] / "recordings"


def read(data: bytes) -> Evidence:
    log = LlamacppLog()
    log.feed(data)
    return log.finish().evidence()


def test_a_start_with_all_its_lines() -> None:
    facts = read((RECORDED / "llamacpp-2026.10-cpu/ngram-np4.log").read_bytes())
    expected = {
        "engine.version": "b0-unknown", "model.family": "llama", "scheduler.max_running": 4, "model.max_context_tokens": 2048,
        "kv.pool_tokens": 8192, "kv.dtype": "fp16", "memory.kv_gib": 0.0625, "prefill.chunk_tokens": 512,
        "kernel.attention_backend": "flash_attn", "startup.last_stage": "listening",
    }  # fmt: skip
    assert {name: facts.value(name) for name in expected} == expected
    assert facts.number("memory.weights_gib") == pytest.approx(45.53 / 1024, rel=1e-3)
    assert facts.unrecognised_lines == 0
    for name in expected:
        fact = facts.get(name)
        assert fact is not None and (fact.line or name == "startup.last_stage")


def test_drafts_are_counted_over_all_requests() -> None:
    data = (RECORDED / "llamacpp-2026.10-cpu/ngram-np4.log").read_bytes()
    facts = read(data)
    assert data.count(b"draft acceptance") >= 3
    assert facts.number("spec.drafted_tokens") and facts.number("spec.accept_share") == 1.0
    assert (facts.number("spec.accept_len") or 0) > 2


@pytest.mark.parametrize("run", ["p4", "p16"])
def test_the_older_recordings_still_read(run: str) -> None:
    facts = read((RECORDED / "llamacpp-cpu" / run / "server.log").read_bytes())
    assert facts.value("scheduler.max_running") == int(run[1:])
    assert (facts.number("decode.step_ms_p50") or 0) > 0 and (facts.number("prefill.throughput_tps") or 0) > 0
    assert facts.unrecognised_lines == 0


def test_a_unified_buffer_is_one_context_for_all_slots() -> None:
    line = b"0.00.1 I srv    load_model: initializing, n_slots = 16, n_ctx_slot = 8192, kv_unified = '%s'\n"
    assert read(line % b"true").value("kv.pool_tokens") == 8192
    assert read(line % b"false").value("kv.pool_tokens") == 16 * 8192


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"0.00.1 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8123", "port_busy"),
        (b"0.00.1 E gguf_init_from_file: failed to open GGUF file 'none.gguf' (No such file or directory)", "model_missing"),
        (b"error: invalid argument: --bogus", "bad_flag"),
        (b"error while handling argument \"--flash-attn\": error: unknown value for --flash-attn: 'maybe'", "bad_flag"),
        (b"0.00.1 E llama_init_from_model: quantized V cache requires flash_attn to be enabled", "bad_flag"),
        (b"0.15.5 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache", "oom_kv"),
        (b"ggml_cuda: cudaMalloc failed: out of memory", "oom_weights"),
    ],
)
def test_why_a_start_failed(line: bytes, cause: str) -> None:
    after = b"\n0.00.9 E srv          init: exiting due to model loading error\nmain: exiting due to error\n"
    found, message, number = exit_class(line + after, 1)
    assert (found, number) == (cause, 1) and message
    assert read(line + after).value("validity.failed_starts") == 1


def test_gauges_under_load_are_the_steps_that_the_log_does_not_print() -> None:
    part = Found("metrics_load.txt")
    pages = b"".join(b"llamacpp:requests_processing 4\nllamacpp:requests_deferred %d\n" % waiting for waiting in (12, 12, 11, 12))
    assert series_facts(part, pages) == 4
    facts = part.evidence()
    assert (facts.value("decode.batch_p90"), facts.value("queue.depth_p95"), facts.value("server.in_flight_p90")) == (4, 12, 16)


def test_an_idle_server_has_no_batch() -> None:
    part = Found("metrics.txt")
    page = (RECORDED / "llamacpp-2026.10-cpu/metrics.txt").read_bytes()
    metrics_facts(part, parse_metrics(page.replace(b"n_busy_slots_per_decode 1", b"n_busy_slots_per_decode 0")), None)
    assert part.evidence().get("decode.batch_p50") is None
    assert part.evidence().value("engine.name") == "llamacpp"


def test_a_bundle_of_a_server_with_its_props() -> None:
    folder = RECORDED / "llamacpp-2026.10-cpu"
    launch = b'{"name": "x", "engine": "llamacpp", "argv": ["llama-server", "-m", "/m/a.gguf", "-np", "4", "--spec-type", "ngram-simple"], "ready": true}'
    files = {"launch.json": launch, "server.log": (folder / "ngram-np4.log").read_bytes(), "server_info.json": (folder / "props.json").read_bytes()}
    facts = bundle_from_files(files).evidence
    assert (facts.value("engine.name"), facts.value("spec.method"), facts.value("startup.outcome")) == ("llamacpp", "ngram", "ok")
    asked = facts.value("settings.asked")
    assert isinstance(asked, dict) and asked["model"] == "/m/a.gguf" and asked["parallel"] == 4
    assert facts.value("validity.config_as_requested") is True
