"""Makes the cheap tests: load around a limit, a second client, the same load again, the threads' CPU time, what the kernel says, a
flushed cache, NCCL's own log. Each leaves facts about the server that runs, and what it saw for people. It decides nothing and
relaunches nothing."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.bench.workload import prompts, salt_of
from optimizer.box.box import Box
from optimizer.box.program import sampler_program
from optimizer.box.results import ShimRefused
from optimizer.endpoint.client import Endpoint
from optimizer.engines.base import Engine
from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.units import UNITS
from optimizer.model.base import Scalar, Value
from optimizer.model.evidence import Evidence, Fact, Missing
from optimizer.model.measurement import LoadPoint
from optimizer.model.outcome import Done, Failed
from optimizer.model.step import ORIGINAL, Check, Level
from optimizer.model.study import StudySpec
from optimizer.runner.base import Effect
from optimizer.runner.context import Served, Session
from optimizer.runner.measure import SETTLE_S, offer_load
from optimizer.runner.survey import launch_json

SAMPLE_INTERVAL_S = 0.25
STOPS_GROWING = 1.1  # of the rate at twice the load: less than a tenth more is queueing; so is
SHARE_OF_GROWTH = 0.25  # less than this share of what the doubling up to N brought: at N requests a slot waits for its next one, at 2N never
STILL_GROWS = 1.2
STEP_JUMP = 1.15  # a step beyond the limit that is so much slower than one at it: more than load alone adds at one more request
FULL_CORE_PCT = 90.0  # of ticks of 10 ms in a quarter of a second, a thread that never waits shows 92 to 104
WARM_ROUNDS = 3
NCCL_LOG_BYTES = 4 << 20


@dataclass(frozen=True)
class Bench:
    """The running server, as a test needs it."""

    box: Box
    spec: StudySpec
    session: Session
    adapter: Engine
    step: Check
    served: Served
    progress: Callable[[str], None]

    async def load(self, level: Level, index: int, name: str = "load") -> LoadPoint:
        point, _ = await offer_load(self.box, self.spec, self.step, level, index, port=self.served.port, model=self.served.model, report=self.progress, job_name=name)
        return point

    async def loads(self) -> list[LoadPoint]:
        """The levels of the step, one after the other."""
        points = []
        for index, level in enumerate(self.step.levels):
            if index:
                await asyncio.sleep(SETTLE_S / self.spec.time_scale)
            points.append(await self.load(level, index))
        return points

    async def pids(self) -> list[int]:
        """Processes of the server, of a deployment its leading worker first; their descendants are found on the box."""
        name = self.served.leading.name
        if self.step.launch == ORIGINAL:
            process = self.session.known.process_of(name)
            return [process.pid] if process is not None else []
        if name is not None:
            return [one.pid for one in (await self.box.state(self.spec.study, self.step.launch)).members if one.name == name and one.pid is not None]
        state = await self.box.state(self.spec.study, self.step.launch)
        return [state.pid, *(pid for pid in state.pids if pid != state.pid)] if state.pid is not None else list(state.pids)

    async def watch(self, op: str) -> dict[str, Any]:
        """What the sampler on the box saw of the server's processes."""
        lines: list[bytes] = []
        asked = {"op": op, "pids": await self.pids(), "seconds": self.step.seconds, "interval_s": SAMPLE_INTERVAL_S}
        await self.box.run_job(sampler_program(), json.dumps(asked).encode() + b"\n", f"{self.spec.study}:{self.step.key}-watch",
                               self.step.seconds + 30, lines.append)  # fmt: skip
        return dict(json.loads(lines[-1])) if lines else {}


@dataclass(frozen=True)
class Seen:
    """What a test found: facts, what could not be told and why, and the rest for people."""

    text: str
    facts: tuple[Fact, ...] = ()
    missing: tuple[Missing, ...] = ()
    points: tuple[LoadPoint, ...] = ()
    detail: Mapping[str, Any] | None = None


async def check(bench: Bench) -> Effect:
    """Make the test of ``bench.step``. A test that cannot be made is Failed: it says nothing about any cause."""
    began = asyncio.get_running_loop().time()
    step, box, spec = bench.step, bench.box, bench.spec
    seen = await _TESTS[step.test](bench)
    if step.launch != ORIGINAL:
        state = await box.state(spec.study, step.launch)
        if not state.alive:
            return Effect(Failed(cause="crashed", message=f"The server ended during the test {step.test}."))
    evidence = Evidence(facts=seen.facts, missing=seen.missing)
    body: dict[str, Any] = {
        "test": step.test, "text": seen.text, "evidence": evidence.plain(), "points": [point.plain() for point in seen.points],
        "detail": dict(seen.detail or {}), "wall_s": round(asyncio.get_running_loop().time() - began, 3),
    }  # fmt: skip
    return Effect(Done(body=body))


