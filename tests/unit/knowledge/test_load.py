"""The strict loader against hostile and surprising text."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.errors import KnowledgeError, OptimizerError, UsageError
from optimizer.knowledge.load import MAX_BYTES, find_knowledge, load_yaml, read_files


def test_lines_point_at_the_key_that_holds_a_value():
    document = load_yaml("a:\n  b:\n    - 1\n    - {c: 2}\nd: x\n", "f.yaml")
    assert document.data == {"a": {"b": [1, {"c": 2}]}, "d": "x"}
    assert [document.line(path) for path in (("a",), ("a", "b"), ("a", "b", 1), ("a", "b", 1, "c"), ("d",))] == [
        1,
        2,
        4,
        4,
        5,
    ]
    assert document.line(("a", "b", 7, "nowhere")) == 2  # nearest known ancestor


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-0", 0), ("2.5", 2.5), ("4.8e12", 4.8e12), ("true", True), ("null", None), ('"on"', "on"), ("'no'", "no"),
     ("0.5.12", "0.5.12"), ("'>=0.4.6,<=0.5.23'", ">=0.4.6,<=0.5.23"), ("LL", "LL"), ("a b", "a b")],
)  # fmt: skip
def test_only_json_scalars_are_resolved(text: str, value: object):
    found = load_yaml(f"a: {text}", "f").data["a"]
    assert found == value and type(found) is type(value)


@pytest.mark.fault("H6")
@pytest.mark.parametrize(
    "text",
    ["no", "Yes", "on", "OFF", "y", "1:30", "017", "0o17", "0x1f", "1_000", "+1", ".5", "1.", ".inf", ".nan", "~", "True",
     "2026-11-29", "=", "1e999", "99999999999999999999"],
)  # fmt: skip
def test_what_readers_disagree_on_is_refused(text: str):
    with pytest.raises(KnowledgeError, match=r"^f:1: "):
        load_yaml(f"a: {text}", "f")


@pytest.mark.fault("H7")
@pytest.mark.parametrize(
    "character", ["\x00", "\x07", "\x1b", "\x7f", "\x85", "\u200b", "\u2028", "\u202e", "\u2066", "\ufeff", "\t", "\r"]
)
def test_characters_that_hide_or_reorder_text_are_refused(character: str):
    with pytest.raises(KnowledgeError, match=r"^f:2: "):
        load_yaml(f"a: 1\nb: x{character}y\n", "f")


@pytest.mark.fault("H4", "H5")
def test_size_and_depth_are_bounded():
    with pytest.raises(KnowledgeError, match="larger than"):
        load_yaml("a: " + "x" * 10_000_000, "f")
    with pytest.raises(KnowledgeError, match="larger than"):
        load_yaml("# " + "é" * (MAX_BYTES // 2) + "\na: 1", "f")
    with pytest.raises(KnowledgeError):
        load_yaml("a: " + "[" * 10_000 + "]" * 10_000, "f")
    with pytest.raises(KnowledgeError, match="deeper than"):
        load_yaml("a: " + "[" * 21 + "]" * 21, "f")
    assert load_yaml("a: " + "[" * 19 + "]" * 19, "f").data


@settings(max_examples=120, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_data_or_an_error_of_ours(text: str):
    with contextlib.suppress(OptimizerError):
        assert isinstance(load_yaml(text, "f").data, dict)


@settings(max_examples=120, deadline=None)
@given(st.text(alphabet="ab:-[]{},&*!|>'\"?#% \n0.1", max_size=80))
def test_yaml_like_noise_gives_data_or_an_error_of_ours(text: str):
    with contextlib.suppress(OptimizerError):
        assert isinstance(load_yaml(text, "f").data, dict)


def test_named_folder_must_hold_both_kinds(tmp_path: Path):
    with pytest.raises(UsageError, match="search_spaces"):
        find_knowledge(tmp_path)
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "search_spaces").mkdir()
    assert find_knowledge(tmp_path).playbooks == tmp_path / "playbooks"


def test_current_folder_wins_over_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = find_knowledge()
    assert elsewhere.playbooks.is_dir() and elsewhere.playbooks.parent != tmp_path
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "search_spaces").mkdir()
    assert find_knowledge().playbooks == tmp_path / "playbooks"


def test_files_that_are_no_text_are_refused(tmp_path: Path):
    for name in ("playbooks", "search_spaces"):
        (tmp_path / name).mkdir()
    (tmp_path / "playbooks" / "a.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(KnowledgeError, match=r"playbooks/a\.yaml:2: not UTF-8"):
        read_files(find_knowledge(tmp_path))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path):
    for name in ("k/playbooks", "k/search_spaces"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "secret.yaml").write_text("a: 1\n")
    (tmp_path / "k" / "playbooks" / "a.yaml").symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(KnowledgeError, match="leads out"):
        read_files(find_knowledge(tmp_path / "k"))
