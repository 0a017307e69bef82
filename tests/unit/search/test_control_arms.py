"""Control arms: studies of a plain sampler on the same box, so that what evidence saves can be measured and not only claimed."""

import asyncio
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from optimizer.core.plan import Plan
from optimizer.core.refuse import Ground, never_starts
from optimizer.core.state import State
from optimizer.core.whole_space import as_point, overlay, space_named, whole
from optimizer.errors import UsageError
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.outcome import Done, Outcome
from optimizer.model.settings import Settings
from optimizer.model.space import ALONE, ARM, Constraint, DeadSetting, Param, Space
from optimizer.model.step import Launch, Measure, Propose, Step
from optimizer.model.study import Budget
from optimizer.report.prose import sentence
from optimizer.report.study import report_markdown
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, verify
from optimizer.search.answer import answered
from optimizer.wiring import Options, Roots, plan_of, prepare
from tests.unit.core.model_box import ADMISSION, GRAPHS, ModelBox, spec

ROOT = Path(__file__).parents[3]
SCHEDULER = Space(id="sglang/scheduler", engine="sglang", params=(Param(name="max_running_requests", type="int", grid=(1, 2, 4, 8, 16, 32, 64)),))
GRAPH = Space(id="sglang/graphs", engine="sglang", params=(
    Param(name="disable_cuda_graph", type="bool"),
    Param(name="attention_backend", type="choice", grid=("fa3", "triton")),
    Param(name="split", type="int", grid=(1, 2, 4), when={"setting": "attention_backend", "eq": "triton"}),
))  # fmt: skip
OTHERS = Space(id="vllm/scheduler", engine="vllm", params=(Param(name="max_num_seqs", type="int", grid=(8, 16)),))
DEAD = DeadSetting(engine="sglang", params=("split",), kind="bypassed", when={"setting": "disable_cuda_graph", "eq": True}, why="Graphs are off.", source="test")
PLAN = Plan(playbooks=(GRAPHS, ADMISSION), spaces=(SCHEDULER, GRAPH, OTHERS), dead=(DEAD,), digest="test")
GIVEN: dict[str, Value] = {"disable_cuda_graph": True, "max_running_requests": 4, "attention_backend": "triton"}


def speed(values: Mapping[str, Value]) -> float:
    admitted = values.get("max_running_requests") or 16
    assert isinstance(admitted, int)
    return 50.0 * min(admitted, 16) * (1.0 if values.get("disable_cuda_graph") else 3.0) * (0.9 if values.get("attention_backend") == "triton" else 1.0)


class Box(ModelBox):
    def _do(self, step: Step) -> Outcome:
        if isinstance(step, Propose):
            space = space_named(PLAN.spaces, step.space)
            assert space is not None
            return Done(body=answered(step, space))
        return super()._do(step)


def run(policy: str, target: str = "700tps@16", *, launches: int = 12, params: tuple[str, ...] = (), version: int = 5, **box: Any) -> tuple[Box, State, MemoryLog]:
    made, log = Box(GIVEN, speed, original=True, **box), MemoryLog()
    study = spec(target, budget=Budget(minutes=100_000, launches=launches), policy=policy, params=params, policy_version=version)
    log.append("opened", {"spec": study.plain()}, expect=0)
    return made, asyncio.run(drive(log, made, PLAN)), log


def launched(box: Box) -> list[str]:
    return [step.purpose for step in box.calls if isinstance(step, Launch) and step.purpose != "final"]


@pytest.mark.parametrize("policy", ["tpe", "random"])
def test_every_launch_but_the_confirmation_is_the_samplers_and_all_are_spent(policy: str) -> None:
    box, state, log = run(policy)
    assert launched(box) == ["candidate"] * 11 + ["confirm"], "the target was met long before"
    kinds = {str(entry.kind) for entry in log.read()}
    assert not kinds & {"ranked", "check"} and {entry.body["hypothesis"] for entry in log.read() if entry.kind == "chosen"} == {ARM}
    points = [str(sorted(step.settings.values.items())) for step in box.calls if isinstance(step, Launch) and step.purpose == "candidate"]
    assert len(set(points)) == len(points), "nothing is measured twice"
    assert state.closed is not None and state.closed["ending"] == "met" and state.base_arm.confirmed is not None
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
    steps = [step for step in box.calls if isinstance(step, Propose)]
    assert {step.sampler for step in steps} == {policy} and {step.space for step in steps} == {whole("sglang")}
    assert dict(steps[0].history[0].params) == GIVEN, "the server as it was found is what the sampler knows first"
    assert "split" in steps[0].params, "what is dead only beside the server as found is searched"
    assert not [one for one in box.calls if isinstance(one, Launch) and one.settings.values.get("split") and one.settings.values.get("disable_cuda_graph")]
    report = report_markdown(log.read(), state, PLAN)
    assert "Control arm" in report
    assert all(sentence(entry) for entry in log.read())


