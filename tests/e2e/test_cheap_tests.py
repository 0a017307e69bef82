"""Every cheap test against a server that really runs: what it states is what was done to the server, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.core import checks
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.step import ORIGINAL, Check, Level
from optimizer.model.study import HostSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.runner.execute import LiveExecutor
from optimizer.runner.survey import survey
from optimizer.transport.local import LocalTransport

from .fastbox import FastBox, listening

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LOAD = {"warmup_min_s": 0.5, "warmup_max_s": 1.5, "window_s": 2.5}


def level(concurrency: int, **more: Any) -> Level:
    return Level(concurrency=concurrency, **{**LOAD, **more})


def make(box: FastBox, *steps: Check) -> list[dict[str, Any]]:
    """The outcomes of these tests on the owner's running server."""

    async def work() -> list[dict[str, Any]]:
        spec = StudySpec(
            study="t", host=HostSpec(name="localhost", kind="local"), target=Target(), port=box.port,
            workload=Workload(concurrency=8, prompt_tokens=64, output_tokens=16, side_levels=(), **LOAD),
        )  # fmt: skip
        here = Box(LocalTransport(env=box.env, home=box.home))
        try:
            effect = await survey(here, spec)
            executor = LiveExecutor(here, spec, load_library(find_knowledge(None)))
            executor.session.adopt(effect.outcome.body, effect.blobs)  # type: ignore[union-attr]
            return [(await executor.execute(step)).outcome.model_dump(mode="json") for step in steps]
        finally:
            await here.close()

    return asyncio.run(work())


def check(test: str, *levels: Level, **more: Any) -> Check:
    return Check(key="1", launch=ORIGINAL, test=test, levels=levels, **more)


def facts(outcome: dict[str, Any]) -> dict[tuple[str, str], Any]:
    assert outcome["status"] == "done", outcome
    return {(fact["name"], str(fact["labels"].get("probe") or fact["labels"].get("process") or fact["labels"].get("target") or "")): fact["value"]
            for fact in outcome["body"]["evidence"]["facts"]}  # fmt: skip


def with_graphs(box: FastBox, largest: int, *extra: str) -> None:
    box.argv = (*(word for word in box.argv if word != "--disable-cuda-graph"), "--cuda-graph-max-bs", str(largest), *extra)


def test_a_step_beyond_the_largest_graph_is_found_and_its_absence_too(box: FastBox) -> None:
    with_graphs(box, 4)
    box.serve()
    at_four, at_two = make(box, check("concurrency_sweep", level(3), level(4), level(5), around=4), check("concurrency_sweep", level(1), level(2), level(3), around=2))
    assert facts(at_four)["client.knee_concurrency", ""] == 4
    assert facts(at_four)["probe.speed_ratio", "one_above_limit"] < 0.8
    assert "the step is there" in at_four["body"]["text"]
    assert facts(at_two)["client.knee_concurrency", ""] == 3 and at_two["body"]["evidence"]["facts"][0]["bound"] == "at_least"
    # Three requests in a graph of four are slower than two in one of two; no graph at all is another matter.
    assert facts(at_two)["probe.speed_ratio", "one_above_limit"] > 1.3 * facts(at_four)["probe.speed_ratio", "one_above_limit"]
    assert listening(box.port) and box.marked() == {} and box.leftovers() == []


def test_a_rate_that_stops_growing_at_the_slots_is_found(box: FastBox) -> None:
    with_graphs(box, 32, "--max-running-requests", "2")
    box.serve()
    (found,) = make(box, check("concurrency_sweep", level(1), level(2), level(4), around=2, width="double"))
    assert facts(found)["client.knee_concurrency", ""] == 2 and "stops growing at 2" in found["body"]["text"]


def test_one_against_many_and_two_clients_and_the_same_again(box: FastBox) -> None:
    box.serve()
    one, two, again = make(
        box, check("single_stream", level(1), level(8)), check("second_client", level(4), level(4)),
        check("repeat_in_process", level(8, window_s=4.0), reference_tokens_per_s=100.0),
    )  # fmt: skip
    ratio = facts(one)["probe.speed_ratio", "concurrency_up"]
    assert 4 < ratio < 9, "eager steps of eight requests take hardly longer than of one"
    total = facts(two)["client.output_tps", "second_client"]
    alone = again["body"]["points"][0]["metrics"]["output_tokens_per_s"]
    assert total == pytest.approx(alone, rel=0.2), "a client that is no limit gains nothing from a second one"
    assert facts(again)["validity.repeat_ratio", ""] == pytest.approx(alone / 100.0, rel=1e-3)
    assert [point["concurrency"] for point in two["body"]["points"]] == [4, 4]
    assert box.marked() == {} and box.leftovers() == []


