"""The Gaussian process, guards, points measured elsewhere, trade-offs, importance and pruned dimensions."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from optimizer.core.dimensions import pruned
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.space import Param, Space, Trial
from optimizer.search.gp_proposal import ENOUGH_FOR_IMPORTANCE, importance
from optimizer.search.grid import key
from optimizer.search.propose import Sampler, propose

ROOT = Path(__file__).parents[3]
SPACE = Space(
    id="test/space",
    engine="any",
    params=(
        Param(name="max_num_seqs", flag=("--max-num-seqs",), type="int", grid=(1, 2, 4, 8, 16, 32, 64, 128, 256)),
        Param(name="block_size", flag=("--block-size",), type="int", grid=(16, 32, 64)),
        Param(name="enforce_eager", flag=("--enforce-eager",), type="bool"),
    ),
)


def speed(point: Mapping[str, Value]) -> float:
    seqs = point["max_num_seqs"]
    assert isinstance(seqs, int)
    return 0.6 * math.log(min(seqs, 64)) - (0.9 if point["enforce_eager"] else 0.0)


def run(sampler: Sampler, launches: int, seed: int) -> list[Trial]:
    history: list[Trial] = []
    for _ in range(launches):
        point = propose(SPACE, SPACE.params, history, seed, sampler=sampler)
        history.append(Trial(params=point, value=speed(point)))
    return history


def test_gp_and_tpe_propose_nothing_twice_and_repeat_themselves() -> None:
    for sampler in ("gp", "tpe"):
        history = run(sampler, 12, 5)  # type: ignore[arg-type]
        assert len({key(trial.params) for trial in history}) == 12
        assert [trial.params for trial in run(sampler, 12, 5)] == [trial.params for trial in history]  # type: ignore[arg-type]


def test_gp_is_near_the_best_after_ten_launches() -> None:
    best = 0.6 * math.log(64)
    found = [max(trial.value or 0.0 for trial in run("gp", 10, seed)) for seed in range(5)]
    assert min(found) > best - 0.1


def test_gp_starts_where_knowledge_expects_the_most() -> None:
    directions = load_library(find_knowledge(ROOT)).directions
    point = propose(SPACE, SPACE.params, [], 1, sampler="gp", directions=directions)
    assert point == {"max_num_seqs": 256, "block_size": 16, "enforce_eager": False}


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_what_is_measured_elsewhere_is_not_proposed(sampler: Sampler) -> None:
    history = run("tpe", 6, 2)
    pending: list[dict[str, Value]] = []
    for _ in range(4):
        point = propose(SPACE, SPACE.params, history, 3, pending=pending, sampler=sampler)
        assert key(point) not in {key(other) for other in pending}
        pending.append(point)


def test_a_broken_guard_is_told_apart_from_a_crash() -> None:
    """Everything above 32 breaks a guard although it is faster: the sampler turns to what is allowed."""
    history: list[Trial] = []
    for launch in range(24):
        point = propose(SPACE, SPACE.params, history, 100 + launch)
        seqs = point["max_num_seqs"]
        assert isinstance(seqs, int)
        history.append(Trial(params=point, value=speed(point) + math.log(seqs), violations={"ttft_p99_ms": float(seqs - 32)}))
    late = [trial for trial in history[12:] if trial.violations["ttft_p99_ms"] <= 0]
    early = [trial for trial in history[:12] if trial.violations["ttft_p99_ms"] <= 0]
    assert len(late) >= 6 and len(late) >= len(early) - 2


def test_a_trade_off_is_searched_on_both_sides() -> None:
    history: list[Trial] = []
    for launch in range(20):
        point = propose(SPACE, SPACE.params, history, 7 + launch, tradeoff=True)
        seqs = point["max_num_seqs"]
        assert isinstance(seqs, int)
        history.append(Trial(params=point, value=speed(point), second=-math.log(seqs)))
    seqs_seen = {trial.params["max_num_seqs"] for trial in history}
    assert len(seqs_seen) >= 5 and {trial.params["enforce_eager"] for trial in history} == {True, False}
    assert sum(trial.params["enforce_eager"] is False for trial in history) > 10  # no point of the front is eager


def test_a_trial_without_the_second_objective_is_no_part_of_a_trade_off() -> None:
    history = [Trial(params={"max_num_seqs": 4, "block_size": 16, "enforce_eager": True}, value=1.0)]
    assert propose(SPACE, SPACE.params, history, 1, tradeoff=True)


def test_importance_needs_launches_and_finds_what_matters() -> None:
    history = run("tpe", 20, 11)
    assert importance(SPACE.params, history[: ENOUGH_FOR_IMPORTANCE - 1]) == {}
    found = importance(SPACE.params, history)
    assert next(iter(found)) in ("max_num_seqs", "enforce_eager")
    assert found["block_size"] < 0.1 < found["max_num_seqs"]


def test_a_dimension_leaves_with_the_last_hypothesis_that_wants_it() -> None:
    books = load_library(find_knowledge(ROOT)).playbooks
    name = "cuda_graph_max_bs"
    asking = [book.id for book in books if any(name in getattr(action, "only", ()) for action in book.actions)]
    assert asking
    every = {book.id: 0.01 for book in books}
    spaces = {"sglang/decode-graphs": ["disable_cuda_graph", name]}
    out = pruned([name, "unheard_of"], books, every, dict.fromkeys(every, True), "sglang", spaces)
    assert set(out) == {name} and asking[0] in out[name]
    # A low prior without evidence prunes nothing, and one open hypothesis keeps it.
    assert pruned([name], books, every, dict.fromkeys(every, False), "sglang", spaces) == {}
    assert pruned([name], books, {**every, asking[0]: 0.4}, dict.fromkeys(every, True), "sglang", spaces) == {}


def test_a_space_that_no_longer_matches_an_old_journal_leaves_trials_out_with_the_reason() -> None:
    from optimizer.search.propose import split

    old = [
        Trial(params={"max_num_seqs": 48, "block_size": 16, "enforce_eager": False}, value=1.0),
        Trial(params={"max_num_seqs": 64, "block_size": 16, "enforce_eager": False, "gone": 3}, value=2.0),
    ]
    usable, left_out = split(SPACE.params, old)
    assert [trial.value for trial in usable] == [2.0]  # mapped to what is left of the space
    assert [(item.trial.value, item.why) for item in left_out] == [(1.0, "max_num_seqs = 48 is no value of the space")]
    assert propose(SPACE, SPACE.params, old, 1)


def test_a_plain_trial_is_written_as_in_older_journals() -> None:
    assert Trial(params={"a": 1}, value=2.0).model_dump(mode="json") == {"params": {"a": 1}, "value": 2.0, "infeasible": False, "note": ""}
    full = Trial(params={}, value=1.0, second=2.0, violations={"ttft_p99_ms ≤ 500 ms": 0.1})
    assert Trial.model_validate(full.model_dump(mode="json")) == full
