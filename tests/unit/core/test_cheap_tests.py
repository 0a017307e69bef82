"""Seconds before launches: which test is made on the running server, when none is, and what its answer changes."""

from dataclasses import replace

import pytest

from optimizer.core import checks
from optimizer.core.state import fold
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.outcome import Done, Failed
from optimizer.model.playbook import CheckEntry, EvidenceRule, HandOver, Playbook, Prediction, SetAction
from optimizer.model.step import Check, Launch
from optimizer.runner.recorded import RecordedExecutor, verify

from .model_box import PLAN, ModelBox, unknown
from .test_state_machine import EAGER, run, speed


def suspicion(name, prior_db, changes, *, check=None, rules=(), ratio=(1.5, 4.0)):
    return Playbook(
        id=name, family="config", claim=f"{name} is the cause.", prior_db=prior_db, evidence=tuple(rules), predicts=Prediction(ratio=ratio),
        actions=(SetAction(params=changes),), checks=(CheckEntry(test=check),) if check else (), source="test",
    )  # fmt: skip


def rule(fact, if_true_db, if_false_db, op="ge", value=1.2, **labels):
    when = {"fact": fact, op: value, **({"labels": labels} if labels else {})}
    return EvidenceRule(id=f"rule-{fact.split('.')[-1].replace('_', '-')}", group="test", when=when, if_true_db=if_true_db, if_false_db=if_false_db)


# The wrong idea promises a little more and is a little likelier; a second run on the warm server tells the two apart.
WRONG = suspicion("wrong-idea", 1.0, {"max_running_requests": 32}, check="repeat_in_process", rules=[rule("validity.repeat_ratio", 12, -12)])
RIGHT = suspicion("cuda-graph-disabled", 0.0, {"disable_cuda_graph": None}, ratio=(1.5, 3.8))
TWO = replace(PLAN, playbooks=(WRONG, RIGHT))


def answered(name, value, seconds=30.0, **labels):
    fact = Fact(name=name, value=value, labels=labels, source="test")

    def answer(step, settings):
        return Done(body={"test": step.test, "text": "seen", "evidence": Evidence(facts=(fact,)).plain(), "points": [], "detail": {}}, duration_s=seconds)

    return answer


def made_by(box):
    return [step for step in box.calls if isinstance(step, Check)]


def candidates(box):
    return [step for step in box.calls if isinstance(step, Launch) and step.purpose == "candidate"]


def test_a_refuting_answer_saves_the_launch_for_the_wrong_idea():
    box = ModelBox(EAGER, speed, answers=answered("validity.repeat_ratio", 1.0))
    state, log = run(box, plan=TWO)
    (made,) = made_by(box)
    assert made.test == "repeat_in_process" and made.hypothesis == "wrong-idea"
    assert made.bits > 0.3 and made.saves_minutes > made.minutes > 0
    assert [step.settings.values for step in candidates(box)] == [{"disable_cuda_graph": None}]
    assert state.closed["ending"] == "met" and state.closed["launches"] == 2
    assert verify(log.read(), lambda seq: TWO).mismatches == ()


def test_without_the_test_the_wrong_idea_costs_a_launch():
    plan = replace(TWO, playbooks=(WRONG.model_copy(update={"checks": ()}), RIGHT))
    box = ModelBox(EAGER, speed)
    run(box, plan=plan)
    assert next(step.settings.values for step in candidates(box)) == {"max_running_requests": 32}


def test_a_supporting_answer_is_evidence_like_any_other():
    box = ModelBox(EAGER, speed, answers=answered("validity.repeat_ratio", 1.5))
    _state, log = run(box, plan=TWO)
    ranked = [entry.body for entry in log.read() if entry.kind == "ranked"]
    before, after = (next(row for row in body["hypotheses"] if row["id"] == "wrong-idea") for body in ranked[:2])
    assert after["score_db"] == pytest.approx(before["score_db"] + 12)
    assert any(hit.get("fact") == "validity.repeat_ratio" for hit in after["for"])


