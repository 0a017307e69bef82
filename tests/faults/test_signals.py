"""Ctrl-C, SIGTERM and a closed terminal while a study runs: it ends with 130, the box is as it was, and what was known is in the journal."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.e2e.fastbox import FastBox, check_ledger, entries, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def wait_for(box: FastBox, process: subprocess.Popen[str], text: str) -> None:
    def told() -> bool:
        assert process.poll() is None, box.told(process)
        return text in box.told(process)

    wait_until(told, 90, text)


def ended(box: FastBox, process: subprocess.Popen[str], study: str, *, serving: bool, ending: str = "interrupted", code: int = 130) -> None:
    began = time.monotonic()
    done = box.finish(process, 75)
    assert done.exit == code, done.err
    assert time.monotonic() - began < 60
    assert done.json["ending"] == ending
    assert "Traceback" not in done.err
    box.assert_clean(serving=serving)
    check_ledger(box, study)
    assert box("replay", study, "--verify", "--json").json["identical"]


@pytest.mark.parametrize(
    ("number", "phase"),
    [
        (signal.SIGINT, "Reading the box"),
        (signal.SIGTERM, "Locking the box"),
        (signal.SIGINT, "Calibrating"),
        (signal.SIGHUP, "Launching (baseline)"),
        (signal.SIGINT, "Waiting until"),
        (signal.SIGTERM, "Measuring"),
        (signal.SIGINT, "Stopping launch"),
    ],
)
def test_a_signal_ends_the_study_in_every_phase(box: FastBox, number: signal.Signals, phase: str) -> None:
    process = box.start(*box.study("signalled", "--launches", "3"))
    wait_for(box, process, phase)
    process.send_signal(number)
    ended(box, process, "signalled", serving=False)
    assert entries(box.runs / "signalled")[-1].kind == "closed"


def test_the_owners_server_is_back_after_ctrl_c(box: FastBox) -> None:
    box.serve()
    process = box.start(*box.study("owned", launch=False))
    wait_for(box, process, "(candidate): c=")  # a candidate: the owner's server is down
    assert not box.answers()
    process.send_signal(signal.SIGINT)
    ended(box, process, "owned", serving=True)
    assert box.serving_argv() == [box.argv]


def test_the_owners_server_is_back_after_ctrl_c_while_it_is_being_stopped(box: FastBox) -> None:
    """Its signal may have been sent, its end not yet been seen: nobody knows, so it is brought back."""
    box.serve()
    process = box.start(*box.study("cut", launch=False))
    wait_for(box, process, "Stopping the original")
    process.send_signal(signal.SIGINT)
    ended(box, process, "cut", serving=True)
    assert box.serving_argv() == [box.argv]


@pytest.mark.parametrize("phase", ["(candidate): c=", "Stopping launch", "Bringing the original"])
def test_ctrl_c_twice_has_the_guard_restore_at_once(box: FastBox, phase: str) -> None:
    """In a step of the study, and in both steps that close it. The guard is quick here, so the study is closed as well."""
    box.serve()
    process = box.start(*box.study("hasty", launch=False))
    wait_for(box, process, "(candidate): c=")
    process.send_signal(signal.SIGINT)
    if phase != "(candidate): c=":
        wait_for(box, process, phase)
    time.sleep(0.6)  # less would count as the same Ctrl-C, passed on by a program between us and the terminal
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    ended(box, process, "hasty", serving=True)
    assert box.serving_argv() == [box.argv]


def test_ctrl_c_again_and_again_loses_nothing(box: FastBox) -> None:
    """Whoever does not even wait for the guard is told that it goes on by itself, and the study can be closed afterwards."""
    box.serve()
    (box.home / "slow").write_text("6")  # the owner's server takes its time to come back
    process = box.start(*box.study("hasty", launch=False))
    wait_for(box, process, "(candidate): c=")
    for _ in range(4):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        time.sleep(0.7)
    done = box.finish(process, 20)
    assert done.exit == 5 and "optimize stop hasty" in done.err and "Traceback" not in done.err, done.err
    assert "brings the original back by itself" in done.err
    wait_until(lambda: box.answers() and not box.marked(), 60, "the guard brings the original back")
    assert box.serving_argv() == [box.argv]
    closed = box("stop", "hasty", "--json")
    assert closed.json["ending"] == "interrupted", closed.err
    box.assert_clean(serving=True)
    assert box("replay", "hasty", "--verify", "--json").json["identical"]


def test_ctrl_c_after_the_end_changes_nothing_of_the_result(box: FastBox) -> None:
    process = box.start(*box.study("late", "--finish", "restore"))
    wait_for(box, process, "Ending the guard")
    process.send_signal(signal.SIGINT)
    ended(box, process, "late", serving=False, ending="met", code=0)


def test_ctrl_c_while_a_resumed_study_finds_out_how_its_last_step_ended(box: FastBox) -> None:
    (box.home / "mode").write_text("never-ready")
    words = box.study("settling")
    assert box(*words, OPTIMIZER_CRASH_AT="box.read_log.after:1").exit == -9
    before = len(entries(box.runs / "settling"))
    process = box.start("resume", "settling", "--json")
    wait_until(lambda: len(entries(box.runs / "settling")) > before, 20, "it has taken over")
    time.sleep(2)  # it waits for a server that is never ready
    process.send_signal(signal.SIGINT)
    ended(box, process, "settling", serving=False)


def test_stop_from_another_terminal(box: FastBox) -> None:
    process = box.start(*box.study("stopped"))
    wait_for(box, process, "Measuring")
    done = box("stop", "stopped", "--json")
    assert done.exit == 0 and done.json["asked"] is True
    ended(box, process, "stopped", serving=False)


def test_stop_of_a_study_whose_coordinator_is_dead(box: FastBox) -> None:
    assert box(*box.study("dead"), OPTIMIZER_CRASH_AT="box.launch.after:1").exit == -9
    assert box.marked()
    done = box("stop", "dead")
    assert done.exit == 0, done.err
    assert "Ctrl-C leaves that to the guard" in done.err
    assert done.out == "Study dead is closed: interrupted. No server of this study runs on localhost.\n"
    box.assert_clean()


@pytest.mark.parametrize(
    ("number", "point", "opened"),
    [
        (signal.SIGINT, "", False),  # Python is loading
        (signal.SIGINT, "box.holder.before", False),
        (signal.SIGTERM, "box.holder.before", False),
        (signal.SIGINT, "box.holder.after", True),
        (signal.SIGTERM, "journal.create.before_commit", True),
        (signal.SIGINT, "journal.lease.after_commit", True),
        (signal.SIGTERM, "loop.before_intent", True),
    ],
)
def test_a_signal_before_anything_has_begun_leaves_nothing_or_a_closed_study(box: FastBox, number: signal.Signals, point: str, opened: bool) -> None:
    """From the start of Python to the first step: there is no study, or one that is closed; never one that is open and empty."""
    trace = box.folder / "trace"
    trace.write_text("")
    process = box.start(*box.study("early"), OPTIMIZER_CRASH_TRACE=str(trace))
    if point:
        wait_until(lambda: point in trace.read_text(), 60, point)
    else:
        time.sleep(0.15)
    process.send_signal(number)
    done = box.finish(process, 60)
    assert done.exit in (130, -number), done.err
    assert "Traceback" not in done.err
    box.assert_clean()
    assert box.starts() == []
    if (box.runs / "early").exists():
        assert opened, "there is a study before there should be one"
        assert entries(box.runs / "early")[-1].kind == "closed"
        assert box("replay", "early", "--verify", "--json").json["identical"]


@pytest.mark.fault("F39")
def test_a_stopped_coordinator_that_wakes_up_finds_its_box_restored(box: FastBox) -> None:
    """SIGSTOP for longer than the guard's patience: the guard restores, the coordinator notices and ends with 5."""
    box.serve()
    process = box.start(*box.study("asleep", "--guard-minutes", "0.5", launch=False))
    wait_for(box, process, "(candidate): c=")
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: box.answers() and box.serving_argv() == [box.argv] and not box.marked(), 90, "the guard brings the original back")
    os.kill(process.pid, signal.SIGCONT)
    done = box.finish(process, 75)
    assert done.exit == 5, done.err
    assert done.json["ending"] == "guard_fired"
    assert "Traceback" not in done.err
    box.assert_clean(serving=True)
    assert box.serving_argv() == [box.argv]


