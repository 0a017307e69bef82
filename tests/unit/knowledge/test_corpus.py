"""Every file under tests/cases/knowledge/good is clean; every one under bad is refused where it says it should be."""

import re
from pathlib import Path

import pytest

from optimizer.knowledge.library import library_from_files
from optimizer.knowledge.lint import lint

CORPUS = Path(__file__).parents[2] / "cases" / "knowledge"
GOOD = {path.relative_to(CORPUS / "good").as_posix(): path for path in sorted((CORPUS / "good").rglob("*.yaml"))}
BAD = {path.relative_to(CORPUS / "bad").as_posix(): path for path in sorted((CORPUS / "bad").rglob("*.yaml"))}


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def _good() -> dict[str, str]:
    return {name: _read(path) for name, path in GOOD.items()}


def test_good_files_have_no_finding_and_make_a_library():
    assert [finding.text for finding in lint(_good(), complete=False)] == []
    library = library_from_files(_good())
    assert [book.id for book in library.playbooks] == ["idea-one", "idea-two"]
    assert library.dead_for("sglang")[1].env_prefix == "NCCL_"
    assert library.constraints[0].sets == {
        "speculative_num_draft_tokens": {"setting": "speculative_num_steps", "plus": 1}
    }


def test_the_corpus_is_large():
    assert len(BAD) >= 60


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused_with_file_and_line(name: str):
    text = _read(BAD[name])
    expected = re.search(r"# expect (\d+): (.*)", text)
    assert expected, "the file does not say what to expect"
    files = _good()
    if "cyclic" in name:
        files.pop("playbooks/any/two.yaml")
    found = [finding for finding in lint({**files, name: text}, complete=False) if finding.level == "error"]
    assert any(
        finding.file == name and finding.line == int(expected[1]) and expected[2] in finding.message
        for finding in found
    ) or ("cyclic" in name and any("cyclic" in finding.message for finding in found)), [one.text for one in found]


@pytest.mark.parametrize("name", GOOD)
def test_one_extra_key_anywhere_on_top_fails(name: str):
    files = {**_good(), name: _good()[name] + "surprise: 1\n"}
    assert any(finding.file == name and finding.level == "error" for finding in lint(files, complete=False))