def test_near_certainty_wastes_no_minute():
    sure = WRONG.model_copy(update={"prior_db": 9.0})
    box = ModelBox(EAGER, speed, answers=answered("validity.repeat_ratio", 1.0))
    run(box, plan=replace(TWO, playbooks=(sure, RIGHT)))
    assert made_by(box) == []


def test_a_healthy_server_is_not_tested():
    books = tuple(book.model_copy(update={"prior_db": -10.0}) for book in TWO.playbooks)
    box = ModelBox({}, speed, answers=answered("validity.repeat_ratio", 1.0))
    state, _ = run(box, plan=replace(TWO, playbooks=books), target="5000tps@16")
    assert made_by(box) == [] and state.closed["ending"] == "nothing_to_tune"


def test_an_answer_that_could_not_change_the_choice_is_not_bought():
    """The rule is too weak to move the leading idea behind the next one: its launch comes first whatever the test says."""
    weak = suspicion("wrong-idea", 3.0, {"max_running_requests": 32}, check="repeat_in_process", rules=[rule("validity.repeat_ratio", 2, -0.5)])
    box = ModelBox(EAGER, speed, answers=answered("validity.repeat_ratio", 1.0))
    run(box, plan=replace(TWO, playbooks=(weak, RIGHT.model_copy(update={"prior_db": -8.0}))))
    assert made_by(box) == []


def test_what_is_known_already_is_not_asked_again():
    known = WRONG.model_copy(update={"evidence": (rule("queue.depth_p95", 12, -12),), "checks": (CheckEntry(test="repeat_in_process"),)})
    box = ModelBox(EAGER, speed, answers=answered("validity.repeat_ratio", 1.0))
    run(box, plan=replace(TWO, playbooks=(known, RIGHT)))
    assert made_by(box) == []


def test_a_test_that_cannot_be_made_is_tried_once_and_says_nothing():
    box = ModelBox(EAGER, speed, answers=lambda step, settings: Failed(cause="refused_by_box", message="no"))
    state, log = run(box, plan=TWO)
    assert len(made_by(box)) == 1
    assert state.closed is not None and candidates(box)[0].settings.values == {"max_running_requests": 32}
    assert verify(log.read(), lambda seq: TWO).mismatches == ()


def test_a_lost_link_during_a_test_is_reconciled_and_the_study_goes_on():
    box = ModelBox(EAGER, speed, answers=lambda step, settings: unknown())
    with_reconcile = []

    async def reconcile(step):
        from optimizer.runner.base import Effect

        with_reconcile.append(step)
        return Effect(Failed(cause="interrupted", message="cut"))

    box.reconcile = reconcile
    state, _ = run(box, plan=TWO)
    assert with_reconcile and state.closed is not None


def test_it_is_made_on_the_server_that_runs_and_never_stops_it():
    box = ModelBox(EAGER, speed, original=True, answers=answered("validity.repeat_ratio", 1.0))
    _state, _log = run(box, plan=TWO)
    first = next(index for index, step in enumerate(box.calls) if isinstance(step, Check))
    assert box.calls[first].launch == "original"
    assert not [step for step in box.calls[:first] if step.kind in ("launch", "stop")]


def test_a_new_baseline_may_be_tested_anew():
    """Evidence about the server that ran says nothing about the one that replaced it."""
    late = suspicion("late-idea", 0.0, {"max_running_requests": 32}, check="second_client",
                     rules=[rule("client.output_tps", 12, -12, value=1e9, target="second_client")], ratio=(1.4, 2.0))  # fmt: skip
    graphs = RIGHT.model_copy(update={"prior_db": 9.0})
    box = ModelBox(EAGER, lambda values: speed(values) / 4, answers=answered("client.output_tps", 1.0, target="second_client"))
    _state, log = run(box, plan=replace(TWO, playbooks=(graphs, late, WRONG)), best_effort=True)
    made = made_by(box)
    assert made and all(step.launch not in ("original",) for step in made)
    promoted = next(entry.seq for entry in log.read() if entry.kind == "promoted")
    assert all(int(step.key) > promoted for step in made)


