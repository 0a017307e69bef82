"""What ``diagnose`` answers: a verdict, the reason when there is none, every fact that was read, and all hypotheses
with the observations for and against them. Plain data; the thresholds of the verdict live in ``runner/diagnose.py``."""

from typing import Any, Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen, Scalar, Value
from optimizer.model.measurement import Invalidity
from optimizer.model.playbook import Family
from optimizer.model.startup import Flip

Reason = Literal["healthy", "load_limited", "ambiguous", "evidence_missing"]


class SeenFact(Frozen):
    """One fact that was read. ``source`` is a file of the bundle or a key of the case; ``line`` counts from 1."""

    fact: str
    value: Value
    unit: str = ""
    source: str = ""
    line: int | None = None
    labels: dict[str, Scalar] = Field(default_factory=dict)
    span: tuple[int, int] | None = None  # byte offsets in the source
    basis: str = ""
    bound: str | None = None
    resource: str = ""
    odd: Literal["impossible", "contradicts", "at_limit", "notable"] | None = None
    why_odd: str = ""


class MissingFact(Frozen):
    """A fact of the vocabulary that nobody could read, and why."""

    fact: str
    reason: str
    resource: str = ""


class EvidenceLine(Frozen):
    """One observation that speaks for or against a hypothesis, and how much (in decibans)."""

    fact: str
    value: Value
    source: str = ""
    line: int | None = None
    labels: dict[str, Scalar] = Field(default_factory=dict)
    rule: str = ""
    db: FiniteFloat = 0.0


class Predicted(Frozen):
    """``metric`` times a ratio in [low, high]; ``computed`` when it follows from this launch, not from others."""

    metric: str
    ratio: tuple[FiniteFloat, FiniteFloat]
    computed: bool = False


class Candidate(Frozen):
    """One hypothesis as ranked."""

    id: str
    family: Family
    probability: FiniteFloat
    score_db: FiniteFloat
    claim: str = ""
    evidence: tuple[EvidenceLine, ...] = ()
    against: tuple[EvidenceLine, ...] = ()
    predicts: Predicted | None = None
    next_step: str | None = None


class DeadInUse(Frozen):
    """A setting of this launch that is known to do nothing."""

    setting: str
    value: Value
    why: str


class Loss(Frozen):
    """One bucket of the time of a round: milliseconds, and their share of the whole round."""

    bucket: str
    ms: FiniteFloat
    share: FiniteFloat
    basis: str = ""
    why: str = ""


class LevelCeiling(Frozen):
    """What a level could reach, what it did, and where the time between goes. ``unknown``: why there is no ceiling."""

    concurrency: int
    measured_tokens_per_s: FiniteFloat | None = None
    ceiling_tokens_per_s: FiniteFloat | None = None
    expected_tokens_per_s: FiniteFloat | None = None
    reachable_tokens_per_s: FiniteFloat | None = None
    efficiency: FiniteFloat | None = None
    bound: str = ""
    lost: tuple[Loss, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: str = ""
    contradicts: bool = False  # measured faster than the GPU can be with this model


class DraftLevel(Frozen):
    """Predicted tokens/s at one concurrency for draft depth 0, 1, 2, ...; ``best`` is the fastest depth (0: none)."""

    concurrency: int
    best: int
    tokens_per_s: tuple[FiniteFloat, ...]


class Drafts(Frozen):
    """What drafts are worth, from one launch. ``break_even`` is the concurrency from which they lose; None: they never do."""

    draft_tokens: int
    accept_len: FiniteFloat
    break_even: FiniteFloat | None = None
    levels: tuple[DraftLevel, ...] = ()


class Diagnosis(Frozen):
    """``verdict`` is ``diagnosed`` or ``cannot-tell``; hypotheses are sorted, best first."""

    verdict: Literal["diagnosed", "cannot-tell"]
    reason: Reason | None = None
    next_step: str | None = None
    facts: tuple[SeenFact, ...] = ()
    missing: tuple[MissingFact, ...] = ()
    flips: tuple[Flip, ...] = ()  # start-up facts that differ from the baseline's, or that the log itself calls a fall-back
    hypotheses: tuple[Candidate, ...] = ()
    dead_settings: tuple[DeadInUse, ...] = ()
    notes: tuple[str, ...] = ()
    ceilings: tuple[LevelCeiling, ...] = ()  # one per measured level, empty without a benchmark
    drafts: Drafts | None = None  # only where the launch drafts
    contaminated: tuple[Invalidity, ...] = ()  # why the numbers of this evidence must not be believed

    def to_json(self) -> dict[str, Any]:
        """The documented shape: empty labels are left out."""
        found = self.plain()
        for fact in found["facts"]:
            for key in ("labels", "span", "basis", "bound", "odd", "why_odd"):
                _drop_empty(fact, key)
        for hypothesis in found["hypotheses"]:
            for line in (*hypothesis["evidence"], *hypothesis["against"]):
                _drop_empty(line, "labels")
        return found


def _drop_empty(record: dict[str, Any], key: str) -> None:
    if not record[key]:
        del record[key]
