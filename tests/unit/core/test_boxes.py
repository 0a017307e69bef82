"""A study on several boxes in memory: whatever the order in which their steps end, no comparison mixes boxes, nothing is tried twice, the
budget holds, every decision can be recomputed, and a box that dies costs its trial."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.core.decide import decide_boxes
from optimizer.core.decision import OnBox
from optimizer.core.state import State, fold
from optimizer.errors import JournalCorrupt
from optimizer.model.entry import EntryKind
from optimizer.model.outcome import Failed
from optimizer.model.playbook import SetAction
from optimizer.model.step import STEP, Launch, Measure, Step
from optimizer.model.study import Budget
from optimizer.runner.boxes import AbsentBox, BoxesStop, drive_boxes
from optimizer.runner.recorded import MemoryLog, verify

from .many_boxes import NAMES, Driver, several
from .model_box import GRAPHS, PLAN, ModelBox, unknown
from .test_state_machine import EAGER, speed

BAD = {**EAGER, "max_running_requests": 4, "mem_fraction_static": 0.5}


def boxes_of(count: int, given: Mapping[str, Any] = BAD, **more: Any) -> dict[str, ModelBox]:
    """Boxes of one class whose speeds differ by more than an idea is worth: a comparison that mixed them would show."""
    return {name: ModelBox(given, lambda values, at=at: speed(values) * (1 + 0.4 * at), seed=at, **more) for at, name in enumerate(NAMES[:count])}


def invariants(state: State) -> None:
    """What holds after every entry of a journal."""
    under_test = [cause for part in state.boxes.values() if part.test is not None for cause in (part.test.hypothesis, *part.test.bundle)]
    assert len(under_test) == len(set(under_test)), f"two boxes test the same: {under_test}"
    tried = [part.test.settings.digest for part in state.boxes.values() if part.test is not None and part.test.settings is not None]
    assert len(tried) == len(set(tried)), "two boxes try the same settings"
    confirming = [part.box for part in state.boxes.values() if part.server and part.server.purpose == "confirm" and part.open and not part.lost]
    assert state.closing is not None or len(confirming) <= 1, f"two confirmations at once: {confirming}"
    if state.spec is not None:
        assert state.launches_baseline + state.launches_after <= state.spec.budget.launches


def check_journal(driver: Driver) -> None:
    """What holds of a closed study, by its journal alone."""
    entries = driver.log.read()
    assert verify(entries, lambda seq: driver.plan).mismatches == ()
    intents = [entry.key for entry in entries if entry.kind == EntryKind.INTENT]
    assert len(intents) == len(set(intents))
    box_of = {entry.key: entry.box for entry in entries if entry.kind == EntryKind.INTENT}
    launched_on = {}
    for entry in entries:
        assert entry.box or entry.kind in (EntryKind.OPENED, EntryKind.CLOSED, EntryKind.NOTE), f"entry {entry.seq} names no box"
        if entry.kind == EntryKind.OUTCOME:
            assert entry.box == box_of[entry.key]
        if entry.kind == EntryKind.INTENT:
            step = STEP.validate_python(entry.body["step"])
            if isinstance(step, Launch):
                launched_on[step.key] = entry.box
    for name, part in driver.state.boxes.items():  # arms hold what was measured on their own box alone
        assert {launched_on.get(result.launch, name) for arm in part.arms.values() for result in arm.results} <= {name}
    for entry in driver.of(EntryKind.JUDGED):
        part_arms = driver.state.boxes[entry.box].arms.values()
        most = max(len(arm.results) + len(arm.earlier) for arm in part_arms)
        assert entry.body["judgement"]["n_baseline"] <= most


def left_clean(boxes: Mapping[str, ModelBox], serving: bool = False) -> None:
    for name, box in boxes.items():
        assert not box.armed, f"the guard of {name} still watches"
        assert bool(box.running) == serving, f"{name}: {box.running}"


def test_two_boxes_share_the_ideas_and_the_best_serves_on_both() -> None:
    boxes = boxes_of(2)
    driver = Driver(several(2), boxes)
    driver.check = invariants
    state = driver.run()
    assert state.closed is not None and state.closed["ending"] == "met"
    assert {name for changes in state.promoted for name in changes} >= {"disable_cuda_graph", "max_running_requests"}
    tested = {entry.box for entry in driver.of(EntryKind.CHOSEN)}
    assert tested == {"a", "b"}, "both boxes test"
    assert [row["box"] for row in state.closed["boxes"]] == ["a", "b"]
    left_clean(boxes, serving=True)
    for box in boxes.values():
        assert "disable_cuda_graph" not in next(iter(box.running.values()))
    check_journal(driver)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(count=st.integers(2, 4), seed=st.integers(0, 10_000), noise=st.sampled_from([0.005, 0.03, 0.08]), launches=st.integers(4, 16),
       target=st.sampled_from(["1000tps@16", "5000tps@16"]), crash=st.booleans())  # fmt: skip
def test_in_any_order_of_outcomes_the_study_ends_and_nothing_is_done_twice(
    count: int, seed: int, noise: float, launches: int, target: str, crash: bool
) -> None:
    cause = (lambda values: "oom_kv" if values.get("mem_fraction_static") == 0.9 else None) if crash else (lambda values: None)
    boxes = boxes_of(count, noise=noise, crash=cause)
    driver = Driver(several(count, target=target, budget=Budget(minutes=100_000, launches=launches)), boxes, seed=seed)
    driver.check = invariants
    state = driver.run()
    assert state.closed is not None
    check_journal(driver)
    for box in boxes.values():
        assert not box.armed


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000), dies=st.integers(1, 60), back=st.booleans())
def test_a_box_that_dies_at_any_step_costs_its_trial_alone(seed: int, dies: int, back: bool) -> None:
    dead = []

    def fault(step: Step, number: int) -> Any:
        if number >= dies and not (back and len(dead) > 6):
            dead.append(step)
            return unknown()
        return None

    class Mortal(ModelBox):
        async def reconcile(self, step: Step) -> Any:
            outcome = fault(step, dies)
            return await super().reconcile(step) if outcome is None else type(await super().reconcile(step))(outcome)

    boxes = boxes_of(2, noise=0.005)
    boxes["b"] = Mortal(BAD, speed, seed=7, fault=fault)
    driver = Driver(several(2), boxes, seed=seed)
    driver.check = invariants
    state = driver.run()
    assert state.closed is not None
    check_journal(driver)
    assert not boxes["a"].armed
    if len(dead) and state.boxes["b"].lost:
        assert state.closed["ending"] == "needs_operator"
        assert state.closed["ending_elsewhere"] == "met"
        assert "b could not be brought into its end state" in state.closed["reason"]
    else:
        assert state.closed["ending"] == "met"
    assert state.closed["best"]["fresh_confirmation"] is True
    assert {name for changes in state.promoted for name in changes} >= {"disable_cuda_graph", "max_running_requests"}, "what b was testing was tested on a"


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000), cut=st.integers(2, 150))
def test_every_prefix_folds_and_a_resumed_study_ends(seed: int, cut: int) -> None:
    driver = Driver(several(2), boxes_of(2), seed=seed)
    for _ in range(cut):
        if not driver.step():
            break
    entries = list(driver.log.read())
    for at in range(1, len(entries) + 1, 5):
        assert fold(entries[:at]).seq == at
    # Another process: the intents that were open are reconciled, on boxes that know what was started.
    state = asyncio.run(drive_boxes(driver.log, driver.executors, PLAN))
    assert state.closed is not None and state.closed["ending"] == "met"
    driver.state = state
    check_journal(driver)


def test_a_box_of_another_class_is_refused_by_its_difference_and_the_others_go_on() -> None:
    boxes = boxes_of(3)
    boxes["b"] = ModelBox({**BAD, "max_running_requests": 8}, speed, gpu_count=2)
    driver = Driver(several(3), boxes)
    state = driver.run()
    assert state.closed is not None and state.closed["ending"] == "met"
    row = next(row for row in state.closed["boxes"] if row["box"] == "b")
    assert "GPUs 1 there, 2 here" in row["left"] and "setting max_running_requests 4 there, 8 here" in row["left"]
    assert boxes["b"].launched == [] and not boxes["b"].armed
    assert [step.kind for step in boxes["b"].calls] == ["observe"]
    check_journal(driver)


def test_ctrl_c_restores_every_box() -> None:
    boxes = boxes_of(3, original=True)
    log = MemoryLog()
    log.append("opened", {"spec": several(3).plain()}, expect=0)
    stop = BoxesStop()

    def watch(state: State, entry: Any) -> None:
        if entry.seq == 60:
            stop.ask("Interrupted by Ctrl-C.")

    state = asyncio.run(drive_boxes(log, boxes, PLAN, stop=stop, watch=watch))
    assert state.closed is not None and state.closed["ending"] == "interrupted"
    for box in boxes.values():
        assert not box.armed and list(box.running) == ["original"]


def test_a_guard_that_fires_takes_its_box_out_and_the_others_go_on() -> None:
    boxes = boxes_of(2)
    log = MemoryLog()
    log.append("opened", {"spec": several(2).plain()}, expect=0)
    stop = BoxesStop()

    def watch(state: State, entry: Any) -> None:
        if entry.seq == 40:
            stop.ask_box("a", "The guard on the box has fired.")

    state = asyncio.run(drive_boxes(log, boxes, PLAN, stop=stop, watch=watch))
    assert state.closed is not None and state.closed["ending"] == "met"
    assert state.boxes["a"].closing is not None and state.boxes["a"].closing.ending == "guard_fired"
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
    rows = {row["box"]: row for row in state.closed["boxes"]}
    assert "guard" in rows["a"]["left"] and rows["b"]["left"] is None


def test_a_running_step_that_nobody_needs_any_more_is_broken_off() -> None:
    class Slow(ModelBox):
        async def execute(self, step: Step) -> Any:
            if isinstance(step, Measure) and self.launched[2:]:
                await asyncio.sleep(3600)
            return await super().execute(step)

    boxes = {"a": ModelBox(EAGER, speed), "b": Slow(EAGER, speed, seed=2)}
    log = MemoryLog()
    log.append("opened", {"spec": several(2).plain()}, expect=0)
    state = asyncio.run(asyncio.wait_for(drive_boxes(log, boxes, PLAN), 30))
    assert state.closed is not None and state.closed["ending"] == "met"


def test_a_box_that_is_away_when_the_study_is_resumed_is_given_up() -> None:
    driver = Driver(several(2), boxes_of(2))
    for _ in range(40):
        driver.step()
    executors = {"a": driver.executors["a"], "b": AbsentBox("No route to host.")}
    state = asyncio.run(drive_boxes(driver.log, executors, PLAN))
    assert state.closed is not None and state.closed["ending_elsewhere"] == "met"
    assert state.boxes["b"].lost


def test_a_link_that_comes_back_in_time_costs_nothing() -> None:
    boxes = boxes_of(2)
    boxes["b"] = ModelBox(BAD, speed, fault=lambda step, number: unknown() if number == 9 else None)
    log = MemoryLog()
    log.append("opened", {"spec": several(2).plain()}, expect=0)
    state = asyncio.run(drive_boxes(log, boxes, PLAN, patience_s=(0.0, 0.01)))
    assert state.closed is not None and state.closed["ending"] == "met"
    assert not state.boxes["b"].lost


def test_all_boxes_lost_asks_for_a_person() -> None:
    boxes = {name: ModelBox(BAD, speed, fault=lambda step, number: unknown() if number > 3 else None) for name in "ab"}
    for box in boxes.values():
        box.reconcile = AbsentBox("gone").reconcile  # type: ignore[method-assign]
    state = Driver(several(2), boxes).run()
    assert state.closed is not None and state.closed["ending"] == "needs_operator"
    assert "a, b" in state.closed["reason"]


IDEAS = tuple(
    GRAPHS.model_copy(update={"id": f"idea-{at}", "prior_db": -16.0 + at / 10, "actions": (SetAction(params={f"switch_{at}": True}),)}) for at in range(9)
)


@pytest.mark.parametrize("launches", [7, 10])
def test_two_boxes_need_fewer_minutes_for_the_same_number_of_launches(launches: int) -> None:
    """Ideas of which one helps: most of a study is finding out what does not."""

    def spent(count: int) -> State:
        def rate(values: Mapping[str, Any]) -> float:
            return 400.0 * (2.0 if values.get("switch_5") else 1.0)

        boxes = {name: ModelBox(EAGER, rate, seed=at) for at, name in enumerate(NAMES[:count])}
        study = several(count, target="9000tps@16", budget=Budget(minutes=100_000, launches=launches), best_effort=True)
        return Driver(study, boxes, replace(PLAN, playbooks=IDEAS)).run()

    one, two = spent(1), spent(2)
    assert one.promoted == two.promoted == ({"switch_5": True},)
    assert one.launches_baseline + one.launches_after == two.launches_baseline + two.launches_after == launches
    for state in (one, two):
        assert state.closed is not None and state.closed["best"]["fresh_confirmation"] is True
    assert two.minutes < 0.75 * one.minutes, (one.minutes, two.minutes)


def test_an_entry_about_an_unknown_box_is_refused() -> None:
    driver = Driver(several(2), boxes_of(2))
    entry = driver.log.append("note", {"text": "x", "box": "z"}, expect=1)
    with pytest.raises(JournalCorrupt, match="'z'"):
        fold([*driver.log.read()[:1], entry])


def test_the_next_turn_does_not_depend_on_what_runs_elsewhere_in_memory() -> None:
    """The same entries give the same decision, byte for byte, however often and in whatever process they are folded."""
    driver = Driver(several(2), boxes_of(2))
    for _ in range(30):
        before = decide_boxes(driver.state, PLAN)
        again = decide_boxes(fold(driver.log.read()), PLAN)
        assert repr(before) == repr(again)
        assert not isinstance(before, OnBox) or before.box in NAMES
        driver.step()


def test_a_retryable_failure_on_one_box_is_counted_there() -> None:
    fails = [0]

    def fault(step: Step, number: int) -> Any:
        if isinstance(step, Launch) and fails[0] < 1:
            fails[0] += 1
            return Failed(cause="port_busy", message="taken", retryable=True, body={"spawned": False})
        return None

    boxes = boxes_of(2)
    boxes["a"] = ModelBox(BAD, speed, fault=fault)
    driver = Driver(several(2), boxes)
    state = driver.run()
    assert state.closed is not None and state.closed["ending"] == "met"
    check_journal(driver)


def test_what_another_box_is_testing_is_neither_launched_nor_refused() -> None:
    """Two causes with the same cure: while one is tested, the other waits; nothing is held against it."""
    twin = GRAPHS.model_copy(update={"id": "admission-cap-too-low"})
    driver = Driver(several(2, target="9000tps@16", best_effort=True), boxes_of(2, EAGER), replace(PLAN, playbooks=(GRAPHS, twin)))
    state = driver.run()
    entries = driver.log.read()
    for entry in driver.of(EntryKind.REFUSED):
        assert not any(part.test is not None for part in fold(entries[: entry.seq - 1]).boxes.values())
    launched = [entry.body["step"]["settings"]["values"] for entry in driver.of(EntryKind.INTENT) if (entry.body["step"]["kind"], entry.body["step"].get("purpose")) == ("launch", "candidate")]
    assert launched == [{"disable_cuda_graph": None}]
    assert state.closed is not None and state.closed["best"]["fresh_confirmation"] is True
    check_journal(driver)
