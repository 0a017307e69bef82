"""A study that breaks off, as it cannot be written down any more or for a bug of ours, leaves its boxes in the middle of a launch: their guards bring the originals back, and
whoever reads the error learns by when, and how to have it now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from optimizer.errors import AnotherWriter, BoxError, JournalCorrupt, JournalError, OptimizerError, StoreLost
from optimizer.runner.execute import LiveExecutor


async def tell_of_boxes(error: Exception, executors: Iterable[LiveExecutor]) -> None:
    """Adds to ``error`` how each box stands that this process held. Where no process can go on with the study, as its journal is gone or
    damaged, or would break off again, the guard is told to restore its box at once; where only room is missing it is resumed, on the
    launch that runs. Nothing is done to a box that another process may be driving by now, and nothing is added to an error that says it."""
    if isinstance(error, AnotherWriter | StoreLost) or (isinstance(error, OptimizerError) and not isinstance(error, JournalError)):
        return
    over = isinstance(error, JournalCorrupt) or not isinstance(error, JournalError | OSError)
    said = await asyncio.gather(*(_left(executor, over) for executor in executors))
    if not isinstance(error, JournalError):
        if any(how for how, _ in said):
            error.add_note(" ".join(text for told in said for text in told if text))
        return
    matters, todo = error.parts[1:]
    error.why = " ".join([matters, *(how for how, _ in said if how)])
    error.hint = " ".join([todo, *(what for _, what in said if what)])


async def _left(executor: LiveExecutor, over: bool) -> tuple[str, str]:
    """How the box stands, and what can be done about it; nothing where no guard holds it."""
    spec, name = executor.spec, executor.spec.host.name
    original = executor.session.context is not None and executor.session.known.original is not None
    back = "takes our server down and brings the original back" if original else "takes our server down"
    now = f"`optimize restore --host {name}` does it now." if spec.host.kind != "sim" else f"`optimize stop {spec.study}` does it now."
    try:
        if (await executor.box.guard_status(spec.study)).guard is None:
            return "", ""
        if over:
            await executor.box.fire(spec.study)
            return f"The guard on {name} was told to act: it {back}, by itself, which may take as long as a start.", f"`optimize {'restore' if spec.host.kind != 'sim' else 'doctor'} --host {name}` says when it has."
    except BoxError:
        pass  # it is out of reach, too: its guard acts when it has heard nothing for long enough
    return f"On {name} the launch that runs goes on; the guard there {back} when it has heard nothing for {spec.guard_minutes:g} minutes.", f"Until then the study can go on there; {now}"