def test_a_dead_coordinator_cannot_keep_the_box(box: FastBox) -> None:
    """Killed and never back: the guard restores within its minutes. Whoever resumes later is told, and nothing is judged."""
    box.serve()
    assert box(*box.study("gone", "--guard-minutes", "0.5", launch=False), OPTIMIZER_CRASH_AT="box.listeners.after:2").exit == -9
    assert not box.answers()
    wait_until(lambda: box.answers() and not box.marked(), 90, "the guard brings the original back")
    assert box.serving_argv() == [box.argv]
    done = box("resume", "gone", "--json")
    assert done.exit == 5, done.err
    assert done.json["ending"] == "guard_fired" and done.json["promoted"] == []
    box.assert_clean(serving=True)


def test_a_box_that_was_restored_by_hand_is_not_taken_again(box: FastBox) -> None:
    box.serve()
    assert box(*box.study("gone", launch=False), OPTIMIZER_CRASH_AT="box.listeners.after:2").exit == -9
    restored = box("restore", "--host", "localhost", "--json")
    assert restored.exit == 0 and restored.json["restored"] is True, restored.err
    box.assert_clean(serving=True)
    done = box("resume", "gone", "--json")
    assert done.exit == 5, done.err
    assert done.json["ending"] == "guard_fired" and done.json["promoted"] == []
    assert not [row for row in done.json["hypotheses"] if row["status"] == "pruned"], "the lost candidate is judged"
    box.assert_clean(serving=True)
    assert box.serving_argv() == [box.argv]