def _fact(step: Check, name: str, value: Value, *, at_least: bool = False, **labels: Scalar) -> Fact:
    return Fact(name=name, value=value, unit=UNITS.get(name, ""), labels=labels, source=f"test {step.test}", bound="at_least" if at_least else None)


def _unusable(points: Sequence[LoadPoint]) -> str:
    """Why these loads say nothing; empty when they are sound. A window too short to be level is no fault of a step's width."""
    for point in points:
        bad = [item for item in point.invalid if item.code not in ("never_steady", "output_length")]
        if bad:
            return f"at concurrency {point.concurrency}: {bad[0].detail}"
        if not point.metrics.get("output_tokens_per_s"):
            return f"at concurrency {point.concurrency} nothing was produced"
    return ""


def _nothing(step: Check, names: Sequence[str], why: str, points: Sequence[LoadPoint] = ()) -> Seen:
    return Seen(text=f"It says nothing: {why}.", missing=tuple(Missing(name=name, reason=why) for name in names), points=tuple(points))


# ---- loads --------------------------------------------------------------------------------------------------------------


async def _concurrency_sweep(bench: Bench) -> Seen:
    """N-1, N and N+1 requests: does a step take visibly longer beyond N, although it hardly did up to N? Or N/2, N and 2N: does the
    rate stop growing at N?"""
    step = bench.step
    points = await bench.loads()
    if step.width == "double":
        return _growth(step, points)
    why = _unusable(points) or ("" if all("tpot_p50_ms" in point.metrics for point in points) else "too few tokens for a time per token")
    if why or step.around is None:
        return _nothing(step, ["client.knee_concurrency"], why or "no limit is known", points)
    below, at, above = (point.metrics["tpot_p50_ms"] for point in points)
    jump, before = above / at, at / below
    knee = jump >= STEP_JUMP and jump > before * 1.05
    one_more = _fact(step, "probe.speed_ratio", round(at / above, 4), probe="one_above_limit", metric="client.itl_ms_p50")
    said = f"TPOT {below:.2f}, {at:.2f} and {above:.2f} ms at {step.around - 1}, {step.around} and {step.around + 1} requests: "
    if knee:
        fact = _fact(step, "client.knee_concurrency", step.around)
        return Seen(f"{said}×{jump:.2f} beyond {step.around}, the step is there.", (fact, one_more), points=tuple(points), detail={"jump": round(jump, 4)})
    fact = _fact(step, "client.knee_concurrency", step.around + 1, at_least=True)
    return Seen(f"{said}×{jump:.2f} beyond {step.around}, no step.", (fact, one_more), points=tuple(points), detail={"jump": round(jump, 4)})


def _growth(step: Check, points: Sequence[LoadPoint]) -> Seen:
    """Whether the rate still grows beyond N although it grew up to N."""
    if (why := _unusable(points)) or step.around is None:
        return _nothing(step, ["client.knee_concurrency"], why or "no limit is known", points)
    below, at, above = (point.metrics["output_tokens_per_s"] for point in points)
    loads = [point.concurrency for point in points]
    stops = at / below >= STILL_GROWS and above / at < max(STOPS_GROWING, 1 + SHARE_OF_GROWTH * (at / below - 1))
    said = f"{below:.4g}, {at:.4g} and {above:.4g} tok/s at {loads[0]}, {loads[1]} and {loads[2]} requests: "
    if stops:
        return Seen(f"{said}the rate stops growing at {step.around}.", (_fact(step, "client.knee_concurrency", step.around),), points=tuple(points))
    fact = _fact(step, "client.knee_concurrency", loads[2], at_least=True)
    return Seen(f"{said}no end at {step.around}.", (fact,), points=tuple(points))


async def _single_stream(bench: Bench) -> Seen:
    """One request against sixteen: what the server makes of company."""
    points = await bench.loads()
    if why := _unusable(points):
        return _nothing(bench.step, ["probe.speed_ratio"], why, points)
    one, many = (point.metrics["output_tokens_per_s"] for point in points)
    fact = _fact(bench.step, "probe.speed_ratio", round(many / one, 4), probe="concurrency_up", concurrency=points[1].concurrency)
    return Seen(f"{one:.4g} tok/s with one request, {many:.4g} with {points[1].concurrency}: ×{many / one:.2f}.", (fact,), points=tuple(points))


