"""The probes on a real engine: vLLM on this CPU repeats itself, answers as before after a relaunch and in another precision of
its arithmetic, and answers differently with other weights."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.core.answers import compare
from optimizer.endpoint.client import Endpoint
from optimizer.model.answers import PROBES, AnswerPass
from optimizer.runner.answers import ask_endpoint

from .conftest import READY_S, Engines, Launch

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]


@contextlib.contextmanager
def serving(launch: Launch, log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(launch.argv, env={**os.environ, **launch.env}, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=log.parent)
    try:
        end = time.monotonic() + READY_S
        while True:
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"http://127.0.0.1:{launch.port}/health", timeout=2):
                break
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def asked(launch: Launch, log: Path, passes: int) -> list[AnswerPass]:
    with serving(launch, log):
        async with Endpoint(f"http://127.0.0.1:{launch.port}") as endpoint:
            began = time.monotonic()
            found = await ask_endpoint(endpoint, launch.model, PROBES, passes)
            print(f"{passes} pass(es) in {time.monotonic() - began:.1f} s")
            return found


async def test_answers_of_a_real_engine(engines: Engines, tmp_path: Path) -> None:
    before = await asked(engines.vllm("--dtype", "bfloat16"), tmp_path / "a.log", 2)
    assert len(before) == 2 and all(one is not None and len(one.margins) == len(one.tokens) > 0 for one in before[0].answers)
    again = compare(before, await asked(engines.vllm("--dtype", "bfloat16", "--max-num-seqs", "4"), tmp_path / "b.log", 1))
    print(again)
    assert again is not None and again.verdict == "same"
    exact = compare(before, await asked(engines.vllm("--dtype", "float32"), tmp_path / "c.log", 1))
    print(exact)  # rounding alone: ties may fall otherwise, nothing else
    assert exact is not None and exact.verdict != "changed"
    other = compare(before, await asked(engines.vllm("--dtype", "bfloat16", model="model-cycle"), tmp_path / "d.log", 1))
    print(other)
    assert other is not None and other.verdict == "changed"
