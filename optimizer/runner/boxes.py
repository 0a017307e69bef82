"""The loop for several boxes: one coordinator and one journal, and for every box at most one step under way. What is decided, and in which
order, is a function of the journal; only which of the running steps ends first is the boxes' affair."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from optimizer.core.decide import decide_boxes
from optimizer.core.decision import Conclude, Finished, OnBox, Waiting
from optimizer.core.plan import Plan
from optimizer.core.state import State, apply, fold
from optimizer.core.turns import MAX_UNKNOWN
from optimizer.crashpoint import crash_point
from optimizer.model.outcome import Failed, Unknown
from optimizer.model.step import Secure, Step
from optimizer.runner.base import Effect, EntryLog, Executor
from optimizer.runner.loop import StopRequest, Watch

# Before each attempt to find out how a step ended: the others work meanwhile, so that a link has time to come back.
PATIENCE_S = (0.0, 5.0, 25.0)


class BoxesStop(StopRequest):
    """A stop request that can also be about one box: its guard has fired, and the others go on."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes: dict[str, tuple[str, str]] = {}  # box -> (reason, ending), until it is journalled
        self.woken = asyncio.Event()
        self.hurried = False
        self.on_hurry: Callable[[], Awaitable[None]] | None = None

    def ask(self, reason: str, ending: str = "interrupted") -> None:
        if self.reason is None:
            self.reason, self.ending = reason, ending
        self.woken.set()

    def ask_box(self, box: str, reason: str, ending: str = "guard_fired") -> None:
        self.boxes[box] = (reason, ending)
        self.woken.set()

    def hurry(self) -> None:
        """Asked a second time: what runs is broken off, and the guards restore their boxes without us."""
        self.hurried = True
        self.woken.set()


class AbsentBox:
    """Stands in for a box that could not be reached when the study was resumed: every step on it stays unknown."""

    def __init__(self, why: str) -> None:
        self.why = why

    async def execute(self, step: Step) -> Effect:
        return Effect(Unknown(reason=self.why))

    async def reconcile(self, step: Step) -> Effect:
        return Effect(Unknown(reason=self.why))


async def drive_boxes(
    log: EntryLog, executors: Mapping[str, Executor], plan: Plan, *, stop: BoxesStop | None = None, watch: Watch | None = None,
    patience_s: Sequence[float] = PATIENCE_S,
) -> State:  # fmt: skip
    """Run the study in ``log`` to its end, each box by its executor, and return the final state. Raises what an executor raises
    (NeedsOperator, or a defect) after every other running step was broken off; its intent then stays open for ``resume``."""
    boxes = _Boxes(log, executors, plan, stop or BoxesStop(), watch, patience_s)
    try:
        return await boxes.drive()
    finally:
        await boxes.end()


async def _after(pause_s: float, work: Callable[[Step], Awaitable[Effect]], step: Step) -> Effect:
    await asyncio.sleep(pause_s)
    return await work(step)


