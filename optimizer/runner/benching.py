"""``optimize bench``: the benchmark alone, against an address or against the server of a box, at given loads or towards the
knee. It launches, stops and judges nothing but the measurement itself; Ctrl-C ends it with what was measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from optimizer.bench import knee
from optimizer.bench.calibrate import LOADGEN
from optimizer.bench.program import loadgen_program
from optimizer.bench.run import build_job, longest_s, missing, progress, summarise
from optimizer.bench.so_far import so_far
from optimizer.bench.workload import salt_of
from optimizer.box.box import KEY_VARIABLE, Box
from optimizer.errors import BoxError, UsageError
from optimizer.model.measurement import LoadPoint, ValidityCode
from optimizer.model.target import Target, claimed, percentile_of
from optimizer.model.workload import Workload
from optimizer.runner.signals import routed
from optimizer.runner.tooling import ToolRunner, work_of
from optimizer.stats import tail

LINE_BYTES = 64 << 20  # of the longest line: the summary, with an in-flight series of an hour
LONGEST = 10.0  # times the window: what the knee finder adds by itself to judge a load
SETTLE_S = 3.0  # between two loads: a server learns that a client hung up only when it next looks
# What keeps a measurement from being used, and yet says that the load is too high.
TOO_HIGH = {ValidityCode.ERRORS, ValidityCode.OVER_SATURATED}


class Source(Protocol):
    """Something that runs a job of the load generator."""

    async def run(self, job: Mapping[str, Any], on_line: Callable[[bytes], None]) -> None:
        """Runs it to its end; ``on_line`` gets every line of its output."""
        ...

    async def stop(self) -> None:
        """Ends the running job, which then says what it has measured so far."""
        ...


class LocalSource:
    """The load generator as a process of this machine. ``key`` reaches it through its environment alone."""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, job: Mapping[str, Any], on_line: Callable[[bytes], None]) -> None:
        env = None
        if self._key:
            env = {**os.environ, KEY_VARIABLE: self._key}
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, str(LOADGEN), stdin=PIPE, stdout=PIPE, env=env, start_new_session=True, limit=LINE_BYTES
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(longest_s(job)):
                process.stdin.write(json.dumps(job).encode() + b"\n")
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    await process.stdin.drain()
                process.stdin.close()
                async for line in process.stdout:
                    on_line(line.rstrip(b"\n"))
                await process.wait()
        except TimeoutError:
            pass  # what it has said so far is read; without a summary the load point says so
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self._process = None

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()


class BoxSource:
    """The load generator as a marked job on a box."""

    def __init__(self, box: Box, name: str, key: str | None) -> None:
        self._box, self._launch_id, self._key = box, f"{name}:load", key
        self._program = loadgen_program(same_python=box.transport.same_python)

    async def run(self, job: Mapping[str, Any], on_line: Callable[[bytes], None]) -> None:
        env = {KEY_VARIABLE: self._key} if self._key else None
        await self._box.run_job(self._program, json.dumps(job).encode() + b"\n", self._launch_id, longest_s(job), on_line, env_changes=env)

    async def stop(self) -> None:
        await self._box.sweep(self._launch_id, term_s=10, kill_s=5, gpu_wait_s=0)


@dataclass(frozen=True)
class Served:
    """The server that is measured. ``url`` as the load generator reaches it; ``name`` as the user called it."""

    name: str
    url: str
    model: str
    source: Source
    has_key: bool
    beside: bool = False  # the load generator runs on the server's machine
    metrics_path: str | None = "/metrics"
    ca_file: str | None = None


@dataclass
class Bench:
    """One call of ``optimize bench`` and what it has measured so far."""

    served: Served
    workload: Workload
    target: Target
    seed: int
    name: str  # of this call, so that no cache of an earlier one can help
    max_connections: int | None = None
    report: Callable[[str], None] = print
    measured: Callable[[LoadPoint], None] = lambda point: None
    points: list[LoadPoint] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # of each point: its concurrency, or its rate
    found: knee.Knee | None = None
    note: str = ""
    stopped: bool = False
    tool: ToolRunner | None = None  # measures in place of our load generator

    @property
    def open_loop(self) -> bool:
        return self.workload.arrival != "closed"

    async def step(self, load: float) -> None:
        """One load; nothing once somebody has asked for the end."""
        if self.points and not self.stopped:
            await asyncio.sleep(SETTLE_S)
        if not self.stopped:
            await self._measure(load)

    async def find_knee(self, start: float, highest: float) -> None:
        """The largest load that meets the target."""
        strains: dict[float, float] = {}
        lowest = 0.01 if self.open_loop else 1.0
        while not self.stopped:
            load = knee.next_load(strains, start=start, lowest=lowest, highest=highest, whole=not self.open_loop)
            if load is None:
                break
            if strains:
                await asyncio.sleep(SETTLE_S)
            point = await self._measure(load)
            if self.stopped:
                break
            strained = strain(point, self.target)
            if strained is None and (longer := longer_by(point, self.target)) and not self.stopped:
                await asyncio.sleep(SETTLE_S)
                point = await self._measure(load, longer)
                if self.stopped:
                    break
                strained = strain(point, self.target)
            if strained is None:
                self.note = unjudged(point, self.target)
                break
            strains[load] = strained
        self.found = knee.knee(strains)

    async def _measure(self, load: float, longer: float = 1.0) -> LoadPoint:
        times = {"warmup_max_s": 2 * self.workload.warmup_max_s, "window_s": longer * self.workload.window_s} if longer > 1 else {}
        workload = self.workload.model_copy(update=times)
        if self.open_loop and workload.arrival != "trace":
            workload = workload.model_copy(update={"rate_per_s": load})
        elif not self.open_loop:
            workload = workload.model_copy(update={"concurrency": int(load)})
        if self.tool is not None:
            return self._keep(load, await self._by_tool(self.tool, workload, load))
        job = build_job(
            workload, concurrency=workload.concurrency, window_s=workload.window_s, base_url=self.served.url, model=self.served.model,
            seed=self.seed, salt=salt_of(self.name, len(self.points)), api_key_env=KEY_VARIABLE if self.served.has_key else None,
            beside_server=self.served.beside, metrics_path=self.served.metrics_path, ca_file=self.served.ca_file,
            max_connections=self.max_connections,
        )  # fmt: skip
        label = f"{load:g} requests/s" if self.open_loop else f"concurrency {load:g}"
        lines: list[bytes] = []

        def on_line(line: bytes) -> None:
            if (seen := progress(line)) is None:
                lines.append(line)
                return
            failed = f", {seen['failed']} failed" if seen.get("failed") else ""
            self.report(f"{label}: {so_far(seen)}, {seen['in_flight']} in flight, {seen['ok']} done{failed}")

        await self.served.source.run(job, on_line)
        return self._keep(load, summarise(lines, workload, workload.concurrency))

    async def _by_tool(self, tool: ToolRunner, workload: Workload, load: float) -> LoadPoint:
        run = salt_of(self.name, len(self.points))
        work = work_of(workload, load, self.served.url, self.served.model, tool.tokenizer, tool.requests, run)
        head = f"{tool.tool.name}: {work.requests} requests, {'rate' if self.open_loop else 'concurrency'} {load:g}"
        self.report(head)
        return await tool.measure(work, lambda news: self.report(f"{head}, {news}"))

    def _keep(self, load: float, point: LoadPoint) -> LoadPoint:
        self.points.append(point)
        self.loads.append(load)
        self.measured(point)
        return point

    async def interrupt(self) -> None:
        """Ctrl-C: no further load, and the running one says what it has."""
        self.stopped = True
        if self.tool is not None:
            self.tool.stop()
        await self.served.source.stop()

    def against(self, served: Served) -> Bench:
        """The same for another server, with nothing measured yet: same seed, so same work."""
        return replace(self, served=served, points=[], loads=[], found=None, note="", stopped=False)


def strain(point: LoadPoint, target: Target) -> float | None:
    """How near a load is to the target's bounds: the largest of measured / allowed, so up to 1 meets it. None where a bound
    cannot be judged."""
    codes = {item.code for item in point.invalid}
    if codes & TOO_HIGH:
        return knee.FAILED
    if codes:
        return None
    worst = 0.0
    for bound in target.bounds:
        measured = claimed(bound.metric, point.metrics)
        if measured is None:
            return None
        if bound.value == 0:
            ratio = 1.0 if measured == 0 else knee.FAILED
        elif bound.direction == "at_most":
            ratio = measured / bound.value
        else:
            ratio = bound.value / measured if measured > 0 else knee.FAILED
        worst = max(worst, ratio)
    return worst


def longer_by(point: LoadPoint, target: Target) -> float:
    """So many times as long a window would probably let this load be judged; 0 where none would."""
    codes = {item.code for item in point.invalid}
    if codes - {ValidityCode.NEVER_STEADY, ValidityCode.TOO_FEW_REQUESTS}:
        return 0.0
    if codes:
        return 2.0
    wanted = [percentile for bound in target.bounds if bound.metric not in point.metrics and (percentile := percentile_of(bound.metric)) is not None]
    if not wanted or not point.requests_ok:
        return 0.0
    needed = 1.2 * tail.requests_needed(max(wanted)) / point.requests_ok
    return needed if 1 < needed <= LONGEST else 0.0


def unjudged(point: LoadPoint, target: Target) -> str:
    """Why a load could not be held against the target."""
    if point.invalid:
        return "; ".join(item.detail for item in point.invalid)
    return next((missing(bound.metric, point) for bound in target.bounds if bound.metric not in point.metrics), "")


def loads_of(text: str, whole: bool) -> tuple[float, ...]:
    """``1,4,16`` to numbers. Raises UsageError."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or any(not 0 < load <= 65536 or (whole and load != int(load)) for load in found):
        kind = "whole numbers from 1 to 65536" if whole else "positive numbers"
        raise UsageError(f"The loads {text!r} are not {kind}, joined by commas.", hint="Examples: --concurrency 1,8,64; --rate 0.5,2,8")
    return found


@contextlib.asynccontextmanager
async def interruptible(benches: Sequence[Bench]) -> AsyncIterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the running load and keep what was measured; a second one ends this process as usual."""
    loop = asyncio.get_running_loop()
    numbers = tuple(routed())
    tasks: set[asyncio.Task[None]] = set()

    def asked() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        tasks.update(asyncio.ensure_future(bench.interrupt()) for bench in benches)

    for number in numbers:
        loop.add_signal_handler(number, asked)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        if tasks:
            with contextlib.suppress(BoxError):
                await asyncio.gather(*tasks)
