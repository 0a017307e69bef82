"""Each thing that makes a measurement worthless, really caused; and a clean run that raises none of them. What is invalid is
kept and shown, with an advice, and is not used (tests/unit/core)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.results import ServerProcess
from optimizer.core.witness import GpuProcess, GpuSample, Witness, foreign_processes, judge
from optimizer.engines.simulator import prepare_box
from optimizer.engines.simulator.simbox.gpu import start_ticks
from optimizer.model.measurement import ADVICE, ValidityCode
from optimizer.runner import doctor
from optimizer.runner.witness import Watch, app_rows, in_flight, table_samples
from optimizer.transport.local import LocalTransport

from ..simulator.client import free_port, until_ready
from .conftest import Bench, codes, foreign_client, point


async def test_foreign_requests_are_seen_at_the_server(bench: Bench) -> None:
    async with foreign_client(bench.running.port, 4) as answered:
        measured = await bench()
        assert answered() > 0
    assert ValidityCode.FOREIGN_TRAFFIC in codes(measured), measured.invalid
    assert "the client keeps at most 4 open" in str(measured.invalid) or "were asked for here" in str(measured.invalid)
    assert point(measured).metrics["output_tokens_per_s"] > 0  # kept and shown


@pytest.mark.slow
async def test_one_foreign_request_at_a_time_is_seen_in_the_counters(bench: Bench) -> None:
    async with foreign_client(bench.running.port, 1):
        measured = await bench(concurrency=8)
    assert ValidityCode.FOREIGN_TRAFFIC in codes(measured), measured.invalid


class Driver:
    """A box with a scripted nvidia-smi: one GPU whose driver says what holds its clock down. ``reasons`` None: it does not know."""

    def __init__(self, root: Path, reasons: str | None, clock: int) -> None:
        self.sim = prepare_box("h200-7b", root, 20.0)
        row = f"2026/01/01 00:00:00.000, 0, 97 %, 60 %, 70000 MiB, 650.10 W, {clock} MHz, 92"
        asked = "echo 'Field \"clocks_throttle_reasons.active\" is not a valid field to query.'; exit 2"
        if reasons is not None:
            asked = f"while :; do echo '{row}, {reasons}'; sleep 0.2; done"
        (self.sim.home / "bin/nvidia-smi").write_text(
            f"#!/bin/sh\ncase \"$*\" in\n*query-compute-apps*) exit 0;;\n*driver_version*) echo 580.95.05;;\n*throttle_reasons*) {asked};;\n*) while :; do echo '{row}'; sleep 0.2; done;;\nesac\n"
        )
        self.box = Box(LocalTransport(env=self.sim.env, home=self.sim.home, name="sim"))

    async def watched(self, *, window: bool = True) -> tuple[Watch, list[ValidityCode], tuple[str, ...], str]:
        watch = Watch(self.box, metrics_path="/metrics", port=free_port(), has_nvidia_smi=True, longest_s=1.0)
        async with watch:
            watch.in_window = window
            for _ in range(300):  # a chunk counts when it lies in the window as a whole: the first may have begun before
                if len(watch.csv) >= 2:
                    break
                await asyncio.sleep(0.1)
            await watch.finish()
        await self.box.close()
        assert watch.driver == b"580.95.05\n"
        invalid, notes = judge(watch.seen(), concurrency=4)
        return watch, [item.code for item in invalid], notes, str(invalid)


@pytest.mark.slow
@pytest.mark.fault("F35")
async def test_a_throttled_gpu(tmp_path: Path) -> None:
    """Scripted drivers: thermal and power brakes count, each by its name and clock; what was seen outside the window does not."""
    masks = {"0x0000000000000040": "hardware thermal", "0x0000000000000080": "power brake", "0x24": "software thermal"}
    drivers = [Driver(tmp_path / mask, mask, 1200) for mask in masks]
    for found_, name in zip(await asyncio.gather(*(one.watched() for one in drivers)), masks.values(), strict=True):
        _, codes_, _, said = found_
        assert codes_ == [ValidityCode.THROTTLED] and name in said and "1200 MHz" in said
    watch, codes_, _, _ = await Driver(tmp_path / "warm-up", "0x40", 1200).watched(window=False)
    assert codes_ == [] and "1200 MHz" in "".join(watch.csv)  # kept for gpu.csv


@pytest.mark.slow
async def test_idle_power_cap_and_a_silent_driver_are_no_throttling(tmp_path: Path) -> None:
    masks = ["0x0000000000000000", "0x0000000000000001", "0x0000000000000004", "[N/A]", None]
    drivers = [Driver(tmp_path / str(index), mask, 1980) for index, mask in enumerate(masks)]
    for (watch, codes_, notes, _), mask in zip(await asyncio.gather(*(one.watched() for one in drivers)), masks, strict=True):
        assert codes_ == []
        assert any("power limit" in note for note in notes) == (mask == "0x0000000000000004")
        assert "1980 MHz" in "".join(watch.csv)  # a driver that knows no reasons still gives its table


@pytest.mark.fault("F36")
async def test_a_process_that_comes_to_the_gpu_during_the_load(bench: Bench) -> None:
    """A real process that takes memory of the simulated GPU while the window is measured."""
    stranger = subprocess.Popen(["sleep", "60"])
    state = bench.sim.home / "state/gpu" / f"{stranger.pid}.json"
    values = {"pid": stranger.pid, "start": start_ticks(stranger.pid), "gpus": [0], "ranks": [stranger.pid], "used_mib": 9000.0, "busy": 0.5,
              "memory_busy": 0.5, "written": time.time()}  # fmt: skip
    seen = []

    def arrive(text: str) -> None:
        seen.append(text)
        if "measuring" in text and not state.exists():
            state.write_text(json.dumps(values))

    bench.said = _Told(arrive)  # type: ignore[assignment]
    try:
        measured = await bench()
    finally:
        stranger.kill()
        stranger.wait()
    assert ValidityCode.FOREIGN_PROCESS in codes(measured), measured.invalid
    assert str(stranger.pid) in str(measured.invalid) and "9000 MiB" in str(measured.invalid)


@pytest.mark.slow
async def test_the_same_settings_with_half_the_memory(tmp_path: Path, bench: Bench) -> None:
    """Somebody's process holds memory when the server is started again: its KV pool is not that of the launch before."""
    first = await bench(window_s=24)
    assert codes(first) == set(), first.invalid
    stranger = subprocess.Popen(["sleep", "60"])
    values = {"pid": stranger.pid, "start": start_ticks(stranger.pid), "gpus": [0], "ranks": [stranger.pid], "used_mib": 70_000.0, "busy": 0.0,
              "memory_busy": 0.0, "written": time.time()}  # fmt: skip
    (bench.sim.home / "state/gpu" / f"{stranger.pid}.json").write_text(json.dumps(values))
    bench.running.stop()
    with (bench.sim.home / "server.log").open("wb") as log:
        argv = [*bench.sim.argv]
        argv[argv.index("--port") + 1] = str(bench.running.port)
        bench.running.process = subprocess.Popen(argv, env={**bench.sim.env, **bench.sim.launch_env}, cwd=bench.sim.cwd, stdout=log, stderr=log,
                                                 stdin=subprocess.DEVNULL)  # fmt: skip
    try:
        await until_ready(bench.running)
        again = await bench(window_s=24)
    finally:
        stranger.kill()
        stranger.wait()
    assert ValidityCode.KV_POOL_SHRUNK in codes(again), again.invalid


