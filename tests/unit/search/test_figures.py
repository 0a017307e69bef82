"""The README's figures are those of docs/search.md, which benchmarks/search writes."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

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
    assert len(run.figures(document)) == 2 + 4 + 7


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
