"""Log-odds: one vote per group, bounded evidence, relations applied once, order independent of the input's order."""

from typing import Any

import pytest

from optimizer.core.predicate import Look
from optimizer.core.score import EVIDENCE_LIMIT_DB, probability_of, score
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.playbook import EvidenceRule, Playbook


def rule(name: str, group: str, true_db: float, false_db: float, fact: str) -> EvidenceRule:
    return EvidenceRule(id=name, group=group, if_true_db=true_db, if_false_db=false_db, when={"fact": fact, "eq": True})


def book(name: str, *rules: EvidenceRule, **rest: Any) -> Playbook:
    return Playbook(id=name, family="config", claim="x", evidence=rules, source="https://example.org", **rest)


def seen(**facts: bool) -> Look:
    return Look(
        facts=Evidence(facts=tuple(Fact(name=name, value=value) for name, value in facts.items())), settings={}, box={}
    )


def test_of_a_group_only_the_strongest_counts():
    echoes = book("a", rule("r1", "g", 6, -6, "x"), rule("r2", "g", 9, -3, "y"), rule("r3", "h", 2, -2, "z"))
    found = score([echoes], seen(x=True, y=True, z=False))[0]
    assert found.evidence_db == 9 - 2 and found.score_db == -10 + 7
    assert [(hit.rule, hit.counted) for hit in found.hits] == [("r1", False), ("r2", True), ("r3", True)]
    assert score([echoes], seen(x=False, y=True))[0].evidence_db == 9


def test_missing_facts_weigh_nothing():
    assert score([book("a", rule("r", "g", 9, -9, "x"))], seen())[0].score_db == -10


def test_evidence_is_clamped_but_a_measurement_is_not():
    loud = book("a", *(rule(f"r{index}", f"g{index}", 15, -15, "x") for index in range(6)))
    assert score([loud], seen(x=True))[0].evidence_db == EVIDENCE_LIMIT_DB
    assert score([loud], seen(x=False))[0].evidence_db == -EVIDENCE_LIMIT_DB
    assert score([loud], seen(x=True), {"a": -40})[0].score_db == -10 + 30 - 40


@pytest.mark.parametrize(("db", "probability"), [(0, 0.5), (10, 10 / 11), (-10, 1 / 11), (1e9, 1.0), (-1e9, 0.0)])
def test_probability_is_the_odds(db: float, probability: float):
    assert probability_of(db) == pytest.approx(probability, abs=1e-12)


def test_relations_weigh_by_belief_and_apply_once():
    first = book("a", rule("r", "g", 30, -30, "x"), excludes={"b": -8}, implies={"c": 4})
    second = book("b", rule("r", "g", 30, -30, "x"), excludes={"c": -8})
    third = book("c", rule("r", "g", 5, -5, "x"))
    by_id = {item.id: item for item in score([first, second, third], seen(x=True))}
    belief = probability_of(20)
    assert by_id["b"].score_db == pytest.approx(20 - 8 * belief)
    assert by_id["c"].score_db == pytest.approx(-5 + 4 * belief - 8 * belief)  # b's belief before a spoke
    assert by_id["a"].related_db == 0


def test_the_order_is_by_score_then_id_whatever_the_input():
    books = [book(name, rule("r", "g", 9, -9, "x")) for name in ("c", "a", "b")]
    assert [item.id for item in score(books, seen(x=True))] == ["a", "b", "c"]
    assert score(books, seen(x=True)) == score(reversed(books), seen(x=True))