class _Told(list[str]):
    def __init__(self, tell) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.append = tell  # type: ignore[method-assign,assignment]


@pytest.mark.fault("F37")
@pytest.mark.parametrize("bench", [("--enable-cache-report",)], indirect=True)
async def test_a_clean_run_raises_nothing_and_a_warm_prefix_cache_is_seen(bench: Bench) -> None:
    """The same prompts a second time: every prompt is in the cache, and nothing of that was declared."""
    measured = await bench()
    assert codes(measured) == set(), measured.invalid
    assert point(measured).metrics["output_tokens_per_s"] > 0
    assert any("measuring" in text for text in bench.said)
    again = await bench()  # same study, same run index: the same salt, as a tool that never flushes does it
    assert ValidityCode.CACHED_PREFIX in codes(again), again.invalid


# ---- the rules by themselves ------------------------------------------------------------------------------------------


def sample(index: int = 0, reasons: int = 0) -> GpuSample:
    return GpuSample(index=index, reasons=reasons, sm_mhz=1000.0)


def found(seen: Witness) -> list[ValidityCode]:
    return [item.code for item in judge(seen, concurrency=4)[0]]


def test_a_single_throttled_sample_is_an_edge() -> None:
    assert found(Witness(gpu=(sample(reasons=0x40), *[sample()] * 5))) == []
    assert found(Witness(gpu=(*[sample(reasons=0x40)] * 2, *[sample()] * 5))) == [ValidityCode.THROTTLED]
    assert found(Witness(gpu=(*[sample(reasons=0x40)] * 2, *[sample()] * 30))) == []