def test_it_stops_the_server_that_it_found_and_brings_it_back() -> None:
    box, state, _ = run("random", "100000tps@16", launches=4)
    assert state.closed is not None and state.closed["ending"] == "not_met" and "Control arm, random search" in state.closed["reason"]
    assert list(box.running), "something serves afterwards"


def test_a_point_that_does_not_run_is_told_as_infeasible_and_costs_its_launch() -> None:
    box, state, _ = run("tpe", "9000tps@16", crash=lambda values: "oom_kv" if values.get("max_running_requests") in (32, 64) else None)
    steps = [step for step in box.calls if isinstance(step, Propose)]
    crashed = [trial for trial in steps[-1].history if trial.infeasible]
    assert crashed and all(trial.params["max_running_requests"] in (32, 64) for trial in crashed)
    ended = state.closed["reason"] if state.closed else ""
    crashed_in_all = sum(bool(arm.crashed) for arm in state.arms.values())
    assert len(launched(box)) == 12 and crashed_in_all >= len(crashed) and f"11 points launched, {crashed_in_all} of them do not run. The budget is spent." in ended


def test_only_the_parameters_that_were_named_are_moved() -> None:
    box, state, log = run("random", params=("max_running_requests", "max_num_seqs"))
    moved = {name for step in box.calls if isinstance(step, Launch) for name in step.settings.values}
    assert moved == {"max_running_requests"}
    chosen = next(entry.body for entry in log.read() if entry.kind == "chosen")
    assert chosen["left_out"] == {"max_num_seqs": "Nothing sets it on this build."}
    assert len(launched(box)) == 7 and state.closed is not None, "six points were left beside the one that ran, and their best was confirmed"


@pytest.mark.parametrize("original", [True, False])
def test_an_arm_whose_parameters_do_not_exist_here_ends_before_its_baseline(original: bool) -> None:
    """The help and the rules know it before anything is launched or measured; which parameter, and why, is said."""
    made, log = Box(GIVEN, speed, original=original), MemoryLog()
    study = spec("700tps@16", budget=Budget(minutes=100_000, launches=12), policy="tpe", params=("max_num_seqs",), policy_version=5)
    log.append("opened", {"spec": study.plain()}, expect=0)
    state = asyncio.run(drive(log, made, PLAN))
    assert state.closed is not None and state.closed["ending"] == "nothing_to_tune" and state.closed["launches"] == state.closed["launches_baseline"] == 0
    assert "no point of --params max_num_seqs exists here, so nothing was launched" in state.closed["reason"] and "Nothing sets it on this build." in state.closed["reason"]
    assert not [step for step in made.calls if isinstance(step, Launch | Measure)] and (list(made.running) == ["original"]) is original
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_an_arm_of_policy_4_learns_it_after_its_baseline() -> None:
    _, state, log = run("tpe", params=("max_num_seqs",), version=4)
    assert state.base_arm.results and state.closed is not None and verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_a_sampler_that_comes_back_to_a_measured_point_ends_the_search() -> None:
    class Stubborn(Box):
        def _do(self, step: Step) -> Outcome:
            return Done(body={"params": {"max_running_requests": 8}}) if isinstance(step, Propose) else super()._do(step)

    made, log = Stubborn(GIVEN, speed, original=True), MemoryLog()
    log.append("opened", {"spec": spec("900tps@16", policy="random", params=("max_running_requests",)).plain()}, expect=0)
    state = asyncio.run(drive(log, made, PLAN))
    assert launched(made) == ["candidate", "confirm"] and state.closed is not None and "64 proposals in a row may not be launched; the last: This study has launched these settings already." in state.closed["reason"]


def test_what_is_best_only_by_luck_is_not_kept() -> None:
    """A box on which no setting matters: the best of ten looks better than the server as found, and its fresh launch decides."""
    made, log = Box(GIVEN, lambda values: 500.0, original=True, noise=0.03, seed=3), MemoryLog()
    study = spec("1000tps@16", budget=Budget(minutes=100_000, launches=11), policy="random")
    log.append("opened", {"spec": study.plain()}, expect=0)
    state = asyncio.run(drive(log, made, PLAN))
    assert state.closed is not None and state.base_arm.confirmed is not None
    first = state.first_arm.results[0].value
    assert ("Nothing is kept." in state.closed["reason"]) == (state.base_arm.confirmed.value <= first)