async def _second_client(bench: Bench) -> Seen:
    """Two generators at the same time, together the load of one."""
    points = await asyncio.gather(*(bench.load(level, index, f"load{index}") for index, level in enumerate(bench.step.levels)))
    if why := _unusable(points):
        return _nothing(bench.step, ["client.output_tps"], why, points)
    total = sum(point.metrics["output_tokens_per_s"] for point in points)
    together = sum(point.concurrency for point in points)
    fact = _fact(bench.step, "client.output_tps", round(total, 2), target="second_client", concurrency=together)
    return Seen(f"Two generators with {together} requests together: {total:.4g} tok/s.", (fact,), points=tuple(points))


async def _repeat(bench: Bench) -> Seen:
    """The run that was measured, once more on the warm server."""
    points = await bench.loads()
    first = bench.step.reference_tokens_per_s
    why = _unusable(points) or ("" if first else "the first run is not known any more")
    if why or not first:
        return _nothing(bench.step, ["validity.repeat_ratio"], why, points)
    again = points[0].metrics["output_tokens_per_s"]
    spread = abs(again - first) / (again + first) * 2**0.5  # coefficient of variation of two values
    facts = (_fact(bench.step, "validity.repeat_ratio", round(again / first, 4)), _fact(bench.step, "validity.run_cv", round(spread, 4)))
    return Seen(f"{first:.4g} tok/s in the first run, {again:.4g} in the second: ×{again / first:.3f}.", facts, points=tuple(points))


# ---- processes ----------------------------------------------------------------------------------------------------------


async def _cpu_profile(bench: Bench) -> Seen:
    """The threads' CPU time under the target's load."""
    level = bench.step.levels[0]

    async def watched() -> dict[str, Any]:
        await asyncio.sleep(level.warmup_min_s)
        return await bench.watch("sample")

    point, seen = await asyncio.gather(bench.load(level, 0), watched())
    if not seen.get("rounds") or not seen.get("processes"):
        return _nothing(bench.step, ["host.cpu_sat", "host.proc_cpu_pct"], "the server's processes cannot be read on this box", [point])
    facts = [_fact(bench.step, "host.cpu_sat", round(sum(1 for load in seen["busiest"] if load >= FULL_CORE_PCT) / len(seen["busiest"]), 3))]
    by_role: dict[str, float] = {}
    for process in seen["processes"]:
        role = role_of(str(process["title"]), main=process["pid"] == seen["main"], alone=len(seen["processes"]) == 1)
        by_role[role] = max(by_role.get(role, 0.0), float(process["busiest_thread_pct"]))
    if point.client_cpu_share is not None:
        by_role["client"] = round(100 * point.client_cpu_share, 1)
    facts += [_fact(bench.step, "host.proc_cpu_pct", value, process=role) for role, value in sorted(by_role.items())]
    top = seen["threads"][:3]
    said = "; ".join(f"{row['thread']} of process {row['pid']} {row['cpu_pct']:g} % ({_where(row['where'])})" for row in top)
    return Seen(f"Over {seen['seconds']:g} s under load, busiest threads: {said}.", tuple(facts), points=(point,), detail=seen)


def _where(places: Mapping[str, float]) -> str:
    return ", ".join(f"{place} {100 * share:.0f} %" for place, share in places.items())


def role_of(title: str, *, main: bool, alone: bool) -> str:
    """Which part of an engine a process is, by the name that the engine gives it."""
    text = title.lower()
    for word, role in (("detokenizer", "detokenizer"), ("tokenizer", "tokenizer"), ("scheduler", "scheduler"), ("enginecore", "engine"), ("worker", "engine")):
        if word in text:
            return role
    return "api_server" if main and not alone else "engine"


