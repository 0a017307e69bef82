"""A resumed study takes its secured box over before its first step: the lock is its own again, and the guard hears from it."""

from __future__ import annotations

import asyncio
from typing import Any

from optimizer.box.results import GuardFiring, GuardInfo, GuardStatus
from optimizer.knowledge.library import Library
from optimizer.model.entry import GENESIS, Entry, EntryKind
from optimizer.model.outcome import Done, Failed
from optimizer.model.step import Stop
from optimizer.model.study import HostSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.runner.execute import LiveExecutor


class FakeBox:
    """Remembers what it was asked, in order."""

    name = "box"

    def __init__(self, fired: bool = False) -> None:
        self.calls: list[str] = []
        self.epoch = 1
        self.fired = fired

    async def lock(self, study: str) -> None:
        self.calls.append("lock")

    async def guard_status(self, study: str) -> GuardStatus:
        self.calls.append("guard_status")
        if self.fired:
            fired = GuardFiring(reason="silent", epoch=3, clean=True, restored=True, message="")
            return GuardStatus(guard=None, fired=fired, fenced_epoch=3, recorded=True)
        guard = GuardInfo(pid=7, start_time=8, boot_id="b", epoch=3, minutes=15.0, original=None)
        return GuardStatus(guard=guard, fired=None, fenced_epoch=None, recorded=True)

    async def heartbeat(self, study: str, beat: int) -> bool:
        self.calls.append("heartbeat")
        return True

    async def sweep(self, prefix: str) -> Any:
        self.calls.append("sweep")
        return Swept()

    async def close(self) -> None:
        self.calls.append("close")


class Swept:
    clean, swept, remaining = True, (), ()


def _entry(seq: int, body: dict[str, Any]) -> Entry:
    return Entry(seq=seq, at_utc="", epoch=1, kind=EntryKind.OUTCOME, key=str(seq), cause=None, body=body, prev=GENESIS, hash=GENESIS)


def _secured(armed: bool = True) -> Entry:
    body = {"armed": True, "epoch": 3} if armed else {"armed": False}
    return _entry(5, {"step": "secure", "outcome": Done(body=body).model_dump(mode="json")})


def _executor(box: FakeBox, *entries: Entry) -> LiveExecutor:
    spec = StudySpec(study="s", host=HostSpec(name="box", kind="local"), target=Target(), workload=Workload())
    executor = LiveExecutor(box, spec, Library.model_construct())  # type: ignore[arg-type]
    executor.remember(entries, lambda digest: b"")
    executor.session.context = object()  # type: ignore[assignment]
    return executor


async def test_the_lock_comes_first_and_the_guard_is_fed() -> None:
    box = FakeBox()
    executor = _executor(box, _secured())
    effect = await executor.reconcile(Stop(key="9", launch="8"))
    await asyncio.sleep(0.05)
    assert isinstance(effect.outcome, Done)
    assert box.calls[:3] == ["lock", "guard_status", "sweep"] and "heartbeat" in box.calls
    assert box.epoch == 3
    await executor.execute(Stop(key="10", launch="8"))
    assert box.calls.count("lock") == 1, "once is enough"
    await executor.close()


async def test_a_guard_that_fired_meanwhile_ends_the_study() -> None:
    box = FakeBox(fired=True)
    told: list[str] = []
    executor = _executor(box, _secured())
    executor.guard_lost = told.append
    effect = await executor.execute(Stop(key="9", launch="8"))
    assert isinstance(effect.outcome, Failed) and effect.outcome.cause == "guard_fired"
    assert told and "sweep" not in box.calls
    await executor.close()


async def test_a_box_that_was_given_back_is_not_taken_again() -> None:
    box = FakeBox()
    executor = _executor(box, _secured(), _secured(armed=False))
    await executor.execute(Stop(key="9", launch="8"))
    assert "lock" not in box.calls
    await executor.close()
