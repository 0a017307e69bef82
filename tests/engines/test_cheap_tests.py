"""Cheap tests on a real vLLM: each is made on the owner's running server, says what is true of it, and leaves it as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.step import ORIGINAL, Check, Level
from optimizer.model.study import HostSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.runner.execute import LiveExecutor
from optimizer.runner.survey import survey
from optimizer.transport.local import LocalTransport

from .conftest import WORKLOAD, Engines, Launch, Servers, owners

pytestmark = [pytest.mark.engines, pytest.mark.measures, pytest.mark.timeout(900)]


def level(concurrency: int, window_s: float = 6.0) -> Level:
    return Level(concurrency=concurrency, warmup_min_s=1.0, warmup_max_s=2.0, window_s=window_s)


def make(launch: Launch, home: Path, *steps: Check) -> dict[str, dict[str, Any]]:
    """Test name -> outcome, on the running server."""

    async def work() -> dict[str, dict[str, Any]]:
        spec = StudySpec(study="t", host=HostSpec(name="localhost", kind="local"), target=Target(), port=launch.port, workload=Workload(**WORKLOAD))
        here = Box(LocalTransport(env=None, home=home))
        try:
            effect = await survey(here, spec)
            assert effect.outcome.status == "done", effect.outcome
            executor = LiveExecutor(here, spec, load_library(find_knowledge(None)))
            executor.session.adopt(effect.outcome.body, effect.blobs)
            return {step.test: (await executor.execute(step)).outcome.model_dump(mode="json") for step in steps}
        finally:
            await here.close()

    return asyncio.run(work())


def facts(outcome: dict[str, Any]) -> dict[str, Any]:
    assert outcome["status"] == "done", outcome
    return {fact["name"] + "".join(f" {value}" for value in fact["labels"].values()): fact["value"] for fact in outcome["body"]["evidence"]["facts"]}


def test_what_the_tests_say_of_a_running_vllm(engines: Engines, serve: Servers, tmp_path: Path) -> None:
    launch = serve(engines.vllm("--max-num-seqs", "4"))
    before = owners(launch.port)
    home = tmp_path / "box"
    home.mkdir()

    def check(test: str, *levels: Level, **more: Any) -> Check:
        return Check(key="1", launch=ORIGINAL, test=test, levels=levels, **more)

    found = make(
        launch, home, check("read_proc", seconds=2.0), check("cpu_profile", level(4, 6.0), seconds=4.0), check("flush_cache"),
        check("concurrency_sweep", level(2), level(4), level(8), around=4, width="double"), check("second_client", level(2, 4.0), level(2, 4.0)),
    )  # fmt: skip
    assert owners(launch.port) == before, "nothing was relaunched"
    kernel = facts(found["read_proc"])
    assert kernel["host.cpu_throttled_periods"] >= 0 and kernel["nccl.env"] == []
    profile, seen = facts(found["cpu_profile"]), found["cpu_profile"]["body"]["detail"]
    assert 0.0 <= profile["host.cpu_sat"] <= 1.0
    server = max(seen["processes"], key=lambda process: process["cpu_pct"])
    assert server["pid"] in before or server["cpu_pct"] > 20
    assert server["cpu_pct"] > 10, "a CPU engine under load works"
    assert any(name.startswith("host.proc_cpu_pct") for name in profile)
    sweep = found["concurrency_sweep"]
    assert facts(sweep).get("client.knee_concurrency") == 4, sweep["body"]["text"]  # four slots: twice the load gives no more
    assert found["flush_cache"]["body"]["detail"]["flushed"] is False  # vLLM serves no flush
    assert facts(found["second_client"])["client.output_tps second_client 4"] > 0
