"""One measurement: load at every level, GPU samples beside it, then all evidence before anything is stopped. The load runs on
the box as a marked job; what makes a run invalid from the box's side is added here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer import bench
from optimizer.bench.run import build_job, longest_s, progress, summarise
from optimizer.bench.workload import salt_of
from optimizer.box.box import Box
from optimizer.engines.base import Engine
from optimizer.errors import BoxError
from optimizer.evidence.bundle import bundle_from_files
from optimizer.model.canonical import sha256_hex
from optimizer.model.measurement import Invalidity, LoadPoint, Measurement, ValidityCode
from optimizer.model.outcome import Done, Failed
from optimizer.model.step import ORIGINAL, Level, Measure
from optimizer.model.study import StudySpec
from optimizer.runner.base import Effect
from optimizer.runner import answers
from optimizer.runner.collecting import bench_rows, endpoint_files, launch_log, read_log_files
from optimizer.runner.context import Session
from optimizer.runner.survey import launch_json

LOADGEN = Path(bench.__file__).with_name("loadgen.py")
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
    port: int,
    model: str,
    argv: Sequence[str],
    env: Mapping[str, str | None],
    progress: Callable[[str], None],
    classify: Callable[..., Failed],
) -> Effect:
    """Measure one running launch at every level of ``step`` and read everything that it has to say."""
    began = asyncio.get_running_loop().time()
    sampler = asyncio.create_task(_gpu_samples(box, spec, session, step))
    points: list[LoadPoint] = []
    raw: list[bytes] = []
    try:
        for index, level in enumerate(step.levels):
            point, lines = await _load(box, spec, step, level, index, port=port, model=model, report=progress)
            points.append(point)
            raw += lines
        gpu_csv = await _gathered(sampler)
    finally:
        sampler.cancel()  # a measurement that was cut short leaves nobody sampling on the box
    if step.launch != ORIGINAL:
        state = await box.state(spec.study, step.launch)
        if not state.alive:
            log = await launch_log(box, spec.study, step.launch)
            return Effect(classify(log, state.exit_code, "crashed", signal=state.exit_signal), {"server.log": log})
    if not points or (points[0].requests_ok == 0 and points[0].output_tokens == 0 and points[0].requests_failed == 0):
        detail = "; ".join(item.detail for item in points[0].invalid) if points else ""
        return Effect(Failed(cause="bench_failed", message=f"The load generator returned nothing. {detail}", retryable=True))
    files = await _files(box, spec, session, adapter, step, port=port, argv=argv, env=env, points=points)
    if gpu_csv:
        files["gpu.csv"] = gpu_csv.encode()
    points[0] = points[0].model_copy(update={"invalid": (*points[0].invalid, *await _box_invalid(box, spec, step, port))})
    samples = b"\n".join(raw)
    measurement = Measurement(points=tuple(points), samples_digest=sha256_hex(samples))
    bundle = bundle_from_files({**session.shared_files, **files})
    info = _json(files.get("server_info.json"))
    log_text = files.get("server.log", b"").decode("utf-8", "replace")
    effective = adapter.readback(info if isinstance(info, dict) else None, bundle.evidence, log_text)
    body: dict[str, Any] = {
        "measurement": measurement.plain(),
        "evidence": bundle.evidence.plain(),
    # Last of all: it must neither be in the engine's counters nor cost the measurement if the server dislikes it. What the
    # server as found repeats of itself is the yardstick, so it is asked twice.
    progress("answering the probes")
    passes = await answers.ask(box, port, model, spec.probes, passes=2 if step.purpose == "baseline" else 1)
        "effective": dict(effective),
        "wall_s": round(asyncio.get_running_loop().time() - began, 3),
    }
    return Effect(Done(body=body), {**files, "samples.jsonl": samples})
        **({"answers": [one.plain() for one in passes]} if passes else {}),


async def _load(
    box: Box, spec: StudySpec, step: Measure, level: Level, index: int, *, port: int, model: str, report: Callable[[str], None]
) -> tuple[LoadPoint, list[bytes]]:
    workload = spec.workload.model_copy(
        update={"concurrency": level.concurrency, "warmup_min_s": level.warmup_min_s, "warmup_max_s": level.warmup_max_s}
    )
    job = build_job(
        workload,
        concurrency=level.concurrency,
        window_s=level.window_s,
        base_url=f"http://127.0.0.1:{port}",
        model=model,
        seed=spec.seed,
        salt=salt_of(spec.study, step.run_index, index),
        time_scale=spec.time_scale,
    )
    lines: list[bytes] = []

    def on_line(line: bytes) -> None:
        if (seen := progress(line)) is not None:
            rate = seen.get("tokens_per_s")
            shown = f", {rate:,.0f} tok/s" if isinstance(rate, int | float) else ""
            report(f"c={level.concurrency}: {seen.get('phase', 'running')}{shown}")
        else:
            lines.append(line)

    await box.run_job(LOADGEN.read_bytes(), json.dumps(job).encode() + b"\n", f"{spec.study}:{step.key}-load",
                      longest_s(job), on_line)  # fmt: skip
    return summarise(lines, workload, level.concurrency), lines


async def _gpu_samples(box: Box, spec: StudySpec, session: Session, step: Measure) -> str:
    """One row per GPU and second while the target level is loaded."""
    if not session.known.has_nvidia_smi:
        return ""
    level = step.levels[0]
    return await box.sample_gpu(max(2.0, (level.warmup_min_s + level.window_s) / spec.time_scale))


async def _gathered(sampler: asyncio.Task[str]) -> str:
    """The samples; nothing when the box could not give them: a missing gpu.csv is missing facts, not a failed measurement."""
    try:
        return await sampler
    except BoxError:
        return ""


async def _files(
    box: Box, spec: StudySpec, session: Session, adapter: Engine, step: Measure, *, port: int, argv: Sequence[str],
    env: Mapping[str, str | None], points: Sequence[LoadPoint],
) -> dict[str, bytes]:  # fmt: skip
    context = session.known
    if step.launch == ORIGINAL:
        files = await read_log_files(box, context.original.logs if context.original else ())
    else:
        files = {"server.log": await launch_log(box, spec.study, step.launch)}
    files |= await endpoint_files(box, adapter, port)
    files["bench.json"] = json.dumps(bench_rows(points)).encode()
    given = {name: value for name, value in env.items() if value is not None}
    files["launch.json"] = launch_json(context, step.launch, argv, given, ready=True, start_s=session.ready_s.get(step.launch))
    return files


async def _box_invalid(box: Box, spec: StudySpec, step: Measure, port: int) -> list[Invalidity]:
    """What only the box can tell: whether the server that answered was ours to the end."""
    if step.launch == ORIGINAL:
        return []
    listeners = await box.listeners(port, f"{spec.study}:{step.launch}")
    if listeners.only_ours:
        return []
    return [Invalidity(code=ValidityCode.WRONG_SERVER, detail=f"port {port} is not held by our launch alone any more")]


def _json(data: bytes | None) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None
