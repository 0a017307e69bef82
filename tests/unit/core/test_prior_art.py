"""Known-good results of the same kind of box: one hypothesis of its own, predicted from what was recorded, tested like any other."""

from dataclasses import replace

import pytest

from optimizer.core import prior
from optimizer.core.state import State, fold
from optimizer.errors import KnowledgeError
from optimizer.knowledge.prior_art import prior_art
from optimizer.model.entry import EntryKind
from optimizer.model.prior import PriorArt
from optimizer.model.space import DeadSetting
from optimizer.model.step import Launch
from optimizer.model.study import StudySpec
from optimizer.runner.recorded import verify

from .model_box import PLAN, ModelBox, spec
from .test_state_machine import EAGER, run, speed

SILENT = replace(PLAN, playbooks=())  # nothing but the prior art has an idea


def record(**changes):
    base = PriorArt(
        name="earlier", kind="study", source="study earlier", engine="sglang", engine_version="0.5.12", model="m", model_class="", gpu=None, gpu_count=1,
        concurrency=16, prompt_tokens=512, output_tokens=256, before=400.0, after=1200.0, settings={},
        chosen=("disable_cuda_graph",),
    )  # fmt: skip
    return base.model_copy(update=changes)


class Box(ModelBox):
    """The model box with a model's name, which the class of a box needs."""

    def _do(self, step):
        outcome = super()._do(step)
        if step.kind == "observe":
            box = {**outcome.body["box"], "model_path": "/models/m", "gpu": None, "cpus": 8}
            return outcome.model_copy(update={"body": {**outcome.body, "box": box}})
        return outcome


def study(*records, plan=SILENT, given=EAGER, rate=speed, **changes):
    box = Box(given, rate)
    state, log = run(box, study=spec(prior_art=tuple(records), **changes), plan=plan)
    return box, state, log


def tried(box):
    return [step.settings.values for step in box.calls if isinstance(step, Launch) and step.purpose == "candidate"]


def test_it_is_tested_first_and_kept_when_it_is_borne_out():
    box, state, log = study(record())
    assert tried(box) == [{"disable_cuda_graph": None}]
    assert state.closed["ending"] == "met" and state.closed["launches"] == 2
    assert state.beliefs[prior.PRIOR_ART].status == "supported"
    assert [row["id"] for row in state.closed["hypotheses"]] == [prior.PRIOR_ART]
    assert verify(log.read(), lambda seq: SILENT).mismatches == ()


def test_its_prediction_is_half_to_all_of_what_the_record_says_is_missing():
    _, _, log = study(record())
    chosen = next(entry.body for entry in log.read() if entry.kind == EntryKind.CHOSEN)
    low, high = chosen["ratio"]
    assert high == pytest.approx(3.0, rel=0.05) and low == pytest.approx(1 + (high - 1) / 2)
    assert "Study earlier" in chosen["claim"] and "1,200 tok/s" in chosen["claim"] and "disable_cuda_graph" in chosen["claim"]


def test_a_likely_cause_that_it_cures_is_named_with_it():
    plan = replace(PLAN, playbooks=tuple(book for book in PLAN.playbooks if book.id == "cuda-graph-disabled"))
    box, state, log = study(record(), plan=plan)
    assert tried(box) == [{"disable_cuda_graph": None}] and state.closed["launches"] == 2
    assert {name for name, belief in state.beliefs.items() if belief.status == "supported"} == {prior.PRIOR_ART, "cuda-graph-disabled"}
    chosen = next(entry.body for entry in log.read() if entry.kind == EntryKind.CHOSEN)
    assert [item["hypothesis"] for item in chosen["cures"]] == ["cuda-graph-disabled"]
    causes = {row["id"]: row for row in state.closed["hypotheses"]}
    assert causes["cuda-graph-disabled"]["status"] == "supported" and causes["cuda-graph-disabled"]["probability"] > 0.9
    assert verify(log.read(), lambda seq: plan).mismatches == ()


