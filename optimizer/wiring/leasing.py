"""Holds on to a lease that can be lost while a study runs: the database session that carries it is asked all the while. Who has lost
it stops acting at once; the guard on the box, and whoever took the study over, do the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from optimizer.errors import StoreLost
from optimizer.journal import Journal

HEARTBEAT_S = 5.0
# More than a confirmation takes that finds its connection dead and makes another; less than a successor waits.
CONFIRM_S = 25.0

T = TypeVar("T")


class Stoppable(Protocol):
    reason: str | None

    def ask(self, reason: str, ending: str = "interrupted") -> None: ...


async def held(journal: Journal, work: Coroutine[Any, Any, T], stop: Stoppable, *, heartbeat_s: float | None = None) -> T:
    """Await ``work`` as long as the lease is held. Raises AnotherWriter or StoreLost when it is not, after ``work`` was cancelled
    wherever it was: nothing more is written, and nothing more is done to the box."""
    if not journal.lease_can_be_lost:
        return await work
    task = asyncio.ensure_future(work)
    beat = asyncio.ensure_future(_confirming(journal, stop, HEARTBEAT_S if heartbeat_s is None else heartbeat_s))
    try:
        await asyncio.wait((task, beat), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        beat.result()  # raises: it ends no other way
        raise AssertionError("a heartbeat ended by itself")
    finally:
        for one in (beat, task):
            one.cancel()
        await asyncio.gather(beat, task, return_exceptions=True)


async def _confirming(journal: Journal, stop: Stoppable, heartbeat_s: float) -> None:
    while True:
        await asyncio.sleep(heartbeat_s)
        try:
            asked = await asyncio.wait_for(asyncio.to_thread(journal.confirm_lease), CONFIRM_S)
        except TimeoutError:
            if journal.unconfirmed_s < CONFIRM_S:  # an append had the connection, and has confirmed it
                continue
            raise StoreLost(
                f"The database did not confirm within {CONFIRM_S:.0f} s that this process still holds {journal.where}.",
                why="Another one may have taken the study over, so nothing more is done.",
                hint="When it answers again, `optimize resume` goes on.",
            ) from None
        if asked and stop.reason is None:
            stop.ask("Stopped by `optimize stop`.")
