"""Every file under tests/cases/knowledge/good is clean; every one under bad is refused where it says it should be."""

import re
from pathlib import Path

import pytest

from optimizer.errors import KnowledgeError
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


@pytest.mark.fault("H8")
@pytest.mark.parametrize("name", GOOD)
def test_one_extra_key_anywhere_on_top_fails(name: str):
    files = {**_good(), name: _good()[name] + "surprise: 1\n"}
    assert any(finding.file == name and finding.level == "error" for finding in lint(files, complete=False))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("duplicate-key", "nested-duplicate-key"), marks=pytest.mark.fault("H1"), id="H1"),
        pytest.param(("anchor", "alias", "billion-laughs", "merge-key"), marks=pytest.mark.fault("H2"), id="H2"),
        pytest.param(("python-object", "tag"), marks=pytest.mark.fault("H3"), id="H3"),
        pytest.param(("base-sixty", "octal", "leading-zero", "capital-true"), marks=pytest.mark.fault("H6"), id="H6"),
        pytest.param(("nul", "byte-order-mark", "carriage-return", "bidi-override"), marks=pytest.mark.fault("H7"), id="H7"),
        pytest.param(("equal-signs",), marks=pytest.mark.fault("H9"), id="H9"),
        pytest.param(("nan-weight", "inf-weight"), marks=pytest.mark.fault("H10"), id="H10"),
        pytest.param(("path-in-space",), marks=pytest.mark.fault("H11"), id="H11"),
        pytest.param(("cyclic-exclusion", "excludes-itself"), marks=pytest.mark.fault("H12"), id="H12"),
    ],
)
def test_hostile_texts_by_their_name_are_refused(names: tuple[str, ...]):
    """Each by itself: the error names its file, and no study is opened with it."""
    for name in names:
        file = f"playbooks/any/{name}.yaml"
        files = {**_good(), file: _read(BAD[file])}
        if name == "cyclic-exclusion":
            files.pop("playbooks/any/two.yaml")  # it takes that one's place, and closes the circle with the other
        found = [finding.text for finding in lint(files, complete=False) if finding.level == "error"]
        assert any(file in text or "cyclic" in text for text in found), (name, found)
        with pytest.raises(KnowledgeError):
            library_from_files(files)
