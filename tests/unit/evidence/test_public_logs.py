"""82 real vLLM logs of GPU boxes and their metrics, where this checkout has them beside it (they are never committed)."""

import tarfile
from functools import cache
from pathlib import Path

import pytest

from optimizer.core.ledger import fallbacks, flips
from optimizer.evidence.vllm_log import VllmLog
from optimizer.model.evidence import Evidence

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


def test_every_statistics_line_of_every_log_is_recognised() -> None:
    printed = sum(
        1 for data in logs().values() for line in data.split(b"\n") if b"throughput:" in line and b"Running:" in line
    )
    recognised = sum(len(log.stats) for log, _ in parsed().values())
    strange = sum(evidence.unrecognised_lines for _, evidence in parsed().values())
    assert len(logs()) >= 80
    assert (recognised, strange) == (printed, 0)
    assert printed > 16_000


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


def test_study_30_baseline_is_bound_by_the_pool_and_pinned_trials_by_admission() -> None:
    _, base = read("study_30/baseline/vllm_server.log")
    assert (base.number("kv.usage_p95") or 0) > 0.95 and (base.number("queue.depth_p95") or 0) > 1000
    pinned = 0
    for name in logs():
        if "/study_30/trial_" in name:
            _, trial = read(name.partition("/")[2])
            queue, usage = trial.number("queue.depth_p95") or 0, trial.number("kv.usage_p95") or 1
            if trial.number("decode.batch_p90") == 64 and queue > 10_000 and usage < 0.5:
                pinned += 1
                assert trial.number("scheduler.max_running") in (64, None)
    assert pinned >= 1


def test_two_servers_in_one_log_are_seen() -> None:
    several = [
        name
        for name in logs()
        if name.startswith("inferencex")
        and (read(name.partition("/")[2])[1].number("validity.servers_in_log") or 1) > 1
    ]
    assert several
