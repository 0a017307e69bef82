"""Learning across studies: what is counted, how little it may move, and that it can be looked at, shared and switched off."""

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.core.learned import MOST_DB, adapted, box_class, merged, taught_by
from optimizer.core.plan import Plan
from optimizer.core.state import State, fold
from optimizer.errors import KnowledgeError
from optimizer.knowledge.library import library_from_files
from optimizer.model.learned import Learned
from optimizer.model.study import HostSpec
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog
from optimizer.wiring import learning
from tests.unit.core.model_box import PLAN, ModelBox, spec


def row(cause: str = "cuda-graph-disabled", tests: int = 4, held: int = 4, ratio: float = 1.0, box: str = "NVIDIA H200 x8") -> Learned:
    gap = math.log(ratio)
    return Learned(cause=cause, engine="sglang", box=box, tests=tests, held=held, sum_ln=held * gap, sum_squares=held * gap * gap)


def state(gpu: str | None = "NVIDIA H200", count: int = 8) -> State:
    return State(survey={"engine": "sglang", "gpu": gpu, "gpu_count": count})


def book(plan: Plan, at: State) -> tuple[float, tuple[float, float]]:
    found = adapted(at, plan).playbook("cuda-graph-disabled")
    assert found is not None and found.predicts is not None
    return found.prior_db, found.predicts.ratio


PRIOR, RATIO = -10.0, (1.5, 4.0)


def test_what_held_before_is_likelier_and_what_failed_is_not() -> None:
    assert book(PLAN, state()) == (PRIOR, RATIO)
    assert book(replace(PLAN, learned=(row(),)), state())[0] == pytest.approx(PRIOR + MOST_DB)
    assert book(replace(PLAN, learned=(row(held=0),)), state())[0] == pytest.approx(PRIOR - MOST_DB)
    assert book(replace(PLAN, learned=(row(held=2),)), state())[0] == PRIOR


def test_experience_is_bounded_and_counts_less_on_another_box() -> None:
    everything = replace(PLAN, learned=(row(tests=10_000, held=10_000, ratio=100.0),))
    prior, ratio = book(everything, state())
    assert prior == PRIOR + MOST_DB and ratio == pytest.approx((3.0, 8.0))
    here, elsewhere = book(replace(PLAN, learned=(row(tests=1, held=1),)), state())[0], book(replace(PLAN, learned=(row(tests=1, held=1),)), state("L4", 1))[0]
    assert PRIOR < elsewhere < here


def test_a_prediction_that_promised_too_much_is_drawn_towards_what_was_measured() -> None:
    _, ratio = book(replace(PLAN, learned=(row(ratio=0.5),)), state())
    assert 0.5 * RATIO[0] < ratio[0] < RATIO[0] and ratio[1] / ratio[0] == pytest.approx(RATIO[1] / RATIO[0], rel=1e-3)


def test_nothing_is_applied_twice_or_before_the_box_is_known() -> None:
    plan = replace(PLAN, learned=(row(),))
    assert adapted(State(), plan) is plan
    once = adapted(state(), plan)
    assert adapted(state(), once) is once
    assert adapted(state(), replace(PLAN, learned=(row(cause="other"),))).playbooks == PLAN.playbooks


def test_sums_of_two_people_add_up() -> None:
    both = merged([row(tests=3, held=2), row(tests=1, held=1, ratio=2.0), row(cause="admission-cap-too-low")])
    assert [(item.cause, item.tests, item.held) for item in both] == [("admission-cap-too-low", 4, 4), ("cuda-graph-disabled", 4, 3)]


def test_the_class_of_a_box() -> None:
    assert box_class({"gpu": "NVIDIA H200", "gpu_count": 8}) == "NVIDIA H200 x8"
    assert box_class({}) == box_class(None) == "CPU"


def study(kind: str = "local") -> MemoryLog:
    log = MemoryLog()
    log.append("opened", {"spec": spec(host=HostSpec(name="box", kind=kind)).plain()}, expect=0)  # type: ignore[arg-type]
    box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)
    asyncio.run(drive(log, box, PLAN))
    return log


def test_a_study_teaches_what_it_tested() -> None:
    entries = study().read()
    found = taught_by(entries, fold(entries))
    assert [(item.cause, item.held, item.box) for _, item in found] == [("cuda-graph-disabled", 1, "CPU")]
    assert found[0][1].sum_ln == pytest.approx(math.log(3.0) - 0.5 * math.log(1.5 * 4.0), abs=0.05)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "learned.json"
    monkeypatch.setenv(learning.VARIABLE, str(path))
    return path


def test_it_is_remembered_once_and_pinned_with_a_study(file: Path) -> None:
    entries = study().read()
    assert learning.remember("s", entries, fold(entries)) == 1
    assert learning.remember("s", entries, fold(entries)) == 0
    text = learning.pinned_text()
    assert text is not None and "seen" not in text
    assert [item.tests for item in library_from_files({learning.PINNED_NAME: text}).learned] == [1]


def test_a_simulated_box_teaches_nothing(file: Path) -> None:
    entries = study("sim").read()
    assert learning.remember("s", entries, fold(entries)) == 0 and not file.exists()


