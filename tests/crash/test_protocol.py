"""Dying at every point of the journal protocol, and again at every point of the recovery, against a box in memory that insists
on what must never happen: two servers, a key launched twice, a change before the guard, an effect without its intent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from optimizer.core.state import State
from optimizer.model.entry import EntryKind
from optimizer.model.step import ORIGINAL, Step
from optimizer.runner import loop
from optimizer.runner.base import Effect
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, verify
from tests.unit.core.model_box import PLAN, ModelBox, spec

EAGER_AND_CAPPED = {"disable_cuda_graph": True, "max_running_requests": 4}


class Died(BaseException):
    """SIGKILL, as far as one process can play it: nobody may catch it."""


class Death:
    """Comes at the passage of point number ``at``; afterwards at the next number, if there is one."""

    def __init__(self, at: Sequence[int]) -> None:
        self.at = list(at)
        self.passed: list[str] = []
        self.count = 0

    def point(self, name: str) -> None:
        self.count += 1
        self.passed.append(name)
        if self.at and self.count == self.at[0]:
            self.at.pop(0)
            self.count = 0
            raise Died(name)


class DyingLog(MemoryLog):
    """An append is atomic: a death leaves the entry whole or not at all. What is read again is what was committed."""

    death: Death

    def append(self, kind: str, body: Any, **more: Any) -> Any:
        self.death.point("journal.append.before_commit")
        entry = super().append(kind, body, **more)
        self.death.point("journal.append.after_commit")
        return entry


class Watched(ModelBox):
    """A death may also come right before and right after what a step does to the box."""

    def __init__(self, log: DyingLog, **more: Any) -> None:
        super().__init__(EAGER_AND_CAPPED, speed, noise=0.0005, **more)
        self.log = log

    async def execute(self, step: Step) -> Effect:
        open_intent = [entry for entry in self.log.read() if entry.kind in (EntryKind.INTENT, EntryKind.OUTCOME)][-1]
        assert open_intent.kind == EntryKind.INTENT and open_intent.key == step.key, "an effect without its durable intent"
        return await super().execute(step)

    def _do(self, step: Step) -> Any:
        self.log.death.point(f"box.{step.kind}.before")
        outcome = super()._do(step)
        self.log.death.point(f"box.{step.kind}.after")
        return outcome


def speed(values: Any) -> float:
    rate = 1200.0 / (3 if values.get("disable_cuda_graph") else 1)
    cap = values.get("max_running_requests")
    return rate * cap / 16 if isinstance(cap, int) and cap < 16 else rate


def study(deaths: Sequence[int], monkeypatch: pytest.MonkeyPatch, *, original: bool) -> tuple[State, Death, Watched]:
    log, death = DyingLog(), Death(deaths)
    log.death = Death(())
    log.append("opened", {"spec": spec(finish="restore").plain()}, expect=0)
    log.death = death
    monkeypatch.setattr(loop, "crash_point", death.point)
    box = Watched(log, original=original)
    for _ in range(len(deaths) + 1):
        try:
            state = asyncio.run(drive(log, box, PLAN))
        except Died:
            # The next coordinator says so in the journal, as the lease does: every later number shifts.
            log.death = Death(())
            log.append("lease_taken", {"epoch": 2}, expect=log.read()[-1].seq)
            log.death = death
        else:
            return state, death, box
    raise AssertionError("it died more often than it was told to")


def outcome_of(state: State) -> Any:
    assert state.closed is not None
    return state.closed["ending"], state.promoted, state.closed["launches"], state.closed["launches_baseline"], state.closing_failures


def check(state: State, box: Watched, *, original: bool, expected: Any) -> None:
    assert outcome_of(state) == expected
    assert set(box.running) == ({ORIGINAL} if original else set())
    assert not box.armed
    intents = {entry.key for entry in box.log.read() if entry.kind == EntryKind.INTENT and entry.body["step"]["kind"] == "launch"}
    assert set(box.launched) <= intents and len(set(box.launched)) == len(box.launched)
    assert verify(box.log.read(), lambda seq: PLAN).mismatches == ()


@pytest.mark.parametrize("original", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_single_death(original: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    state, undisturbed, _ = study((), monkeypatch, original=original)
    expected = outcome_of(state)
    assert expected[0] == "met" and len(expected[1]) == 2
    kinds = {name.split(".")[1] for name in undisturbed.passed if name.startswith("box.")}
    assert kinds >= {"observe", "secure", "calibrate", "launch", "await_ready", "measure", "stop"} | ({"restore"} if original else set())
    assert undisturbed.count >= 150
    for k in range(1, undisturbed.count + 1):
        ended, _, box = study((k,), monkeypatch, original=original)
        check(ended, box, original=original, expected=expected)


def test_dying_again_while_recovering(monkeypatch: pytest.MonkeyPatch) -> None:
    state, undisturbed, _ = study((), monkeypatch, original=True)
    rng = random.Random(7)
    for _ in range(60):
        deaths = (rng.randint(1, undisturbed.count), rng.randint(1, 12))
        ended, _, box = study(deaths, monkeypatch, original=True)
        check(ended, box, original=True, expected=outcome_of(state))


@pytest.mark.slow
def test_three_hundred_deaths_while_recovering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs drawn over the whole study and the whole recovery, and studies that die again and again."""
    state, undisturbed, _ = study((), monkeypatch, original=True)
    expected, rng = outcome_of(state), random.Random(11)
    pairs = {(rng.randint(1, undisturbed.count), rng.randint(1, undisturbed.count // 2)) for _ in range(400)}
    for deaths in sorted(pairs)[:300]:
        ended, _, box = study(deaths, monkeypatch, original=True)
        check(ended, box, original=True, expected=expected)
    for _ in range(40):
        deaths = tuple(rng.randint(1, 30) for _ in range(8))
        ended, _, box = study(deaths, monkeypatch, original=True)
        check(ended, box, original=True, expected=expected)
