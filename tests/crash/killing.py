"""Whole studies whose coordinator dies by SIGKILL and is resumed: for the crash tests, and for the long sweeps, which run where no
pytest is."""

from __future__ import annotations

import contextlib
import random
import subprocess
from collections.abc import Iterator

from optimizer.journal.files import is_unfinished
from tests.e2e.fastbox import Done, FastBox, check_ledger, entries

PROMOTED = [{"disable_cuda_graph": None, "disable_decode_cuda_graph": None}]
MET = ("met", PROMOTED)


def killed(box: FastBox, words: list[str], point: str) -> bool:
    """Runs the tool until it dies at ``point``; False when it ended before."""
    done = box(*words, OPTIMIZER_CRASH_AT=point)
    if done.exit == -9:
        return True
    assert done.exit in (0, 3), f"at {point}: exit {done.exit}\n{done.err}"
    return False


def finished(box: FastBox, study: str, decision: tuple[str, list[object]] = MET) -> Done:
    """Resumed to its end, everything is as if nobody had died."""
    done = box("resume", study, "--json")
    assert done.decision == decision, done.err
    box.assert_clean()
    check_ledger(box, study)
    told = entries(box.runs / study)  # each intent at most once, and its outcome after it: the store has looked
    assert told[-1].kind == "closed"
    settled = {entry.key for entry in told if entry.kind == "outcome" and entry.body["outcome"]["status"] != "unknown"}
    assert settled == {entry.key for entry in told if entry.kind == "intent"}, "an intent without its outcome"
    again = box("replay", study, "--verify", "--json")
    assert again.json["identical"], again.out
    for name in ("report.md", "launch.sh", "env.sh"):
        assert (box.runs / study / name).exists(), f"{name} is missing"
    assert "--disable-cuda-graph" not in (box.runs / study / "launch.sh").read_text().split("exec", 1)[-1]
    return done


def random_gaps(seed: int) -> Iterator[int]:
    """Points from one death to the next: far, so that the study gets on, then soon, in the midst of recovering, by turns."""
    rng = random.Random(seed)
    yield rng.randint(8, 60)  # before that there is no study that could be resumed, see below
    while True:
        yield rng.randint(2, 14)
        yield rng.randint(70, 110)


def begun(box: FastBox, study: str) -> bool:
    """Whether there is a study to be resumed: a file whose creation was cut holds none, and is taken over by the next one."""
    path = box.runs / study / "journal.db"
    return path.exists() and not is_unfinished(path) and bool(entries(path.parent))


def kill_at_random(box: FastBox, study: str, gaps: Iterator[int]) -> int:
    words, deaths = box.study(study, "--finish", "restore"), 0
    while killed(box, words, f"*:{next(gaps)}"):
        deaths += 1
        assert deaths < 40, "the study does not get on"
        if begun(box, study):
            words = ["resume", study, "--json"]
    return deaths


def random_moments(seed: int) -> Iterator[float]:
    """Seconds from the start of a coordinator to its death, soon and late by turns; the late ones grow, so that the study gets on wherever."""
    rng, late_s = random.Random(seed), 4.0
    while True:
        yield rng.uniform(0.0, 1.5)
        yield rng.uniform(1.0, late_s)
        late_s *= 1.25


def kill_at_moments(box: FastBox, study: str, moments: Iterator[float]) -> int:
    """Killed from outside, wherever it happens to be, until one lives to the end of the study."""
    words, deaths = box.study(study, "--finish", "restore"), 0
    while True:
        process = box.start(*words)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(next(moments))
        process.kill()
        done = box.finish(process)
        if done.exit != -9:
            assert done.exit in (0, 3), f"exit {done.exit}\n{done.err}"
            return deaths
        deaths += 1
        assert deaths < 40, "the study does not get on"
        if begun(box, study):
            words = ["resume", study, "--json"]
