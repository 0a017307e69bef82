"""The probes against real server processes: what one server repeats, what a quantised KV cache changes, what another kernel or
a server of many moods does not show."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.core.answers import compare
from optimizer.endpoint.client import Endpoint
from optimizer.engines.simulator import prepare_box
from optimizer.model.answers import BASELINE_PASSES, CANDIDATE_PASSES, PROBES, AnswerPass
from optimizer.runner import answers as runner_answers
from optimizer.runner.answers import ask_endpoint

from ..simulator.client import Running, free_port, until_ready

SCALE = 200.0


@contextlib.contextmanager
def server(root: Path, *extra: str, nondeterminism: float = 0.0) -> Iterator[Running]:
    box = prepare_box("h200-7b", root, SCALE)
    described = json.loads((box.home / "box.json").read_text())
    described["answers"] = {"nondeterminism": nondeterminism}
    (box.home / "box.json").write_text(json.dumps(described))
    port = free_port()
    argv = [*box.argv, *extra]
    argv[argv.index("--port") + 1] = str(port)
    log = box.home / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, env={**box.env, **box.launch_env}, cwd=box.cwd, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    running = Running(box, process, port, log)
    try:
        yield running
    finally:
        running.stop()


async def asked(running: Running, passes: int) -> list[AnswerPass]:
    await until_ready(running)
    async with Endpoint(f"http://127.0.0.1:{running.port}") as endpoint:
        return await ask_endpoint(endpoint, "m", PROBES, passes)


async def both(tmp_path: Path, *extra: str, nondeterminism: float = 0.0):
    with server(tmp_path / "a", nondeterminism=nondeterminism) as before, server(tmp_path / "b", *extra, nondeterminism=nondeterminism) as after:
        reference, candidate = await asyncio.gather(asked(before, BASELINE_PASSES), asked(after, CANDIDATE_PASSES))
    return reference, candidate, compare(reference, candidate)


async def test_a_quantised_kv_cache_changes_the_answers(tmp_path: Path) -> None:
    reference, _, found = await both(tmp_path, "--kv-cache-dtype", "fp8_e4m3")
    assert [one.repeat for one in reference] == [1, 2, 3, 4, 5, 6] and all(len(one.tokens) == 32 == len(one.margins) for one in reference[0].answers if one)
    assert found is not None and found.verdict == "changed", found
    assert found.reference_agreement == 1.0


async def test_a_relaunch_answers_as_before(tmp_path: Path) -> None:
    _, _, found = await both(tmp_path)
    assert found is not None and found.verdict == "same" and found.agreement == 1.0


async def test_another_kernel_decides_ties_otherwise_and_changes_nothing(tmp_path: Path) -> None:
    _, _, found = await both(tmp_path, "--attention-backend", "flashinfer")
    assert found is not None and found.verdict != "changed", found
    assert found.near_ties > 0 and found.differing == 0  # it did answer otherwise, at ties only


async def test_a_server_that_decides_its_ties_by_chance_is_not_called_lossy(tmp_path: Path) -> None:
    reference, _, found = await both(tmp_path, nondeterminism=0.5)
    assert reference[0] != reference[1]
    assert found is not None and found.verdict != "changed"


async def test_a_slow_server_is_asked_as_often_as_needed_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_answers, "REPEATS_S", 0.0)
    with server(tmp_path / "a") as running:
        await until_ready(running)
        async with Endpoint(f"http://127.0.0.1:{running.port}") as endpoint:
            passes = await ask_endpoint(endpoint, "m", PROBES, BASELINE_PASSES, needed=2)
    assert [one.repeat for one in passes] == [1, 2]


async def test_a_server_that_is_gone_costs_nothing_but_the_answers() -> None:
    async with Endpoint(f"http://127.0.0.1:{free_port()}") as endpoint:
        assert await asyncio.wait_for(ask_endpoint(endpoint, "m", PROBES, 2), 10) == []


@pytest.mark.parametrize("speed", [5.0])
async def test_the_deadline_holds(speed: float) -> None:
    """A server that never answers: one request's patience, not one for each probe."""
    stuck = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = stuck.sockets[0].getsockname()[1]
    async with Endpoint(f"http://127.0.0.1:{port}") as endpoint:
        began = asyncio.get_running_loop().time()
        assert await ask_endpoint(endpoint, "m", PROBES, 2, deadline_s=0.5) == []
        assert asyncio.get_running_loop().time() - began < 3
    stuck.close()
