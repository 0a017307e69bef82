"""The statistical gates: each is held by tests that carry its label, and docs/statistics.md names the files where they are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATES = [f"S{number}" for number in range(1, 15)]
DOCUMENT = (ROOT / "docs/statistics.md").read_text(encoding="utf-8")


def held_by() -> dict[str, set[str]]:
    """Gate -> files with a test that is marked with it. A mark on anything else counts for nothing."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.gate(" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.gate":
                        for gate in mark.args:
                            found.setdefault(ast.literal_eval(gate), set()).add(str(path.relative_to(ROOT)))
    return found


HELD = held_by()


def test_no_label_is_misspelt() -> None:
    assert set(HELD) <= set(GATES)


@pytest.mark.parametrize("gate", GATES)
def test_the_document_names_the_files_that_hold_it(gate: str) -> None:
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {gate} |")]
    assert HELD.get(gate), f"no test carries {gate}"
    assert set(re.findall(r"`(tests/[^`]+)`", row)) == HELD[gate]


def test_a_gate_is_found_by_its_name() -> None:
    """The hook that makes ``-k S7`` work, on a test of its own."""
    from tests.conftest import pytest_itemcollected

    class Item:
        def __init__(self) -> None:
            self.extra_keyword_matches: set[str] = set()

        def iter_markers(self, name: str) -> list[pytest.Mark]:
            return [pytest.mark.gate("S7", "S6").mark] if name == "gate" else []

    item = Item()
    pytest_itemcollected(item)  # type: ignore[arg-type]
    assert item.extra_keyword_matches == {"S7", "S6"}