def test_with_every_parameter_of_the_product_points_are_launched_and_none_is_asked_for_twice() -> None:
    """Of a point of dozens of parameters something always does nothing beside the rest: that is left out, and the rest is launched."""
    library = load_library(find_knowledge(ROOT))

    class Whole(Box):
        def _do(self, step: Step) -> Outcome:
            if isinstance(step, Propose):
                return Done(body=answered(step, library.space(step.space)))
            outcome = super()._do(step)
            if isinstance(step, Measure) and isinstance(outcome, Done):  # a server reports its lists, which nobody gave
                return outcome.model_copy(update={"body": {**outcome.body, "effective": {**outcome.body["effective"], "cuda_graph_bs": [1, 2, 4, 8]}}})
            return outcome

    made, log = Whole(GIVEN, speed, original=True), MemoryLog()
    log.append("opened", {"spec": spec("9000tps@16", budget=Budget(minutes=100_000, launches=4), policy="random").plain()}, expect=0)
    asyncio.run(drive(log, made, plan_of(library)))
    asked = [entry.body["outcome"]["body"]["params"] for entry in log.read() if entry.kind == "outcome" and entry.body["step"] == "propose"]
    assert len(asked) == len({str(point) for point in asked}) and max(map(len, asked)) > 20
    assert launched(made).count("candidate") == 3
    assert not any("cuda_graph_bs" in point for point in asked), "a list of its own is searched only where somebody has given one"
    left_out = [entry.body for entry in log.read() if entry.kind == "refused" and entry.body.get("about") == "part"]
    assert left_out and all(body["kind"] == "dead" for body in left_out)


def test_a_value_that_never_starts_is_not_offered_and_one_that_depends_is() -> None:
    rules = (
        Constraint(id="T1", engine="sglang", effect="start_error", when={"setting": "given.attention_backend", "eq": "fa3"}, why="Not on this GPU.", source="test"),
        Constraint(id="T2", engine="sglang", effect="start_error", source="test", why="No graphs with so many.",
                   when={"all": [{"setting": "given.max_running_requests", "eq": 64}, {"setting": "given.disable_cuda_graph", "eq": False}]}),
    )  # fmt: skip
    ground = Ground(settings=Settings(values=GIVEN), evidence=Evidence(), flags=FlagTable(known=False), constraints=rules, spaces=PLAN.spaces)
    searched = {param.name for space in PLAN.spaces for param in space.params}
    assert never_starts("attention_backend", "fa3", ground, searched) == "Not on this GPU." and not never_starts("attention_backend", "triton", ground, searched)
    assert not never_starts("max_running_requests", 64, ground, searched), "graphs are searched too"
    assert not never_starts("max_running_requests", 64, ground, searched - {"disable_cuda_graph"}), "they are off, and stay so"


def test_a_choice_left_alone_is_not_given_and_what_hangs_on_it_does_not_exist() -> None:
    space = space_named(PLAN.spaces, "sglang/all")
    assert space is not None and [param.name for param in space.params] == ["max_running_requests", "disable_cuda_graph", "attention_backend", "split"]
    assert space_named(PLAN.spaces, "nowhere") is None
    names, grids = [param.name for param in space.params], {"attention_backend": ["fa3", "triton", ALONE]}
    point: dict[str, Value] = {"max_running_requests": 8, "disable_cuda_graph": False, "attention_backend": ALONE}
    changes = overlay(GIVEN, names, point)
    assert changes == {"max_running_requests": 8, "disable_cuda_graph": False, "attention_backend": None}
    assert as_point({**GIVEN, **changes}, {}, space.params, {}, grids) == point
    deeper: dict[str, Value] = {"max_running_requests": 8, "disable_cuda_graph": True, "attention_backend": "triton", "split": 2}
    assert as_point({**GIVEN, **overlay(GIVEN, names, deeper)}, {}, space.params, {}, grids) == deeper
    assert as_point({"max_running_requests": 5}, {"split": 2}, space.params, {}, grids) == {"disable_cuda_graph": False, "attention_backend": ALONE, "split": 2}, "what the server reported, unless the space has no such value"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "evidence", "params": ("max_running_requests",)}, "--params is for a control arm"),
        ({"policy": "tpe", "tradeoff": "tpot_p50_ms"}, "one box, one number"),
        ({"policy": "tpe", "more_hosts": ("other",)}, "one box, one number"),
        ({"policy": "random", "prior": ("other",)}, "starts from nothing"),
        ({"policy": "random", "params": ("max_running_request",)}, "No search space has a parameter 'max_running_request'"),
    ],
)
def test_what_makes_no_control_arm_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        prepare(Options(host="localhost", target=("1000tps",), **options), Roots(runs=tmp_path, knowledge=ROOT))


def test_the_curves_of_recorded_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that puts arms beside each other, on studies that are recorded."""
    loaded = importlib.util.spec_from_file_location("arms", ROOT / "benchmarks/search/arms.py")
    assert loaded is not None and loaded.loader is not None
    arms = importlib.util.module_from_spec(loaded)
    monkeypatch.setitem(sys.modules, "arms", arms)
    loaded.loader.exec_module(arms)
    curves = [arms.curve_of(name, Roots(runs=ROOT / "runs")) for name in ("h200-7b-eager", "h200-7b-placebo")]
    assert [len(curve.best) - 1 for curve in curves] == [2, 0], "launches after the baseline, as docs/h200.md has them"
    assert curves[0].best[0] == pytest.approx(223.6, abs=0.1) and curves[0].confirmed == pytest.approx(2606, abs=1)
    lines = arms.table(curves)
    assert all(line.count("|") == lines[2].count("|") for line in lines[2:])
