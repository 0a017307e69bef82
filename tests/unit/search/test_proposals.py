"""What a run makes of its sampler: proposals pass the rules before they cost a launch, start from earlier studies, and are recomputed."""

import asyncio
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimizer.core.plan import Plan
from optimizer.core.predicate import Look
from optimizer.core.prior import launches_of
from optimizer.core.refuse import Ground, point_digest, refuse
from optimizer.core.resolve import in_range
from optimizer.core.sampling import MOST_REJECTED, _restricted, dimensions, sampled_params
from optimizer.core.state import State, Test, fold
from optimizer.core.whole_space import as_point
from optimizer.engines.argv import tokens_for
from optimizer.engines.registry import engine
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.flags import Flag, FlagTable
from optimizer.model.outcome import Done, Outcome
from optimizer.model.playbook import EvidenceRule, Playbook, Prediction, SpaceAction
from optimizer.model.prior import EarlierArm, EarlierStudy
from optimizer.model.settings import Settings
from optimizer.model.space import DeadSetting, Param, Space, Trial
from optimizer.model.step import Launch, Observe, Propose, Step
from optimizer.model.study import Budget, StudySpec
from optimizer.report.prose import sentence
from optimizer.runner.execute import LiveExecutor
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, verify
from optimizer.search.answer import answered
from optimizer.wiring import Options, Roots, prepare
from optimizer.wiring.planning import _earlier
from tests.unit.core.model_box import ModelBox, spec

ROOT = Path(__file__).parents[3]
SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
SPACE = Space(
    id="test/memory", engine="any",
    params=(
        Param(name="mem_fraction_static", flag=("--mem-fraction-static",), type="float", grid=SHARES),
        Param(name="kv_cache_dtype", flag=("--kv-cache-dtype",), type="choice", grid=("auto", "fp8"), lossy=True),
        Param(name="schedule_policy", flag=("--schedule-policy",), type="choice", grid=("fcfs", "lpm")),
    ),
)  # fmt: skip
SMALL_POOL = Playbook(
    id="kv-capacity-queueing", family="capacity", claim="The KV pool is too small.", addresses="none",
    evidence=(EvidenceRule(id="small", group="kv", when={"fact": "queue.depth_p95", "ge": 1}, if_true_db=14, if_false_db=-12),),
    predicts=Prediction(ratio=(1.1, 1.6)), actions=(SpaceAction(space="test/memory", try_first=({"mem_fraction_static": 0.6},)),), source="test",
)  # fmt: skip
PLAN = Plan(playbooks=(SMALL_POOL,), spaces=(SPACE,), digest="test")
GIVEN: dict[str, Value] = {"mem_fraction_static": 0.5, "schedule_policy": "fcfs"}


def speed(values: Mapping[str, Value]) -> float:
    share = values["mem_fraction_static"]
    assert isinstance(share, float)
    return 2000.0 * share * (1.2 if values.get("schedule_policy") == "lpm" else 1.0)


class Box(ModelBox):
    """One GPU of 80 GiB with a real memory balance: above a share of 0.87 nothing is left outside the pool, and a launch dies. Its
    sampler is the product's own."""

    def __init__(self, *, dies_above: float = 0.87, **more: Any) -> None:
        super().__init__(GIVEN, speed, crash=self._crash, **more)
        self.dies_above = dies_above
        self.launched_with: list[dict[str, Value]] = []

    def _crash(self, values: Mapping[str, Value]) -> str | None:
        return "oom_kv" if float(str(values["mem_fraction_static"])) > self.dies_above else None

    def _do(self, step: Step) -> Outcome:
        if isinstance(step, Propose):
            return Done(body=answered(step, SPACE))
        if isinstance(step, Launch) and step.purpose == "candidate":
            self.launched_with.append(dict(step.settings.values))
        outcome = super()._do(step)
        if isinstance(step, Observe) and isinstance(outcome, Done):
            box = {**outcome.body["box"], "gpu": "NVIDIA A100 80GB", "model_path": "/models/m", "facts": {"gpu.memory_mib": 81920, "gpu.count": 1}}
            return outcome.model_copy(update={"body": {**outcome.body, "box": box}})
        return outcome

    def _facts(self, settings: Mapping[str, Value]) -> Evidence:
        share = float(str(settings["mem_fraction_static"]))
        values: dict[str, Value] = {"engine.name": "sglang", "queue.depth_p95": 4, "memory.weights_gib": 20.0, "gpu.memory_free_gib": 80 * (0.875 - share)}
        return Evidence(facts=tuple(Fact(name=name, value=value, source="test") for name, value in values.items()))


