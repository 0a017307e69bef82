"""docs/diagnosis.md says what the code does today."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def document():
    folder = ROOT / "benchmarks" / "diagnosis"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("diagnosis_document", folder / "document.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))


@pytest.mark.slow
def test_the_document_has_the_current_figures(document):
    """Written anew by ``python benchmarks/diagnosis/document.py``."""
    written = document.DOCUMENT.read_text(encoding="utf-8").splitlines()
    current = document.text().splitlines()
    different = [pair for pair in zip(written, current, strict=False) if pair[0] != pair[1]]
    assert not different and len(written) == len(current), different[:3]


@pytest.mark.slow
def test_the_promises_hold(document):
    """The figures that were asked for, whatever the document says."""
    sets = document.figures.tables().sets
    published, bare, beside = (
        document.figures.quality(sets[name])
        for name in ("as published", "without their tests", "beside a healthy launch")
    )
    assert (
        published["top-1"] >= 0.93
        and published["top-3"] >= 0.98
        and published["family"] >= 0.96
        and published["refuted first"] == 0
    )
    assert bare["abstains where it should"] >= 0.8 and bare["abstains where it need not"] <= 0.1
    assert beside["top-1"] >= 0.85 and beside["family"] >= 0.90
    assert document.figures.cross_validated([row for row in sets["as published"] if row.decidable]) <= 0.1


def test_ceilings_and_predictions_hold(document):
    figures = document.figures
    for name, level, measured, expected, roofline in figures.ceilings():
        print(f"{name} c={level}: measured {measured:.0f}, expected {expected:.0f}, roofline {roofline:.0f}")
        assert abs(expected / measured - 1) <= 0.25 and measured < roofline
    for level, low, middle, high, measured in figures.graph_gain():
        print(f"graphs at c={level}: predicted x{middle:.2f} (x{low:.2f} to x{high:.2f}), measured x{measured:.2f}")
        assert measured / 1.5 < middle < measured * 1.5 and low < measured < high
    for level, lost, seen, part, part_seen in figures.collectives():
        print(f"all-reduce at c={level}: {lost:.2f} ms lost ({part:.0%}), measured {seen:.2f} ms ({part_seen:.0%})")
        assert abs(part - part_seen) <= 0.03
    for level, predicted, measured in figures.drafts():
        print(f"drafts at c={level}: predicted x{predicted:.2f}, measured x{measured:.2f}")
        assert (predicted > 1) == (measured > 1) and abs(predicted / measured - 1) <= 0.15


def test_the_plot_is_there(document):
    assert document.PLOT.read_text().lstrip().startswith("<?xml") and "stated probability" in document.PLOT.read_text()
