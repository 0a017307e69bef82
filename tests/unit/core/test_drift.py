"""A box whose speed changes under the study: the re-measured baseline says so, and nothing is compared across the change."""

import math
from dataclasses import replace

import pytest

from optimizer.core import drift
from optimizer.core.closing import is_confirmed_better
from optimizer.core.state import fold
from optimizer.model.entry import EntryKind
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.playbook import Playbook, Prediction, SetAction
from optimizer.model.step import Launch, Measure
from optimizer.report.prose import sentence
from optimizer.runner.recorded import verify

from .model_box import PLAN, ModelBox
from .test_state_machine import EAGER, run


def idea(name, changes, ratio=(1.03, 1.08)):
    return Playbook(id=name, family="config", claim=f"{name}.", prior_db=6.0, evidence=(), predicts=Prediction(ratio=ratio),
                    actions=(SetAction(params=changes),), source="test")  # fmt: skip


FIRST, SECOND = idea("idea-one", {"max_running_requests": 32}), idea("idea-two", {"disable_cuda_graph": None})
SMALL = replace(PLAN, playbooks=(FIRST, SECOND))


class DriftingBox(ModelBox):
    """Everything runs ``factor`` times as fast once ``baselines`` launches of a baseline were measured and another one comes, or
    after ``after`` measured launches of any kind."""

    def __init__(self, *args, factor, baselines=99, after=99, **more):
        super().__init__(*args, **more)
        self.after, self.baselines, self.factor = after, baselines, factor
        self.measured, self.of_baseline, self.moved = [], 0, False

    def _measure(self, step):
        if step.launch not in self.measured:
            self.measured.append(step.launch)
            self.of_baseline += step.purpose == "baseline"
        self.moved = self.moved or self.of_baseline > self.baselines or len(self.measured) > self.after
        steady = self.speed
        if self.moved:
            self.speed = lambda values: steady(values) * self.factor
        try:
            return super()._measure(step)
        finally:
            self.speed = steady


def flat(values):
    """The first idea gains 4 %: too little to be seen without the baseline being measured a third time."""
    return 400.0 * (1.04 if values.get("max_running_requests") == 32 else 1.0)



def drifted(log):
    return [entry for entry in log.read() if entry.kind == EntryKind.DRIFTED]


@pytest.mark.fault("G6")
def test_a_baseline_that_lost_a_fifth_is_concluded_to_have_drifted():
    box = DriftingBox(EAGER, flat, noise=0.004, baselines=2, factor=0.8)
    _state, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    (entry,) = drifted(log)
    body = entry.body
    assert body["ratio"] == pytest.approx(0.8, rel=0.03) and body["launches_before"] == 2
    assert abs(math.log(body["ratio"])) > math.log(body["limit"])
    assert body["limit"] == pytest.approx(math.exp(3 * body["sd"] * math.sqrt(1 + 1 / 2)))
    said = sentence(entry)
    assert "the box itself is not what it was" in said and "Only what is measured from here on is compared" in said
    assert entry.cause == body["entry"]
    assert verify(log.read(), lambda seq: SMALL).mismatches == ()


@pytest.mark.fault("G6")
def test_only_what_came_after_is_compared():
    box = DriftingBox(EAGER, flat, noise=0.004, baselines=2, factor=0.8)
    _state, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    at = drifted(log)[0].seq
    before = fold(log.read()[: at - 1])
    after = fold(log.read()[:at])
    assert len(before.base_arm.results) == 3 and len(after.base_arm.results) == 1 and len(after.base_arm.earlier) == 2
    for arm in after.arms.values():
        if arm.settings.digest != after.baseline.digest:
            assert arm.results == ()  # a candidate measured before it is no candidate against what came after
    for entry in log.read()[at:]:
        if entry.kind == EntryKind.JUDGED:
            judgement = entry.body["judgement"]
            assert judgement["low"] < 1.3 and 0.8 < judgement["ratio"] < 1.25, "an effect of the box was taken for one of a setting"
            since = fold(log.read()[: entry.seq - 1])
            assert judgement["n_baseline"] == len([item for item in since.base_arm.results if item.entry >= drifted(log)[0].body["entry"]])


