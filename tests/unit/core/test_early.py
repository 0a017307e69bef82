"""The rate below which a candidate's first windows end its measurement: decided before the launch, and only where it is safe."""

import asyncio
import math

from optimizer.core.closing import policy, pooled
from optimizer.core.state import State, fold
from optimizer.model.step import Measure
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, verify
from tests.unit.core.model_box import PLAN, ModelBox, spec


def run(**changes: object) -> tuple[list[Measure], MemoryLog]:
    box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)
    log = MemoryLog()
    log.append("opened", {"spec": spec().model_copy(update=changes).plain()}, expect=0)
    asyncio.run(drive(log, box, PLAN))
    return [step for step in box.calls if isinstance(step, Measure)], log


def before_the_candidate(log: MemoryLog) -> State:
    entries = log.read()
    first = next(entry.seq for entry in entries if entry.kind == "intent" and entry.body["step"].get("stop_below"))
    return fold(entries[: first - 1])


def test_only_a_candidates_first_launch_may_end_early() -> None:
    steps, log = run()
    assert {step.purpose for step in steps if step.stop_below is not None} == {"candidate"}
    assert all(step.stop_below is None for step in steps if step.purpose in ("baseline", "confirm"))
    assert not verify(log.read(), lambda seq: PLAN).mismatches


def test_whatever_ends_early_is_harmful_beyond_the_quick_exit() -> None:
    steps, log = run()
    limit: float = next(step.stop_below for step in steps if step.stop_below is not None)
    state = before_the_candidate(log)
    base = math.fsum(result.ln for result in state.base_arm.results) / len(state.base_arm.results)
    assert base - math.log(limit) >= policy(state).quick_exit_sd * pooled(state).sd - 1e-4


def test_a_journal_of_the_version_before_is_recomputed_as_it_was() -> None:
    steps, log = run(policy_version=1)
    assert all(step.stop_below is None for step in steps)
    assert not any("stop_below" in entry.body["step"] for entry in log.read() if entry.kind == "intent")
    assert not verify(log.read(), lambda seq: PLAN).mismatches


def test_a_thorough_study_measures_everything_to_its_end() -> None:
    assert all(step.stop_below is None for step in run(thorough=True)[0])
