"""A cause as data: what it claims, what speaks for and against it, what fixing it should give, and what to do."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from optimizer.model.base import Decibans, FiniteFloat, Frozen, Value

Family = Literal[
    "config", "kernel", "acceptance_length", "capacity", "host_cpu", "interconnect", "client", "hardware", "bug"
]
Bucket = Literal["eager", "queue_cap", "collectives", "drafts", "prefill", "kernel", "host", "none"]
EngineName = Literal["any", "sglang", "vllm", "llamacpp"]

# A ``when:`` tree of plain JSON: {all|any: [...]}, {not: {...}}, or a comparison such as {fact: NAME, ge: OPERAND}.
# Operands are literals, {fact:}, {setting:}, {box:} or {times: k, fact: NAME}. Evaluated by core/predicate.py only.
class Tree(dict[str, Any]):
    """A ``when:`` tree as it stands in a model, never changed. ``read``: what core/predicate.py found in it at its first use, since
    every launch is held against the same trees."""

    __slots__ = ("read",)
    read: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tree, (dict(self),))  # a copy is read anew


Predicate = Annotated[dict[str, Any], AfterValidator(Tree)]


class EvidenceRule(Frozen):
    """A likelihood ratio in decibans for each answer; the signs must be opposite, or nothing could refute the claim."""

    id: str
    group: str  # rules about the same underlying fact share a group; only the strongest counts
    when: Predicate
    if_true_db: Decibans
    if_false_db: Decibans


class Prediction(Frozen):
    """What curing the cause gives: ``metric`` times a ratio in [low, high]. For latencies the ratio is baseline / new."""

    metric: str = "output_tokens_per_s"
    ratio: tuple[FiniteFloat, FiniteFloat]
    computed: str | None = None  # name of a computation in ceiling/ that narrows the interval from this launch's facts


class SetAction(Frozen):
    """Give parameters these values. A value may be {grid_above: FACT}, {fact: NAME, times: k, plus: n}: resolved by core/resolve.py.

    ``null`` removes the parameter from the command line. The first alternative whose parameters this build offers is taken."""

    kind: Literal["set"] = "set"
    engine: EngineName = "any"
    params: dict[str, Value]
    when: Predicate | None = None
    note: str = ""


class SpaceAction(Frozen):
    """Sample a search space (restricted to ``only``), starting with ``try_first``."""

    kind: Literal["space"] = "space"
    engine: EngineName = "any"
    space: str
    only: tuple[str, ...] = ()
    try_first: tuple[dict[str, Value], ...] = ()
    when: Predicate | None = None


class HandOver(Frozen):
    """No configuration can cure it: say so, with the evidence for whoever can."""

    kind: Literal["hand_over"] = "hand_over"
    engine: EngineName = "any"
    text: str
    when: Predicate | None = None


Action = Annotated[SetAction | SpaceAction | HandOver, Field(discriminator="kind")]


class CheckEntry(Frozen):
    """A cheap test on the running server that decides about this cause: ``test`` is a name of ``core.checks.CATALOGUE``.

    ``around`` names the fact that holds the load where a step is expected; ``width`` how far to either side it is looked for: one
    request (a step that takes longer), or half and double (a rate that stops growing)."""

    test: str
    around: str | None = None
    width: Literal["one", "double"] = "one"


class Playbook(Frozen):
    """One cause. ``id`` is a cause id of the taxonomy unless ``local`` is true."""

    id: str
    local: bool = False
    family: Family
    revision: int = 1
    claim: str
    prior_db: Decibans = -10.0
    addresses: Bucket = "none"
    evidence: tuple[EvidenceRule, ...]
    predicts: Prediction | None = None
    actions: tuple[Action, ...] = ()
    tests: tuple[str, ...] = ()
    checks: tuple[CheckEntry, ...] = ()  # those of its tests that a study may make by itself, without a relaunch
    discriminating_test: str = ""  # one sentence for people: the cheapest observation that decides
    risks: tuple[str, ...] = ()
    lossy: bool = False
    excludes: dict[str, Decibans] = Field(default_factory=dict)
    implies: dict[str, Decibans] = Field(default_factory=dict)
    source: str
    file: str = ""
