"""What the load generator counts is what the real engine counted: its tokens against the engine's own counters, and the command
that measures a server by itself."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from optimizer.bench.calibrate import LOADGEN
from optimizer.bench.run import build_job, longest_s, summarise
from optimizer.model.measurement import ValidityCode
from optimizer.model.workload import Workload

from .conftest import Engines, Launch, Servers, Tool

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
KEY = "canary-key-of-a-real-engine"
LOAD = Workload(vocabulary="ascii", concurrency=4, prompt_tokens=64, output_tokens=24, warmup_min_s=1, warmup_max_s=2, window_s=6)


def drained(launch: Launch, **changes: Any) -> tuple[dict[str, Any], Any]:
    """A run that lets every request end: then nothing is under way when the counters are read."""
    workload = Workload.model_validate({**LOAD.model_dump(), "side_levels": (), **changes})
    job = build_job(workload, concurrency=workload.concurrency, window_s=workload.window_s, base_url=f"http://127.0.0.1:{launch.port}",
                    model=launch.model, seed=3, salt="counters", beside_server=True, metrics_path="/metrics")  # fmt: skip
    job["drain_s"] = 60.0
    done = subprocess.run([sys.executable, str(LOADGEN)], input=json.dumps(job).encode() + b"\n", capture_output=True, timeout=longest_s(job), check=False)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-500:]
    assert KEY.encode() not in done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), summarise(done.stdout.splitlines(), workload, workload.concurrency)


def check(launch: Launch, tool: Tool) -> None:
    for api in ("completions", "chat"):
        summary, point = drained(launch, api=api)
        counted = summary["counters"]
        assert not summary["errors"] and summary["finished_ok"] > 8, summary["examples"]
        assert counted["finished"] == pytest.approx(counted["generated"], rel=0.01), (api, counted)
        assert counted["prompt_finished"] == pytest.approx(counted["prompt"], rel=0.01), (api, counted)
        assert ValidityCode.FOREIGN_TRAFFIC not in {item.code for item in point.invalid}
    words = ["bench", f"http://127.0.0.1:{launch.port}", "--model", launch.model, "--concurrency", "4", "--prompt-tokens", "64", "--output-tokens", "24",
             "--warmup", "1", "--warmup-max", "2", "--window", "10", "--json"]  # fmt: skip
    point = tool(*words).json["points"][0]
    assert point["metrics"]["engine_tokens_ratio"] == pytest.approx(1.0, abs=0.03), point  # requests that are cut at the end are in it
    assert point["requests_failed"] == 0 and point["metrics"]["output_tokens_per_s"] > 0


def test_vllm_counts_the_same(shared_vllm: Launch, tool: Tool) -> None:
    check(shared_vllm, tool)


def test_sglang_counts_the_same(shared_sglang: Launch, tool: Tool) -> None:
    check(shared_sglang, tool)


def test_real_servers_with_a_key_are_measured_without_being_given_it(engines: Engines, serve: Servers) -> None:
    launch = serve(engines.vllm("--max-num-seqs", "4", "--api-key", KEY), _healthy)
    summary, _ = drained(launch)
    assert not summary["errors"] and summary["finished_ok"] > 8


def _healthy(launch: Launch) -> bool:
    """Asked without a key, which it would want for everything else."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{launch.port}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
