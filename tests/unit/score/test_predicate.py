"""Three-valued conditions: what is unknown stays unknown, bounds count as bounds, and nothing raises."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core.predicate import Look, evaluate, explain, operands, problems
from optimizer.model.evidence import Evidence, Fact


def look(*facts: Fact, settings: dict[str, Any] | None = None, box: dict[str, Any] | None = None) -> Look:
    return Look(facts=Evidence(facts=facts), settings=settings or {}, box=box or {})


def fact(name: str, value: Any, bound: Any = None, **labels: Any) -> Fact:
    return Fact(name=name, value=value, bound=bound, labels=labels)


KNOWN = look(
    fact("n", 8), fact("b", True), fact("s", "full"), fact("l", [0.9, 0.5, 0.3]), fact("w", ["NCCL_PROTO=LL", "conf:X"]),
    fact("big", 20), fact("nan", math.nan), fact("odd", {"x": 1}),
    settings={"given": 4, "not_given": None}, box={"gpus": 2},
)  # fmt: skip


@pytest.mark.parametrize(
    ("when", "answer"),
    [
        ({"fact": "n", "ge": 8}, True),
        ({"fact": "n", "gt": 8}, False),
        ({"fact": "n", "lt": {"fact": "big"}}, True),
        ({"fact": "n", "gt": {"fact": "big", "times": 0.5}}, False),
        ({"fact": "n", "gt": {"fact": "big", "times": 0.25, "plus": 2}}, True),
        ({"fact": "n", "ge": {"fact": "nowhere"}}, None),
        ({"fact": "n", "between": [8, 9]}, True),
        ({"fact": "n", "in": [1, 8.0]}, True),
        ({"fact": "b", "eq": True}, True),
        ({"fact": "b", "eq": 1}, None),
        ({"fact": "s", "ne": "none"}, True),
        ({"fact": "s", "ge": 1}, None),
        ({"fact": "s", "eq": 1}, None),
        ({"fact": "l", "last_lt": 0.4}, True),
        ({"fact": "w", "contains": "NCCL_PROTO"}, True),
        ({"fact": "w", "contains": "NCCL_ALGO"}, False),
        ({"fact": "n", "contains": "x"}, None),
        ({"fact": "nan", "ge": 1}, None),
        ({"fact": "odd", "eq": "x"}, None),
        ({"fact": "nowhere", "eq": 1}, None),
        ({"fact": "n", "present": True}, True),
        ({"fact": "nowhere", "present": True}, None),
        ({"setting": "given", "ge": 4}, True),
        ({"setting": "not_given", "present": False}, True),
        ({"setting": "not_given", "eq": None}, True),
        ({"setting": "not_given", "eq": 4}, None),
        ({"setting": "nowhere", "present": False}, None),
        ({"box": "gpus", "eq": 2}, True),
        ({"all": [{"fact": "n", "ge": 1}, {"fact": "nowhere", "eq": 1}]}, None),
        ({"all": [{"fact": "n", "ge": 99}, {"fact": "nowhere", "eq": 1}]}, False),
        ({"any": [{"fact": "n", "ge": 1}, {"fact": "nowhere", "eq": 1}]}, True),
        ({"any": [{"fact": "n", "ge": 99}, {"fact": "nowhere", "eq": 1}]}, None),
        ({"not": {"fact": "nowhere", "eq": 1}}, None),
        ({"not": {"fact": "n", "eq": 1}}, True),
        ({}, None),
        ({"all": []}, None),
    ],
)
def test_answers(when: dict[str, Any], answer: bool | None):
    assert evaluate(when, KNOWN) is answer


@pytest.mark.parametrize(
    ("bound", "when", "answer"),
    [
        ("at_least", {"ge": 10}, True), ("at_least", {"ge": 11}, None), ("at_least", {"gt": 9}, True), ("at_least", {"le": 9}, False),
        ("at_least", {"le": 10}, None), ("at_least", {"eq": 9}, False), ("at_least", {"eq": 12}, None), ("at_most", {"le": 10}, True),
        ("at_most", {"le": 9}, None), ("at_most", {"lt": 11}, True), ("at_most", {"ge": 11}, False), ("at_most", {"ge": 10}, None),
        ("at_most", {"ne": 11}, True), ("at_least", {"between": [1, 9]}, False), ("at_least", {"between": [1, 20]}, None),
    ],
)  # fmt: skip
def test_a_bounded_observation_is_known_from_one_side_only(bound: str, when: dict[str, Any], answer: bool | None):
    assert evaluate({"fact": "x", **when}, look(fact("x", 10, bound))) is answer


def test_labels_restrict_and_any_observation_may_hold():
    seen = look(fact("r", 0.9, probe="a"), fact("r", 2.0, probe="b"))
    assert evaluate({"fact": "r", "ge": 1.5}, seen) is True
    assert evaluate({"fact": "r", "labels": {"probe": "a"}, "ge": 1.5}, seen) is False
    assert evaluate({"fact": "r", "labels": {"probe": "c"}, "ge": 1.5}, seen) is None
    assert explain({"fact": "r", "ge": 1.5}, seen).facts[0].labels == {"probe": "b"}


def test_two_facts_are_compared_under_the_same_conditions():
    seen = look(
        fact("p99", 90, concurrency=1),
        fact("p99", 20, concurrency=16),
        fact("p50", 10, concurrency=1),
        fact("p50", 15, concurrency=16),
    )
    assert evaluate({"fact": "p99", "labels": {"concurrency": 16}, "gt": {"fact": "p50", "times": 5}}, seen) is False
    assert evaluate({"fact": "p99", "gt": {"fact": "p50", "times": 5}}, seen) is True


def test_an_observation_is_not_compared_with_itself():
    seen = look(
        fact("tps", 44, context=50),
        fact("tps", 486, target="second", context=50),
        fact("tps", 591, target="second", context=32),
    )
    assert evaluate({"fact": "tps", "labels": {"target": "second"}, "gt": {"fact": "tps", "times": 1.3}}, seen) is True
    assert evaluate({"fact": "tps", "labels": {"target": "second"}, "gt": {"fact": "tps", "times": 30}}, seen) is False


@pytest.mark.parametrize(
    "when",
    ["x", [], {"all": {}}, {"all": []}, {"fact": "a"}, {"fact": "a", "ge": "1"}, {"fact": 1, "eq": 1}, {"fact": "a", "between": [1]},
     {"fact": "a", "in": []}, {"fact": "a", "eq": 1, "ne": 2}, {"setting": "a", "labels": {}, "eq": 1}, {"fact": "a", "eq": {"fact": "b", "minus": 1}}],
)  # fmt: skip
def test_trees_that_could_never_be_answered_have_problems(when: Any):
    assert problems(when)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["all", "any", "not", "fact", "setting", "box", "labels", "ge", "lt", "eq", "in", "between", "contains", "last_lt", "present", "times", "plus", "x"]
    ), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(JSON, JSON, st.sampled_from(["x", "a"]))
def test_nothing_raises_whatever_trees_and_facts_hold(when: Any, value: Any, name: str):
    seen = look(fact(name, value), settings={"x": value}, box={"x": value})
    tree = when if isinstance(when, dict) else {"fact": "x", "eq": when}
    assert evaluate(tree, seen) in (True, False, None)
    list(operands(tree))
    list(problems(tree))


def test_a_right_side_that_nobody_observed_is_unknown_and_not_null():
    """It was answered with false: a knee of the speed spoke against a limit that nobody had read."""
    for operator in ("eq", "ne", "gt", "le"):
        assert evaluate({"fact": "n", operator: {"fact": "nowhere"}}, KNOWN) is None