class _Boxes:
    def __init__(self, log: EntryLog, executors: Mapping[str, Executor], plan: Plan, stop: BoxesStop, watch: Watch | None,
                 patience_s: Sequence[float]) -> None:  # fmt: skip
        self.log, self.executors, self.plan, self.stop, self.watch = log, executors, plan, stop, watch
        self.patience_s = patience_s
        self.state = fold(log.read())
        self.running: dict[str, asyncio.Task[Effect]] = {}
        self.closing_since: dict[str, bool] = {}  # whether the running step of a box began while it was closing

    def append(self, kind: str, body: Mapping[str, Any], **more: Any) -> None:
        entry = self.log.append(kind, body, expect=self.state.seq, **more)
        self.state = apply(self.state, entry)
        if self.watch is not None:
            self.watch(self.state, entry)

    async def drive(self) -> State:
        for name, part in self.state.boxes.items():  # whoever resumes has looked at the boxes
            if self.state.closed is None and (part.lost or (part.open is not None and part.open_failures >= MAX_UNKNOWN)):
                self.append("note", {"back": True, "text": "Tried again: the study was resumed.", "box": name})
        while True:
            if self.stop.hurried:
                self.stop.hurried = False
                await self.end()
                if self.stop.on_hurry is not None:
                    await self.stop.on_hurry()
            if self._asked():
                continue
            self._settle()
            decision = decide_boxes(self.state, self.plan)
            match decision:
                case Finished():
                    return self.state
                case Conclude():
                    self.append(decision.kind, decision.body, cause=decision.cause)
                case OnBox():
                    self._begin(decision)
                case Waiting():
                    await self._one_ends()

    def _asked(self) -> bool:
        """Journal what somebody asked for; whether there was anything."""
        self.stop.woken.clear()
        if self.stop.reason is not None and self.state.closing is None:
            self.append("note", {"stop": self.stop.ending, "text": self.stop.reason})
            return True
        while self.stop.boxes:
            name, (why, ending) = self.stop.boxes.popitem()
            if self.state.boxes[name].closing is None:
                self.append("note", {"stop": ending, "text": why, "box": name})
                return True
        return False

    def _settle(self) -> None:
        """Intents without an outcome and without a running step: we died in between, or the link did. And steps that nobody needs any
        more are broken off: taking a box and giving it back are not, half done it would be neither ours nor free."""
        for name, part in self.state.boxes.items():
            if part.open is not None and name not in self.running and not part.lost and part.open_failures < MAX_UNKNOWN:
                waits = part.closing is None and not isinstance(self.executors[name], AbsentBox)
                pause_s = self.patience_s[min(part.open_failures, len(self.patience_s) - 1)] if waits else 0.0
                self._start(name, _after(pause_s, self.executors[name].reconcile, part.open))
            task = self.running.get(name)
            unneeded = part.closing is not None and not self.closing_since.get(name) and not isinstance(part.open, Secure)
            if task is not None and unneeded and not task.cancelling():  # once: what it does to end in order is not broken off too
                task.cancel()

    def _begin(self, decision: OnBox) -> None:
        step = decision.step
        crash_point("loop.before_intent")
        self.append("intent", {"step": step.model_dump(mode="json"), "box": decision.box}, key=step.key)
        crash_point("loop.after_intent")
        self._start(decision.box, self.executors[decision.box].execute(step))

    def _start(self, name: str, work: Coroutine[Any, Any, Effect]) -> None:
        self.closing_since[name] = self.state.boxes[name].closing is not None
        self.running[name] = asyncio.ensure_future(work)

    async def _one_ends(self) -> None:
        """Wait until a step ends, or somebody asks for something; journal at most one outcome, so that what follows from it is decided
        before the next."""
        woken = asyncio.ensure_future(self.stop.woken.wait())
        try:
            await asyncio.wait({woken, *self.running.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        for name, task in self.running.items():
            if task.done():
                del self.running[name]
                self._record(name, task)
                return

    def _record(self, name: str, task: asyncio.Task[Effect]) -> None:
        part = self.state.boxes[name]
        assert part.open is not None
        if task.cancelled():
            why = part.closing.reason if part.closing is not None else "broken off"
            effect = Effect(Failed(cause="interrupted", message=why, retryable=True, body={"spawned": True}))
        else:
            effect = task.result()
        crash_point("loop.after_effect")
        body = {"step": part.open.kind, "outcome": effect.outcome.model_dump(mode="json"), "box": name}
        self.append("outcome", body, key=part.open.key, blobs=effect.blobs)
        crash_point("loop.after_outcome")

    async def end(self) -> None:
        """Break everything off; the intents stay open, and whoever goes on finds out how they ended."""
        for task in self.running.values():
            task.cancel()
        await asyncio.gather(*self.running.values(), return_exceptions=True)
        self.running.clear()
