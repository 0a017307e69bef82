"""The journal refuses in mid-study: who reads the error learns how each box stands. With a real guard on a scratch box."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.core.closing import what_runs
from optimizer.core.state import Server, State, apply
from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError
from optimizer.knowledge.library import Library
from optimizer.model.entry import GENESIS, Entry, EntryKind
from optimizer.model.outcome import Done
from optimizer.model.settings import Settings
from optimizer.model.step import Secure
from optimizer.model.study import HostSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.report.prose import sentence
from optimizer.runner.execute import LiveExecutor
from optimizer.wiring.leaving import tell_of_boxes
from tests.unit.box.conftest import alive, box, home, make_box, until

__all__ = ["box", "home", "make_box"]


@pytest.fixture
def executor(box: Box) -> LiveExecutor:
    spec = StudySpec(study="s1", host=HostSpec(name="gpu3", kind="ssh"), target=Target(), workload=Workload())
    return LiveExecutor(box, spec, Library.model_construct())


async def guarded(box: Box) -> int:
    await box.lock("s1")
    return (await box.secure("s1", None, poll_s=0.05)).pid


@pytest.mark.fault("F41")
async def test_a_journal_that_is_gone_has_the_guard_act_at_once(box: Box, executor: LiveExecutor) -> None:
    guard = await guarded(box)
    launched = await box.launch("s1", "1", ["sleep", "600"])
    error = JournalCorrupt("journal.db was deleted.", why="Nobody would see it.", hint="Put it back.")
    await tell_of_boxes(error, [executor])
    message, why, hint = error.parts
    assert message == "journal.db was deleted." and why.startswith("Nobody would see it. The guard on gpu3 was told to act: it takes our server down")
    assert hint == "Put it back. `optimize restore --host gpu3` says when it has."
    await until(lambda: not alive(guard) and not alive(launched.pid), 60)


@pytest.mark.parametrize("kind", [JournalError, AnotherWriter])
async def test_a_study_that_can_go_on_keeps_its_launch(box: Box, executor: LiveExecutor, kind: Callable[..., Any]) -> None:
    """No room on this machine's disk is told with the way out; of a box that another one drives by now nothing is said."""
    guard = await guarded(box)
    error = kind("No space left.", hint="Free some.")
    matters = error.parts[1]
    await tell_of_boxes(error, [executor])
    told = f"{matters} On gpu3 the launch that runs goes on; the guard there takes our server down when it has heard nothing for 15 minutes."
    way_out = "Free some. Until then the study can go on there; `optimize restore --host gpu3` does it now."
    assert error.parts[1:] == ((told, way_out) if kind is JournalError else (matters, "Free some."))
    await asyncio.sleep(0.2)
    assert alive(guard)
    await box.disarm("s1")


async def test_a_bug_of_ours_has_the_guard_act_at_once(box: Box, executor: LiveExecutor) -> None:
    guard = await guarded(box)
    error = ZeroDivisionError("oh")
    await tell_of_boxes(error, [executor])
    assert error.__notes__ == ["The guard on gpu3 was told to act: it takes our server down, by itself, which may take as long as a start. "
                               "`optimize restore --host gpu3` says when it has."]  # fmt: skip
    await until(lambda: not alive(guard), 60)


async def test_nothing_is_said_of_a_box_without_a_guard(executor: LiveExecutor) -> None:
    error = JournalCorrupt("Gone.", why="Why.", hint="Put it back.")
    await tell_of_boxes(error, [executor])
    assert error.parts == ("Gone.", "Why.", "Put it back.")


async def test_a_server_that_was_to_be_left_is_gone_where_the_guard_was_quicker(box: Box, executor: LiveExecutor) -> None:
    """`--finish leave`, nobody drives the study for too long, then it is stopped: the box is given back, and no launch is said to run."""
    guard = await guarded(box)
    launched = await box.launch("s1", "1", ["sleep", "600"])
    await box.fire("s1")
    await until(lambda: not alive(guard) and not alive(launched.pid), 60)
    step = Secure(key="2", op="disarm", keep="1")
    outcome = (await executor.execute(step)).outcome
    assert isinstance(outcome, Done) and outcome.body == {"armed": False, "guard_restored": True}, outcome
    assert await box.holder() is None and not await box.left_by("s1")
    server = Server(key="1", settings=Settings(), purpose="candidate", port=1, served_name=None)
    state = State(spec=executor.spec, server=server, original_found=True, armed=True, open=step, seq=1)
    body = {"step": "secure", "outcome": outcome.model_dump(mode="json")}
    entry = Entry(seq=2, at_utc="", epoch=1, kind=EntryKind.OUTCOME, key="2", cause=None, body=body, prev=GENESIS, hash=GENESIS)
    assert what_runs(apply(state, entry)) == "The original server runs on gpu3."
    assert sentence(entry).startswith("The guard had fired: it took our server down and brought back what was there before.")
