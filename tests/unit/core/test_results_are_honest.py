"""What a study claims at its end is what its fresh launch showed: met or not, kept or not, and what is left running."""

from dataclasses import replace

import pytest

from optimizer.core.closing import ending_of
from optimizer.model.outcome import Failed
from optimizer.model.playbook import Prediction
from optimizer.model.step import ORIGINAL, Launch, Measure
from optimizer.model.study import Budget
from optimizer.model.verdict import ENDING_STAYS, given_up
from optimizer.report.prose import result_text, reworded, sentence
from optimizer.runner.recorded import verify

from .model_box import PLAN, ModelBox, spec
from .test_state_machine import EAGER, SURE, run, speed

SMALL = replace(PLAN, playbooks=tuple(book.model_copy(update={"predicts": Prediction(ratio=(1.1, 1.5))}) for book in SURE))


def launches_of(box, purpose):
    return [step for step in box.calls if isinstance(step, Launch) and step.purpose == purpose]


def in_turn(first, later):
    """Speeds without graphs: the first launch, then the others; 400 with the flag."""
    seen = []

    def rate(values):
        if values.get("disable_cuda_graph"):
            return 400.0
        seen.append(1)
        return first if len(seen) == 1 else later

    return rate


def test_the_fresh_launch_alone_shows_the_target():
    """The screening launch missed it, and so does the mean; the confirmation is what counts."""
    state, log = run(ModelBox(EAGER, in_turn(980.0, 1010.0), noise=1e-4))
    assert state.closed["ending"] == "met"
    assert state.closed["best"]["value"] == pytest.approx(1010, rel=0.01)
    assert result_text(state.closed["best"]).endswith("(1 launch, a fresh confirmation of 60 s)")  # what it was, not what it should be
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_a_lucky_launch_is_not_reported_as_the_best():
    box = ModelBox(EAGER, in_turn(800.0, 300.0), noise=1e-4, original=True)
    state, _ = run(box)
    closed = state.closed
    assert closed["ending"] == "not_met"
    assert closed["best"]["value"] == closed["baseline"]["value"]
    assert closed["best"]["settings"] == {}
    assert closed["promoted"] == []
    assert "nothing is kept" in closed["reason"]
    graphs = next(row for row in closed["hypotheses"] if row["id"] == "cuda-graph-disabled")
    assert (graphs["status"], graphs["detail"]) == ("open", "not_confirmed")
    assert list(box.running) == [ORIGINAL]


def test_the_best_of_nothing_is_the_original_untouched():
    box = ModelBox({}, speed, original=True)
    run(box, study=spec(target="5000tps@16", finish="best"))
    assert not [step for step in box.calls if isinstance(step, Launch)]
    assert list(box.running) == [ORIGINAL]


def test_a_bundle_that_its_confirmation_does_not_bear_out_leaves_no_cause_supported():
    def luck(values):
        if values.get("disable_cuda_graph"):
            return 900.0
        return 1050.0 if len(launches_of(box, "confirm")) == 0 and "max_running_requests" in values and values["max_running_requests"] == 16 else 905.0

    box = ModelBox({**EAGER, "max_running_requests": 4}, luck, noise=0.002)
    state, log = run(box, plan=SMALL)
    rolled = [entry for entry in log.read() if str(entry.kind) == "rolled_back"]
    assert rolled
    assert not [name for name, belief in state.beliefs.items() if belief.status in ("supported", "kept")]
    assert state.promoted == ()
    assert verify(log.read(), lambda seq: SMALL).mismatches == ()


def test_a_provisional_promotion_whose_confirmation_fails_is_taken_back():
    def fault(step, number):
        if isinstance(step, Measure) and step.purpose == "confirm":
            return Failed(cause="crashed", message="it died under load")
        return None

    box = ModelBox(EAGER, lambda values: 900.0 if values.get("disable_cuda_graph") else 1045.0, noise=0.005, fault=fault)
    state, log = run(box, plan=SMALL)
    assert state.closed["ending"] == "not_met"
    assert state.promoted == ()
    assert state.closed["promoted"] == []
    assert state.beliefs["cuda-graph-disabled"].status == "deferred"
    assert len(launches_of(box, "confirm")) == 1
    assert verify(log.read(), lambda seq: SMALL).mismatches == ()


