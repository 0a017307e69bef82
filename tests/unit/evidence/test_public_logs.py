"""82 real vLLM logs of GPU boxes and their metrics, where this checkout has them beside it (they are never committed)."""

import json
import tarfile
from functools import cache
from pathlib import Path

import pytest

from optimizer.core.ledger import fallbacks, flips
from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.found import Found
from optimizer.evidence.prometheus import series_facts
from optimizer.evidence.vllm_log import VllmLog
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.evidence import Evidence
from optimizer.runner.diagnose import diagnose

EVIDENCE = Path(__file__).parents[4] / "shared" / "data" / "evidence"
pytestmark = pytest.mark.skipif(not EVIDENCE.is_dir(), reason="the public logs are not beside this checkout")


@cache
def logs() -> dict[str, bytes]:
    found = {}
    for path in sorted(EVIDENCE.glob("*.tar.xz")):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".log") and not member.name.endswith("sweep.log"):
                    handle = archive.extractfile(member)
                    assert handle is not None
                    found[f"{path.name.split('_')[0]}/{member.name.removeprefix('./')}"] = handle.read()
    return found


@cache
def parsed() -> dict[str, tuple[VllmLog, Evidence]]:
    found = {}
    for name, data in logs().items():
        log = VllmLog()
        log.feed(data)
        found[name] = (log, log.finish().evidence())
    return found


def read(name: str) -> tuple[VllmLog, Evidence]:
    return next(result for key, result in parsed().items() if key.endswith(name))


# version -> logs, V0 among them, statistics lines
TABLE = {"0.9.0.1": (40, 38, 10_373), "0.15.0": (42, 0, 5_726)}


def test_every_statistics_line_of_every_log_is_recognised() -> None:
    counted: dict[str, list[int]] = {}
    for name, (log, evidence) in parsed().items():
        data = logs()[name]
        printed = data.count(b"Avg prompt throughput:")
        assert (log.statistics.count, len(log.stats), evidence.value("log.unrecognised_lines")) == (printed, printed, 0), name
        assert log.statistics.spec_count == data.count(b"SpecDecoding metrics:")
        row = counted.setdefault(str(evidence.value("engine.version")), [0, 0, 0])
        row[0] += 1
        row[1] += evidence.value("engine.generation") == "V0"
        row[2] += printed
    assert {version: tuple(row) for version, row in counted.items()} == TABLE


@cache
def series() -> dict[str, bytes]:
    found = {}
    with tarfile.open(next(EVIDENCE.glob("inferencex*"))) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith("metrics_server_metrics.csv"):
                handle = archive.extractfile(member)
                assert handle is not None
                found[member.name] = handle.read()
    return found


def test_every_row_of_every_metrics_series_is_read() -> None:
    rows = 0
    for name, data in series().items():
        found = Found(name)
        count = series_facts(found, data)
        assert (count, found.unrecognised) == (len(data.splitlines()) - 1, 0), name
        rows += count
        assert found.has("kv.preemptions") and (found.has("decode.batch_p90") or found.get("server.output_tokens_total") == 0), name
    assert (len(series()), rows) == (46, 62_137)


def test_study_7_fp8_cache_sent_vllm_to_v0_and_off_flash_attention() -> None:
    log, trial = read("study_7/trial_0/vllm_server.log")
    named = {flip.fact: (flip.after, flip.blame) for flip in fallbacks(trial)}
    assert named == {
        "engine.generation": ("V0", ("kv_cache_dtype",)),
        "kernel.attention_backend": ("xformers", ("kv_cache_dtype",)),
    }
    _, base = read("study_7/baseline/vllm_server.log")
    changed = {
        key: (None, value) for key, value in log.asked.items() if key not in ("max_model_len", "disable_log_requests")
    }
    found = {flip.fact: flip for flip in flips(base, trial, changed, {})}
    for fact, before, after in (
        ("engine.generation", "V1", "V0"),
        ("kernel.attention_backend", "flash_attn", "xformers"),
    ):
        assert (found[fact].before, found[fact].after, found[fact].blame) == (before, after, ("kv_cache_dtype",))
        assert found[fact].towards_fallback


@cache
def library() -> Library:
    return load_library(find_knowledge())


def ranked(name: str) -> list[str]:
    """Hypotheses about what holds requests back, best first, from this log alone."""
    launch = json.dumps({"engine": "vllm", "argv": ["vllm", "serve", "m"]}).encode()
    data = next(data for key, data in logs().items() if key.endswith(name))
    diagnosis = diagnose(bundle_from_files({"launch.json": launch, "server.log": data}), library())
    return [one.id for one in diagnosis.hypotheses if one.id in ("kv-capacity-queueing", "kv-preemption-thrash", "admission-cap-too-low")]


def test_study_30_baseline_is_bound_by_the_pool() -> None:
    _, base = read("study_30/baseline/vllm_server.log")
    assert base.number("kv.usage_p95") == 0.997 and base.number("queue.depth_p95") == 12_660
    assert base.number("decode.batch_max") == 221
    assert ranked("study_30/baseline/vllm_server.log")[0] == "kv-capacity-queueing"
    for trial in (1, 5, 13):  # V0 preempted there, as its running total says
        _, evidence = read(f"study_30/trial_{trial}/vllm_server.log")
        assert (evidence.number("kv.preemptions") or 0) > 600 and evidence.number("kv.usage_p95") == 0.999
        assert ranked(f"study_30/trial_{trial}/vllm_server.log")[0] == "kv-preemption-thrash"


def test_study_30_trials_pinned_at_64_are_admission_capped() -> None:
    pinned = {}
    for name in logs():
        if "/study_30/trial_" in name:
            _, trial = read(name.partition("/")[2])
            if trial.number("decode.batch_p90") == trial.number("decode.batch_max") == 64:
                pinned[name.split("/")[-2]] = trial
                assert trial.number("scheduler.max_running") == 64 and (trial.number("kv.usage_p95") or 1) < 0.2
                assert ranked(name.partition("/")[2])[0] == "admission-cap-too-low"
    assert sorted(pinned) == ["trial_11", "trial_14", "trial_17"]
    assert pinned["trial_11"].number("queue.depth_p95") == 12_674


def test_no_log_with_thousands_waiting_is_called_healthy() -> None:
    """Both studies sent 13,000 requests at once. The limit is the cause where it is reached and the pool has room; else nobody can tell."""
    launch = json.dumps({"engine": "vllm", "engine_version": "0.9.0.1", "gpu_count": 1, "argv": [], "env": {}, "ready": True}).encode()
    found = {
        "/".join(name.split("/")[-3:-1]): diagnose(bundle_from_files({"launch.json": launch, "server.log": data}), library())
        for name, data in logs().items()
        if "/study_" in name
    }
    assert len(found) == 40 and not {name for name, one in found.items() if one.reason in ("healthy", "load_limited")}
    for trial in (2, 6):  # 256 run of 256 at most, a third of the pool is free
        one = found[f"study_30/trial_{trial}"]
        assert (one.verdict, one.hypotheses[0].id) == ("diagnosed", "admission-cap-too-low")
    for trial in (3, 16):  # the limit is reached as well, but the pool is nearly full
        assert found[f"study_30/trial_{trial}"].verdict == "cannot-tell"
    for trial in (7, 9, 12):  # fewer run than may
        assert "at most" in (found[f"study_30/trial_{trial}"].next_step or "")


def test_two_servers_in_one_log_are_seen() -> None:
    several = [
        name
        for name in logs()
        if name.startswith("inferencex")
        and (read(name.partition("/")[2])[1].number("validity.servers_in_log") or 1) > 1
    ]
    assert several
