"""The four simulated boxes with other luck at every launch: the real decision loop ends on each as the investigations did, in the default
budget. Scheduler, log and metrics are the box's own on a virtual clock (benchmarks/search), without cheap tests; what needs those, and
HTTP, is tests/e2e/test_scenarios.py."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.core.state import State
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.study import Budget
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, verify
from optimizer.wiring import plan_of

ROOT = Path(__file__).parents[3]
BOXES = ("h200-7b", "a6000x2-qwen27b", "rtx6000x8-k26", "rtx6000x8-dsv4")


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(ROOT))


@pytest.fixture(scope="module")
def simulated() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "benchmarks" / "search"))
    try:
        import inprocess

        yield inprocess
    finally:
        sys.path.pop(0)
        sys.modules.pop("inprocess", None)


def ended(simulated: Any, library: Library, name: str, seed: int) -> tuple[State, list[dict[str, Any]]]:
    """The closed study, and the settings of every launch after the baseline."""
    box = simulated.SimulatedBox(name)
    executor, log = simulated.InProcessExecutor(box, library, seed), MemoryLog()
    log.append("opened", {"spec": simulated.spec(box, seed, Budget().launches).plain()}, expect=0)
    state = asyncio.run(drive(log, executor, plan_of(library)))
    if seed == 0:
        assert verify(log.read(), lambda seq: plan_of(library)).mismatches == ()
    return state, executor.launched


def check(name: str, state: State, launched: list[dict[str, Any]]) -> None:
    closed: Any = state.closed
    status = {row["id"]: row["status"] for row in closed["hypotheses"]}
    changed = [setting for settings in launched for setting in settings]
    if name == "rtx6000x8-dsv4":
        assert closed["ending"] == "unreachable_by_configuration", closed["reason"]
        assert "kernel" in {row["family"] for row in closed["hypotheses"][:3]} and closed["promoted"] == [] and len(launched) <= 5
        assert "measured 2" in closed["reason"] and " tok/s; no idea that could add to it is open; the largest loss is kernels (" in closed["reason"]
        (refused,) = [item for item in state.refusals if item.get("hypothesis") == "custom-allreduce-disabled-pcie"]
        assert refused["why"].startswith("No setting is known to cure it: it names no point of sglang/all-reduce to try first"), refused
        for word in ("cuda_graph", "NCCL", "speculative"):
            assert sum(any(word in setting for setting in settings) for settings in launched) <= 1, word
        return
    assert closed["ending"] == "met", closed["reason"]
    kept = {setting: value for changes in closed["promoted"] for setting, value in changes.items()}
    if name == "a6000x2-qwen27b":
        assert (kept["speculative_num_steps"], kept["speculative_num_draft_tokens"]) == (3, 4)
        assert 50 <= closed["best"]["value"] <= 57 * 1.05 and not any("NCCL" in setting for setting in changed)
    else:
        assert "disable_cuda_graph" in kept and status["cuda-graph-disabled"] == "supported"
    if name == "rtx6000x8-k26":
        # With everything right it does 1.5 % more than its target, and its launches differ by 2 %: a confirmation that misses it by that
        # is launched again.
        assert {"max_running_requests", "env.NCCL_PROTO"} <= set(kept) and closed["best"]["value"] >= 1000 and len(launched) <= 6, launched
    else:
        assert len(launched) <= 2, launched


@pytest.mark.gate("S14")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name == "rtx6000x8-k26" else name for name in BOXES])
def test_on_two_boxes_of_each_kind(simulated: Any, library: Library, name: str) -> None:
    for seed in range(2):
        check(name, *ended(simulated, library, name, seed))


@pytest.mark.slow
@pytest.mark.gate("S14")
@pytest.mark.parametrize("name", BOXES)
def test_on_twenty_boxes_of_each_kind(simulated: Any, library: Library, name: str) -> None:
    for seed in range(20):
        check(name, *ended(simulated, library, name, seed))
