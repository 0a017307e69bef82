"""One measurement: load at every level, GPU samples beside it, then all evidence before anything is stopped. The load runs on
the box as a marked job; what makes a run invalid from the box's side is added here."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from optimizer.bench.program import loadgen_program
from optimizer.bench.run import build_job, longest_s, progress, summarise
from optimizer.bench.so_far import so_far
from optimizer.bench.workload import salt_of
from optimizer.box.box import KEY_VARIABLE, Box
from optimizer.core.validity import invalidities
from optimizer.core.witness import judge as judge_witness
from optimizer.endpoint.client import Endpoint
from optimizer.engines.base import Engine
from optimizer.evidence.bundle import bundle_from_files
from optimizer.model.answers import BASELINE_PASSES, CANDIDATE_PASSES
from optimizer.model.canonical import sha256_hex
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import STOPPED_EARLY, Invalidity, LoadPoint, Measurement, ValidityCode
from optimizer.model.outcome import Done, Failed
from optimizer.model.settings import Settings
from optimizer.model.step import ORIGINAL, Check, Level, Measure
from optimizer.model.study import StudySpec
from optimizer.runner import answers
from optimizer.runner.base import Effect
from optimizer.runner.collecting import bench_rows, endpoint_files, launch_log, read_log_files
from optimizer.runner.context import Served, Session, Worker
from optimizer.runner.silence import silent_part
from optimizer.runner.survey import launch_json
from optimizer.runner.witness import Watch, processes_of

# Between two levels. An engine learns that a client hung up only when it next looks: SGLang every four seconds for requests
# that wait. On a real server with four slots the level at concurrency 1 stood still for its first seconds behind them.
SETTLE_S = 6.0


async def measure(
    box: Box,
    spec: StudySpec,
    session: Session,
    adapter: Engine,
    step: Measure,
    *,
    served: Served,
    progress: Callable[[str], None],
    classify: Callable[..., Failed],
) -> Effect:
    """Measure one running launch at every level of ``step`` and read everything that it has to say."""
    began = asyncio.get_running_loop().time()
    points: list[LoadPoint] = []
    raw: list[bytes] = []
    port, model, leading = served.port, served.model, served.leading
    # A router counts no tokens; what its workers count is theirs alone.
    metrics_path = adapter.quirks.metrics_path if leading.name is None else None

    async def load(index: int, level: Level, watch: Watch | None) -> None:
        point, lines = await offer_load(box, spec, step, level, index, port=port, model=model, report=progress, watch=watch,
                                        metrics_path=metrics_path)  # fmt: skip
        points.append(point)
        raw.extend(lines)

    target = step.levels[0]
    watch = Watch(box, metrics_path=adapter.quirks.metrics_path, port=leading.port, has_nvidia_smi=session.known.has_nvidia_smi,
                  longest_s=(target.warmup_min_s + target.window_s) / spec.time_scale)  # fmt: skip
    async with watch:
        await load(0, target, watch)
        await watch.finish()
    stopped = any(note.startswith(STOPPED_EARLY) for point in points for note in point.notes)
    for index, level in enumerate(() if stopped else step.levels[1:], 1):
        await asyncio.sleep(SETTLE_S / spec.time_scale)
        await load(index, level, None)
    ours: tuple[int, ...] = ()
    if step.launch == ORIGINAL and session.known.original is not None:
        ours = await processes_of(box, session.known.original)
    if step.launch != ORIGINAL:
        state = await box.state(spec.study, step.launch)
        ours = state.pids
        if not state.alive:
            log = await launch_log(box, spec.study, step.launch)
            return Effect(classify(log, state.exit_code, "crashed", signal=state.exit_signal), {"server.log": log})
    if not points or (points[0].requests_ok == 0 and points[0].output_tokens == 0 and points[0].requests_failed == 0):
        if step.launch != ORIGINAL and (silent := await silent_part(box, adapter, served)):
            logs = {"server.log": await launch_log(box, spec.study, step.launch)}
            logs |= {f"{one.name}.server.log": await launch_log(box, spec.study, step.launch, one.name) for one in served.workers if one.name}
            return Effect(Failed(cause="unresponsive", message=f"No request was answered: {silent}", retryable=True), logs)
        detail = "; ".join(item.detail for item in points[0].invalid) if points else ""
        return Effect(Failed(cause="bench_failed", message=f"The load generator returned nothing. {detail}", retryable=True))
    files = await _files(box, spec, session, adapter, step, worker=leading, points=points)
    if watch.csv:
        files["gpu.csv"] = "".join(watch.csv).encode()
    if watch.driver:
        files["gpu_driver.csv"] = watch.driver
    if watch.pages and not adapter.quirks.steps_in_log:
        files["metrics_load.txt"] = "".join(watch.pages).encode()
    beside, notes = judge_witness(watch.seen(ours), concurrency=target.concurrency, closed_loop=spec.workload.arrival == "closed")
    points[0] = points[0].model_copy(update={"invalid": (*points[0].invalid, *beside), "notes": (*points[0].notes, *notes)})
    points[0] = points[0].model_copy(update={"invalid": (*points[0].invalid, *await _box_invalid(box, spec, adapter, step, served))})
    samples = b"\n".join(raw)
    bundle = bundle_from_files({**session.shared_files, **files})
    evidence = bundle.evidence
    if step.launch != ORIGINAL:  # the log of a server as found may hold its earlier starts; a launch of ours has its own
        points[0] = points[0].model_copy(update={"invalid": (*points[0].invalid, *invalidities(evidence))})
    for worker in served.workers[1:]:
        theirs = await _files(box, spec, session, adapter, step, worker=worker, points=())
        seen = bundle_from_files({**session.shared_files, **theirs}).evidence
        points[0] = points[0].model_copy(update={"invalid": (*points[0].invalid, *member_invalidities(session, worker.name or worker.role, seen, ours=step.launch != ORIGINAL))})
        evidence = evidence.merged(Evidence(facts=tuple(fact.model_copy(update={"role": worker.name or worker.role}) for fact in seen.facts)))
        files |= {f"{worker.name}.{name}": data for name, data in theirs.items() if name != "bench.json"}
    settings = Settings() if step.launch == ORIGINAL else session.launches[step.launch].settings
    points[0] = points[0].model_copy(update={"invalid": (*points[0].invalid, *pool_against_before(session, settings, bundle.evidence))})
    measurement = Measurement(points=tuple(points), samples_digest=sha256_hex(samples))
    info = _json(files.get("server_info.json"))
    log_text = files.get("server.log", b"").decode("utf-8", "replace")
    effective = adapter.readback(info if isinstance(info, dict) else None, bundle.evidence, log_text)
    # Last of all: it must neither be in the engine's counters nor cost the measurement if the server dislikes it. What the
    # server as found repeats of itself is the yardstick, so even a slow one is asked twice.
    progress("answering the probes")
    often, needed = (BASELINE_PASSES, 2) if step.purpose == "baseline" else (CANDIDATE_PASSES, 1)
    passes = await answers.ask(box, port, model, spec.probes, often, needed)
    body: dict[str, Any] = {
        "measurement": measurement.plain(),
        "evidence": evidence.plain(),
        "effective": dict(effective),
        **({"answers": [one.plain() for one in passes]} if passes else {}),
        "wall_s": round(asyncio.get_running_loop().time() - began, 3),
    }
    return Effect(Done(body=body), {**files, "samples.jsonl": samples})


async def offer_load(
    box: Box, spec: StudySpec, step: Measure | Check, level: Level, index: int, *, port: int, model: str, report: Callable[[str], None], job_name: str = "load",
    watch: Watch | None = None, metrics_path: str | None = None,
) -> tuple[LoadPoint, list[bytes]]:
    """One load level, from the box itself: what it showed, and the load generator's own lines. Two at a time need two names."""
    workload = spec.workload.model_copy(
        update={"concurrency": level.concurrency, "warmup_min_s": level.warmup_min_s, "warmup_max_s": level.warmup_max_s}
    )
    given = os.environ.get(KEY_VARIABLE)  # else the load generator asks the server's own process
    job = build_job(
        workload,
        concurrency=level.concurrency,
        window_s=level.window_s,
        base_url=f"http://127.0.0.1:{port}",
        model=model,
        seed=spec.seed,
        salt=salt_of(spec.study, step.run_index, index),
        time_scale=spec.time_scale,
        metrics_path=metrics_path,
        beside_server=True,
        api_key_env=KEY_VARIABLE if given else None,
        stop_below=step.stop_below if isinstance(step, Measure) and index == 0 else None,
    )
    lines: list[bytes] = []
    label = f"c={level.concurrency}" if job_name == "load" else f"c={level.concurrency}, client {index + 1}"

    def on_line(line: bytes) -> None:
        if (seen := progress(line)) is not None:
            if watch is not None:
                watch.in_window = seen.get("phase") == "window"
            report(f"{label}: {so_far(seen)}")
        else:
            lines.append(line)

    await box.run_job(loadgen_program(same_python=box.transport.same_python), json.dumps(job).encode() + b"\n", f"{spec.study}:{step.key}-{job_name}",
                      longest_s(job), on_line, env_changes={KEY_VARIABLE: given} if given else None)  # fmt: skip
    return summarise(lines, workload, level.concurrency), lines


