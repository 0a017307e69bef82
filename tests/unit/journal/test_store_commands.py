"""Every command that reads a study reads it from a store as well, and says the same as from the file."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from optimizer import api
from optimizer.cli import main
from optimizer.journal import Database, Journal, Stored
from optimizer.journal import postgres as shared
from optimizer.model.learned import Learned
from optimizer.wiring import learning
from optimizer.wiring.priors import find_prior
from optimizer.wiring.roots import Roots
from tests.postgres import Server

HISTORY = Path(__file__).parents[2] / "histories" / "h200-7b-eager"
Command = Callable[..., Result]


@pytest.fixture(scope="module")
def base(postgres: Server) -> Database:
    """A store with the study ``first``."""
    found = postgres.new_database()
    done = CliRunner().invoke(main, ["--store", found.url, "copy", str(HISTORY), "--study", "first"])
    assert done.exit_code == 0, done.output
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(HISTORY, tmp_path / "runs" / "first")
    return tmp_path / "runs"


@pytest.fixture
def stored(base: Database, tmp_path: Path) -> Command:
    return lambda *words: CliRunner().invoke(main, ["--runs", str(tmp_path / "empty"), "--store", base.url, *words])


@pytest.mark.parametrize(
    "words",
    [
        ["journal", "first"], ["journal", "first", "--all", "--json"], ["journal", "first", "--why", "20"], ["journal", "first", "--follow"],
        ["why", "first", "20"], ["why-not", "first", "disable_cuda_graph"], ["report", "first", "--format", "md", "--output", "-"],
        ["report", "first", "--format", "csv", "--output", "-"], ["tradeoff", "first", "--json"], ["diff", "first", "first"],
        ["replay", "first"], ["replay", "first", "--policy", "evidence"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_same_is_said(words: list[str], stored: Command, folder: Path) -> None:
    there, here = stored(*words), CliRunner().invoke(main, ["--runs", str(folder), *words])
    assert (there.exit_code, there.stdout) == (here.exit_code, here.stdout)
    assert len(here.stdout) > 40


def test_report_export_and_copy_write_their_files_here(stored: Command, tmp_path: Path, base: Database) -> None:
    assert stored("report", "first").exit_code == 0
    assert (tmp_path / "empty" / "first" / "report.html").stat().st_size > 10_000
    done = stored("export", "first", "--optuna", f"sqlite:///{tmp_path / 'o.db'}")
    assert done.exit_code == 0 and (tmp_path / "o.db").exists(), done.output
    done = stored("copy", "first", str(tmp_path / "copy.db"), "--json")
    assert json.loads(done.stdout)["entries"] == 44
    rows = [sqlite3.connect(path).execute("SELECT * FROM entry ORDER BY seq").fetchall() for path in (tmp_path / "copy.db", HISTORY / "journal.db")]
    assert rows[0] == rows[1]
    assert stored("copy", "first", str(tmp_path / "copy.db")).exit_code == 6
    assert stored("journal", str(tmp_path / "copy.db")).stdout == stored("journal", "first").stdout


def test_studies_are_listed_and_names_that_are_none_are_told(stored: Command, folder: Path, base: Database) -> None:
    listed = json.loads(stored("studies", "--json").stdout)["studies"]
    assert [(row["study"], row["ending"], row["launches"]) for row in listed] == [("first", "met", 2)]
    done = stored("journal", "frist")
    assert done.exit_code == 2 and "no study 'frist' in postgresql://" in done.stderr and "Studies: first" in done.stderr
    (folder / "only-here").mkdir()
    shutil.copy(HISTORY / "journal.db", folder / "only-here" / "journal.db")
    done = CliRunner().invoke(main, ["--runs", str(folder), "--store", base.url, "journal", "only-here"])
    assert done.exit_code == 2 and "Leave --store out" in done.stderr
    for taken in ("first", "only-here"):
        done = CliRunner().invoke(main, ["--runs", str(folder), "--store", base.url, "run", "--host", "sim:h200-7b", "--study", taken])
        assert done.exit_code == 2 and "already" in done.stderr


def test_copying_without_knowing_where_to(folder: Path) -> None:
    done = CliRunner().invoke(main, ["--runs", str(folder), "copy", "first"])
    assert done.exit_code == 2 and "Copy to where?" in done.stderr


def test_the_environment_names_the_store_for_the_library_too(base: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPTIMIZE_STORE", base.url)
    assert [row["study"] for row in api.studies(runs=tmp_path)] == ["first"]
    assert api.why("first", 20, runs=tmp_path)["chain"]
    done = CliRunner().invoke(main, ["--runs", str(tmp_path), "studies"])
    assert "first" in done.stdout


@pytest.mark.parametrize("words", [["studies"], ["journal", "x"], ["learned"], ["run", "--host", "sim:h200-7b", "--study", "x"]])
def test_a_wrong_store_is_one_message_without_its_password(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIMIZE_LEARNED", str(tmp_path / "learned.json"))
    for url, code in (("mysql://u:hunter2secret@h/d", 2), ("postgresql://u:hunter2secret@127.0.0.1:1/d", 6), ("postgresql://u:hunter2secret%@h/d", 2)):
        done = CliRunner().invoke(main, ["--runs", str(tmp_path), "--store", url, *words, "--json"])
        assert done.exit_code == code, done.output
        assert "hunter2" not in done.output and json.loads(done.stdout)["error"]["hint"]
    assert not (tmp_path / "x" / "journal.db").exists()


def test_confirmed_settings_of_the_team_are_prior_art(base: Database, tmp_path: Path) -> None:
    found = find_prior((), Roots(runs=tmp_path, store=base), own="new")
    assert len(found) == 1
    assert find_prior((), Roots(runs=tmp_path, store=base), own="first") == ()
    assert find_prior(("first",), Roots(runs=tmp_path, store=base), own="new") == found


def row(cause: str, tests: int) -> Learned:
    return Learned(cause=cause, engine="sglang", box="NVIDIA H200 x8", tests=tests, held=tests, sum_ln=0.1 * tests, sum_squares=0.01 * tests)


def test_what_the_team_has_learned(postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.json"
    monkeypatch.setenv("OPTIMIZE_LEARNED", str(mine))
    team = postgres.new_database()

    def learned(*words: str) -> dict[str, object]:
        done = CliRunner().invoke(main, ["--store", team.url, "learned", *words, "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, object] = json.loads(done.stdout)
        return found

    assert learned()["rows"] == [] and learning.pinned_text(team) is None
    theirs = tmp_path / "theirs.json"
    for seen in (("m1", "m2"), ("m9",)):  # more tests than rows, and more rows than tests
        theirs.write_text(json.dumps(learning.LearnedFile(rows=(row("a", 2), row("b", 1), row("c", 1))[: 3 if seen == ("m9",) else 1], seen=seen).plain()))
        learned("--merge", str(theirs))
        assert "nothing new" in str(learned("--merge", str(theirs))["text"])
    assert learned()["tests"] == 6
    assert shared.teach(team, [("m10", row("a", 1).model_dump_json())]) == 1
    pinned = json.loads(learning.pinned_text(team) or "")
    assert {one["cause"]: one["tests"] for one in pinned["rows"]} == {"a": 5, "b": 1, "c": 1}
    learned("--export", str(tmp_path / "out.json"))
    assert sum(one.tests for one in learning.read(tmp_path / "out.json").sums) == 7
    assert not mine.exists(), "the user's own file is left alone"
    done = CliRunner().invoke(main, ["--store", team.url, "learned", "--clear"])
    assert done.exit_code == 2 and re.search("belongs to everybody", done.stderr)
    assert learned("--off")["on"] is False and learning.pinned_text(team) is None
    assert learning.read(mine).off and learning.read(mine).sums == ()
    assert learned("--on")["tests"] == 7


def test_a_study_of_the_store_is_read_while_it_runs(base: Database) -> None:
    with Journal.create(Stored(base, "running")) as journal:
        journal.append("note", {"text": "hello"}, expect=0)
        done = CliRunner().invoke(main, ["--store", base.url, "journal", "running", "--all"])
        assert done.exit_code == 0 and "hello" in done.stdout
