"""A study on several boxes, put together: one journal, and for each box its own connection, executor and guard. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from optimizer import log, wiring
from optimizer.box.box import Box
from optimizer.core.plan import Plan
from optimizer.core.state import State
from optimizer.errors import Interrupted, OptimizerError, UsageError
from optimizer.journal import Journal
from optimizer.knowledge.library import Library
from optimizer.model.entry import Entry
from optimizer.model.study import BoxSpec, StudySpec
from optimizer.runner.base import Executor
from optimizer.runner.boxes import AbsentBox, BoxesStop, drive_boxes
from optimizer.runner.execute import LiveExecutor, knowledge_blob
from optimizer.runner.loop import Watch
from optimizer.runner.signals import interruptible
from optimizer.transport.local import LocalTransport
from optimizer.wiring import learning
from optimizer.wiring.leasing import held
from optimizer.wiring.leaving import tell_of_boxes

Said = Callable[[str], None]
MAX_BOXES = 16


def prepare(options: wiring.Options, roots: wiring.Roots) -> tuple[StudySpec, Path]:
    """The pinned spec and the study's folder. Raises UsageError for a box that is named twice, and all that one box may raise."""
    names = _named([options.host, *options.more_hosts])
    first = wiring.prepare(options, roots)
    boxes = [BoxSpec(name=names[0], host=first.spec.host, launch=first.spec.launch, port=first.spec.port)]
    consent = first.spec.consent
    for at, host in enumerate(options.more_hosts, start=1):
        there = replace(roots, runs=_runs_of(first.folder, at))
        other = wiring.prepare(replace(options, host=host, study=first.spec.study), there, prior_roots=roots).spec
        boxes.append(BoxSpec(name=names[at], host=other.host, launch=other.launch, port=other.port))
        consent = consent and other.consent
        if other.time_scale != first.spec.time_scale:
            raise UsageError(f"{host} has another clock than {options.host}.", hint="Give --time-scale, which then holds for all simulated boxes.")
    return first.spec.model_copy(update={"boxes": tuple(boxes), "consent": consent}), first.folder


def _named(hosts: Sequence[str]) -> list[str]:
    if len(hosts) > MAX_BOXES:
        raise UsageError(f"{len(hosts)} boxes are more than one study can keep apart.", hint=f"At most {MAX_BOXES}.")
    found: list[str] = []
    for host in hosts:
        again = sum(1 for one in found if one.partition("#")[0] == host)
        if again and not host.startswith("sim:"):
            raise UsageError(f"The box {host!r} is named twice.", hint="Every --host is another machine; two studies of one machine would measure each other.")
        found.append(f"{host}#{again + 1}" if again else host)
    return found


def _runs_of(folder: Path, at: int) -> Path:
    return folder / "boxes" / str(at + 1)


def _folder_of(folder: Path, spec: StudySpec, at: int) -> Path:
    """Where a box keeps what a simulated one needs here; the first shares the study's own folder."""
    return folder if at == 0 else _runs_of(folder, at) / spec.study


async def run(
    options: wiring.Options, roots: wiring.Roots, *, watch: Watch | None = None, progress: Said | None = None,
    announce: Callable[[StudySpec, str], None] | None = None, say: Said | None = None,
) -> tuple[State, Plan, Path]:  # fmt: skip
    """A whole study on several boxes, from nothing to its end. Raises before it is opened when one of them cannot be reached, or its
    server may not be stopped."""
    known = wiring.library(roots)
    with wiring._writable(roots.runs):
        spec, folder = prepare(options, roots)
    if any(one.host.kind != "sim" for one in spec.boxes):
        known = wiring.with_learned(known, learning.pinned_text(roots.store))
    plan, stop = wiring.plan_of(known), BoxesStop()
    with interruptible(stop, say), wiring._gone_unless_opened(folder):
        async with _opened(spec, folder, wiring._free_box) as boxes:
            for box in boxes:
                if isinstance(box, OptimizerError):
                    raise box
            if stop.reason is not None:
                raise Interrupted(stop.reason, why="No study was opened, and nothing was changed.")
            with wiring._writable(roots.runs):
                created = Journal.create(wiring.journal_of(roots.place(spec.study)))
                folder.mkdir(parents=True, exist_ok=True)
            with created as journal:
                if announce is not None:
                    announce(spec, journal.where)
                journal.append("opened", wiring.opened_body(spec, known), expect=journal.last_seq, blobs={"knowledge.json": knowledge_blob(known)})
                executors = _executors(spec, boxes, known, progress, say)
                return await _drive(journal, executors, plan, folder, watch, stop), plan, folder


