"""A study with --tradeoff: the front of throughput against latency is searched with the launches that are left, and ends by itself."""

import asyncio
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimizer.core import rank
from optimizer.core.plan import Plan
from optimizer.core.state import State, fold
from optimizer.core.tradeoff import TRADEOFF, FrontPoint, area, chosen, front, measured
from optimizer.errors import UsageError
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.measurement import Measurement
from optimizer.model.outcome import Done, Outcome
from optimizer.model.playbook import EvidenceRule, Playbook, Prediction, SpaceAction
from optimizer.model.settings import Settings
from optimizer.model.space import Param, Space
from optimizer.model.step import Measure, Propose, Step
from optimizer.model.study import Budget
from optimizer.report.prose import sentence
from optimizer.report.search_view import search_story
from optimizer.report.study import report_markdown
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, verify
from optimizer.search.answer import answered
from optimizer.wiring import Options, Roots, plan_of, prepare
from tests.unit.core.model_box import ADMISSION, GRAPHS, ModelBox, spec

ADMITTED = (1, 2, 4, 8, 16, 32, 64, 128)
SPACE = Space(id="test/scheduler", engine="any", params=(Param(name="max_running_requests", flag=("--max-running-requests",), type="int", grid=ADMITTED),))
PLAN = Plan(playbooks=(GRAPHS,), spaces=(SPACE,), digest="test")
LATENCY = "tpot_p50_ms"


def speed(values: Mapping[str, Value]) -> float:
    """More requests at once: more tokens/s, and each token takes longer. Above 32 only the latency grows."""
    admitted = values.get("max_running_requests", 16)
    assert isinstance(admitted, int)
    return 400.0 * min(admitted, 32) ** 0.5 / (3.0 if values.get("disable_cuda_graph") else 1.0)


class Box(ModelBox):
    def _do(self, step: Step) -> Outcome:
        if isinstance(step, Propose):
            return Done(body=answered(step, SPACE))
        outcome = super()._do(step)
        if isinstance(step, Measure) and isinstance(outcome, Done):
            admitted = self.running[step.launch].get("max_running_requests", 16)
            assert isinstance(admitted, int)
            point = Measurement.model_validate(outcome.body["measurement"]).points[0]
            point = point.model_copy(update={"metrics": {**point.metrics, LATENCY: 5.0 + 0.5 * admitted}})
            return outcome.model_copy(update={"body": {**outcome.body, "measurement": Measurement(points=(point,)).plain()}})
        return outcome


def run(target: str = "1000tps@16", **changes: Any) -> tuple[Box, State, MemoryLog]:
    box, log = Box({"disable_cuda_graph": True, "max_running_requests": 16}, speed), MemoryLog()
    study = spec(target, budget=Budget(minutes=100_000, launches=changes.pop("launches", 16)), **{"tradeoff": LATENCY, **changes})
    log.append("opened", {"spec": study.plain()}, expect=0)
    return box, asyncio.run(drive(log, box, PLAN)), log


def tried(log: MemoryLog) -> list[Any]:
    return [entry.body["outcome"]["body"]["params"] for entry in log.read() if entry.kind == "outcome" and entry.body["step"] == "propose"]


def test_the_cause_first_then_the_front_then_the_ending() -> None:
    _, state, log = run()
    tested = [entry.body["hypothesis"] for entry in log.read() if entry.kind == "chosen"]
    assert tested[0] == "cuda-graph-disabled" and set(tested[1:]) == {TRADEOFF}, "a cause is worth more than a point of the front"
    assert state.closed is not None and state.closed["ending"] == "met", "met before the front was searched, and not forgotten"
    found = front(measured(state, LATENCY, 16))
    assert len(found) >= 3
    assert all(left.rate > right.rate and left.latency_ms > right.latency_ms for left, right in itertools.pairwise(found))
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
    report = report_markdown(log.read(), state, PLAN)
    part = report.partition("## Throughput against latency")[2].partition("## ")[0]
    assert sum(line.startswith("| ") and "max_running_requests" in line for line in part.splitlines()) >= 2 and LATENCY in part, part


def test_without_the_option_the_study_ends_where_its_target_is_met() -> None:
    _, state, log = run(tradeoff="")
    assert tried(log) == [] and state.closed is not None and state.closed["ending"] == "met"


def test_both_sides_are_told_to_the_sampler() -> None:
    _, _, log = run()
    steps = [entry.body["step"] for entry in log.read() if entry.kind == "intent" and entry.body["step"]["kind"] == "propose"]
    assert steps and all(step["tradeoff"] for step in steps)
    shown = [sentence(entry) for entry in log.read() if entry.kind == "deferred"]
    assert any("measured for the front: ×0." in text and f"{LATENCY} 7 ms against 13 ms" in text for text in shown), shown
    assert all(trial["second"] == pytest.approx(-math.log(5.0 + 0.5 * 16)) for trial in steps[0]["history"])


def test_only_settings_that_cure_some_cause_are_moved() -> None:
    """The product's own spaces: of a dozen settings of the scheduler those that a playbook changes, none that nobody expects anything of."""
    library = load_library(find_knowledge(Path(__file__).parents[3]))
    _, state, log = run()
    before = next(entry.seq for entry in log.read() if entry.kind == "chosen" and entry.body["hypothesis"] == TRADEOFF)
    state = fold(log.read()[: before - 1])
    plan = plan_of(library)
    body = chosen(state, plan, rank.view(state, plan), rank.ground(state, plan))
    assert body is not None and body["space"] == "sglang/scheduler"
    assert "max_running_requests" in body["space_params"] and "chunked_prefill_size" in body["space_params"]
    assert not {"tokenizer_worker_num", "env.OMP_NUM_THREADS", "schedule_policy"} & set(body["space_params"])