def test_a_cause_is_not_blamed_when_the_whole_set_fails():
    plan = replace(PLAN, playbooks=tuple(book for book in PLAN.playbooks if book.id == "cuda-graph-disabled"))
    worse = record(settings={"mem_fraction_static": 0.9}, chosen=("disable_cuda_graph", "mem_fraction_static"))
    box, state, _ = study(worse, plan=plan, rate=lambda values: 100.0 if values.get("mem_fraction_static") else speed(values))
    assert tried(box)[0] == {"disable_cuda_graph": None, "mem_fraction_static": 0.9}
    assert state.beliefs["cuda-graph-disabled"].status == "supported" and state.closed["ending"] == "met"
    assert state.beliefs[prior.PRIOR_ART].status in ("pruned", "stale", "refused")


def test_one_that_does_not_hold_here_is_ruled_out_like_any_other():
    box, state, _ = study(record(), rate=lambda values: 400.0)
    assert len(tried(box)) == 1 and state.promoted == ()
    assert state.beliefs[prior.PRIOR_ART].status in ("pruned", "deferred")
    assert state.closed["ending"] == "not_met"


def test_where_this_launch_is_as_good_already_nothing_is_launched_for_it():
    box, _state, _ = study(record(after=380.0))
    assert tried(box) == []
    box, _state, _ = study(record(), given={})  # no difference
    assert tried(box) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"engine": "vllm"}, "it is of vllm"), ({"gpu_count": 8}, "it ran on 8"), ({"gpu": "NVIDIA H200"}, "NVIDIA H200"),
        ({"model": "other-model"}, "it served other-model"), ({"simulated": True}, "simulated box"),
    ],
)  # fmt: skip
def test_another_kind_of_box_is_no_prior_art(change, why):
    other = record(**change)
    box, _, log = study(other)
    assert tried(box) == []
    surveyed = next(index for index, entry in enumerate(log.read()) if entry.kind == EntryKind.OUTCOME) + 1
    said = prior.compared(fold(log.read()[:surveyed]), other)
    assert isinstance(said, str) and why in said


def test_how_alike_the_two_are_is_the_prior():
    state = fold(study(record())[2].read()[:3])
    same = prior.compared(state, record())
    build = prior.compared(state, record(engine_version="0.5.9"))
    load = prior.compared(state, record(concurrency=64))
    assert (same.prior_db, build.prior_db, load.prior_db) == (10.0, 0.0, 5.0)
    assert same.same_work and not load.same_work
    foreign = prior.compared(state, record(kind="file", model="other-model"))  # named by a person: another model counts, for less
    assert foreign.prior_db == 5.0 and "another model" in foreign.said


def test_with_another_load_the_recorded_ratio_is_what_is_predicted():
    _, _, log = study(record(concurrency=64, before=1000.0, after=1800.0))
    chosen = next(entry.body for entry in log.read() if entry.kind == EntryKind.CHOSEN)
    assert chosen["ratio"] == pytest.approx([1.4, 1.8])


def test_the_nearest_record_is_taken():
    far, near = record(name="far", engine_version="0.5.1", after=5000.0), record(name="near")
    state = fold(study(record())[2].read()[:3])
    state = replace(state, spec=state.spec.model_copy(update={"prior_art": (far, near)}))
    assert prior.best(state).record.name == "near"


def test_what_does_nothing_here_is_left_out_of_it_and_said():
    dead = DeadSetting(engine="sglang", params=("num_continuous_decode_steps",), kind="no_reader", why="No reader.", source="test")
    plan = replace(SILENT, dead=(dead,))
    box, _state, log = study(
        record(settings={"num_continuous_decode_steps": 4}, chosen=("disable_cuda_graph", "num_continuous_decode_steps")), plan=plan
    )
    assert tried(box) == [{"disable_cuda_graph": None}]
    chosen = next(entry.body for entry in log.read() if entry.kind == EntryKind.CHOSEN)
    assert [part["params"] for part in chosen["refused_parts"]] == [{"num_continuous_decode_steps": 4}]