async def resume(
    journal: Journal, entries: Sequence[Entry], state: State, plan: Plan, folder: Path, *, watch: Watch | None = None, progress: Said | None = None,
    say: Said | None = None,
) -> State:  # fmt: skip
    """Go on on all boxes; one that cannot be reached is given up, and the study continues on the others. Of a closed study: its report."""
    assert state.spec is not None
    spec, known = state.spec, wiring.pinned_library(journal, entries)
    if state.closed is not None:
        readers = _executors(spec, [Box(LocalTransport()) for _ in spec.boxes], known, None, None)
        _remember(readers, entries, journal)
        wiring.keep_results(journal, _telling(readers, state), state, plan, folder)
        return state
    stop = BoxesStop()
    with interruptible(stop, say):
        async with _opened(spec, folder, _entered) as boxes:
            executors = _executors(spec, boxes, known, progress, say)
            _remember(executors, entries, journal)
            return await _drive(journal, executors, plan, folder, watch, stop)


async def _entered(stack: AsyncExitStack, spec: StudySpec, folder: Path) -> Box:
    return await stack.enter_async_context(wiring.opened_box(spec, folder))


@asynccontextmanager
async def _opened(spec: StudySpec, folder: Path, enter: Callable[[AsyncExitStack, StudySpec, Path], Awaitable[Box]]) -> AsyncIterator[list[Box | OptimizerError]]:
    """Every box, connected at the same time; in place of one that cannot be reached, why."""
    async with AsyncExitStack() as stack:
        ways = [enter(stack, spec.on(one.name), _folder_of(folder, spec, at)) for at, one in enumerate(spec.boxes)]
        found = await asyncio.gather(*ways, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, OptimizerError):
                raise one
        yield [one for one in found if isinstance(one, Box | OptimizerError)]


def _executors(
    spec: StudySpec, boxes: Sequence[Box | OptimizerError], known: Library, progress: Said | None, say: Said | None
) -> dict[str, Executor]:
    found: dict[str, Executor] = {}
    for one, box in zip(spec.boxes, boxes, strict=True):
        if isinstance(box, OptimizerError):
            found[one.name] = AbsentBox(box.message)
            if say is not None:
                say(f"{one.name} cannot be reached: {box.message}")
        else:
            found[one.name] = LiveExecutor(box, spec.on(one.name), known, _prefixed(progress, one.name))
    return found


def _prefixed(progress: Said | None, name: str) -> Said | None:
    return None if progress is None else lambda text: progress(f"{name}: {text}")


def _remember(executors: dict[str, Executor], entries: Sequence[Entry], journal: Journal) -> None:
    for name, executor in executors.items():
        if isinstance(executor, LiveExecutor):
            executor.remember([entry for entry in entries if entry.box in ("", name)], journal.blob)


async def _drive(journal: Journal, executors: dict[str, Executor], plan: Plan, folder: Path, watch: Watch | None, stop: BoxesStop) -> State:
    live = {name: executor for name, executor in executors.items() if isinstance(executor, LiveExecutor)}
    for name, executor in live.items():
        executor.guard_lost = _lost(stop, name, "guard_fired")
        executor.box_unfit = _lost(stop, name, "needs_operator")

    async def hurry() -> None:
        await asyncio.gather(*(executor.hurry() for executor in live.values()))

    stop.on_hurry = hurry
    log.configure(level="error", log_file=folder / "log.jsonl", redactor=journal.redactor)
    stop_file = folder / "stop"
    stop.asked_by = lambda: wiring.STOPPED if stop_file.exists() else ""
    try:
        state = await held(journal, drive_boxes(journal, executors, plan, stop=stop, watch=wiring._stoppable(stop, stop_file, watch)), stop)
    except Exception as error:
        await tell_of_boxes(error, live.values())
        raise
    finally:
        await asyncio.gather(*(executor.close() for executor in live.values()), return_exceptions=True)
    stop_file.unlink(missing_ok=True)
    if live:
        wiring.keep_results(journal, _telling(executors, state), state, plan, folder)
    if state.closed is not None:
        wiring._remember(journal, state)
    return state


def _lost(stop: BoxesStop, name: str, ending: str) -> Said:
    return lambda why: stop.ask_box(name, why, ending)


def _telling(executors: dict[str, Executor], state: State) -> LiveExecutor:
    """The executor of the box whose result the report gives; another one where that box is away."""
    live = {name: executor for name, executor in executors.items() if isinstance(executor, LiveExecutor)}
    best = next((name for name, part in state.boxes.items() if part.arms is state.arms), "")
    return live.get(best) or next(iter(live.values()))