def test_the_threads_of_the_server_are_watched_without_touching_it(box: FastBox) -> None:
    server = box.serve()
    before = Path(f"/proc/{server.pid}/stat").read_text().split()[21]
    profile, kernel = make(box, check("cpu_profile", level(8, window_s=3.0), seconds=2.0), check("read_proc", seconds=1.0))
    seen = profile["body"]["detail"]
    assert server.pid in {process["pid"] for process in seen["processes"]} and seen["rounds"] >= 4
    assert 0 <= facts(profile)["host.cpu_sat", ""] <= 1
    assert {name for name, _ in facts(profile)} == {"host.cpu_sat", "host.proc_cpu_pct"} and facts(profile)["host.proc_cpu_pct", "client"] > 0
    assert any(row["where"] for row in seen["threads"])
    found = facts(kernel)
    assert found["host.cpu_throttled_periods", ""] >= 0 and found["host.cpu_steal_pct", ""] >= 0
    assert Path(f"/proc/{server.pid}/stat").read_text().split()[21] == before and listening(box.port)
    assert kernel["duration_s"] < 15 and "host.stack_share" not in json.dumps(profile)


def test_a_busy_thread_is_seen_as_a_full_core(box: FastBox) -> None:
    """The sampler itself, on a process that is known to burn one core."""
    import subprocess
    import sys

    from optimizer.box.program import sampler_program

    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    box.processes.append(burner)
    asked = json.dumps({"op": "sample", "pids": [burner.pid], "seconds": 2.0, "interval_s": 0.25}) + "\n"
    done = subprocess.run([sys.executable, "-I", "-c", sampler_program().decode()], input=asked, capture_output=True, text=True, timeout=30, check=True)
    burner.kill()
    found = json.loads(done.stdout)
    busy = found["threads"][0]
    assert busy["pid"] == burner.pid and busy["where"].get("on a core", 0) > 0.5
    if os.getloadavg()[0] < 1.5:  # a machine that is busy with something else gives nobody a whole core
        assert busy["cpu_pct"] > 80


def test_a_prompt_that_was_just_sent_starts_faster_when_the_cache_works(box: FastBox) -> None:
    box.serve()
    (found,) = make(box, check("flush_cache"))
    ratio = facts(found)["probe.speed_ratio", "warm_prompt"]
    assert ratio > 0 and found["body"]["detail"]["flushed"] is True and len(found["body"]["detail"]["cold_s"]) == 3


def test_nccls_own_log_is_read_where_it_was_told_to_write(box: FastBox, tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(
        "box:100:100 [0] NCCL INFO Channel 00/02 : 0 1\nbox:100:100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n"
        "box:100:100 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct\nNCCL version 2.27.3+cuda12.9\n"
    )
    box.env = {**box.env, "NCCL_DEBUG_FILE": str(path)}
    box.serve()
    (found,) = make(box, check("nccl_log"))
    assert facts(found)["nccl.transport", ""] == "shm"
    assert all(fact["source"] == str(path) for fact in found["body"]["evidence"]["facts"])
    path.unlink()
    (gone,) = make(box, check("nccl_log"))
    assert gone["status"] == "done" and gone["body"]["evidence"]["facts"] == [] and gone["body"]["evidence"]["missing"]


def test_a_server_that_is_gone_makes_a_test_say_nothing(box: FastBox) -> None:
    server = box.serve()

    async def work() -> dict[str, Any]:
        spec = StudySpec(study="t", host=HostSpec(name="localhost", kind="local"), target=Target(), port=box.port,
                         workload=Workload(concurrency=8, prompt_tokens=64, output_tokens=16, side_levels=(), **LOAD))  # fmt: skip
        here = Box(LocalTransport(env=box.env, home=box.home))
        effect = await survey(here, spec)
        executor = LiveExecutor(here, spec, load_library(find_knowledge(None)))
        executor.session.adopt(effect.outcome.body, effect.blobs)  # type: ignore[union-attr]
        server.kill()
        server.wait()
        found = (await executor.execute(check("second_client", level(4), level(4)))).outcome.model_dump(mode="json")
        await here.close()
        return found

    found = asyncio.run(work())
    assert found["status"] == "failed" or found["body"]["evidence"]["facts"] == []
    assert box.marked() == {}


def test_the_cost_that_is_ranked_is_the_cost_that_is_paid(box: FastBox) -> None:
    box.serve()
    step = check("second_client", level(4), level(4))
    (found,) = make(box, step)
    promised = checks.cost_s(checks.CATALOGUE["second_client"], step.levels, 0.0)
    assert found["duration_s"] < promised + LOAD["warmup_max_s"] + 6