def pool_against_before(session: Session, settings: Settings, evidence: Evidence) -> tuple[Invalidity, ...]:
    """The KV pool that these settings got on an earlier launch of this study is what they get: a smaller one means that somebody
    else held memory at the start."""
    pool, before = evidence.number("kv.pool_tokens"), session.pools.get(settings.digest)
    if not pool:
        return ()
    session.pools[settings.digest] = max(pool, before or 0.0)
    if not before:
        return ()
    return invalidities(Evidence(facts=(Fact(name="validity.kv_pool_ratio", value=pool / before, unit="ratio", source="study"),)))


async def _files(
    box: Box, spec: StudySpec, session: Session, adapter: Engine, step: Measure, *, worker: Worker, points: Sequence[LoadPoint]
) -> dict[str, bytes]:
    """What one worker has to say."""
    context = session.known
    if step.launch == ORIGINAL:
        process = context.process_of(worker.name)
        files = await read_log_files(box, process.logs if process else ())
    else:
        files = {"server.log": await launch_log(box, spec.study, step.launch, worker.name)}
    files |= await endpoint_files(box, adapter, worker.port)
    if points:
        files["bench.json"] = json.dumps(bench_rows(points)).encode()
    given = {name: value for name, value in worker.env.items() if value is not None}
    files["launch.json"] = launch_json(context, step.launch, worker.argv, given, ready=True, start_s=session.ready_s.get(step.launch))
    return files