def test_the_last_launch_of_the_budget_is_not_followed_by_tests():
    from optimizer.model.study import Budget

    box = ModelBox(EAGER, speed, answers=answered("validity.repeat_ratio", 1.0))
    run(box, plan=TWO, budget=Budget(minutes=1e6, launches=2))
    assert made_by(box) == []


def test_a_study_with_tests_folds_and_is_driven_again():
    box = ModelBox(EAGER, speed, answers=answered("validity.repeat_ratio", 1.0))
    state, log = run(box, plan=TWO)
    for length in range(1, len(log.read())):
        fold(log.read()[:length])
    import asyncio

    from optimizer.runner.loop import drive
    from optimizer.runner.recorded import MemoryLog

    again = MemoryLog()
    again.append("opened", log.read()[0].body, expect=0)
    replayed = asyncio.run(drive(again, RecordedExecutor(log.read()), TWO))
    assert replayed.closed == state.closed


def test_a_hand_over_is_worth_a_test_before_the_study_gives_up():
    """No launch is left that would help; a second client still tells the owner whether the client was the limit."""
    client = Playbook(
        id="client-bound-benchmark", family="client", claim="The client limits.", prior_db=-4.0,
        evidence=(rule("client.output_tps", 17, -14, value=1e9, target="second_client"),), predicts=Prediction(ratio=(1.3, 11.0)),
        actions=(HandOver(text="Use two."),), checks=(CheckEntry(test="second_client"),), source="test",
    )  # fmt: skip
    box = ModelBox({}, speed, answers=answered("client.output_tps", 2e9, target="second_client"))
    state, _ = run(box, plan=replace(PLAN, playbooks=(client,)), target="5000tps@16")
    assert [step.test for step in made_by(box)] == ["second_client"]
    assert state.closed["ending"] == "unreachable_by_configuration"
    assert state.closed["hypotheses"][0]["id"] == "client-bound-benchmark"


# ---- the product's own playbooks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library():
    return load_library(find_knowledge(None))


def test_every_declared_test_decides_something_and_is_in_the_vocabulary(library):
    declared = [(book, entry) for book in library.playbooks for entry in book.checks]
    assert len(declared) >= 12
    names = {test.name for test in library.vocabulary.tests}
    for book, entry in declared:
        assert entry.test in names, book.id
    assert all(checks.problems_of(book) == [] for book in library.playbooks)
    assert {entry.test for _, entry in declared} == set(checks.CATALOGUE), "a test that no playbook asks for is never made"


def test_what_a_test_states_is_in_the_vocabulary(library):
    probes = {probe.name for probe in library.vocabulary.probes}
    for kind in checks.CATALOGUE.values():
        for name, labels in kind.yields:
            spec = library.vocabulary.by_name[name]
            assert set(labels) <= set(spec.labels), (kind.name, name)
            assert labels.get("probe", "concurrency_up") in probes


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (CheckEntry(test="no-such-test"), "there is no test"),
        (CheckEntry(test="concurrency_sweep"), "needs `around`"),
        (CheckEntry(test="second_client", around="graphs.capture_max"), "no use for `around`"),
        (CheckEntry(test="second_client", width="double"), "no use for `width`"),
        (CheckEntry(test="nccl_log"), "decides nothing here"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(entry, said):
    book = WRONG.model_copy(update={"checks": (entry,)})
    assert said in checks.problems_of(book)[0][1]


def test_two_generators_cost_the_time_of_one():
    from optimizer.model.step import Level

    level = Level(concurrency=8, warmup_min_s=5, warmup_max_s=10, window_s=20)
    one = checks.cost_s(checks.CATALOGUE["repeat_in_process"], [level], 0)
    assert checks.cost_s(checks.CATALOGUE["second_client"], [level, level], 0) == one
    assert checks.cost_s(checks.CATALOGUE["concurrency_sweep"], [level] * 3, 0) > 2.5 * one
    assert checks.cost_s(checks.CATALOGUE["read_proc"], [], 5.0) == pytest.approx(7.0)
