"""What every command has in common: options that stand before it or behind it, and files that cannot be written are refused at once."""

import json
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.cli.person import _one_of
from optimizer.evidence.exits import _shorten

RECORDED = Path(__file__).parents[2] / "runs/recorded/h200-7b-eager"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    shutil.copytree(RECORDED, tmp_path / "runs/one", ignore=shutil.ignore_patterns("*.html"))
    return tmp_path / "runs"


@pytest.mark.parametrize("words", [["studies"], ["journal", "one"], ["journal", "one", "--json"], ["why-not", "one", "--disable-cuda-graph"], ["replay", "one", "--until", "5"]])
def test_the_folder_of_studies_may_stand_behind_the_command(words: list[str], runs: Path) -> None:
    before = CliRunner().invoke(main, ["--runs", str(runs), *words])
    behind = CliRunner().invoke(main, [*words, "--runs", str(runs)])
    both = CliRunner().invoke(main, ["--runs", "/nowhere", words[0], "--runs", str(runs), *words[1:]])
    assert before.exit_code == 0, before.output
    assert before.output == behind.output == both.output


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_takes_what_holds_for_all(name: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, [name, "--runs", str(tmp_path), "--knowledge", str(tmp_path), "--store", "postgresql://u@h/d", "--help"])
    assert shown.exit_code == 0 and "may stand here or before the command" in " ".join(shown.output.split()), shown.output


@pytest.mark.parametrize("words", [["report", "one", "--output"], ["copy", "one"], ["learned", "--export"], ["bench", "http://127.0.0.1:9", "--out"]])
def test_a_file_in_no_folder_is_refused_before_any_work_and_no_folder_is_made(words: list[str], runs: Path) -> None:
    path = runs.parent / "typing error/x.html"
    shown = CliRunner().invoke(main, ["--runs", str(runs), *words, str(path), "--json"])
    assert shown.exit_code == 2, shown.output
    error = json.loads(shown.stdout)["error"]
    assert f"{path} cannot be written" in error["message"] and error["hint"] and not path.parent.exists()


def test_a_choice_that_is_none_says_what_is() -> None:
    assert [_one_of(answer, 3) for answer in ("1", " 3 ", 2)] == [1, 3, 2]
    for answer in ("x", "0", "4", "", "-1", "1.5"):
        with pytest.raises(click.UsageError, match="is none of them: type a number from 1 to 3"):
            _one_of(answer, 3)


def test_a_long_reason_is_cut_between_words_and_says_so() -> None:
    assert _shorten("out of  memory\n") == "out of memory"
    cut = _shorten("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True " * 20)
    assert len(cut) <= 400 and cut.endswith("True…")
    assert len(_shorten("x" * 999)) == 400


def test_the_answer_stands_before_the_evidence() -> None:
    bundle = Path(__file__).parents[1] / "recordings/sglang-0.5.12-h200/tp1-7b-nograph"
    shown = CliRunner().invoke(main, ["diagnose", "--sheet", "--evidence", str(bundle)])
    assert shown.exit_code == 0 and shown.output.startswith("Cause: cuda-graph-disabled") and shown.output.index("\nNext: ") < shown.output.index("\nEvidence\n")
