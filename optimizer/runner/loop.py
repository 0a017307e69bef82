"""The loop that drives everything: decide, journal the intent, execute, journal the outcome. Everything that happened
is in the journal before anything else happens, so that dying at any line loses at most the window being measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from optimizer.core.decide import Conclude, Finished, decide
from optimizer.core.plan import Plan
from optimizer.core.state import State, apply, fold
from optimizer.crashpoint import crash_point
from optimizer.errors import Interrupted, NeedsOperator
from optimizer.model.entry import Entry
from optimizer.model.outcome import Failed
from optimizer.model.step import Secure, Step, server_seconds
from optimizer.runner.base import Effect, EntryLog, Executor

MAX_UNKNOWN = 3  # reconciliations of one intent before a person is asked

Watch = Callable[[State, Entry], None]
T = TypeVar("T")


class Hurried(Exception):
    """A closing step was broken off because somebody would not wait for it."""


class StopRequest:
    """How a signal reaches the loop. Asked once, the running step is cancelled, its outcome journalled, then the study closes. Hurried,
    the closing step is broken off too and ``on_hurry`` is called, which has the box restored without us."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.ending = "interrupted"
        self.hurried = False
        self.on_hurry: Callable[[], Awaitable[None]] | None = None
        self.asked_by: Callable[[], str] = lambda: ""  # who asked through a signal, where a signal does not say it itself
        self._task: asyncio.Future[Any] | None = None
        self._closing = False  # the running step closes the study: only hurry breaks it off

    def ask(self, reason: str, ending: str = "interrupted") -> None:
        self.reason, self.ending = reason, ending
        if self._task is not None and not self._closing:
            self._task.cancel()

    def hurry(self) -> None:
        """Somebody asked a second time."""
        self.hurried = True
        if self._task is not None:
            self._task.cancel()

    async def guard(self, work: Awaitable[Effect], step: Step, state: State) -> Effect:
        """Await ``work``, which does ``step``; a stop request turns it into Failed(interrupted), with the time that it took until then.
        Of a step that closes the study only hurry does, by raising Hurried; taking the box and giving it back are never interrupted:
        half done they would leave it neither ours nor free."""
        if isinstance(step, Secure):
            return await work
        closing, began = state.closing is not None, time.monotonic()
        task: asyncio.Future[Effect] = asyncio.ensure_future(work)
        self._task, self._closing = task, closing
        if self.reason is not None and not closing:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if closing and self.hurried:
                raise Hurried from None
            if closing or self.reason is None:
                raise
            scale = state.spec.time_scale if state.spec is not None else 1.0
            took_s = server_seconds(step, time.monotonic() - began, scale)
            return Effect(Failed(cause="interrupted", message=self.reason, retryable=True, body={"spawned": True}, duration_s=took_s))
        finally:
            self._task = None

    async def before_opening(self, work: Coroutine[Any, Any, T], said: str) -> T:
        """Await what is done before there is anything to close. Asked to stop, it raises Interrupted, which ends with ``said``."""
        task = asyncio.ensure_future(work)
        self._task, self._closing = task, False
        try:
            found = await task
        except asyncio.CancelledError:
            if self.reason is None:
                raise
        finally:
            self._task = None
        if self.reason is not None:
            raise Interrupted(self.reason, why=said)
        return found

    async def hurry_on(self) -> None:
        """Do what hurry asks for, once. May raise NeedsOperator; asked again meanwhile, it is broken off and the loop goes on closing."""
        self.hurried = False
        if self.on_hurry is None:
            return
        self._task, self._closing = asyncio.ensure_future(self.on_hurry()), True
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.hurried:
                raise
        finally:
            self._task = None


async def drive(log: EntryLog, executor: Executor, plan: Plan, *, stop: StopRequest | None = None, watch: Watch | None = None) -> State:
    """Run the study in ``log`` to its end and return the final state.

    Raises NeedsOperator after three reconciliations of one intent gave no answer, JournalError when the journal refuses."""
    stop = stop or StopRequest()
    state = fold(log.read())
    inherited = state.open_failures  # attempts of processes before this one: whoever resumes has looked at the box, and gets new ones

    def append(kind: str, body: Mapping[str, Any], **more: Any) -> None:
        nonlocal state
        entry = log.append(kind, body, expect=state.seq, **more)
        state = apply(state, entry)
        if watch is not None:
            watch(state, entry)

    while True:
        if stop.hurried:
            await stop.hurry_on()
            continue
        if state.open is not None:
            with suppress(Hurried):  # then the intent stays open: whoever goes on finds out how it ended
                await _settle(state.open, state, executor, append, stop, attempts=state.open_failures - inherited)
            continue
        inherited = 0
        if stop.reason is not None and state.closing is None and state.spec is not None:
            append("note", {"stop": stop.ending, "text": stop.reason})
            continue
        decision = decide(state, plan)
        match decision:
            case Finished():
                return state
            case Conclude():
                append(decision.kind, decision.body, cause=decision.cause)
            case _:
                crash_point("loop.before_intent")
                append("intent", {"step": decision.model_dump(mode="json")}, key=decision.key)
                crash_point("loop.after_intent")
                try:
                    effect = await stop.guard(executor.execute(decision), decision, state)
                except Hurried:
                    continue
                crash_point("loop.after_effect")
                _record(decision, effect, append)
                crash_point("loop.after_outcome")


async def _settle(step: Step, state: State, executor: Executor, append: Callable[..., None], stop: StopRequest, *, attempts: int) -> None:
    """An intent without an outcome: we died in between, or the link did. Only reconciliation may say how it ended."""
    if attempts >= MAX_UNKNOWN:
        raise NeedsOperator(
            f"How the step '{step.kind}' ({step.key}) ended could not be found out in {MAX_UNKNOWN} attempts.",
            hint="Check the box, then run `optimize resume` again, or `optimize restore --host …` to bring the original server back.",
        )
    effect = await stop.guard(executor.reconcile(step), step, state)
    _record(step, effect, append)


def _record(step: Step, effect: Effect, append: Callable[..., None]) -> None:
    """An unknown outcome leaves its intent open: the journal takes any number of them before the one that settles it."""
    append("outcome", {"step": step.kind, "outcome": effect.outcome.model_dump(mode="json")}, key=step.key, blobs=effect.blobs)
