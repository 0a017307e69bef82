"""The evidence sheet: every fact found with its place, or missing with its reason; odd values marked; short unless all is asked."""

import json
import re
from pathlib import Path

import pytest

from optimizer.evidence.bundle import bundle_from_case, read_bundle
from optimizer.evidence.odd import odd
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.evidence import Evidence, Fact
from optimizer.report.sheet_view import sheet_text, value_text
from optimizer.runner.diagnose import diagnose

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "recordings"
SHOWN = ("sglang-0.5.12-h200/tp1-7b-graph4", "sglang-0.5.12-h200/tp2-27b-nccl-shm", "sglang-0.5.12-h200/tp1-7b-oom", "vllm-0.32-cpu/base",
         "sglang-0.5.23-cpu/base")  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(ROOT))


@pytest.mark.parametrize("name", SHOWN)
def test_every_fact_is_found_or_missing_with_a_reason(library: Library, name: str) -> None:
    found = diagnose(read_bundle(RECORDED / name), library)
    facts = {fact.fact for fact in found.facts}
    missing = {item.fact: item.reason for item in found.missing}
    assert facts | set(missing) >= set(library.vocabulary.by_name) and not facts & set(missing)
    assert all(len(reason) > 8 for reason in missing.values())
    # Every observation of a file points into it.
    assert [fact for fact in found.facts if "." in fact.source and fact.line is None and fact.span is None] == []
    whole = sheet_text(found, everything=True)
    for fact in facts | set(missing):
        assert fact in whole
    short = sheet_text(found)
    assert len(short.splitlines()) < 110 and len(short) < len(whole)
    for fact in found.facts:
        if fact.odd:
            assert fact.fact in short and fact.why_odd in short
    json.dumps(found.to_json(), allow_nan=False)


def test_a_line_names_value_unit_and_place(library: Library) -> None:
    found = diagnose(read_bundle(RECORDED / "sglang-0.5.12-h200" / "tp1-7b-graph4"), library)
    row = next(line for line in sheet_text(found, everything=True).splitlines() if line.strip().startswith("kv.pool_tokens "))
    assert re.search(r"kv\.pool_tokens +[\d,]+ tokens +server\.log:\d+$", row)
    log = (RECORDED / "sglang-0.5.12-h200" / "tp1-7b-graph4" / "server.log").read_bytes()
    fact = next(fact for fact in found.facts if fact.fact == "kv.pool_tokens")
    assert fact.span is not None and fact.line is not None
    text = log[fact.span[0] : fact.span[1]]
    assert str(fact.value).encode() in text and log[: fact.span[0]].count(b"\n") + 1 == fact.line


def test_two_bundles_show_the_ledger(library: Library) -> None:
    base, other = (read_bundle(RECORDED / "sglang-0.5.12-h200" / name) for name in ("tp2-27b-graph32", "tp2-27b-nccl-shm"))
    found = diagnose(other, library, base)
    flips = {flip.fact: flip for flip in found.flips}
    assert flips["allreduce.custom"].after == "off_flag" and flips["allreduce.custom"].blame == ("disable_custom_all_reduce",)
    text = sheet_text(found)
    assert "What the start did differently" in text and "allreduce.custom on -> off_flag" in text
    assert "What the start did differently" not in sheet_text(diagnose(base, library, base))


@pytest.mark.parametrize(
    ("facts", "name", "kind"),
    [
        ({"gpu.power_share": 1.4}, "gpu.power_share", "impossible"),
        ({"client.itl_ms_p50": -1.0}, "client.itl_ms_p50", "impossible"),
        ({"gpu.memory_used_gib": 200.0, "gpu.memory_total_gib": 141.0}, "gpu.memory_used_gib", "impossible"),
        ({"spec.accept_len": 6.0, "spec.draft_tokens": 3, "spec.method": "mtp"}, "spec.accept_len", "impossible"),
        ({"client.itl_ms_p50": 9.0, "client.itl_ms_p99": 5.0}, "client.itl_ms_p50", "impossible"),
        ({"scheduler.max_running": 48, "scheduler.max_running_asked": 256}, "scheduler.max_running", "contradicts"),
        ({"settings.env_differs": {"OMP_NUM_THREADS": {"asked": "4", "rank": "1"}}}, "settings.env_differs", "contradicts"),
        ({"graphs.mode": "none", "graphs.disable_flag": False}, "graphs.mode", "contradicts"),
        ({"startup.outcome": "oom"}, "startup.outcome", "contradicts"),
        ({"kv.usage_p95": 0.98}, "kv.usage_p95", "at_limit"),
        ({"decode.batch_max": 8, "scheduler.max_running": 8}, "decode.batch_max", "at_limit"),
        ({"host.cpu_steal_pct": 8.0}, "host.cpu_steal_pct", "at_limit"),
        ({"kv.usage_p95": 0.5}, "kv.usage_p95", None),
        ({"settings.env_differs": {}}, "settings.env_differs", None),
        ({"graphs.mode": "none", "graphs.disable_flag": True}, "graphs.mode", None),
        ({"gpu.temperature_c_max": -3.0}, "gpu.temperature_c_max", None),
    ],
)
def test_what_is_odd(facts: dict, name: str, kind: str | None) -> None:
    evidence = Evidence(facts=tuple(Fact(name=key, value=value) for key, value in facts.items()))
    fact = evidence.get(name)
    assert fact is not None
    mark = odd(fact, evidence)
    assert (mark.kind if mark else None) == kind


def test_healthy_recordings_show_nothing_impossible(library: Library) -> None:
    for folder in sorted(path.parent for path in RECORDED.glob("*/*/launch.json")):
        found = diagnose(read_bundle(folder), library)
        assert [(fact.fact, fact.value, fact.why_odd) for fact in found.facts if fact.odd == "impossible"] == [], folder


def test_a_case_is_shown_too(library: Library) -> None:
    case = {"engine": "vllm", "facts": [{"name": "client.ttft_ms_p50", "value": 10.0, "unit": "s", "bound": "at_least"}]}
    found = diagnose(bundle_from_case(json.dumps(case).encode()), library)
    text = sheet_text(found)
    assert "≥ 10000 ms" in text and any("converted from s to ms" in note for note in found.notes)
    assert "the case does not state it" in text


def test_values_are_short() -> None:
    assert (value_text(True), value_text(1234567), value_text(0.123456789), value_text([1, 2])) == ("yes", "1,234,567", "0.123457", "1, 2")
    assert value_text(list(range(100))) == "100 values, 0 to 99" and value_text({}) == "{}"
    assert len(value_text("x" * 500)) == 40 and "\n" not in value_text("a\nb")
