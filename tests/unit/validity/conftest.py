"""One measurement as a study makes it: the product's own load generator and witness against a simulated server as its own
process on a simulated box, with whatever else a test lets happen there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.engines.registry import engine
from optimizer.engines.simulator import SimBox, prepare_box
from optimizer.model.measurement import LoadPoint, Measurement, ValidityCode
from optimizer.model.outcome import Done
from optimizer.model.step import ORIGINAL, Level, Measure
from optimizer.model.study import HostSpec, LaunchSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.runner.context import BoxContext, Served, Session, Worker
from optimizer.runner.measure import measure
from optimizer.transport.local import LocalTransport

from ..simulator.client import Running, free_port, until_ready

SCALE = 20.0


@dataclass
class Bench:
    """A server, and measurements of it."""

    sim: SimBox
    running: Running
    box: Box
    said: list[str] = field(default_factory=list)
    session: Session = field(default_factory=Session)

    async def __call__(self, *, concurrency: int = 4, window_s: float = 48.0, warmup_s: float = 8.0, **load: Any) -> Measurement:
        workload = Workload(concurrency=concurrency, prompt_tokens=128, output_tokens=64, warmup_min_s=warmup_s, warmup_max_s=warmup_s, **load)
        spec = StudySpec(study="v", host=HostSpec(name="sim:h200-7b", kind="sim"), target=Target(), workload=workload, time_scale=SCALE)
        argv = tuple(self.sim.argv)
        session = self.session
        session.context = BoxContext(engine="sglang", launch=LaunchSpec(argv=argv), original_port=self.running.port, boot_id="b", hostname="h",
                                     gpu="H200", gpu_count=1, has_nvidia_smi=True)  # fmt: skip
        level = Level(concurrency=concurrency, warmup_min_s=warmup_s, warmup_max_s=warmup_s, window_s=window_s)
        step = Measure(key="1", launch=ORIGINAL, purpose="candidate", levels=(level,), run_index=0)
        whole = Worker(name=None, role="server", port=self.running.port, argv=argv, env={})
        served = Served(port=self.running.port, model=self.sim.model_config_path.parent.name, workers=(whole,))
        effect = await measure(self.box, spec, session, engine("sglang"), step, served=served, progress=self.said.append,
                               classify=lambda *_: None)  # type: ignore[arg-type]  # fmt: skip
        assert isinstance(effect.outcome, Done), effect.outcome
        return Measurement.model_validate(effect.outcome.body["measurement"])


def codes(measured: Measurement) -> set[ValidityCode]:
    """Without the shape of the warm-up: these windows are short on purpose."""
    return {item.code for item in measured.invalid} - {ValidityCode.NEVER_STEADY}


def point(measured: Measurement) -> LoadPoint:
    return measured.points[0]


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """``@pytest.mark.parametrize("bench", [(flags...)], indirect=True)`` adds flags to the server."""
    sim = prepare_box("h200-7b", tmp_path, SCALE)
    port = free_port()
    argv = [*sim.argv, *getattr(request, "param", ())]
    argv[argv.index("--port") + 1] = str(port)
    log = sim.home / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, env={**sim.env, **sim.launch_env}, cwd=sim.cwd, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    running = Running(sim, process, port, log)
    box = Box(LocalTransport(env=sim.env, home=sim.home, name="sim"))
    try:
        await until_ready(running)
        yield Bench(sim, running, box)
    finally:
        await box.close()
        running.stop()


@contextlib.asynccontextmanager
async def foreign_client(port: int, connections: int) -> AsyncIterator[Callable[[], int]]:
    """Somebody else's requests, one after the other on each connection; the number that were answered."""
    done = 0

    async def client(number: int) -> None:
        nonlocal done
        body = json.dumps({"model": "x", "prompt": f"somebody else {number} asks this " * 20, "max_tokens": 64, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            while True:
                writer.write(head + body)
                length = 0
                while (line := await reader.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                await reader.readexactly(length)
                done += 1

    tasks = [asyncio.create_task(client(number)) for number in range(connections)]
    try:
        yield lambda: done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
