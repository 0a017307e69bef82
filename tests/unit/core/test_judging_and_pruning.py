"""Predictions judged by interval, prunes that hold for their baseline only, a bottleneck that is looked for again after each promotion,
and the hypothesis that was rejected first and comes back."""

from dataclasses import replace

import pytest

from optimizer.core.state import fold
from optimizer.model.entry import EntryKind
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.playbook import EvidenceRule, Playbook, Prediction, SetAction
from optimizer.model.step import Launch
from optimizer.runner.recorded import verify

from .model_box import PLAN, ModelBox
from .test_state_machine import EAGER, SURE, run, speed


def idea(name, changes, ratio, prior_db=4.0, rules=()):
    return Playbook(id=name, family="config", claim=f"{name}.", prior_db=prior_db, evidence=tuple(rules), predicts=Prediction(ratio=ratio),
                    actions=(SetAction(params=changes),), source="test")  # fmt: skip


def judged(log, name=None):
    return [entry for entry in log.read() if entry.kind == EntryKind.JUDGED and (name is None or entry.body["hypothesis"] == name)]


# ---- by interval against the region of practical equivalence ------------------------------------------------------------


@pytest.mark.parametrize(
    ("true", "predicted", "verdict", "kept"),
    [
        (3.0, (1.5, 4.0), "supported", True),
        (1.6, (2.5, 4.0), "partial", True),  # better beyond doubt, and the claimed mechanism is too weak
        (0.6, (1.5, 4.0), "harmful", False),
    ],
)
def test_a_prediction_is_judged_by_its_interval(true, predicted, verdict, kept):
    plan = replace(PLAN, playbooks=(idea("the-idea", {"disable_cuda_graph": None}, predicted),))
    box = ModelBox(EAGER, lambda values: 400.0 * (1.0 if values.get("disable_cuda_graph") else true), noise=0.005)
    state, log = run(box, plan=plan, target="5000tps@16", best_effort=True)
    final = judged(log)[-1].body["judgement"]
    assert (final["verdict"], bool(state.promoted)) == (verdict, kept)
    assert final["low"] < final["ratio"] < final["high"]
    if verdict == "supported":
        assert final["low"] > 1.01 and final["high"] >= predicted[0]
    elif verdict == "partial":
        assert final["low"] > 1.01 and final["high"] < predicted[0]
    else:
        assert final["high"] < 0.99


@pytest.mark.parametrize("seed", range(6))
def test_no_effect_is_never_called_an_effect_and_never_refuted_without_an_interval(seed):
    plan = replace(PLAN, playbooks=(idea("the-idea", {"disable_cuda_graph": None}, (1.05, 1.1)),))
    box = ModelBox(EAGER, lambda values: 400.0, noise=0.02, seed=seed)
    state, log = run(box, plan=plan, target="5000tps@16", best_effort=True)
    assert state.promoted == ()
    for entry in log.read():
        if entry.kind == EntryKind.PRUNED:
            last = judged(log)[-1].body["judgement"]
            assert last["high"] < 1.05, "a claim is refuted only where the whole interval lies below it"
    assert "excluded" in state.beliefs["the-idea"].reason


# ---- prunes are local ------------------------------------------------------------------------------------------------------

# The cap hides what the flag costs: with four slots graphs gain nothing, with sixteen they treble the rate.
CAPPED = {**EAGER, "max_running_requests": 4}
GRAPHS_FIRST = idea("graphs", {"disable_cuda_graph": None}, (1.5, 4.0), prior_db=6.0)
CAP_LATER = idea("cap", {"max_running_requests": 16}, (1.4, 3.0), prior_db=4.0)
HIDDEN = replace(PLAN, playbooks=(GRAPHS_FIRST, CAP_LATER))


def hidden(values):
    capped = values.get("max_running_requests") == 4
    eager = bool(values.get("disable_cuda_graph"))
    return 100.0 if capped else 210.0 if eager else 640.0


def test_what_was_rejected_first_comes_back_when_the_bottleneck_has_moved():
    """The required lesson: graphs were tried first and gave nothing; once the cap was gone they were the cause after all."""
    state, log = run(ModelBox(CAPPED, hidden, noise=0.005), plan=HIDDEN, target="600tps@16")
    story = [(entry.kind.value, entry.body.get("hypothesis")) for entry in log.read() if entry.kind in (EntryKind.PRUNED, EntryKind.DEFERRED, EntryKind.PROMOTED)]
    assert story[0][1] == "graphs" and story[0][0] in ("pruned", "deferred")
    assert story[1] == ("promoted", "cap")
    assert story[2] == ("promoted", "graphs")
    assert state.closed["ending"] == "met"
    assert state.beliefs["graphs"].status == "supported" and len(state.beliefs["graphs"].tried) == 2
    assert verify(log.read(), lambda seq: HIDDEN).mismatches == ()


def test_a_prune_holds_for_its_baseline_and_is_stale_after_a_promotion():
    _, log = run(ModelBox(CAPPED, hidden, noise=0.005), plan=HIDDEN, target="600tps@16")
    entries = log.read()
    promoted = next(entry.seq for entry in entries if entry.kind == EntryKind.PROMOTED)
    before, after = fold(entries[: promoted - 1]), fold(entries[:promoted])
    was, now = before.beliefs["graphs"], after.beliefs["graphs"]
    assert was.status in ("pruned", "deferred") and was.baseline == before.baseline.digest
    assert now.status == "stale" and now.measured_db == pytest.approx(was.measured_db / 2)
    assert after.baseline.digest != before.baseline.digest


