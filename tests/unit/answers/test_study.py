"""A study whose best setting changes what the model answers: not kept, said in the journal, the result and the report; kept when
that was allowed. In memory, with the product's own state machine."""

import json

import pytest

from optimizer.core.state import fold
from optimizer.model.answers import PROBES, AnswerPass, ProbeAnswer
from optimizer.model.canonical import digest
from optimizer.model.outcome import Done
from optimizer.report.prose import sentence
from optimizer.report.study import report_markdown
from optimizer.runner.recorded import verify

from ..core.model_box import PLAN, ModelBox, spec
from ..core.test_state_machine import EAGER, run, speed

SURE = PLAN


class AnsweringBox(ModelBox):
    """Answers the probes; ``lossy``: without the flag that switches graphs off, all but one are answered differently."""

    def __init__(self, *args, lossy=True, moods=False, **more):
        super().__init__(*args, **more)
        self.lossy, self.moods, self.asked = lossy, moods, 0

    def _measure(self, step):
        done = super()._measure(step)
        other = self.lossy and not self.running[step.launch].get("disable_cuda_graph")
        passes = [self._pass(other) for _ in range(2 if step.purpose == "baseline" else 1)]
        return Done(body={**done.body, "answers": [one.plain() for one in passes]})

    def _pass(self, other):
        self.asked += 1
        mood = self.asked if self.moods else 0
        answers = [ProbeAnswer(tokens=("same", "for", "ever", "and", f"{prompt[:3]}{other and index > 0}{mood}"), margins=(4.0,) * 5)
                   for index, prompt in enumerate(PROBES)]  # fmt: skip
        return AnswerPass(probes=digest(list(PROBES)), answers=tuple(answers))


def kinds(log, kind):
    return [entry for entry in log.read() if str(entry.kind) == kind]


def test_a_setting_that_changes_the_answers_is_not_kept():
    state, log = run(AnsweringBox(EAGER, speed))
    assert state.promoted == ()
    pruned = next(entry for entry in kinds(log, "pruned") if entry.body["hypothesis"] == "cuda-graph-disabled")
    assert pruned.body["verdict"] == "lossy"
    assert "7 of 8 probes are answered differently" in pruned.body["why"] and "--allow-lossy" in pruned.body["why"]
    assert "--allow-lossy" in sentence(pruned)
    row = next(row for row in state.closed["hypotheses"] if row["id"] == "cuda-graph-disabled")
    assert row["status"] == "pruned" and "--allow-lossy" in row["reason"]
    assert "--allow-lossy" in report_markdown(log.read(), state, PLAN)
    judged = next(entry for entry in kinds(log, "judged") if entry.body["hypothesis"] == "cuda-graph-disabled")
    assert judged.body["answers"]["verdict"] == "changed" and judged.body["judgement"]["n_candidate"] == 1  # one launch, no further looks
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_it_is_kept_and_said_when_that_is_allowed():
    state, log = run(AnsweringBox(EAGER, speed), study=spec(allow_lossy=True))
    assert state.promoted != ()
    assert state.closed["answers"]["verdict"] == "changed"
    json.dumps(state.closed)
    report = report_markdown(log.read(), state, PLAN)
    assert "## Answers" in report and "7 of 8 probes" in report
    assert any("changed (lossy, allowed)" in entry.body["why"] for entry in kinds(log, "promoted"))
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_a_setting_that_changes_nothing_is_said_to_change_nothing():
    state, log = run(AnsweringBox(EAGER, speed, lossy=False))
    assert state.promoted != ()
    assert state.closed["answers"]["verdict"] == "same"
    assert "Answers unchanged: all 8 probes are answered as before." in kinds(log, "promoted")[0].body["why"]
    assert "**unchanged**" in report_markdown(log.read(), state, PLAN)


def test_a_server_of_many_moods_is_no_reason_to_refuse_a_setting():
    state, log = run(AnsweringBox(EAGER, speed, moods=True))
    assert state.promoted != ()
    assert state.closed["answers"]["verdict"] == "cannot_tell"
    assert "contradicts itself" in kinds(log, "promoted")[0].body["why"]


def test_a_journal_without_answers_folds_and_decides_as_before():
    state, log = run(ModelBox(EAGER, speed))
    assert state.promoted != ()
    assert "answers" not in state.closed and "Answers" not in report_markdown(log.read(), state, PLAN)
    assert not any("answers" in entry.body for entry in log.read() if str(entry.kind) == "judged")
    assert fold(log.read()).closed == state.closed


@pytest.mark.parametrize("allow", [False, True])
def test_the_probes_add_no_launch(allow):
    plain, _ = run(ModelBox(EAGER, speed), study=spec(allow_lossy=allow))
    asked, _ = run(AnsweringBox(EAGER, speed, lossy=False), study=spec(allow_lossy=allow))
    assert asked.launch_count == plain.launch_count
