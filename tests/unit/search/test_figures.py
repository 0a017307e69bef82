"""The README's figures are those of docs/search.md, which benchmarks/search writes."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from optimizer.core import sampling
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.wiring import Roots
from optimizer.wiring.tables import TableOptions, replay_table

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = ROOT / "benchmarks" / "search"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("search_benchmark", folder / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("inprocess", None)


def test_the_readme_has_the_figures_of_the_document(run: Any) -> None:
    readme, document = run.README.read_text(encoding="utf-8"), run.DOCS.read_text(encoding="utf-8")
    assert run.written(readme, "search", run.figures(document), run.README) == readme
    assert len(run.figures(document)) == 2 + 4 + 2 + 7


def test_the_figures_of_the_simulated_boxes_are_not_older_than_the_code(run: Any) -> None:
    """The first of the table's seeds, recomputed: a change of a space, a rule, the simulator or a decision shows here."""
    part = run.DOCS.read_text(encoding="utf-8").partition("<!-- boxes -->")[2].partition("<!-- end of boxes -->")[0]
    said = re.search(r"<!-- launches of the first seeds, at most (\d+) each, recomputed by a test: (\{.*\}) -->", part)
    assert said is not None, "written by: python benchmarks/search/run.py --write"
    known, library = json.loads(said[2]), load_library(find_knowledge(ROOT))
    assert set(known) == {row[0].split()[0] for row in run._rows(run.DOCS.read_text(encoding="utf-8"), "boxes")}
    now = {name: run.first_seeds(name, library, int(said[1])) for name in known}
    assert now == known, "the box table of docs/search.md is stale: python benchmarks/search/run.py --write (ten minutes) writes it anew"


def test_what_never_starts_on_a_box_is_no_value_of_a_space_that_is_sampled(run: Any) -> None:
    """Two A6000s and a model without MLA: of the attention back ends those stay with which the engine can start there."""
    library = load_library(find_knowledge(ROOT))
    ground = run.ground_of(run.SimulatedBox("a6000x2-qwen27b"), library)
    params = [param for param in library.space("sglang/attention").params if param.name.endswith("attention_backend")]
    names, grids, out = sampling.dimensions(params, ground)
    names, grids, never = sampling.startable(params, names, grids, ground, set(names))
    assert not out and not never and set(names) == {param.name for param in params}
    for name in names:
        assert {"flashinfer", "triton"} <= set(grids[name]) and not {"trtllm_mla", "trtllm_mha", "flashmla"} & set(grids[name]), (name, grids[name])
    only = [param.model_copy(update={"grid": ("trtllm_mla", "flashmla")}) for param in params]
    assert sampling.startable(only, names, {}, ground, set(names))[0] == [], "nothing is left, and why is said"
    assert set(sampling.startable(only, names, {}, ground, set(names))[2]) == set(names)


@pytest.mark.gate("S9")
def test_evidence_reaches_what_the_document_claims(run: Any) -> None:
    """At most half of random's launches on the median table, and never more than TPE's on 70 % of each table's groups; where it is not
    so, the text names the table."""
    document = run.DOCS.read_text(encoding="utf-8")
    rows = run._rows(document, "tables")
    ratios = sorted(float(row[6]) for row in rows)
    assert ratios[len(ratios) // 2] <= 0.5
    assert all(int(row[3].split("(")[1].rstrip("%)")) >= 70 for row in rows)
    said = document.partition("Where it does not win:")[2].partition("\n## ")[0]
    for row in rows:
        assert (float(row[6]) <= 0.5) is (row[8] == "yes")
        assert row[8] == "yes" or row[0].split()[0] in said, f"{row[0]}: not half, and the text does not say so"


@pytest.mark.parametrize(("row", "objective"), [(0, "output_tokens_per_s"), (1, "ttft_p50_ms")])
def test_the_measured_grid_of_a_real_engine_gives_the_figures_of_the_document(run: Any, row: int, objective: str) -> None:
    """Random orders are the same everywhere; the model's near ties may fall otherwise on another processor."""
    table = run.ROOT / "benchmarks/search/llamacpp_cpu.csv"
    params = ("parallel", "threads", "ubatch_size", "spec_type", "flash_attn")
    found = replay_table(TableOptions(table=table, params=params, objective=objective, policies=("evidence", "random"), seeds=100), Roots(runs=run.ROOT / "runs", knowledge=run.ROOT))
    said = run._rows(run.DOCS.read_text(encoding="utf-8"), "engine")[row]
    launches = {name: score["launches_to"]["95%"]["mean"] for name, score in found["groups"][0]["policies"].items()}
    assert found["groups"][0]["configurations"] == int(said[1])
    assert launches["random"] == pytest.approx(float(said[5]), abs=0.051)
    assert launches["evidence"] == pytest.approx(float(said[2]), abs=1.0)
