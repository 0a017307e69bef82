"""The coordinator dies by SIGKILL at named points of a whole study on a real server process, and is resumed: the decision is
the one of a study that nobody disturbed, no launch happens twice, nothing is left on the box."""

from __future__ import annotations

import os
import re

import pytest

from tests.crash.killing import MET, begun, finished, kill_at_random, killed, random_gaps
from tests.e2e.fastbox import FastBox, check_ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# In the order in which a study passes them; every coordinator resumes the last one's study and dies in its turn. Each number
# counts passages within one coordinator.
EVERY_STEP = (
    "box.hello.after:1",  # observe: nothing was changed yet
    "box.lock.after:1",  # secure: locked, no guard
    "box.secure.after:1",  # secure: guarded, not journalled
    "box.run_job.output:3",  # calibrate: load on the null server
    "loop.before_intent:1",  # between two steps
    "transport.sent:4",  # launch: the box has the order (or the heartbeat beside it), nobody sees the answer
    "box.listeners.after:1",  # await_ready: in the proof of identity
    "box.run_job.output:2",  # measure: in the window
    "journal.append.before_commit:1",  # measure: interrupted, and that not written
    "box.sweep.before:2",  # stop: decided, not begun (the first sweep takes the dead coordinator's load away)
    "box.sweep.after:1",  # stop: done, not journalled
    "loop.after_intent:1",  # launch: announced, never ordered
    "loop.after_effect:2",  # measure: measured, not journalled
    "box.launch.after:1",  # launch: started, not journalled
    "box.order.before:1",  # disarm: decided
    "box.order.after:1",  # disarm: the guard has its order
    "box.cleanup.after:1",  # disarm: all but the lock is gone
    "box.unlock.after:1",  # disarm: all is gone, not journalled
    "journal.append.after_commit:2",  # closed, and the report not written
)


def test_killed_in_every_kind_of_step_of_one_study(box: FastBox) -> None:
    words = box.study("every", "--finish", "restore")
    for point in EVERY_STEP:
        assert killed(box, words, point), f"{point} was not passed"
        words = ["resume", "every", "--json"]
    done = finished(box, "every")
    assert done.json["launches"] == 2
    assert len(box.starts()) == 3


@pytest.mark.parametrize("seed", [1])
def test_killed_at_random_again_and_again(box: FastBox, seed: int) -> None:
    assert kill_at_random(box, f"random{seed}", random_gaps(seed)) >= 4
    finished(box, f"random{seed}")


LOOKED, BEGUN = 6, 7  # passages: the box was asked who holds it and what is left on it; the journal's file is there and empty


@pytest.mark.parametrize("passage", [2, LOOKED, BEGUN, 8, 9, 10])
def test_killed_before_the_study_was_opened(box: FastBox, passage: int) -> None:
    """Nothing was done, and the message says how to go on; what is left never stands in another study's way."""
    assert killed(box, box.study("early"), f"*:{passage}")
    if passage <= LOOKED:
        assert not (box.runs / "early").exists()
        box.assert_clean()
        return
    if passage == BEGUN:
        assert killed(box, box.study("early"), "box.hello.after:1"), "the empty file is taken over"
        return
    done = box("resume", "early", "--json")
    assert done.exit == 6 and "never opened completely" in done.err, done.err
    assert "early" in box("studies").out
    assert box.starts() == []
    box.assert_clean()
    assert killed(box, box.study("early"), "box.lock.after:1"), "its name is free: the study begins"
    done = box("stop", "early", "--json")
    assert done.exit == 0, done.err
    box.assert_clean()


def test_the_owners_server_comes_back_whenever_the_coordinator_dies(box: FastBox) -> None:
    box.serve()
    words = box.study("owned", "--finish", "restore", launch=False)
    for point in (
        "box.stop_original.before:1",
        "box.stop_original.after:1",
        "box.launch.after:1",
        "box.order.before:1",
        "box.order.after:1",  # the guard is bringing it back
        "loop.after_effect:1",  # it is back, not journalled (the first effect after a settled restore is the disarming)
    ):
        assert killed(box, words, point), f"{point} was not passed"
        words = ["resume", "owned", "--json"]
    done = box("resume", "owned", "--json")
    assert done.decision == MET, done.err
    box.assert_clean(serving=True)
    assert box.serving_argv() == [box.argv]
    assert len([start for start in box.starts() if start["launch"] is None]) == 2, "the owner's start and one restore"
    check_ledger(box, "owned")
    assert box("replay", "owned", "--verify", "--json").json["identical"]


def test_the_winner_stays_although_the_coordinator_died_while_bringing_it_up(box: FastBox) -> None:
    box.serve()
    words = box.study("winner", launch=False)
    for point in (
        "box.launch.after:3",
        "box.listeners.after:1",
        "box.order.after:1",
        "box.cleanup.after:1",
        "box.unlock.after:1",
    ):
        assert killed(box, words, point), f"{point} was not passed"
        words = ["resume", "winner", "--json"]
    done = box("resume", "winner", "--json")
    assert done.decision == MET, done.err
    expected = tuple(word for word in box.argv if word != "--disable-cuda-graph")
    assert box.serving_argv() == [expected]
    assert box.answers()
    assert len(set(box.marked().values())) == 1, "the winner, and no guard"
    check_ledger(box, "winner")
    assert [
        name for name in box.leftovers() if not name.startswith("kept") and name not in (".optimizer", "lock")
    ] == []
    assert box("replay", "winner", "--verify", "--json").json["identical"]


SWEEP = re.fullmatch(r"(\d+):(\d+):(\d+)", os.environ.get("OPTIMIZER_CRASH_SWEEP", ""))
PASSAGES = range(int(SWEEP[1]), int(SWEEP[2]) + 1, int(SWEEP[3])) if SWEEP else range(0)


@pytest.mark.parametrize("passage", PASSAGES)
def test_sweep_of_single_kills(box: FastBox, passage: int) -> None:
    """The long sweep: ``OPTIMIZER_CRASH_SWEEP=FIRST:LAST:STEP`` kills at each of these passages of any point, one study each. A study
    passes about 490; whatever is beyond its last one is skipped."""
    study = f"sweep{passage}"
    if not killed(box, box.study(study, "--finish", "restore"), f"*:{passage}"):
        pytest.skip(f"the study ended before its passage {passage}")
    if begun(box, study):
        finished(box, study)