def run(box: ModelBox, plan: Plan = PLAN, **changes: Any) -> tuple[State, MemoryLog]:
    log = MemoryLog()
    study = spec("9000tps@16", budget=Budget(minutes=100_000, launches=14), **changes)
    log.append("opened", {"spec": study.plain()}, expect=0)
    return asyncio.run(drive(log, box, plan)), log


def bodies(log: MemoryLog, kind: str) -> list[dict[str, Any]]:
    return [entry.body for entry in log.read() if entry.kind == kind]


def proposals(log: MemoryLog) -> list[dict[str, Any]]:
    return [body["step"] for body in bodies(log, "intent") if body["step"]["kind"] == "propose"]


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_proposal_that_must_run_out_of_memory_is_never_launched(sampler: str) -> None:
    box = Box()
    _, log = run(box, sampler=sampler)
    assert proposals(log) and box.launched_with
    assert all(float(str(values["mem_fraction_static"])) <= box.dies_above for values in box.launched_with)
    about = [body for body in bodies(log, "refused") if body.get("about") == "proposal"]
    assert all("would run out of memory" in body["why"] for body in about if body["kind"] == "infeasible")
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_without_the_memory_model_it_would_have_been_launched() -> None:
    """The counter-proof: the same box, whose free memory nobody reports, is launched into the crash at least once."""

    class Blind(Box):
        def _facts(self, settings: Mapping[str, Value]) -> Evidence:
            return Evidence(facts=tuple(fact for fact in super()._facts(settings).facts if fact.name != "gpu.memory_free_gib"))

    launched = [values for seed in range(4) for values in _launched(Blind(seed=seed), study=f"blind-{seed}")]
    assert any(float(str(values["mem_fraction_static"])) > 0.87 for values in launched)


def _launched(box: Box, **changes: Any) -> list[dict[str, Value]]:
    run(box, **changes)
    return box.launched_with


def test_what_was_refused_is_told_to_the_sampler_as_what_cannot_run() -> None:
    for seed in range(6):
        _, log = run(Box(seed=seed), sampler="tpe", study=f"told-{seed}")
        asked = proposals(log)
        for number, body in enumerate(asked):
            refused = [trial for trial in body["history"] if trial["note"] == "refused before a launch"]
            assert all(trial["infeasible"] for trial in refused)
            if refused:
                assert number and asked[number - 1]["seed"] == body["seed"], "the same launch is asked for again"
                return
    raise AssertionError("no seed met a refusal")


def test_lossy_dead_and_unavailable_values_are_no_dimensions() -> None:
    dead = DeadSetting(engine="any", params=("schedule_policy",), kind="no_reader", why="nothing reads it", source="test")
    base = Ground(settings=Settings(values=GIVEN), evidence=Evidence(), flags=FlagTable(known=False), dead=(dead,), spaces=(SPACE,))
    names, grids, out = dimensions(SPACE.params, base)
    assert names == ["mem_fraction_static"] and grids == {}
    assert "--allow-lossy" in out["kv_cache_dtype"] and out["schedule_policy"] == "nothing reads it"
    flags = FlagTable(flags=(Flag(name="--mem-fraction-static"), Flag(name="--schedule-policy", choices=("fcfs", "dfs"))))
    names, grids, out = dimensions(SPACE.params, replace(base, dead=(), flags=flags, allow_lossy=True))
    assert names == ["mem_fraction_static", "schedule_policy"] and grids == {"schedule_policy": ["fcfs"]}
    assert "no --kv-cache-dtype" in out["kv_cache_dtype"]