async def _box_invalid(box: Box, spec: StudySpec, adapter: Engine, step: Measure, served: Served) -> list[Invalidity]:
    """What only the box can tell: whether the server that answered was ours to the end, and whether every worker still serves."""
    found = []
    if step.launch != ORIGINAL:
        for port in dict.fromkeys((served.port, *(worker.port for worker in served.workers))):
            if not (await box.listeners(port, f"{spec.study}:{step.launch}")).only_ours:
                found.append(Invalidity(code=ValidityCode.WRONG_SERVER, detail=f"port {port} is not held by our launch alone any more"))
    if served.leading.name is not None:
        found += await _members_serve(box, adapter, served)
    return found


async def _members_serve(box: Box, adapter: Engine, served: Served) -> list[Invalidity]:
    """A router goes on with what is left of its workers: what was measured is then another deployment."""
    found = []
    for worker in served.workers:
        host, here = await box.forward(worker.port)
        ready = adapter.ready(here, host)
        async with Endpoint(ready.base_url, api_key=box.api_key) as endpoint:
            status = (await endpoint.get_text(ready.probe.path, timeout_s=ready.timeout_s)).status
        if status not in ready.probe.ok:
            found.append(Invalidity(code=ValidityCode.MEMBER_LOST, detail=f"{worker.name} on port {worker.port} does not serve any more (status {status})"))
    host, here = await box.forward(served.port)
    async with Endpoint(f"http://{host}:{here}", api_key=box.api_key) as endpoint:
        listed = await endpoint.get_json("/workers")
    rows = listed.value.get("workers") if listed.ok and isinstance(listed.value, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("is_healthy") is False:
            found.append(Invalidity(code=ValidityCode.MEMBER_LOST, detail=f"the router has taken {row.get('url')} out of its rotation"))
    return found


def member_invalidities(session: Session, name: str, seen: Evidence, *, ours: bool) -> tuple[Invalidity, ...]:
    """What speaks against a measurement in the evidence of a worker that is not the leading one. One that falls back for something
    for which it did not where it was first measured is another member than the others were measured with."""
    items = [item.model_copy(update={"detail": f"{name}: {item.detail}"}) for item in invalidities(seen)] if ours else []
    now = frozenset(str(fact.value) for fact in seen.all("startup.fallback"))
    fresh = sorted(now - session.fallbacks.setdefault(name, now))
    if fresh:
        items.append(Invalidity(code=ValidityCode.MEMBER_LOST, detail=f"{name} fell back for {', '.join(fresh)}, which it did not before"))
    return tuple(items)


def members_before(session: Session, evidence: Evidence) -> None:
    """What a measurement that was made before says of each member, for a process that did not see it."""
    for name in {fact.role for fact in evidence.facts} - {"server"}:
        session.fallbacks.setdefault(name, frozenset(str(fact.value) for fact in evidence.all("startup.fallback") if fact.role == name))


def _json(data: bytes | None) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None