def test_identity_and_what_nobody_tunes_are_not_carried_over():
    settings = {"port": 1, "model_path": "/x", "served_model_name": "y", "log_level": "debug", "some_flag": 3, "mem_fraction_static": 0.8}
    state = fold(study(record())[2].read()[:3])
    changes = prior.difference(state, PLAN, record(settings=settings, chosen=()))
    assert changes == {"mem_fraction_static": 0.8, "disable_cuda_graph": None}  # the playbooks know both of these


def test_a_closed_study_becomes_a_record_that_the_next_one_uses():
    _, first, _ = study(record(), given=EAGER)
    made = prior.record_of(first)
    assert made is not None
    assert (made.engine, made.gpu_count, made.model, made.concurrency) == ("sglang", 1, "m", 16)
    assert made.chosen == ("disable_cuda_graph",) and made.settings == {}
    assert made.before == pytest.approx(400, rel=0.05) and made.after == pytest.approx(1200, rel=0.05)
    best = first.closed["best"]
    assert (made.low, made.high, made.launches) == (*best["interval"], best["launches"]) and made.low < made.after < made.high
    box, state, log = study(made)
    assert tried(box) == [{"disable_cuda_graph": None}] and state.closed["ending"] == "met"
    claim = next(entry.body["claim"] for entry in log.read() if entry.kind == EntryKind.CHOSEN)
    assert f" tok/s [{made.low:,.4g}, {made.high:,.4g}] (1 launch), " in claim and " before on " in claim
    old = replace(state, spec=state.spec.model_copy(update={"policy_version": 3}))
    assert f" gave {made.after:.4g} output_tokens_per_s (before: {made.before:.4g}) on " in prior.hypothesis(old, PLAN).claim
    assert fold(log.read()).spec.prior_art == (made,)  # the journal says by itself what was known


def test_a_study_that_confirmed_nothing_is_no_prior_art():
    _, state, _ = study(rate=lambda values: 400.0)
    assert prior.record_of(state) is None
    assert prior.record_of(State()) is None


def test_a_spec_without_the_field_still_opens():
    plain = spec().plain()
    del plain["prior_art"]
    assert StudySpec.model_validate(plain).prior_art == ()


FILE = """
prior_art: rtx-pro-6000-x8/kimi
box_class: {engine: sglang, gpu: RTX PRO 6000 Blackwell, count: 8}
model: Kimi-K2.6
settings: {mem_fraction_static: 0.7, cuda_graph_max_bs: 32}
env: {NCCL_PROTO: LL}
results:
  - {metric: output_tokens_per_s, concurrency: 1, before: 26, after: 98}
source: https://example.org/kimi
"""


def test_a_file_becomes_a_record():
    (found,) = prior_art(FILE, "kimi.yaml")
    assert found.settings == {"mem_fraction_static": 0.7, "cuda_graph_max_bs": 32, "env.NCCL_PROTO": "LL"}
    assert found.chosen == ("cuda_graph_max_bs", "env.NCCL_PROTO", "mem_fraction_static")
    assert (found.kind, found.gpu_count, found.concurrency, found.before, found.after) == ("file", 8, 1, 26.0, 98.0)
    assert prior._same_gpu(found.gpu, "NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert not prior._same_gpu(found.gpu, "NVIDIA RTX 6000 Ada Generation")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("count: 8", "count: eight", 3), ("after: 98", "after: -1", 8), ("metric: output_tokens_per_s", "metric: joy", 8), ("source:", "sauce:", 9),
        ("model: Kimi-K2.6\n", "", 2), ("count: 8", "count: 8, count: 9", 3),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_with_its_line(old, new, line):
    with pytest.raises(KnowledgeError) as caught:
        prior_art(FILE.replace(old, new), "kimi.yaml")
    assert caught.value.message.startswith("kimi.yaml:")
    assert abs(int(caught.value.message.split(":")[1]) - line) <= 2 or old.startswith(("model", "source"))