def test_a_run_says_which_dimensions_it_left_out() -> None:
    _, log = run(Box())
    sampled = next(body for body in bodies(log, "chosen") if body["changes"] is None)
    assert sampled["space_params"] == ["mem_fraction_static", "schedule_policy"]
    assert "--allow-lossy" in sampled["left_out"]["kv_cache_dtype"]
    assert any("Not searched in it: kv_cache_dtype" in sentence(entry) for entry in log.read() if entry.kind == "chosen")


@pytest.mark.parametrize(("version", "refused"), [("0.9.2", True), ("0.10.2", False), (None, False), ("nightly", False)])
def test_a_parameter_of_another_version_is_not_given(version: str | None, refused: bool) -> None:
    """Where no help text can tell, ``builds`` does; what is unknown never refuses."""
    param = Param(name="compilation_config.mode", flag=("--compilation-config",), type="int", grid=(0, 3), builds=">=0.10.2")
    space = Space(id="test/builds", engine="any", params=(param,))
    ground = Ground(settings=Settings(values={}), evidence=Evidence(), flags=FlagTable(known=False), spaces=(space,), engine_version=version)
    found = refuse({param.name: 3}, ground)
    assert bool(found) is refused
    assert not found or (found[0].kind == "unavailable" and ">=0.10.2" in found[0].why)
    assert (dimensions(space.params, ground)[0] == []) is refused
    assert refuse({param.name: 3}, replace(ground, by_version=False)) == ()  # journals of earlier policies


def test_a_sampler_that_only_proposes_what_is_refused_ends_its_test() -> None:
    class Stubborn(Box):
        def _do(self, step: Step) -> Outcome:
            return Done(body={"params": {"mem_fraction_static": 0.95}}) if isinstance(step, Propose) else super()._do(step)

    box = Stubborn()
    _, log = run(box)
    assert len([body for body in bodies(log, "refused") if body.get("about") == "proposal"]) == MOST_REJECTED - 1
    assert any(f"{MOST_REJECTED} proposals in a row" in body["why"] for body in bodies(log, "refused"))
    assert all(values != {"mem_fraction_static": 0.95} for values in box.launched_with)
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_a_sampler_with_nothing_left_launches_nothing() -> None:
    class Empty(Box):
        def _do(self, step: Step) -> Outcome:
            return Done(body={"params": {}}) if isinstance(step, Propose) else super()._do(step)

    box = Empty()
    _, log = run(box)
    assert box.launched_with == [{"mem_fraction_static": 0.6}]
    assert any("No point of test/memory is left" in body["why"] for body in bodies(log, "refused"))


def test_another_name_of_a_value_is_one_value_to_the_sampler_and_to_what_was_tried() -> None:
    """NEXTN and EAGLE are one algorithm: what was launched as the one is not proposed as the other."""
    drafts = Space(id="test/memory", engine="any", params=(
        Param(name="speculative_algorithm", flag=("--speculative-algorithm",), type="choice", grid=("EAGLE",), same={"NEXTN": "EAGLE"}),
        Param(name="speculative_num_steps", flag=("--speculative-num-steps",), type="int", grid=(1, 2)),
    ))  # fmt: skip
    ground = Ground(settings=Settings(values={"speculative_num_steps": 1}), evidence=Evidence(), flags=FlagTable(known=False), spaces=(drafts,))
    tried = {point_digest(ground.settings.merged({"speculative_algorithm": "NEXTN"}), ground)}
    assert [item.kind for item in refuse({"speculative_algorithm": "EAGLE"}, ground, tried=tried)] == ["duplicate"]
    assert refuse({"speculative_algorithm": "EAGLE", "speculative_num_steps": 2}, ground, tried=tried) == ()
    declared = {param.name: param for param in drafts.params}
    searched = Test(hypothesis="x", entry=1, changes={}, settings=None, ratio=None, space=drafts.id, space_params=tuple(declared))
    assert _restricted({"speculative_algorithm": "NEXTN", "speculative_num_steps": 1, "other": 3}, searched, declared) == {"speculative_algorithm": "EAGLE", "speculative_num_steps": 1}
    assert in_range(declared["speculative_algorithm"], "NEXTN") and not in_range(declared["speculative_algorithm"], "NGRAM")
    assert as_point({"speculative_algorithm": "NEXTN"}, {}, drafts.params, {}, {}) == {"speculative_algorithm": "EAGLE"}