def test_a_proven_harm_keeps_its_weight_after_a_promotion():
    harm = idea("harm", {"mem_fraction_static": 0.5}, (1.5, 3.0), prior_db=8.0)
    plan = replace(PLAN, playbooks=(harm, idea("graphs", {"disable_cuda_graph": None}, (1.4, 4.0))))
    box = ModelBox(EAGER, lambda values: speed(values) * (0.4 if values.get("mem_fraction_static") == 0.5 else 1.0), noise=0.005)
    _state, log = run(box, plan=plan, target="5000tps@16", best_effort=True)
    launched = [step.settings.values for step in box.calls if isinstance(step, Launch) and step.purpose == "candidate"]
    assert sum(1 for values in launched if values.get("mem_fraction_static") == 0.5) == 1, "what slowed the old baseline beyond doubt is not tried again"
    promoted = next(entry.seq for entry in log.read() if entry.kind == EntryKind.PROMOTED)
    kept = fold(log.read()[:promoted]).beliefs["harm"]
    assert kept.verdict == "harmful" and kept.measured_db == fold(log.read()[: promoted - 1]).beliefs["harm"].measured_db


def test_without_a_promotion_a_prune_stays():
    box = ModelBox(CAPPED, lambda values: 100.0, noise=0.005)
    state, _ = run(box, plan=HIDDEN, target="600tps@16", best_effort=True)
    launched = [tuple(step.settings.values) for step in box.calls if isinstance(step, Launch) and step.purpose == "candidate"]
    assert len(set(launched)) == 2 and state.promoted == ()
    assert {state.beliefs[name].status for name in ("graphs", "cap")} <= {"pruned", "deferred"}


# ---- after a promotion the bottleneck is looked for again ----------------------------------------------------------------


def test_after_each_promotion_the_ceiling_and_the_ranking_are_made_anew_from_the_new_facts():
    plan = replace(PLAN, playbooks=tuple(book for book in SURE if book.id in ("cuda-graph-disabled", "admission-cap-too-low")))
    plan = replace(plan, playbooks=tuple(book.model_copy(update={"prior_db": -12.0}) for book in plan.playbooks))  # one cure at a time
    _state, log = run(ModelBox({**EAGER, "max_running_requests": 4}, speed), plan=plan)
    entries = log.read()
    promotions = [entry.seq for entry in entries if entry.kind == EntryKind.PROMOTED]
    assert len(promotions) == 2
    following = [next(item for item in entries if item.seq > seq and item.kind == EntryKind.RANKED) for seq in promotions[:1]]
    first = next(entry for entry in entries if entry.kind == EntryKind.RANKED)

    def row(entry, name):
        return next((item for item in entry.body["hypotheses"] if item["id"] == name), None)

    cured = entries[promotions[0] - 1].body["hypothesis"]
    other = ({"cuda-graph-disabled", "admission-cap-too-low"} - {cured}).pop()
    assert any(entry.kind == EntryKind.CEILING and entry.seq > promotions[0] for entry in entries)
    assert row(first, cured)["score_db"] != row(following[0], cured)["score_db"], "its fact is gone from the new server"
    assert any(hit["db"] < 0 for hit in row(following[0], cured)["against"])
    assert row(following[0], other)["probability"] >= row(first, other)["probability"]


def test_evidence_of_the_new_baseline_can_raise_what_the_old_one_ruled_out():
    """The flag's trace is only seen once the cap is gone: before, evidence rules it out, then it leads."""
    trace = EvidenceRule(id="trace", group="t", when={"fact": "kernel.fallback", "eq": True}, if_true_db=16, if_false_db=-16)
    late = idea("late", {"disable_cuda_graph": None}, (1.5, 4.0), prior_db=-4.0, rules=(trace,))
    plan = replace(PLAN, playbooks=(late, CAP_LATER))

    class Box(ModelBox):
        def _facts(self, settings):
            found = super()._facts(settings)
            seen = settings.get("max_running_requests") == 16 and bool(settings.get("disable_cuda_graph"))
            kept = tuple(fact for fact in found.facts if fact.name != "kernel.fallback")
            return Evidence(facts=(*kept, Fact(name="kernel.fallback", value=seen, source="test")))

    state, log = run(Box(CAPPED, hidden, noise=0.005), plan=plan, target="600tps@16")
    ranked = [entry for entry in log.read() if entry.kind == EntryKind.RANKED]
    assert "late" in {row["id"] for row in ranked[0].body["ruled_out"]}
    promoted = next(entry.seq for entry in log.read() if entry.kind == EntryKind.PROMOTED)
    after = next(entry for entry in ranked if entry.seq > promoted)
    (row,) = [row for row in after.body["hypotheses"] if row["id"] == "late"]
    assert row["testable"] and row["probability"] > 0.9 and "late" not in {item["id"] for item in after.body["ruled_out"]}
    assert state.beliefs["late"].status == "supported"
    assert state.closed["ending"] == "met"
