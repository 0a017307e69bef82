"""A study on several boxes driven again from its journal, without --verify: each box answers for itself, in the recorded order."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from optimizer.core.plan import Plan
from optimizer.core.state import State
from optimizer.model.entry import Entry
from optimizer.runner.recorded import MemoryLog, NotRecorded
from optimizer.runner.recorded_boxes import RecordedBoxes, drive_recorded
from tests.unit.core.many_boxes import Driver, several
from tests.unit.core.model_box import GRAPHS, PLAN
from tests.unit.core.test_boxes import boxes_of


def recorded(count: int, seed: int) -> tuple[Sequence[Entry], State]:
    driver = Driver(several(count), boxes_of(count), seed=seed)
    state = driver.run()
    return driver.log.read(), state


def again(entries: Sequence[Entry], plan: Plan = PLAN) -> tuple[MemoryLog, RecordedBoxes]:
    log, boxes = MemoryLog(), RecordedBoxes(entries)
    log.append("opened", entries[0].body, expect=0)
    asyncio.run(drive_recorded(log, boxes, plan))
    return log, boxes


@pytest.mark.parametrize(("count", "seed"), [(2, 1), (2, 2), (3, 3), (4, 4)])
def test_the_same_policy_gives_the_same_journal_entry_by_entry(count: int, seed: int) -> None:
    entries, state = recorded(count, seed)
    log, boxes = again(entries)
    assert boxes.not_recorded == []
    assert [(entry.kind, entry.body, entry.key, entry.cause) for entry in log.read()] == [(entry.kind, entry.body, entry.key, entry.cause) for entry in entries]
    assert state.closed is not None


def test_another_policy_meets_what_was_never_measured_and_says_so() -> None:
    entries, _ = recorded(2, 1)
    other = replace(PLAN, playbooks=tuple(book if book.id != GRAPHS.id else book.model_copy(update={"prior_db": -90.0}) for book in PLAN.playbooks))
    log, boxes = MemoryLog(), RecordedBoxes(entries)
    log.append("opened", entries[0].body, expect=0)
    try:
        asyncio.run(drive_recorded(log, boxes, other))
    except NotRecorded as error:
        assert boxes.not_recorded and boxes.not_recorded[0].split(":")[0] in ("a", "b")
        assert "Nothing is interpolated" in error.why
    assert [entry.body for entry in log.read()] != [entry.body for entry in entries]