def test_dimensions_that_the_launches_show_to_matter_for_nothing_are_left_as_they_are() -> None:
    """From eight measured launches on, and never the last one."""
    points = [(share, policy) for share in SHARES for policy in ("fcfs", "lpm")][:12]
    history = tuple(Trial(params={"mem_fraction_static": share, "schedule_policy": policy}, value=math.log(share)) for share, policy in points)
    step = Propose(key="9", hypothesis="idea", space=SPACE.id, params=("mem_fraction_static", "schedule_policy"), fixed={}, history=history, seed=1, sampler="gp")
    body = answered(step, SPACE)
    assert set(body["unimportant"]) == {"schedule_policy"} and body["unimportant"]["schedule_policy"] < 0.01
    assert set(body["params"]) == {"mem_fraction_static"}
    assert "unimportant" not in answered(step.model_copy(update={"history": history[:7]}), SPACE)
    flat = tuple(trial.model_copy(update={"value": 1.0}) for trial in history)
    assert "unimportant" not in answered(step.model_copy(update={"history": flat}), SPACE), "where nothing matters, nothing is left out"


def test_what_was_never_varied_is_not_called_unimportant() -> None:
    history = tuple(Trial(params={"mem_fraction_static": share, "schedule_policy": "fcfs"}, value=math.log(share)) for share in SHARES for _ in range(2))
    step = Propose(key="9", hypothesis="idea", space=SPACE.id, params=("mem_fraction_static", "schedule_policy"), fixed={}, history=history, seed=1, sampler="gp")
    assert "schedule_policy" not in answered(step, SPACE).get("unimportant", {})


@pytest.mark.parametrize(("policy_moves_latency", "gone"), [(False, True), (True, False)])
def test_of_a_front_only_what_moves_neither_side_is_left_as_it_is(policy_moves_latency: bool, gone: bool) -> None:
    points = [(share, policy) for share in SHARES for policy in ("fcfs", "lpm")][:12]
    history = tuple(
        Trial(params={"mem_fraction_static": share, "schedule_policy": policy}, value=math.log(share),
              second=-math.log(share) - 0.4 * (policy_moves_latency and policy == "lpm")) for share, policy in points
    )  # fmt: skip
    step = Propose(key="9", hypothesis="tradeoff", space=SPACE.id, params=("mem_fraction_static", "schedule_policy"), fixed={}, history=history, seed=1, tradeoff=True)
    assert ("schedule_policy" in answered(step, SPACE).get("unimportant", {})) is gone


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_parameter_whose_values_are_lists(sampler: Any) -> None:
    """Such as the sizes of CUDA graphs: proposed as declared, read back from the journal, and never twice."""
    sizes: tuple[list[Value], ...] = ([1, 2, 4, 8], [8, 16, 32], [1, 8, 64])
    space = Space(id="test/lists", engine="any", params=(
        Param(name="cuda_graph_bs", flag=("--cuda-graph-bs",), type="choice", grid=sizes), Param(name="page_size", flag=("--page-size",), type="int", grid=(1, 16)),
    ))  # fmt: skip
    space = Space.model_validate(json.loads(json.dumps(space.plain())))
    history: list[Trial] = []
    for number in range(6):
        step = Propose(key=str(number), hypothesis="idea", space=space.id, params=("cuda_graph_bs", "page_size"), fixed={}, history=tuple(history), seed=number, sampler=sampler)
        params = json.loads(json.dumps(answered(step, space)["params"]))
        assert params["cuda_graph_bs"] in sizes
        history.append(Trial(params=params, value=float(sum(params["cuda_graph_bs"]))))
    assert len({json.dumps(trial.params) for trial in history}) == 6


