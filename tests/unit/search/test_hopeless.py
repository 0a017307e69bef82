"""Launches that are stopped after their start, unmeasured, and those that must not be."""

import asyncio
from pathlib import Path

import pytest

from optimizer.core.hopeless import hopeless
from optimizer.evidence.bundle import bundle_from_files
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.outcome import Done, Outcome
from optimizer.model.step import AwaitReady, Step
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog
from tests.unit.core.model_box import PLAN, ModelBox, spec

LOGS = Path(__file__).parents[4] / "shared" / "data" / "evidence"
SHORT = {"max_total_tokens": (None, 4096)}


def facts(**values: Value) -> Evidence:
    return Evidence(facts=tuple(Fact(name=name.replace("__", "."), value=value) for name, value in values.items()))


@pytest.mark.parametrize(
    ("pool", "needed", "given_up"),
    [
        (4_000, 12_000, True),
        (40_000, 12_000, False),  # below half, and still room for the load
        (60_000, 12_000, False),
        (4_000, 200_000, False),  # the parent could not hold it either
    ],
)
def test_a_pool_that_lost_the_room_for_the_load_is_given_up(pool: int, needed: int, given_up: bool) -> None:
    why = hopeless(facts(kv__pool_tokens=100_000), facts(kv__pool_tokens=pool), SHORT, {}, tokens_needed=needed)
    assert bool(why) is given_up
    if given_up:
        assert "4% of the baseline's 100000" in why


def test_nothing_is_given_up_without_a_change_or_without_facts() -> None:
    assert hopeless(facts(kv__pool_tokens=100_000), facts(kv__pool_tokens=10), {}, {}, tokens_needed=1000) == ""
    assert hopeless(facts(), facts(kv__pool_tokens=10), SHORT, {}, tokens_needed=1000) == ""
    assert hopeless(facts(kv__pool_tokens=100_000), facts(), SHORT, {}, tokens_needed=1000) == ""


V0 = b"""INFO 07-21 21:04:02 [cli_args.py:300] non-default args: {'kv_cache_dtype': 'fp8'}
WARNING 07-21 21:04:18 [arg_utils.py:1583] --kv-cache-dtype is not supported by the V1 Engine. Falling back to V0.
INFO 07-21 21:04:24 [llm_engine.py:230] Initializing a V0 LLM engine (v0.9.0.1) with config: model='m', speculative_config=None
"""
V1 = b"INFO 07-21 20:41:11 [core.py:65] Initializing a V1 LLM engine (v0.9.0.1) with config: model='m', speculative_config=None\n"


def read(log: bytes) -> Evidence:
    return bundle_from_files({"launch.json": b'{"engine": "vllm"}', "server.log": log}).evidence


def test_a_fallback_that_the_server_blames_on_the_change_is_given_up() -> None:
    changed = {"kv_cache_dtype": ("auto", "fp8")}
    why = hopeless(read(V1), read(V0), changed, {"kv_cache_dtype": ("kv.dtype",)}, tokens_needed=1)
    assert "kv_cache_dtype made engine.generation fall back from V1 to V0" in why
    # Where the parent had fallen back already, where it was expected, and where another setting changed, it is no news.
    assert hopeless(read(V0), read(V0), changed, {}, tokens_needed=1) == ""
    assert hopeless(read(V1), read(V0), changed, {"kv_cache_dtype": ("engine.generation",)}, tokens_needed=1) == ""
    assert hopeless(read(V1), read(V0), {"block_size": (16, 32)}, {}, tokens_needed=1) == ""


class _Shrinking(ModelBox):
    """Every candidate starts with a pool that holds two requests."""

    def _do(self, step: Step) -> Outcome:
        done = super()._do(step)
        if isinstance(step, AwaitReady) and isinstance(done, Done):
            return done.model_copy(update={"body": {**done.body, "startup": facts(kv__pool_tokens=1500).plain()}})
        return done


def run(box: ModelBox) -> MemoryLog:
    log = MemoryLog()
    log.append("opened", {"spec": spec().plain()}, expect=0)
    asyncio.run(drive(log, box, PLAN))
    return log


def test_a_hopeless_candidate_is_stopped_unmeasured_and_never_launched_again() -> None:
    box = _Shrinking({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)
    entries = run(box).read()
    pruned = [entry.body for entry in entries if entry.kind == "pruned"]
    assert pruned[0]["verdict"] == "hopeless" and "KV pool holds 1500 tokens" in pruned[0]["why"]
    assert pruned[0]["hypothesis"] == "cuda-graph-disabled"
    candidates = [step for step in box.calls if step.kind == "measure" and step.purpose == "candidate"]  # type: ignore[union-attr]
    assert candidates == []
    launched = [step.settings.values for step in box.calls if step.kind == "launch" and step.purpose == "candidate"]  # type: ignore[union-attr]
    assert len(launched) == len({str(values) for values in launched})


def test_the_same_box_without_the_loss_is_tuned() -> None:
    entries = run(ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)).read()
    assert entries[-1].body["ending"] == "met"