def test_a_drift_is_never_taken_for_a_gain():
    """The box becomes a quarter faster: the re-measured baseline gives it away, and no setting gets the credit."""
    box = DriftingBox(EAGER, flat, noise=0.004, baselines=2, factor=1.25)
    _state, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    assert len(drifted(log)) == 1 and drifted(log)[0].body["ratio"] == pytest.approx(1.25, rel=0.03)
    judged = [entry.body["judgement"]["ratio"] for entry in log.read() if entry.kind == EntryKind.JUDGED]
    assert judged and all(0.9 < ratio < 1.1 for ratio in judged)


def test_verdicts_across_it_are_open_again():
    plan = replace(PLAN, playbooks=(idea("idea-one", {"max_running_requests": 32}, (1.5, 2.0)), SECOND))
    # The first idea is refuted in one launch; the second needs looks, and the box drifts meanwhile.
    box = DriftingBox(EAGER, lambda values: 400.0 * (0.7 if values.get("max_running_requests") == 32 else 1.0)
                      * (1.0 if values.get("disable_cuda_graph") else 1.04), noise=0.004, baselines=2, factor=0.8)  # fmt: skip
    _, log = run(box, plan=plan, target="5000tps@16", best_effort=True)
    found = drifted(log)
    assert found and "idea-one" in found[0].body["stale"]
    before, after = fold(log.read()[: found[0].seq - 1]), fold(log.read()[: found[0].seq])
    assert before.beliefs["idea-one"].status == "pruned" and after.beliefs["idea-one"].status == "stale"
    assert abs(after.beliefs["idea-one"].measured_db) == pytest.approx(abs(before.beliefs["idea-one"].measured_db) / 2)


def test_the_first_pair_is_noise_and_no_drift():
    box = DriftingBox(EAGER, lambda values: 400.0, noise=0.004, baselines=1, factor=0.9)  # a tenth apart, right after one another
    _, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    assert drifted(log) == []


def test_a_steady_box_never_drifts():
    for seed in range(12):
        box = ModelBox(EAGER, flat, noise=0.02, seed=seed)
        _, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
        assert drifted(log) == [], seed


def test_a_box_that_keeps_moving_is_noise_in_the_end():
    """Every launch a fifth slower than the one before: after two conclusions the movement counts as noise, and the study ends."""

    class Sinking(ModelBox):
        def _measure(self, step):
            steady, self.speed = self.speed, lambda values: steady(values) * 0.8 ** len(self.launched)
            try:
                return super()._measure(step)
            finally:
                self.speed = steady

    box = Sinking(EAGER, lambda values: 4000.0, noise=0.004)
    state, log = run(box, plan=SMALL, target="50000tps@16", best_effort=True)
    assert len(drifted(log)) <= drift.MAX_DRIFTS and state.closed is not None
    assert state.closed["ending"] != "met"


def test_what_was_measured_before_it_is_still_shown_as_such():
    box = DriftingBox(EAGER, flat, noise=0.004, baselines=2, factor=0.8)
    state, _ = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    assert state.closed["drifts"] == 1
    assert state.closed["baseline"]["value"] == pytest.approx(400 * 0.8, rel=0.05)


def test_a_confirmation_below_what_was_found_before_the_drift_keeps_nothing():
    """A promoted setting, then a slower box: its last launch is worse than the server as found, and nobody can say why."""
    gain = replace(PLAN, playbooks=(idea("idea-one", {"max_running_requests": 32}, (1.3, 2.0)), SECOND))
    box = DriftingBox(EAGER, lambda values: 400.0 * (1.5 if values.get("max_running_requests") == 32 else 1.0), noise=0.004, after=2, factor=0.5)
    state, _ = run(box, plan=gain, target="5000tps@16", best_effort=True)
    assert state.closed is not None
    if state.promoted and state.base_arm.confirmed is not None:
        assert not is_confirmed_better(state)


def test_measured_twice_is_measured_in_the_order_of_the_journal():
    box = DriftingBox(EAGER, flat, noise=0.004, baselines=2, factor=0.8)
    _, _log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    measured = [step for step in box.calls if isinstance(step, Measure)]
    purposes = [step.purpose for step in box.calls if isinstance(step, Launch)]
    assert purposes[:2] == ["baseline", "baseline"] and len(measured) >= 4


# ---- the box starts otherwise -------------------------------------------------------------------------------------------