def test_a_server_is_not_called_healthy_when_its_likely_cause_was_too_small_to_test():
    books = [book.model_copy(update={"predicts": Prediction(ratio=(1.01, 1.03))}) for book in PLAN.playbooks]
    state, _ = run(ModelBox(EAGER, lambda values: 400.0), plan=replace(PLAN, playbooks=tuple(books)))
    assert state.closed["ending"] == "nothing_to_tune"
    assert "healthy" not in state.closed["reason"]
    assert "cuda-graph-disabled (probability 0.86): the predicted ×1.01 to ×1.03 is too small" in state.closed["reason"]


def test_a_likely_cause_whose_cure_was_refused_is_named_with_the_reason():
    """The only cure asks for what the command line already says."""
    plan = replace(PLAN, playbooks=tuple(
        book.model_copy(update={"actions": (book.actions[0].model_copy(update={"params": {"disable_cuda_graph": True}}),)})
        for book in PLAN.playbooks if book.id == "cuda-graph-disabled"
    ))  # fmt: skip
    state, _ = run(ModelBox(EAGER, lambda values: 400.0), plan=plan)
    assert state.closed["launches"] == 0
    assert "cuda-graph-disabled (probability" in state.closed["reason"]
    assert state.beliefs["cuda-graph-disabled"].reason in state.closed["reason"]


def test_a_spent_budget_does_not_hide_that_the_target_is_out_of_reach():
    """Whoever reads only the last line must not think that a larger budget would have met the target."""
    state, _ = run(ModelBox(EAGER, speed), target="5000tps@16", budget=Budget(minutes=1e6, launches=1))
    row = {**state.ranked[0], "testable": True}
    spent = replace(state, ranked=(row,), out_of_reach="This box cannot reach 5,000 tok/s.", spec=state.spec.model_copy(update={"policy_version": 5}))
    ending, why = ending_of(spent, PLAN)
    assert (ending, why) == ("not_met", "The budget is spent. A larger one would not have met the target either. This box cannot reach 5,000 tok/s.")
    assert ending_of(replace(spent, out_of_reach=""), PLAN)[1].endswith("The ranking shows what was left to try.")
    older = replace(spent, spec=spent.spec.model_copy(update={"policy_version": 4}))
    assert ending_of(older, PLAN)[1].endswith("The ranking shows what was left to try.")


@pytest.mark.parametrize("levels", [{"unknown": "contradiction: 9,000 tok/s were measured"}, {"side": [{"unknown": "contradiction: 9,000 tok/s were measured"}]}])
def test_a_server_that_is_faster_than_its_gpu_can_be_is_not_called_healthy(levels):
    state, _ = run(ModelBox({}, speed), target="5000tps@16")
    assert ending_of(state, PLAN)[1].endswith("healthy for this workload, or the offered load is the limit.")
    beyond = replace(state, ceiling=levels)
    ending, why = ending_of(beyond, PLAN)
    assert ending == "nothing_to_tune" and "healthy" not in why and "9,000 tok/s were measured. Correct that" in why
    before = replace(beyond, spec=state.spec.model_copy(update={"policy_version": 2}))  # an older study replays as it was decided
    assert "healthy" in ending_of(before, PLAN)[1]


@pytest.mark.parametrize(
    ("why", "word"),
    [(f"the target needs ×40.79 and an effect above ×1.60 is excluded: {ENDING_STAYS}", "Given up, not ruled out:"),
     ("the predicted ×1.50 is excluded: it is not what limits this server", "Ruled out:")],
)  # fmt: skip
def test_what_merely_cannot_reach_the_target_is_not_called_ruled_out(why, word):
    _, log = run(ModelBox(EAGER, lambda values: 400.0 if values.get("disable_cuda_graph") else 430.0, noise=0.02), study=spec("5000tps@16"))
    pruned = next(entry for entry in log.read() if entry.kind == "pruned")
    measured = pruned.body["why"].rpartition("; ")[0]
    told = pruned.model_copy(update={"body": {**pruned.body, "why": f"{measured}; {why}"}})
    assert sentence(told).startswith(word)
    assert given_up(told.body) == word.startswith("Given up")


def test_an_undecided_confirmation_is_not_said_to_lack_launches():
    """The journal keeps the judge's words, which are recomputed to the byte; people read others."""
    assert reworded("the next look needs more than the 0 launches that are left") == "no further launch is spent on it"
    assert reworded("the next look needs more than the 2 launches that are left") == "the next look needs more launches than the 2 that may be spent on it"
