"""The loop that drives everything: decide, journal the intent, execute, journal the outcome. Everything that happened
is in the journal before anything else happens, so that dying at any line loses at most the window being measured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from optimizer.core.decide import Conclude, Finished, decide
from optimizer.core.plan import Plan
from optimizer.core.state import State, apply, fold
from optimizer.crashpoint import crash_point
from optimizer.errors import NeedsOperator
from optimizer.model.entry import Entry
from optimizer.model.outcome import Failed
from optimizer.model.step import Secure, Step
from optimizer.runner.base import Effect, EntryLog, Executor

MAX_UNKNOWN = 3  # reconciliations of one intent before a person is asked

Watch = Callable[[State, Entry], None]


class StopRequest:
    """How a signal reaches the loop: the running step is cancelled, its outcome journalled, then the study closes."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.ending = "interrupted"
        self._task: asyncio.Task[Effect] | None = None

    def ask(self, reason: str, ending: str = "interrupted") -> None:
        self.reason, self.ending = reason, ending
        if self._task is not None:
            self._task.cancel()

    async def guard(self, work: Awaitable[Effect], *, closing: bool) -> Effect:
        """Await ``work``; a stop request turns it into Failed(interrupted). Closing steps are never interrupted."""
        if closing:
            return await work
        self._task = asyncio.ensure_future(work)
        if self.reason is not None:
            self._task.cancel()
        try:
            return await self._task
        except asyncio.CancelledError:
            if self.reason is None:
                raise
            return Effect(Failed(cause="interrupted", message=self.reason, retryable=True, body={"spawned": True}))
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
        if state.open is not None:
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
                effect = await stop.guard(executor.execute(decision), closing=_must_finish(decision, state))
                crash_point("loop.after_effect")
                _record(decision, effect, append)
                crash_point("loop.after_outcome")


def _must_finish(step: Step, state: State) -> bool:
    """Steps that a stop request waits for: those that close the study, and taking the box, which is short: half taken it
    would be neither ours nor free."""
    return state.closing is not None or isinstance(step, Secure)


async def _settle(step: Step, state: State, executor: Executor, append: Callable[..., None], stop: StopRequest, *, attempts: int) -> None:
    """An intent without an outcome: we died in between, or the link did. Only reconciliation may say how it ended."""
    if attempts >= MAX_UNKNOWN:
        raise NeedsOperator(
            f"How the step '{step.kind}' ({step.key}) ended could not be found out in {MAX_UNKNOWN} attempts; nothing more was changed.",
            hint="Check the box, then run `optimize resume` again, or `optimize restore --host …` to bring the original server back.",
        )
    effect = await stop.guard(executor.reconcile(step), closing=_must_finish(step, state))
    _record(step, effect, append)


def _record(step: Step, effect: Effect, append: Callable[..., None]) -> None:
    """An unknown outcome leaves its intent open: the journal takes any number of them before the one that settles it."""
    append("outcome", {"step": step.kind, "outcome": effect.outcome.model_dump(mode="json")}, key=step.key, blobs=effect.blobs)
