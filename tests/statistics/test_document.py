"""docs/statistics.md is what the code gives: it was written from these rules, and a row of it is worked out again."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "statistics"))
import run as benchmark

DOCUMENT = benchmark.DOCS.read_text(encoding="utf-8")


def test_it_was_written_from_these_rules() -> None:
    assert f"`{benchmark.inputs_digest()}`" in DOCUMENT, "run: python benchmarks/statistics/run.py --write"


def test_comments_do_not_change_the_digest_and_rules_do(tmp_path: Path) -> None:
    source = tmp_path / "rules.py"
    source.write_text('"""Said."""\nLIMIT = 3  # why\ndef f(x):\n    """More."""\n    return x > LIMIT\n')
    first = benchmark._code(source)
    source.write_text('"""Said otherwise."""\nLIMIT = 3\ndef f(x):\n    return x > LIMIT\n')
    assert benchmark._code(source) == first
    source.write_text('LIMIT = 4\ndef f(x):\n    return x > LIMIT\n')
    assert benchmark._code(source) != first


@pytest.mark.parametrize("ratio", [1.2, 2.0, 5.0])
def test_a_row_worked_out_again_is_the_row_in_the_document(ratio: float) -> None:
    assert "| " + " | ".join(benchmark.launches_row(ratio)) + " |" in DOCUMENT


def test_every_effect_that_people_ask_about_has_its_row() -> None:
    assert benchmark.TABLE_EFFECTS == (1.00, 1.02, 1.05, 1.2, 2.0, 5.0)
    for ratio in benchmark.TABLE_EFFECTS:
        assert f"\n| {ratio:.2f} | " in DOCUMENT