def test_off_means_off(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = study().read()
    learning.remember("s", entries, fold(entries))
    assert CliRunner().invoke(main, ["learned", "--off"]).exit_code == 0
    assert learning.pinned_text() is None and learning.remember("t", entries, fold(entries)) == 0
    assert CliRunner().invoke(main, ["learned", "--on"]).exit_code == 0
    assert learning.pinned_text() is not None
    monkeypatch.setenv(learning.VARIABLE, "off")
    assert learning.pinned_text() is None and CliRunner().invoke(main, ["learned"]).exit_code == 2


def test_it_can_be_shown_exported_merged_and_cleared(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = study().read()
    learning.remember("s", entries, fold(entries))
    shared = tmp_path / "shared.json"
    shown = CliRunner().invoke(main, ["learned", "--export", str(shared), "--json"])
    rows = json.loads(shown.stdout)["rows"]
    assert rows[0]["cause"] == "cuda-graph-disabled" and rows[0]["measured_over_predicted"] == pytest.approx(1.22, abs=0.06)
    monkeypatch.setenv(learning.VARIABLE, str(tmp_path / "other.json"))
    merged_ = CliRunner().invoke(main, ["learned", "--merge", str(shared)])
    assert "1 tests of" in merged_.output and "paid off in 1 of 1 tests" in merged_.output
    assert "holds nothing new" in CliRunner().invoke(main, ["learned", "--merge", str(shared)]).output
    assert "Nothing was learned yet" in CliRunner().invoke(main, ["learned", "--clear"]).output


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "rows": 5}', '{"version": 3}', '{"surprise": 1}'])
def test_a_file_that_is_none_is_refused_and_never_overwritten(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(KnowledgeError):
        learning.pinned_text()
    entries = study().read()
    with pytest.raises(KnowledgeError):
        learning.remember("s", entries, fold(entries))
    assert file.read_text() == text


def told(cause: str, tests: int = 1, held: int = 1, ln: float = 0.1) -> Learned:
    return Learned(cause=cause, engine="sglang", box="NVIDIA H200 x1", tests=tests, held=held, sum_ln=ln * held, sum_squares=ln * ln * held)


def rows_after(*words: str) -> dict[str, int]:
    done = CliRunner().invoke(main, ["learned", *words, "--json"])
    assert done.exit_code == 0, done.output
    return {row["cause"]: row["tests"] for row in json.loads(done.stdout)["rows"]}


def test_two_people_exchange_their_files_again_and_again(file: Path, tmp_path: Path) -> None:
    theirs, back = tmp_path / "theirs.json", tmp_path / "back.json"
    file.write_text(json.dumps(learning.LearnedFile(tests={"m1": told("a")}).plain()))
    theirs.write_text(json.dumps(learning.LearnedFile(tests={"t1": told("a")}).plain()))
    assert rows_after("--merge", str(theirs), "--export", str(back)) == {"a": 2}
    theirs.write_text(json.dumps(learning.LearnedFile(tests={**learning.read(back).tests, "t1": told("a"), "t2": told("b")}).plain()))
    assert rows_after("--merge", str(theirs)) == {"a": 2, "b": 1}
    assert rows_after("--merge", str(theirs)) == {"a": 2, "b": 1}


def test_a_file_of_the_first_release_is_read_and_its_sums_count_once(file: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"version": 1, "rows": [told("a", 3, 3).plain()], "seen": ["m1", "m2", "m3"], "off": False}))
    assert rows_after("--merge", str(old)) == rows_after("--merge", str(old)) == {"a": 3}
    file.write_text(old.read_text())
    (tmp_path / "new.json").write_text(json.dumps(learning.LearnedFile(tests={"m2": told("a"), "m4": told("a")}).plain()))
    assert rows_after("--merge", str(tmp_path / "new.json")) == {"a": 4}
    (tmp_path / "older.json").write_text(json.dumps({"version": 1, "rows": [told("a", 2, 2).plain()], "seen": ["m4", "m5"], "off": False}))
    refused = CliRunner().invoke(main, ["learned", "--merge", str(tmp_path / "older.json")])
    assert refused.exit_code == 2 and "cannot be told apart" in refused.output
    assert rows_after() == {"a": 4}


def test_studies_that_close_at_the_same_time_lose_nothing(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: learning._add(file, [(f"m{at}", told("a"))]), range(24)))
    assert [row.tests for row in learning.read(file).sums] == [24]


@pytest.mark.parametrize(("tests", "held", "ln", "squares"), [(1, 5, 0.0, 0.0), (2, 0, 0.4, 0.1), (1, 1, 3.0, 0.1)])
def test_sums_that_no_tests_can_have_are_refused(tests: int, held: int, ln: float, squares: float, file: Path) -> None:
    row = {"cause": "a", "engine": "sglang", "box": "CPU", "tests": tests, "held": held, "sum_ln": ln, "sum_squares": squares}
    file.write_text(json.dumps({"version": 2, "tests": {"m": row}}))
    with pytest.raises(KnowledgeError):
        learning.read(file)
