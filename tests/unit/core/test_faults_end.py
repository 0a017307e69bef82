"""Faults that do not go away: the study ends all the same, spends no launch on them, and leaves the box as it was."""

import asyncio

from optimizer.model.outcome import Failed
from optimizer.model.step import ORIGINAL, Restore, Stop
from optimizer.runner.loop import StopRequest, drive
from optimizer.runner.recorded import MemoryLog, verify

from .model_box import PLAN, ModelBox, spec
from .test_state_machine import EAGER, run, speed


def test_an_original_that_may_not_be_stopped_ends_the_study_and_keeps_running():
    refused = Failed(cause="refused_by_box", message="its supervisor starts it again")
    box = ModelBox(EAGER, speed, original=True, fault=lambda step, n: refused if isinstance(step, Stop) and step.launch == ORIGINAL else None)
    state, log = run(box)
    assert state.closed["ending"] == "needs_operator"
    assert "its supervisor starts it again" in state.closed["reason"]
    assert len([step for step in box.calls if isinstance(step, Stop)]) == 3
    assert isinstance(box.calls[-2], Restore)  # nobody knows how far the stops went
    assert list(box.running) == [ORIGINAL]
    assert not box.armed
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_a_launch_that_does_not_end_asks_for_a_person():
    stuck = Failed(cause="gpu_memory_stuck", message="processes [7] remain", retryable=True)
    box = ModelBox(EAGER, speed, fault=lambda step, n: stuck if isinstance(step, Stop) else None)
    state, _ = run(box)
    assert state.closed["ending"] == "needs_operator"
    assert len([step for step in box.calls if isinstance(step, Stop)]) == 6  # three times to go on, three times to close


def test_a_stop_that_works_in_the_end_is_no_failure():
    failures = []

    def fault(step, number):
        if isinstance(step, Stop) and len(failures) < 2:
            failures.append(step)
            return Failed(cause="gpu_memory_stuck", message="not yet", retryable=True)
        return None

    state, _ = run(ModelBox(EAGER, speed, fault=fault))
    assert state.closed["ending"] == "met"
    assert state.failures["stop"] == 0


def test_ctrl_c_while_the_original_is_being_stopped_brings_it_back():
    stop = StopRequest()

    class Cut(ModelBox):
        async def execute(self, step):
            if isinstance(step, Stop) and step.launch == ORIGINAL:
                self.running.pop(ORIGINAL)  # the signal was sent, the answer never came
                stop.ask("Interrupted by Ctrl-C.")
                await asyncio.sleep(5)
            return await super().execute(step)

    box, log = Cut(EAGER, speed, original=True), MemoryLog()
    log.append("opened", {"spec": spec().plain()}, expect=0)
    state = asyncio.run(drive(log, box, PLAN, stop=stop))
    assert state.closed["ending"] == "interrupted"
    assert list(box.running) == [ORIGINAL]
    assert not box.armed