class ChangingBox(ModelBox):
    """From measured launch ``after`` on, a start-up fact has another value, whatever the settings are."""

    def __init__(self, *args, fact, before, then, after, **more):
        super().__init__(*args, **more)
        self.fact, self.values, self.after, self.seen = fact, (before, then), after, []

    def _measure(self, step):
        if step.launch not in self.seen:
            self.seen.append(step.launch)
        return super()._measure(step)

    def _facts(self, settings):
        value = self.values[len(self.seen) > self.after]
        return Evidence(facts=(*super()._facts(settings).facts, Fact(name=self.fact, value=value, source="test")))


INSTALLED = {"engine.version": ("0.5.12", "0.5.13", "another build"), "gpu.driver": ("580.95.05", "580.159.04", "the GPU driver on the box is another one")}


@pytest.mark.fault("F44")
@pytest.mark.parametrize(("fact", "after"), [*(("engine.version", after) for after in (1, 2, 3, 4)), ("gpu.driver", 1), ("gpu.driver", 2)])
def test_an_engine_or_a_driver_that_is_upgraded_in_mid_study_starts_the_comparison_anew(fact, after):
    """Nothing of the old build is compared with anything of the new one, whichever launch is the first of it."""
    before, then, said = INSTALLED[fact]
    box = ChangingBox(EAGER, flat, noise=0.004, fact=fact, before=before, then=then, after=after)
    state, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    (entry,) = drifted(log)
    assert said in sentence(entry) and f"{before} -> {then}" in sentence(entry)
    since = entry.body["entry"]
    folded = fold(log.read()[: entry.seq])
    assert all(result.entry >= since for arm in folded.arms.values() for result in arm.results)
    for later in log.read()[entry.seq :]:
        if later.kind == EntryKind.FLIPPED:
            assert all(flip["fact"] != fact for flip in later.body["flips"])
    judged = [fold(log.read()[: later.seq]) for later in log.read()[entry.seq :] if later.kind == EntryKind.JUDGED]
    assert all(len(seen.base_arm.results) >= 1 for seen in judged)
    assert state.closed is not None and state.closed["drifts"] == 1
    assert verify(log.read(), lambda seq: SMALL).mismatches == ()


@pytest.mark.fault("F44")
def test_an_upgrade_after_a_promotion_measures_the_promoted_settings_again():
    gains = replace(SMALL, playbooks=(idea("idea-big", {"disable_cuda_graph": None}, (1.5, 2.5)), FIRST))
    box = ChangingBox(EAGER, lambda values: 400.0 * (1.0 if values.get("disable_cuda_graph") else 2.0), noise=0.004,
                      fact="engine.version", before="1.0", then="1.1", after=2)  # fmt: skip
    state, log = run(box, plan=gains, target="5000tps@16", best_effort=True)
    (entry,) = drifted(log)
    promoted = [one.seq for one in log.read() if one.kind == EntryKind.PROMOTED]
    assert promoted and promoted[0] < entry.seq
    assert state.closed is not None and state.base_arm.results and min(result.entry for result in state.base_arm.results) >= entry.body["entry"]
    assert verify(log.read(), lambda seq: gains).mismatches == ()


@pytest.mark.fault("G5")
def test_a_start_up_fact_that_flips_between_two_launches_of_one_setting_is_a_drift():
    box = ChangingBox(EAGER, flat, noise=0.004, fact="allreduce.custom", before="on", then="off_no_p2p", after=1)
    _state, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    entry = drifted(log)[0]
    assert "started otherwise" in sentence(entry) and "allreduce.custom on -> off_no_p2p" in sentence(entry)
    after = fold(log.read()[: entry.seq])
    assert len(after.base_arm.results) == 1 and len(after.base_arm.earlier) == 1
    assert verify(log.read(), lambda seq: SMALL).mismatches == ()


@pytest.mark.parametrize(("fact", "before", "then"), [("kv.pool_tokens", 100_000, 95_000), ("gpu.memory_free_gib", 70.0, 20.0)])
def test_what_varies_from_start_to_start_is_no_drift(fact, before, then):
    box = ChangingBox(EAGER, flat, noise=0.004, fact=fact, before=before, then=then, after=1)
    _state, log = run(box, plan=SMALL, target="5000tps@16", best_effort=True)
    assert drifted(log) == []
