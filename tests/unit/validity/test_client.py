"""What the client itself can spoil, really caused: a load generator without CPU, clocks that jump, a load beyond the server, a
port that somebody else holds. The other codes of the client's side are in tests/unit/bench."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optimizer.bench.calibrate import LOADGEN
from optimizer.bench.run import summarise
from optimizer.box.box import Box
from optimizer.engines.simulator import prepare_box
from optimizer.model.measurement import LoadPoint, ValidityCode
from optimizer.model.outcome import Done, Failed
from optimizer.model.workload import Workload
from optimizer.runner.calibrating import calibrate
from optimizer.transport.local import LocalTransport
from tests.unit.bench.conftest import load, null_server

from .conftest import Bench, codes

__all__ = ["load", "null_server"]


def seen(lines: list[bytes], concurrency: int, output_tokens: int = 16) -> tuple[set[ValidityCode], LoadPoint]:
    point = summarise(lines, Workload(concurrency=concurrency, prompt_tokens=32, output_tokens=output_tokens), concurrency)
    return {item.code for item in point.invalid} - {ValidityCode.NEVER_STEADY}, point


@pytest.mark.fault("F40")
def test_a_load_generator_that_is_starved_says_so(null_server: Any, load: Any) -> None:
    """Other work on its core: it wakes late, and each request is sent later than a slot was free."""
    url = null_server("--gap-ms", "1")
    job: dict[str, Any] = {"concurrency": 8, "output_tokens": 16, "window_s": 1.5, "timeout_s": 60}
    core = max(os.sched_getaffinity(0))
    hogs = [subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]) for _ in range(10)]
    try:
        starved, point = seen(load(url, **job, cpus=[core]).lines, 8)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert ValidityCode.CLIENT_BOUND in starved, point
    easy, point = seen(load(null_server("--gap-ms", "10"), concurrency=2, output_tokens=64, window_s=1.5).lines, 2, 64)
    assert ValidityCode.CLIENT_BOUND not in easy, point


@pytest.mark.slow
@pytest.mark.fault("F40")
async def test_the_calibration_before_a_study_finds_out_what_the_client_cannot_do(tmp_path: Path) -> None:
    sim = prepare_box("h200-7b", tmp_path, 20.0)
    box = Box(LocalTransport(env=sim.env, home=sim.home, name="sim"))
    beyond = await calibrate(box, "v:1", chunks_per_s=3_000_000, concurrency=64)
    assert isinstance(beyond.outcome, Failed) and beyond.outcome.cause == "client_bound"
    assert "cannot keep up" in beyond.outcome.message
    within = await calibrate(box, "v:2", chunks_per_s=500, concurrency=8)
    assert isinstance(within.outcome, Done), within.outcome
    await box.close()


# The process's own clock has jumped by an hour whenever it is read again, as a step of the machine's clock makes it.
STEPPED = """
import runpy, sys, time
real, asked = time.time, []
time.time = lambda: asked.append(1) or real() + 3600.0 * len(asked)
sys.argv = [sys.argv[1]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.fault("F38")
@pytest.mark.parametrize("stepped", [True, False])
def test_a_clock_that_jumps_in_the_window(null_server: Any, tmp_path: Path, stepped: bool) -> None:
    (tmp_path / "stepped.py").write_text(STEPPED)
    job = {"base_url": null_server("--gap-ms", "5"), "model": "m", "concurrency": 4, "output_tokens": 16, "warmup_min_s": 0.2, "warmup_max_s": 0.3,
           "window_s": 1.2, "prompts": {"seed": "7", "salt": "a", "vocabulary": "words", "prompt_tokens": 32}}  # fmt: skip
    command = [sys.executable, str(tmp_path / "stepped.py"), str(LOADGEN)] if stepped else [sys.executable, str(LOADGEN)]
    done = subprocess.run(command, input=json.dumps(job).encode() + b"\n", capture_output=True, timeout=30, check=False)
    found, point = seen(done.stdout.splitlines(), 4)
    assert found == ({ValidityCode.CLOCK_STEP} if stepped else set()), (point.invalid, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("bench", [("--max-running-requests", "4")], indirect=True)
async def test_a_load_beyond_the_server(bench: Bench) -> None:
    """Poisson arrivals at 1.6 times what four slots can serve: the queue grows all the time."""
    able = (await bench(window_s=30)).points[0].metrics["requests_per_s"]
    measured = await bench(window_s=160, arrival="poisson", rate_per_s=1.6 * able)
    assert ValidityCode.OVER_SATURATED in codes(measured), measured.invalid
    assert ValidityCode.FOREIGN_TRAFFIC not in codes(measured)  # a queue of one's own is no foreign traffic
