"""``journal --why SETTING``: why a setting was set, from the entries alone, on a recorded study of a real server and on boxes in memory."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.core.state import fold
from optimizer.core.why_set import changed, why_set
from optimizer.errors import UsageError
from optimizer.journal import Journal
from optimizer.model.entry import EntryKind
from optimizer.report.journal_view import setting_document

from .model_box import ModelBox
from .test_state_machine import EAGER, luck_of_the_first, run

HISTORIES = Path(__file__).parents[2] / "histories"
H200 = HISTORIES / "h200-7b-eager"


@pytest.fixture(scope="module")
def recorded():
    with Journal.open(H200 / "journal.db", write=False) as journal:
        return journal.read()


def test_every_changed_setting_of_a_real_study_is_answered_from_its_entries(recorded):
    state, by_seq = fold(recorded), {entry.seq: entry for entry in recorded}
    names = changed(state)
    assert {"disable_cuda_graph", "max_running_requests"} <= set(names)
    for name, value in names.items():
        found = why_set(recorded, state, name)
        assert found["answer"] == "changed" and found["value"] == value
        assert by_seq[found["entry"]].kind == EntryKind.PROMOTED and by_seq[found["entry"]].body["changes"][name] == value
        judged = by_seq[found["measured"]["entry"]]
        assert {key: judged.body["judgement"][key] for key in ("ratio", "low", "high")} == {key: found["measured"][key] for key in ("ratio", "low", "high")}
        assert by_seq[found["measured"]["launched"]].kind == EntryKind.OUTCOME
        assert found["chosen"] < judged.seq and by_seq[found["chosen"]].kind == EntryKind.CHOSEN
        for cause in found["causes"]:
            row = next(row for row in by_seq[cause["entry"]].body["hypotheses"] if row["id"] == cause["id"])
            assert cause["claim"] and cause["for"] == row["for"] and cause["against"] == row["against"]
        text = setting_document(recorded, name)["text"]
        assert f"×{found['measured']['ratio']:.3f} [{found['measured']['low']:.3f}, {found['measured']['high']:.3f}]" in text
        assert "for it: " in text and "against it: " in text and f"--why {found['entry']}" in text
        assert text.splitlines()[0].startswith(f"{name} was taken off" if value is None else f"{name}={value} was set")


def test_changes_of_one_launch_keep_their_own_causes(recorded):
    state = fold(recorded)
    causes = {name: {cause["id"] for cause in why_set(recorded, state, name)["causes"]} for name in ("disable_cuda_graph", "max_running_requests")}
    assert causes["disable_cuda_graph"] != causes["max_running_requests"]
    assert "max_running_requests" in why_set(recorded, state, "disable_cuda_graph")["together"]


@pytest.mark.parametrize("text", ["disable_cuda_graph", "--disable-cuda-graph", " --disable-cuda-graph=true ", "disable-cuda-graph"])
def test_a_setting_is_named_as_people_write_it(text, recorded):
    assert why_set(recorded, fold(recorded), text)["setting"] == "disable_cuda_graph"


@pytest.mark.parametrize("setting", ["nothing_like_it", "", "NCCL_PROTO"])
def test_what_was_neither_changed_nor_tested_is_an_error_that_lists_what_was(setting, recorded):
    with pytest.raises(UsageError) as caught:
        why_set(recorded, fold(recorded), setting)
    assert "disable_cuda_graph" in caught.value.message and "why-not" in caught.value.hint


def test_what_was_taken_back_says_so_and_why():
    luck, plan = luck_of_the_first()
    _, log = run(ModelBox(EAGER, luck, noise=0.002), plan=plan)
    found = setting_document(log.read(), "disable_cuda_graph")
    undone = next(entry for entry in log.read() if entry.kind == EntryKind.ROLLED_BACK)
    assert found["answer"] == "taken_back" and found["taken_back"] == {"entry": undone.seq, "why": undone.body["why"]}
    assert "taken back" in found["text"].splitlines()[0] and changed(fold(log.read())) == {}


def test_what_was_given_or_tested_in_vain_points_to_why_not():
    _, log = run(ModelBox(EAGER, lambda values: 400.0 if values.get("disable_cuda_graph") else 380.0), target="1100tps@16", best_effort=True)
    found = setting_document(log.read(), "disable_cuda_graph")
    assert found["answer"] == "tested" and "not kept" in found["text"] and "why-not" in found["text"]
    early = [entry for entry in log.read() if entry.seq < next(entry.seq for entry in log.read() if entry.kind == EntryKind.CHOSEN)]
    given = setting_document(early, "disable_cuda_graph")
    assert given["answer"] == "given" and "original command line" in given["text"]


def test_both_commands_answer_and_a_number_is_still_an_entry():
    def said(*words):
        done = CliRunner().invoke(main, ["--runs", str(HISTORIES), *words])
        assert done.exit_code == 0, done.output
        return done.output

    name = H200.name
    text = said("journal", name, "--why", "--disable-cuda-graph")
    assert text == said("why", name, "--disable-cuda-graph") and text.startswith("disable_cuda_graph was taken off the command line")
    assert json.loads(said("journal", name, "--why", "disable_cuda_graph", "--json")) == json.loads(said("why", name, "disable_cuda_graph", "--json"))
    entry = json.loads(said("why", name, "disable_cuda_graph", "--json"))["entry"]
    assert said("journal", name, "--why", str(entry)) == said("why", name, str(entry))


def test_a_cause_is_answered_by_the_setting_that_cured_it_and_one_that_was_not_is_no_setting(recorded):
    state = fold(recorded)
    assert why_set(recorded, state, "cuda-graph-disabled") == why_set(recorded, state, "disable_cuda_graph")
    assert why_set(recorded, state, "admission-cap-too-low")["setting"] == "max_running_requests"
    other = next(row["id"] for row in state.ranked if row["id"] not in ("cuda-graph-disabled", "admission-cap-too-low"))
    with pytest.raises(UsageError, match="kept nothing for the cause") as caught:
        why_set(recorded, state, other)
    assert f"why-not {state.spec.study} {other}" in caught.value.hint


def test_what_was_said_of_the_answers_and_of_other_loads_is_told(recorded):
    found = setting_document(recorded, "disable_cuda_graph")
    judged = next(entry for entry in recorded if entry.seq == found["measured"]["entry"])
    assert [row["concurrency"] for row in found["side"]] == [row["concurrency"] for row in judged.body["side"]][1:]
    assert all(f"at c={row['concurrency']}" in found["text"] for row in found["side"])
    told = judged.body.get("answers")
    assert (found["answers"] is None) == (not told) and (not told or f"  answers    {told['verdict'].replace('_', ' ')}: {told['why']}" in found["text"])