async def _read_proc(bench: Bench) -> Seen:
    """The CPU limit, stolen time, memory's place and the environment of the processes as they really are."""
    seen = await bench.watch("look")
    if not seen.get("processes"):
        return _nothing(bench.step, ["host.cpu_throttled_periods"], "the server's processes cannot be read on this box")
    step, facts = bench.step, []
    limited = seen.get("quota_milli_cores")
    # Without a limit there is nothing that could bite: zero periods is then a fact, not a gap.
    facts.append(_fact(step, "host.cpu_throttled_periods", int(seen.get("throttled") or 0)))
    facts.append(_fact(step, "host.cpu_steal_pct", float(seen["steal_pct"])))
    if limited:
        facts.append(_fact(step, "host.cpu_quota_cores", limited / 1000))
    if seen.get("remote_share") is not None:
        facts.append(_fact(step, "host.numa_remote_share", round(float(seen["remote_share"]), 3)))
    if seen.get("readable"):
        facts.append(_fact(step, "nccl.env", list(seen["nccl_env"])))
    quota = f"a limit of {limited / 1000:g} cores, throttled in {seen['throttled']} of {seen['periods']} periods" if limited else "no CPU limit"
    remote = f", {100 * seen['remote_share']:.0f} % of memory on another node" if seen.get("remote_share") is not None else ""
    return Seen(f"{seen['processes']} processes: {quota}, {seen['steal_pct']:g} % of CPU time stolen{remote}.", tuple(facts), detail=seen)


# ---- cache and logs -----------------------------------------------------------------------------------------------------


async def _flush_cache(bench: Bench) -> Seen:
    """Whether a prompt that was just sent starts faster: cold, then warm, on an empty cache if the engine can empty it."""
    host, here = await bench.box.forward(bench.served.port)
    made = prompts(bench.spec.workload, bench.spec.seed, salt_of(bench.spec.study, bench.step.run_index, "cache"), WARM_ROUNDS)
    cold: list[float] = []
    warm: list[float] = []
    flushed = False
    async with Endpoint(f"http://{host}:{here}", api_key=bench.box.api_key) as endpoint:
        request = bench.adapter.flush_cache()
        if request is not None:
            flushed = (await endpoint.post_json(request.path, {}, 30)).status == 200
        # What the way to the server takes is in both times and would make them look alike.
        way = statistics.median([(await endpoint.get_text("/v1/models")).duration_s for _ in range(WARM_ROUNDS)])
        for prompt in made:
            for times in (cold, warm):
                answer = await endpoint.generate(bench.served.model, prompt, 1, 120)
                if not answer.ok:
                    return _nothing(bench.step, ["probe.speed_ratio"], f"a single request failed ({answer.error or answer.status})")
                times.append(max(answer.duration_s - way, 1e-4) * bench.spec.time_scale)
    ratio = statistics.median(cold) / statistics.median(warm)
    fact = _fact(bench.step, "probe.speed_ratio", round(ratio, 4), probe="warm_prompt", metric="client.ttft_ms_p50")
    how = "flushed" if flushed else "not flushed (the engine serves no flush; the prompts were new)"
    return Seen(f"First token after {1000 * statistics.median(cold):.0f} ms cold and {1000 * statistics.median(warm):.0f} ms warm: ×{ratio:.2f}; cache {how}.",
                (fact,), detail={"cold_s": cold, "warm_s": warm, "flushed": flushed})  # fmt: skip


async def _nccl_log(bench: Bench) -> Seen:
    """What NCCL wrote of its transports into the file that it was given."""
    path = str(bench.served.leading.env.get("NCCL_DEBUG_FILE") or "")
    names = ["nccl.transport", "nccl.channels"]
    if not path.startswith("/") or "%" in path:
        return _nothing(bench.step, names, f"NCCL_DEBUG_FILE={path or 'is not set'} names no single file")
    try:
        data = (await bench.box.read_file(path, offset=-NCCL_LOG_BYTES, max_bytes=NCCL_LOG_BYTES)).data
    except ShimRefused as refused:
        return _nothing(bench.step, names, refused.message)
    given = {name: value for name, value in bench.served.leading.env.items() if value is not None}
    launch = launch_json(bench.session.known, bench.step.launch, bench.served.leading.argv, given, ready=True, start_s=None)
    found = bundle_from_files({"launch.json": launch, "server.log": data}).evidence
    facts = tuple(fact.model_copy(update={"source": path}) for fact in found.facts if fact.name.startswith("nccl.") and fact.source == "server.log")
    if not facts:
        return _nothing(bench.step, names, f"{path} holds no line of NCCL that says it (NCCL_DEBUG=INFO does)")
    return Seen("NCCL says: " + ", ".join(f"{fact.name} = {fact.value}" for fact in facts[:6]) + ".", facts)


_TESTS: Mapping[str, Callable[[Bench], Awaitable[Seen]]] = {
    "concurrency_sweep": _concurrency_sweep,
    "single_stream": _single_stream,
    "second_client": _second_client,
    "repeat_in_process": _repeat,
    "cpu_profile": _cpu_profile,
    "read_proc": _read_proc,
    "flush_cache": _flush_cache,
    "nccl_log": _nccl_log,
}