def test_one_throttled_gpu_of_eight_holds_the_others_up() -> None:
    rows = [sample(index, 0x20 if index == 5 else 0) for index in range(8) for _ in range(4)]
    assert found(Witness(gpu=tuple(rows))) == [ValidityCode.THROTTLED]


def test_processes_of_other_gpus_and_small_ones_do_not_count() -> None:
    mine, other = GpuProcess(pid=10, gpu="a", mib=70_000), GpuProcess(pid=20, gpu="b", mib=70_000)
    agent, tenant = GpuProcess(pid=30, gpu="a", mib=40), GpuProcess(pid=40, gpu="a", mib=5_000)
    assert found(Witness(before=(mine, other, agent), after=(mine, other, agent), ours=(10,))) == []
    assert found(Witness(before=(mine, tenant), after=(mine,), ours=(10,))) == [ValidityCode.FOREIGN_PROCESS]
    # In a container the listed numbers are the host's: nobody can say which are ours, so only newcomers count.
    assert found(Witness(before=(mine, other), after=(mine, other), ours=(77,))) == []
    assert found(Witness(before=(mine,), after=(mine, tenant), ours=(77,))) == [ValidityCode.FOREIGN_PROCESS]
    assert found(Witness(after=(mine,), ours=(77,))) == []
    assert foreign_processes((mine, other, agent, tenant), (10,)) == [tenant] and foreign_processes((mine, tenant), (77,)) == []


@pytest.mark.fault("F36")
async def test_a_stranger_on_the_gpu_of_the_running_server_is_told_before_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By doctor, with the processes of the server itself and of its children as ours."""
    server = subprocess.Popen([sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '60'])"], start_new_session=True)
    try:
        for _ in range(500):
            if children := Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
                break
            await asyncio.sleep(0.02)
        box = Box(LocalTransport(home=tmp_path))
        rows = tuple(GpuProcess(pid=pid, gpu="a", mib=5_000) for pid in (server.pid, int(children[0]), 1))
        monkeypatch.setattr(doctor, "gpu_processes", lambda box: asyncio.sleep(0, rows))
        original = ServerProcess.model_construct(pid=server.pid, start_time=start_ticks(server.pid), before=())
        (finding,) = await doctor._company(box, original)
        assert (finding.check, finding.level) == ("foreign load", "problem") and finding.said.endswith("process 1 with 5000 MiB.")
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_an_open_loop_may_have_any_number_open() -> None:
    seen = Witness(in_flight=(40.0,) * 20)
    assert found(seen) == [ValidityCode.FOREIGN_TRAFFIC]
    assert judge(seen, concurrency=4, closed_loop=False)[0] == ()


def test_gauges_of_every_engine_are_read() -> None:
    sglang = 'sglang:num_running_reqs{engine_type="unified",tp_rank="0"} 5.0\nsglang:num_queue_reqs{tp_rank="0"} 3.0\n'
    sglang += 'sglang:num_running_reqs{engine_type="unified",tp_rank="1"} 5.0\n'
    assert in_flight(sglang) == 8.0
    assert in_flight('vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 4.0\n') == 7.0
    assert in_flight("llamacpp:requests_processing 3\nllamacpp:requests_deferred 0\n") == 3.0
    assert in_flight("something_else 1\n") is None


@pytest.mark.fault("F49")
def test_broken_tables_are_left_out() -> None:
    assert table_samples("t, 0, 1, 1, 1, 1, 1980 MHz, 40\n\ngarbage\nt, x, 1, 1, 1, 1, 1, 1, 0x0\n") == []
    assert [one.reasons for one in table_samples("t, 0, 1 %, 1 %, 1 MiB, 1 W, [N/A], 40, 0x0000000000000040\n")] == [0x40]
    assert app_rows("12, GPU-1, 500\nx, GPU-1, 3\n13, GPU-2, [N/A]\n") == (GpuProcess(pid=12, gpu="GPU-1", mib=500.0),)


def test_every_code_has_an_advice() -> None:
    assert set(ADVICE) == set(ValidityCode)
    assert all(text.endswith(".") and len(text) > 20 for text in ADVICE.values())


def test_nothing_of_a_card_that_identifies_it_is_kept(tmp_path: Path) -> None:
    _, notes = judge(Witness(before=(GpuProcess(pid=1, gpu="GPU-secret", mib=900),), after=(GpuProcess(pid=os.getpid(), gpu="GPU-secret", mib=900),)), concurrency=4)
    items = judge(Witness(before=(GpuProcess(pid=1, gpu="GPU-secret", mib=900),), after=(GpuProcess(pid=2, gpu="GPU-secret", mib=900),)), concurrency=4)[0]
    assert items and "GPU-secret" not in str(items) + str(notes)
