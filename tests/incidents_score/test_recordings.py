"""The diagnosis against real launches: what each recording is a case of, told from its own files."""

from pathlib import Path

import pytest

from optimizer.evidence.bundle import read_bundle
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.diagnosis import Diagnosis
from optimizer.report.diagnosis_view import diagnosis_text
from optimizer.runner.diagnose import diagnose

TESTS = Path(__file__).parents[1]
H200 = TESTS / "recordings" / "sglang-0.5.12-h200"


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(TESTS.parent))


def look(path: Path, library: Library, baseline: Path | None = None) -> Diagnosis:
    return diagnose(read_bundle(path), library, read_bundle(baseline) if baseline else None)


@pytest.mark.parametrize(
    ("run", "cause", "step"),
    [
        ("tp1-7b-nograph", "cuda-graph-disabled", "without --disable-cuda-graph"),
        ("tp1-7b-graph4", "cuda-graph-batch-uncovered", "--cuda-graph-max-bs 16"),
        ("tp1-7b-graph32", "cuda-graph-batch-uncovered", "--cuda-graph-max-bs 64"),
        ("tp1-7b-nooverlap", "scheduler-cpu-overhead", "without --disable-overlap-schedule"),
        ("tp1-7b-nextn3-acc2.8", "spec-high-concurrency-loss", "without --speculative-algorithm"),
        ("tp1-7b-kvlimited", "kv-preemption-thrash", "--mem-fraction-static"),
        ("tp1-7b-oom", "mem-fraction-oom", "--mem-fraction-static"),
        ("tp2-27b-nccl-shm", "nccl-p2p-disabled", "without NCCL_P2P_DISABLE"),
    ],
)
def test_the_cause_of_a_slow_launch_comes_first(run: str, cause: str, step: str, library: Library):
    found = look(H200 / run, library)
    assert (found.verdict, found.hypotheses[0].id) == ("diagnosed", cause)
    assert step in (found.next_step or "")
    assert found.hypotheses[0].evidence and all(line.source for line in found.hypotheses[0].evidence)


@pytest.mark.parametrize("run", ["tp1-7b-graph32-b", "tp1-7b-contdecode8", "tp2-27b-graph32"])
def test_a_healthy_launch_is_called_healthy(run: str, library: Library):
    found = look(H200 / run, library)
    assert (found.verdict, found.reason) == ("cannot-tell", "healthy")


def test_a_dead_setting_in_use_is_named(library: Library):
    found = look(H200 / "tp1-7b-contdecode8", library)
    assert [item.setting for item in found.dead_settings] == ["num_continuous_decode_steps"]


@pytest.mark.parametrize(("run", "word"), [("tp1-7b-badflag", "bad_flag"), ("tp1-7b-badspec", "timeout")])
def test_a_failed_start_without_a_cause_is_told_from_its_exit(run: str, word: str, library: Library):
    found = look(H200 / run, library)
    assert (found.verdict, found.reason) == ("cannot-tell", "evidence_missing")
    assert word in (found.next_step or "")


def test_simulated_acceptance_is_no_diagnosis_but_is_said(library: Library):
    found = look(H200 / "tp2-27b-nextn3", library)
    assert found.verdict == "cannot-tell"
    assert any("simulated" in note for note in found.notes)


@pytest.mark.parametrize(
    ("run", "cause"),
    [("vllm-0.32-cpu/mns4", "admission-cap-too-low"), ("vllm-0.32-cpu/base", None), ("sglang-0.5.23-cpu/base", None)],
)
def test_engines_on_a_cpu(run: str, cause: str | None, library: Library):
    found = look(TESTS / "recordings" / run, library)
    if cause is None:
        assert (found.verdict, found.reason) == ("cannot-tell", "healthy")
    else:
        assert (found.verdict, found.hypotheses[0].id) == ("diagnosed", cause)
        assert "--max-num-seqs 16" in (found.next_step or "")


def test_a_baseline_gives_the_speed_to_compare_with(library: Library):
    found = look(H200 / "tp1-7b-nextn3-acc2.8", library, H200 / "tp1-7b-graph32-b")
    ratios = {fact.labels["concurrency"]: fact.value for fact in found.facts if fact.fact == "spec.speed_ratio"}
    assert ratios[32] == pytest.approx(3504 / 4714, rel=0.01) and ratios[1] > 1.4
    assert found.hypotheses[0].id == "spec-high-concurrency-loss"


def test_the_gain_of_graphs_is_predicted_from_the_eager_launch_alone(library: Library):
    found = look(H200 / "tp1-7b-nograph", library)
    predicted = found.hypotheses[0].predicts
    assert predicted is not None and predicted.computed
    low, high = predicted.ratio
    assert low / 1.5 <= 3.7 <= high * 1.5


@pytest.mark.parametrize(
    ("version", "spelled"),
    [
        ("0.5.12", "--cuda-graph-max-bs "),
        ("0.5.16", "--cuda-graph-max-bs-decode "),
        ("0.5.23", "--cuda-graph-max-bs-decode "),
    ],
)
def test_without_a_help_text_flags_are_spelled_for_the_version(version: str, spelled: str, library: Library):
    bundle = read_bundle(H200 / "tp1-7b-graph4").model_copy(update={"help_text": "", "engine_version": version})
    found = diagnose(bundle, library)
    assert f"{spelled}16" in (found.next_step or "")


@pytest.mark.parametrize(
    ("run", "step"), [("tp1-7b-kvlimited", "--mem-fraction-static 0.85"), ("tp1-7b-oom", "--mem-fraction-static 0.9 ")]
)
def test_the_next_step_has_a_value_and_a_cost(run: str, step: str, library: Library):
    found = look(H200 / run, library)
    assert step in (found.next_step or "") and "Cost: one relaunch" in (found.next_step or "")


def test_a_prefix_cache_that_is_off_matters_where_prompts_are_shared(library: Library):
    for run, step in (
        ("vllm-0.32-cpu/noprefix", "--enable-prefix-caching"),
        ("sglang-0.5.23-cpu/noradix", "without --disable-radix-cache"),
    ):
        found = look(TESTS / "recordings" / run, library)
        assert (found.verdict, found.hypotheses[0].id) == ("diagnosed", "prefix-cache-ineffective")
        assert step in (found.next_step or "")


def test_the_break_even_of_drafts_and_the_best_depth_are_shown(library: Library):
    found = look(H200 / "tp1-7b-nextn3-acc2.8", library)
    assert found.drafts is not None and found.drafts.break_even is not None and 2 < found.drafts.break_even < 16
    best = {level.concurrency: level.best for level in found.drafts.levels}
    assert best[1] >= 3 and best[16] == best[32] == 0
    said = diagnosis_text(found)
    assert "break even at about" in said and "Where the time goes at concurrency 32" in said
