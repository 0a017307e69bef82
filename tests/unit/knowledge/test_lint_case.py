"""Bad input by its name, as ``optimize lint`` refuses it: with file and line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.knowledge.library import load_library
from optimizer.knowledge.lint_case import LIMIT_BYTES, lint_case
from optimizer.knowledge.load import find_knowledge

ROOT = Path(__file__).parents[3]
GOOD = (ROOT / "tests" / "cases" / "knowledge" / "good" / "playbooks" / "any" / "one.yaml").read_text()


@pytest.fixture(scope="module")
def vocabulary():
    return load_library(find_knowledge(ROOT)).vocabulary


def refused(tmp_path: Path, name: str, text: str | bytes) -> list[str]:
    """The lines that ``optimize lint FILE`` prints; it has to end with 2 and name the file and a line in each."""
    file = tmp_path / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    done = CliRunner().invoke(main, ["--knowledge", str(ROOT), "lint", str(file)])
    assert done.exit_code == 2, done.output
    lines = done.output.strip().splitlines()
    assert lines and all(
        line.startswith(f"{file}:") and line.removeprefix(f"{file}:").partition(":")[0].isdigit() for line in lines
    ), lines
    return [line.removeprefix(f"{file}:") for line in lines]


def case(*facts: dict[str, object]) -> str:
    rows = ",\n".join("  " + json.dumps(fact) for fact in facts)
    return f'{{"format": 1, "engine": "vllm",\n "facts": [\n{rows}\n ]}}\n'


def test_contradicting_evidence(tmp_path: Path):
    twice = case(
        {"name": "parallel.tp", "value": 2}, {"name": "parallel.pp", "value": 1}, {"name": "parallel.tp", "value": 4}
    )
    assert refused(tmp_path, "a.json", twice) == ["5: parallel.tp is 4 here and 2 in line 3: which one holds?"]
    both = case({"name": "graphs.disable_flag", "value": True}, {"name": "graphs.mode", "value": "full"})
    assert refused(tmp_path, "b.json", both)[0].startswith(
        "4: graphs.disable_flag = True contradicts graphs.mode = 'full'"
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kv.usage_p95", 1.7, "a share cannot exceed 1"),
        ("queue.depth_p95", -3, "cannot be negative"),
        ("gpu.sm_util_p50", 240, "cannot exceed 100"),
        ("graphs.mode", "sometimes", "sometimes"),
        ("parallel.tp", "two", "two"),
    ],
)
def test_a_fact_with_an_impossible_value(name: str, value: object, said: str, tmp_path: Path):
    found = refused(
        tmp_path, "case.json", case({"name": "engine.name", "value": "vllm"}, {"name": name, "value": value})
    )
    assert len(found) == 1 and found[0].startswith("4: ") and said in found[0]


def test_an_unknown_fact(tmp_path: Path):
    found = refused(tmp_path, "case.json", case({"name": "gpu.warp_count", "value": 3}))
    assert found == ["3: gpu.warp_count: no fact has this name (did you mean gpu.count?)"]


@pytest.mark.fault("H1")
def test_duplicate_keys(tmp_path: Path):
    text = '{"engine": "vllm",\n "facts": [\n  {"name": "parallel.tp", "value": 2,\n   "value": 4}]}'
    assert refused(tmp_path, "case.json", text)[0].startswith("4: the key value appears twice")
    twice = GOOD.replace("family:", "family: config\nfamily:", 1)
    assert any("family" in line for line in refused(tmp_path, "idea-one.yaml", twice))


@pytest.mark.fault("H4")
def test_a_file_of_ten_megabytes(tmp_path: Path):
    assert "MB" in refused(tmp_path, "case.json", case({"name": "engine.name", "value": "x" * 10_000_000}))[0]
    assert refused(tmp_path, "huge.yaml", GOOD + "# " + "x" * 10_000_000 + "\n")


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", '{"facts": [{"name": "parallel.tp", "value": NaN}]}', "[" * 5000])
def test_what_is_no_case(text: str, tmp_path: Path):
    assert refused(tmp_path, "case.json", text)


def test_what_is_no_text(tmp_path: Path):
    assert refused(tmp_path, "case.json", b'{"engine":\n "\xff\xfe"}') == ["2: this is no UTF-8 text"]


def test_a_rule_that_cannot_fail(tmp_path: Path):
    text = (
        ROOT / "tests" / "cases" / "knowledge" / "bad" / "playbooks" / "any" / "presence-cannot-fail.yaml"
    ).read_text()
    assert any("cannot fail" in line for line in refused(tmp_path, "presence-cannot-fail.yaml", text))


@pytest.mark.fault("H12")
def test_cyclic_exclusions(tmp_path: Path):
    text = (ROOT / "playbooks" / "any" / "kv-capacity-queueing.yaml").read_text()
    cyclic = text + "excludes: {kv-preemption-thrash: -4}\n"
    assert any("excludes is cyclic" in line for line in refused(tmp_path, "kv-capacity-queueing.yaml", cyclic))


def test_the_published_cases_are_clean(vocabulary):
    for path in sorted((ROOT / "tests" / "incidents" / "cases").glob("*.json")):
        assert lint_case(path.read_bytes(), path.name, vocabulary) == ()


def test_the_limit_is_below_ten_megabytes():
    assert LIMIT_BYTES < 10_000_000