def test_a_list_that_only_an_owner_gives_is_searched_only_where_one_gave_it() -> None:
    """The product's own spaces: SGLang's sizes of decode graphs, spelled as this build's help spells them."""
    library = load_library(find_knowledge(ROOT))
    space = library.space_by_id["sglang/decode-graphs"]
    action = SpaceAction(space=space.id)
    without = sampled_params(space, action, Look(Evidence(), {}, {}))
    given = sampled_params(space, action, Look(Evidence(), {"cuda_graph_bs": [1, 2]}, {}))
    assert "cuda_graph_bs" not in {param.name for param in without} and "cuda_graph_bs" in {param.name for param in given}
    step = Propose(key="1", hypothesis="idea", space=space.id, params=("cuda_graph_bs",), fixed={}, history=(), seed=3, sampler="gp")
    sizes = answered(step, space)["params"]["cuda_graph_bs"]
    assert sizes[:4] == [1, 2, 4, 8]
    flag = engine("sglang").flags((ROOT / "tests/recordings/sglang-0.5.12-h200/help.txt").read_text()).by_name["--cuda-graph-bs"]
    assert tokens_for("--cuda-graph-bs", sizes, flag) == ["--cuda-graph-bs", *map(str, sizes)]


# ---- earlier studies ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first() -> EarlierStudy:
    """What one study leaves for the next."""
    state, _ = run(Box(), study="first")
    found = launches_of(state)
    assert found is not None
    return found


def test_a_study_leaves_its_launches_over_its_own_baseline(first: EarlierStudy) -> None:
    assert first.gpu == "NVIDIA A100 80GB" and first.concurrency == 16 and first.given == GIVEN
    by_settings = {json.dumps(arm.settings, sort_keys=True): arm.ln for arm in first.arms}
    assert by_settings['{"mem_fraction_static": 0.6}'] == pytest.approx(0.182, abs=0.05)  # ln(0.6 / 0.5)
    assert EarlierStudy.model_validate(json.loads(json.dumps(first.plain()))) == first


def test_the_next_study_starts_where_the_first_ended(first: EarlierStudy) -> None:
    best = max((arm for arm in first.arms if arm.ln is not None), key=lambda arm: arm.ln or 0.0)
    box = Box(seed=9)
    _, log = run(box, study="second", earlier=(first,))
    step = proposals(log)[0]
    assert step["try_first"][0] == {**GIVEN, **best.settings}, "the best point that is known comes first"
    noted = {trial["note"] for trial in step["history"]}
    assert "study first" in noted, "the journal says whose launches were used"
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
    proposed = next(body["outcome"]["body"]["params"] for body in bodies(log, "outcome") if body["step"] == "propose")
    assert proposed == step["try_first"][0]


@pytest.mark.parametrize(
    "change", [{"engine_version": "0.5.9"}, {"concurrency": 64}, {"gpu": "NVIDIA H200"}, {"gpu_count": 8}, {"model": "other"}, {"simulated": True}]
)
def test_launches_of_another_class_are_not_used(first: EarlierStudy, change: dict[str, Any]) -> None:
    state, log = run(Box(), study="other", earlier=(first.model_copy(update=change),))
    assert not _earlier(state, state.spec.earlier[0])["used"] if state.spec is not None else False, "plan says so"
    assert _earlier(state, first)["used"]
    assert all("try_first" not in step for step in proposals(log))
    assert all(trial["note"] == "" for step in proposals(log) for trial in step["history"] if not trial["infeasible"])