DRAFTS_SPACE = Space(id="test/drafts", engine="any", params=(
    Param(name="speculative_algorithm", flag=("--speculative-algorithm",), type="choice", grid=("EAGLE",), same={"NEXTN": "EAGLE"}),
))  # fmt: skip
DRAFTS = Playbook(
    id="drafts-off", family="acceptance_length", claim="Drafts are not used.", addresses="none",
    evidence=(EvidenceRule(id="off", group="mode", when={"fact": "queue.depth_p95", "ge": 0}, if_true_db=10, if_false_db=-12),),
    predicts=Prediction(ratio=(1.5, 3.0)), actions=(SpaceAction(space="test/drafts", try_first=({"speculative_algorithm": "NEXTN"},)),), source="test",
)  # fmt: skip


@pytest.mark.parametrize(("version", "rate", "again"), [(4, 0.4, True), (5, 0.4, False), (5, 0.9, True)])
def test_what_a_launch_ruled_out_in_both_leaves_the_search_of_the_front(version: int, rate: float, again: bool) -> None:
    """NEXTN was launched, and is beaten in rate and latency: its space is not searched under the name EAGLE, and it is said by which entry.
    Where it has the best latency it is a point of the front, and stays."""
    plan = replace(PLAN, playbooks=(GRAPHS, ADMISSION, DRAFTS), spaces=(SPACE, DRAFTS_SPACE))

    class Drafting(Box):
        def _do(self, step: Step) -> Outcome:
            if isinstance(step, Propose):
                return Done(body=answered(step, next(space for space in plan.spaces if space.id == step.space)))
            outcome = super()._do(step)
            if isinstance(step, Measure) and isinstance(outcome, Done) and self.running[step.launch].get("speculative_algorithm"):
                point = Measurement.model_validate(outcome.body["measurement"]).points[0]
                point = point.model_copy(update={"metrics": {**point.metrics, LATENCY: 40.0 if rate < 0.5 else 1.0}})
                return outcome.model_copy(update={"body": {**outcome.body, "measurement": Measurement(points=(point,)).plain()}})
            return outcome

    box, log = Drafting({"disable_cuda_graph": True, "max_running_requests": 16}, lambda values: speed(values) * (rate if values.get("speculative_algorithm") else 1.0)), MemoryLog()
    study = spec("100000tps@16", budget=Budget(minutes=100_000, launches=12), tradeoff=LATENCY, policy_version=version, best_effort=True)
    log.append("opened", {"spec": study.plain()}, expect=0)
    asyncio.run(drive(log, box, plan))
    front_points = [entry for entry in log.read() if entry.kind == "chosen" and entry.body["hypothesis"] == TRADEOFF]
    assert front_points and any(entry.body["space"] == "test/drafts" for entry in front_points) is again
    pruned = next((entry for entry in log.read() if entry.kind == "pruned" and entry.body["hypothesis"] == "drafts-off"), None)
    said = front_points[0].body["left_out"].get("speculative_algorithm", "")
    assert ("ruled out with drafts-off" in said) is not again
    assert again or (pruned is not None and f"(entry {pruned.seq})" in said)
    assert verify(log.read(), lambda seq: plan).mismatches == ()
    story = search_story(log.read(), "s")
    assert again or any(row["by"] == "evidence" and row["params"] == ["speculative_algorithm"] for row in story["left_the_space"]), story["text"]


def test_it_ends_when_the_front_no_longer_grows() -> None:
    """With a budget for everything, what only costs latency is not measured for ever; nor is any point measured twice."""
    _, state, log = run(launches=60)
    points = tried(log)
    assert len({str(point) for point in points}) == len(points)
    assert state.closed is not None and state.closed["launches"] + state.closed["launches_baseline"] < 20


def test_a_budget_ends_it_and_keeps_the_launch_of_the_confirmation() -> None:
    box, state, _ = run(launches=6)
    assert state.closed is not None and state.closed["ending"] == "met"
    assert len(box.launched) <= 7 and state.base_arm.confirmed is not None


def test_a_latency_that_nobody_measures_ends_it_after_three_points() -> None:
    _, state, log = run(tradeoff="itl_p99_ms", launches=40)
    assert len(tried(log)) == 3 and state.closed is not None and state.closed["ending"] == "met"


def test_what_is_no_latency_is_refused_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no latency that is measured"):
        prepare(Options(host="localhost", target=("1000tps",), tradeoff="speed"), Roots(runs=tmp_path))


def test_the_area_under_the_front() -> None:
    def at(rate: float, latency: float) -> FrontPoint:
        return FrontPoint(Settings(), 16, rate, latency, 1)

    one = area([at(math.e, 1.0)], 1.0, math.e)
    assert one == pytest.approx(1.0)
    assert area([at(math.e, 1.0), at(2.0, 1.5)], 1.0, math.e) == pytest.approx(one), "a beaten point adds nothing"
    assert area([at(math.e, 1.0), at(math.e**2, 2.0)], 1.0, math.e) == pytest.approx(1.0 + (1.0 - math.log(2.0)) * 1.0)
    assert area([at(0.5, 1.0)], 1.0, math.e) == 0.0
