"""Ranks hypotheses: log-odds in decibans from evidence rules, measurements and what other hypotheses say of them.

Pure and deterministic. Every hypothesis is its own yes/no question, so probabilities need not add up to one. Of rules
about the same underlying fact (a group) only the strongest counts, because an echoed log line is not a second witness;
and all evidence together is clamped, so that no amount of text makes a hypothesis immune to a measurement."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from optimizer.core.predicate import View, explain
from optimizer.model.evidence import Fact
from optimizer.model.playbook import Family, Playbook

EVIDENCE_LIMIT_DB = 30.0


class Hit(NamedTuple):
    """One rule that was answered. ``counted`` is false when a stronger rule of its group speaks instead."""

    rule: str
    group: str
    answer: bool
    db: float
    counted: bool
    facts: tuple[Fact, ...] = ()


class Scored(NamedTuple):
    """One hypothesis: 10 db are odds of 10:1, 0 db are even odds."""

    id: str
    family: Family
    prior_db: float
    evidence_db: float
    measured_db: float
    related_db: float  # from excludes and implies of other hypotheses
    score_db: float
    probability: float
    hits: tuple[Hit, ...] = ()

    @property
    def supporting(self) -> tuple[Hit, ...]:
        return tuple(hit for hit in self.hits if hit.counted and hit.db > 0)

    @property
    def opposing(self) -> tuple[Hit, ...]:
        return tuple(hit for hit in self.hits if hit.counted and hit.db < 0)


def score(
    playbooks: Iterable[Playbook], view: View, measured_db: Mapping[str, float] | None = None
) -> tuple[Scored, ...]:
    """All playbooks against one view, best first; ties by id. ``measured_db``: summed Bayes factors by hypothesis."""
    measured = measured_db or {}
    books = sorted(playbooks, key=lambda book: book.id)
    alone = {book.id: _alone(book, view, measured.get(book.id, 0.0)) for book in books}
    related = _related(books, alone)
    scored = [_with_related(alone[book.id], related.get(book.id, 0.0)) for book in books]
    return tuple(sorted(scored, key=lambda item: (-item.score_db, item.id)))


def probability_of(db: float) -> float:
    """Probability of log-odds in decibans, exact at the ends."""
    if db > 300:
        return 1.0
    odds = float(10.0 ** (max(db, -300.0) / 10.0))
    return odds / (1.0 + odds)


def _alone(book: Playbook, view: View, measured_db: float) -> Scored:
    """Prior, evidence and measurements of one hypothesis, before the others have a say."""
    answered: list[tuple[str, str, bool, float, tuple[Fact, ...]]] = []
    strongest: dict[str, int] = {}
    for rule in book.evidence:
        answer = explain(rule.when, view)
        if answer.value is None:
            continue
        db = rule.if_true_db if answer.value else rule.if_false_db
        best = strongest.get(rule.group)
        if best is None or abs(db) > abs(answered[best][3]):
            strongest[rule.group] = len(answered)
        answered.append((rule.id, rule.group, answer.value, db, answer.facts))
    hits = tuple(
        Hit(rule=rule, group=group, answer=value, db=db, counted=strongest[group] == index, facts=facts)
        for index, (rule, group, value, db, facts) in enumerate(answered)
    )
    total = math.fsum(hit.db for hit in hits if hit.counted)
    evidence_db = max(-EVIDENCE_LIMIT_DB, min(EVIDENCE_LIMIT_DB, total))
    score_db = book.prior_db + evidence_db + measured_db
    return Scored(
        id=book.id, family=book.family, prior_db=book.prior_db, evidence_db=evidence_db, measured_db=measured_db,
        related_db=0.0, score_db=score_db, probability=probability_of(score_db), hits=hits,
    )  # fmt: skip


def _related(books: Iterable[Playbook], alone: Mapping[str, Scored]) -> dict[str, float]:
    """What each hypothesis says of the others, weighted by how much it is believed itself; applied once, no chains."""
    related: dict[str, float] = {}
    for book in books:
        for other, db in (*sorted(book.excludes.items()), *sorted(book.implies.items())):
            if other in alone:
                related[other] = related.get(other, 0.0) + db * alone[book.id].probability
    return related


def _with_related(item: Scored, related_db: float) -> Scored:
    if related_db == 0.0:
        return item
    db = item.score_db + related_db
    return item._replace(related_db=related_db, score_db=db, probability=probability_of(db))