def test_a_space_that_no_longer_matches_an_old_journal_is_mapped_or_left_out_with_the_reason(first: EarlierStudy) -> None:
    """An earlier release knew another grid and another parameter: what still fits is used, what does not is named in the journal."""
    gone = EarlierArm(settings={"mem_fraction_static": 0.83}, ln=0.4)  # no value of today's grid
    more = EarlierArm(settings={"mem_fraction_static": 0.7, "removed_flag": 3}, ln=0.3)  # a parameter that today's space lacks
    _, log = run(Box(), study="mapped", earlier=(first.model_copy(update={"arms": (gone, more)}),))
    outcome = next(body["outcome"]["body"] for body in bodies(log, "outcome") if body["step"] == "propose")
    step = proposals(log)[0]
    assert {**GIVEN, "mem_fraction_static": 0.7} in step["try_first"], "mapped to what is left of the space"
    assert outcome["params"] == {**GIVEN, "mem_fraction_static": 0.7}
    said = [item for item in outcome["left_out"] if item["note"] == "study first"]
    assert [item["why"] for item in said] == ["mem_fraction_static = 0.83 is no value of the space"]
    shown = [sentence(entry) for entry in log.read()]
    assert any("comes first: mem_fraction_static=0.7" in text for text in shown)
    assert any("no place for: mem_fraction_static = 0.83 is no value of the space" in text for text in shown)


def test_a_journal_of_the_policy_before_is_recomputed_as_it_was(first: EarlierStudy) -> None:
    _, log = run(Box(), study="old", earlier=(first,), policy_version=2)
    assert proposals(log) and all(set(step) <= {"kind", "key", "hypothesis", "space", "params", "fixed", "history", "seed"} for step in proposals(log))
    assert not any(body.get("about") == "proposal" for body in bodies(log, "refused"))
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_a_specification_of_an_older_release_still_reads() -> None:
    data = spec().plain()
    for name in ("earlier", "sampler"):
        data.pop(name)
    data["policy_version"] = 2
    assert StudySpec.model_validate(data).earlier == ()
    assert fold([]).spec is None


def test_the_live_executor_gives_the_sampler_all_that_the_step_knows() -> None:
    """Points that other boxes are measuring, values that this build has, settings that hold: with one point left, that one comes."""
    small = Space(id="test/small", engine="any", params=(
        Param(name="size", flag=("--size",), type="int", grid=(1, 2, 4, 8)), Param(name="mode", flag=("--mode",), type="choice", grid=("a", "b")),
    ))  # fmt: skip
    executor = LiveExecutor(None, spec(), Library.model_construct(spaces=(small,)))  # type: ignore[arg-type]
    for sampler in ("gp", "tpe"):
        step = Propose(
            key="5", hypothesis="idea", space=small.id, params=("size", "mode"), fixed={"mode": "a"}, history=(Trial(params={"size": 1}, value=1.0),), seed=1,
            pending=({"size": 2},), grids={"size": [1, 2, 4]}, sampler=sampler,  # type: ignore[arg-type]
        )  # fmt: skip
        outcome = asyncio.run(executor._propose(step)).outcome
        assert isinstance(outcome, Done) and outcome.body["params"] == {"size": 4}


def test_a_study_that_opens_beside_an_earlier_one_pins_its_launches(tmp_path: Path) -> None:
    """From the recorded journal of a study that lies under --runs to the first entry of the next one; ``--prior none`` leaves it out."""
    runs = tmp_path / "runs"
    shutil.copytree(ROOT / "tests" / "histories" / "h200-7b-eager", runs / "first")
    asked = Options(host="sim:h200-7b", target=("2000tps@16",), study="second")
    opened = prepare(asked, Roots(runs=runs)).spec
    assert [study.name for study in opened.earlier] == ["h200-7b-eager"] and opened.earlier[0].arms
    assert StudySpec.model_validate(json.loads(json.dumps(opened.plain()))) == opened
    assert not any("model_path" in arm.settings or "port" in arm.settings for arm in opened.earlier[0].arms)
    assert prepare(replace(asked, prior=("none",)), Roots(runs=runs)).spec.earlier == ()
