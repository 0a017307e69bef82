"""The probes on a real engine: vLLM on this CPU repeats itself, answers as before after a relaunch and in another precision of
its arithmetic, and answers differently with other weights."""

from __future__ import annotations

import time

import pytest

from optimizer.core.answers import compare
from optimizer.endpoint.client import Endpoint
from optimizer.model.answers import PROBES, AnswerPass
from optimizer.runner.answers import ask_endpoint

from .conftest import Engines, Launch, Servers

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]


async def asked(launch: Launch, passes: int) -> list[AnswerPass]:
    async with Endpoint(f"http://127.0.0.1:{launch.port}") as endpoint:
        began = time.monotonic()
        found = await ask_endpoint(endpoint, launch.model, PROBES, passes)
        print(f"{passes} pass(es) in {time.monotonic() - began:.1f} s")
        return found


async def test_answers_of_a_real_vllm(engines: Engines, shared_vllm: Launch, serve: Servers) -> None:
    """Four servers: three are started side by side, the fourth with four slots is the one that other tests use as well."""
    first, exactly = engines.vllm("--dtype", "bfloat16"), engines.vllm("--dtype", "float32")
    others = engines.vllm("--dtype", "bfloat16", model="model-cycle")
    for launch in (first, exactly, others):
        serve.begin(launch)
    before = await asked(serve.ready(first), 2)
    assert len(before) == 2 and all(one is not None and len(one.margins) == len(one.tokens) > 0 for one in before[0].answers)
    again = compare(before, await asked(shared_vllm, 1))
    print(again)
    assert again is not None and again.verdict == "same"
    exact = compare(before, await asked(serve.ready(exactly), 1))
    print(exact)  # rounding alone: ties may fall otherwise, nothing else
    assert exact is not None and exact.verdict != "changed"
    other = compare(before, await asked(serve.ready(others), 1))
    print(other)
    assert other is not None and other.verdict == "changed"
