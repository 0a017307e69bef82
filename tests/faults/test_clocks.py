"""The clock of the day is set in mid-study, on the client and on the box at once, and a laptop sleeps: the study decides as ever."""

from __future__ import annotations

import itertools
import os
import signal
from datetime import datetime
from pathlib import Path

import pytest

from tests.clocks import SetClock
from tests.e2e.fastbox import FastBox, check_ledger, entries, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HOUR_S = 3600.0


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    (tmp_path / "clock").mkdir()
    return SetClock(tmp_path / "clock")


@pytest.mark.fault("F38", "F39")
def test_a_study_under_a_clock_that_is_set_twice(box: FastBox, clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour forward when the original is stopped, two hours back when the candidate loads, and three seconds of sleep in between."""
    box.serve()
    command = box.command
    monkeypatch.setattr(box, "command", lambda *words: [clock.python, *command(*words)[1:]])
    process = box.start(*box.study("stepped", "--finish", "restore", launch=False))

    def told(text: str) -> None:
        wait_until(lambda: text in box.told(process) or process.poll() is not None, 90, text)
        assert process.poll() is None, box.told(process)

    told("Stopping the original server")
    clock.step(HOUR_S)
    told("(candidate): ")
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: "State:\tT" in Path(f"/proc/{process.pid}/status").read_text(), 10, "it sleeps")
    clock.sleep(3.0)
    os.kill(process.pid, signal.SIGCONT)
    clock.step(-HOUR_S)
    done = box.finish(process)
    assert done.exit == 0, done.err
    assert done.json["ending"] == "met" and done.json["promoted"] == [{"disable_cuda_graph": None, "disable_decode_cuda_graph": None}]
    assert done.json["minutes"] < 30, "an hour that nobody waited was counted"
    box.assert_clean(serving=True)
    monkeypatch.undo()
    check_ledger(box, "stepped")
    times = [datetime.fromisoformat(entry.at_utc).timestamp() for entry in entries(box.runs / "stepped")]
    jumps = [after - before for before, after in itertools.pairwise(times)]
    assert max(jumps) > HOUR_S * 0.9 and min(jumps) < -HOUR_S * 1.9, "the clocks were not set"
    assert box("replay", "stepped", "--verify", "--json").json["identical"]
    for words in (("report", "stepped"), ("journal", "stepped"), ("studies",)):
        assert "Traceback" not in box(*words).err
