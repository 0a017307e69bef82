"""Nothing known deviates, and yet the launch is slower than it has to be: by its baseline, or by a setting that was asked for."""

import json
import shutil
from pathlib import Path

import pytest

from optimizer.evidence.bundle import read_bundle
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.runner.diagnose import diagnose

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "recordings"


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(ROOT))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("vllm-0.32-cpu/fp32", "179.1 against 463.3 tok/s at concurrency 16 (×0.39, one launch each). Asked differently: --dtype (not given) -> float32"),
        ("sglang-0.5.23-cpu/chunk64", "--chunked-prefill-size (not given) -> 64. Relaunch with it as there"),
        ("sglang-0.5.23-cpu/omp2", "OMP_NUM_THREADS 1 -> 2"),
    ],
)
def test_a_launch_that_is_slower_than_its_baseline_is_not_healthy(run: str, said: str, library: Library) -> None:
    found = diagnose(read_bundle(RECORDED / run), library, read_bundle((RECORDED / run).parent / "base"))
    assert (found.verdict, found.reason) == ("cannot-tell", "evidence_missing")
    assert said in (found.next_step or "") and "Cost: one relaunch" in (found.next_step or "")


@pytest.mark.parametrize("run", ["vllm-0.32-cpu/mbt256", "vllm-0.32-cpu/compile", "sglang-0.5.23-cpu/nooverlap", "sglang-0.5.23-cpu/base"])
def test_what_two_launches_of_one_setting_differ_by_is_no_reason(run: str, library: Library) -> None:
    found = diagnose(read_bundle(RECORDED / run), library, read_bundle((RECORDED / run).parent / "base"))
    assert found.reason == "healthy"


def test_slower_without_a_difference_asks_to_measure_both(tmp_path: Path, library: Library) -> None:
    base = RECORDED / "sglang-0.5.12-h200/tp1-7b-graph32-b"
    copy = tmp_path / base.name
    shutil.copytree(base, copy)
    rows = json.loads((copy / "bench.json").read_text())
    for row in rows if isinstance(rows, list) else rows["rows"]:
        row["output_tps"] *= 0.75
    (copy / "bench.json").write_text(json.dumps(rows))
    step = diagnose(read_bundle(copy), library, read_bundle(base)).next_step or ""
    assert "×0.75" in step and "Nothing was asked differently" in step
    assert diagnose(read_bundle(copy), library).reason == "healthy"  # alone, two thirds of the usual speed are nothing that stands out


@pytest.mark.parametrize(
    ("run", "said"),
    [("vllm-0.32-cpu/fp32", "--dtype float32 reads four bytes"), ("sglang-0.5.23-cpu/chunk64", "64 cuts a prompt of 256 tokens into 4 steps")],
)
def test_a_setting_that_is_slow_by_construction_is_named_without_a_baseline(run: str, said: str, library: Library) -> None:
    found = diagnose(read_bundle(RECORDED / run), library)
    assert (found.verdict, found.reason) == ("cannot-tell", "evidence_missing") and said in (found.next_step or "")
