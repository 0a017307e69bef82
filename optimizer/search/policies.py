"""Policies over a finite list of configurations: which one is launched next, given what was measured so far. A policy never
sees a measurement that it has not paid for. ``evidence`` starts from what the knowledge files expect and trusts it only as
far as measurements bear it out; ``gp`` is the same model without knowledge, ``random`` the yardstick."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from optimizer.model.base import Value
from optimizer.model.canonical import derived_seed
from optimizer.model.space import Direction
from optimizer.search.encode import Array, dimensions
from optimizer.search.gaussian import Posterior, Prior, Step
from optimizer.search.table import Table

Ask = int | Mapping[str, Value]  # the index of a configuration, or a point that may have none

_KEPT_FLOATS = 30_000_000  # of the decisions that all runs over a table share
_NOISE = 0.02  # of one measurement (ln), where the table does not repeat any
_TIE = 1e-9


class Run(Protocol):
    """One replay of one policy. ``ask`` gives the next configuration, ``tell`` what was measured (ln, more is better)."""

    def ask(self) -> Ask: ...

    def tell(self, index: int, gain: float) -> None: ...

    def unrecorded(self) -> None:
        """The point asked for was never measured; ask again."""


Policy = Callable[[int], Run]  # seed -> a fresh run


def policy(name: str, table: Table, directions: Sequence[Direction]) -> Policy:
    """The policy of that name over ``table``. What it knows beforehand is prepared once for all seeds. Raises KeyError."""
    return _POLICIES[name](table, directions)


def names() -> tuple[str, ...]:
    return tuple(_POLICIES)


@dataclass
class RandomRun:
    """Every order of the configurations is equally likely."""

    order: list[int]
    at: int = 0

    def ask(self) -> Ask:
        self.at += 1
        return self.order[self.at - 1]

    def tell(self, index: int, gain: float) -> None:
        pass

    def unrecorded(self) -> None:
        pass


def _random(table: Table, directions: Sequence[Direction]) -> Policy:
    count = len(table.points)

    def start(seed: int) -> Run:
        order = list(range(count))
        random.Random(derived_seed("random", table.name, seed)).shuffle(order)
        return RandomRun(order)

    return start


@dataclass
class _Node:
    """What is decided after one history. ``ties`` are the configurations that are worth the same; ``step``: the last measurement, for
    other runs that come this way."""

    ties: list[int]
    best: float = -np.inf
    step: Step | None = None
    kept: bool = True  # in the model's memory, where other seeds find it
    children: dict[tuple[int, float], "_Node"] = field(default_factory=dict)


class Model:
    """The model's decisions for one table. Histories that were met before are looked up: seeds share most of them."""

    def __init__(self, table: Table, directions: Sequence[Direction], *, knowledge: bool) -> None:
        dims = dimensions(table.points, table.names, directions if knowledge else (), table.effect)
        count = len(table.points)
        self.expected: Array = sum((dim.expected for dim in dims), np.zeros(count))
        self.noise = max(table.noise() or _NOISE, 0.002)
        self.prior = Prior(dims, count, knowledge=knowledge)
        start = self.expected if knowledge else np.zeros(count)
        self.root = _Node(_equals(start))
        self.begun = False  # whether the first launch was decided for some run
        self.room = _KEPT_FLOATS

    def next(self, node: _Node, index: int, gain: float, posterior: Posterior) -> _Node:
        """What follows a measurement that no run made after this history, whose ``posterior`` it changes."""
        step = posterior.observe(index, gain, self.noise**2)
        best = max(node.best, gain)
        ties = posterior.promising(best, _TIE)
        # Once the memory is full, a run goes on alone: nobody else continues from its node.
        found = _Node(ties, best, step, kept=node.kept and self.room > 0)
        if found.kept:
            self.room -= step.coefficients.size + len(ties)
            node.children[(index, gain)] = found
        return found


def _equals(score: Array) -> list[int]:
    top = float(score.max())
    return [int(index) for index in np.flatnonzero(score >= top - _TIE * max(1.0, abs(top)))]


@dataclass
class ModelRun:
    model: Model
    node: _Node
    source: random.Random
    looked_up: int = 0  # decisions that a run before had made of the same history
    steps: list[Step] = field(default_factory=list)
    posterior: Posterior | None = None  # of as many of them as had to be known, for what this run decided itself

    def __post_init__(self) -> None:
        self.looked_up, self.model.begun = int(self.model.begun), True

    def ask(self) -> Ask:
        ties = self.node.ties
        return ties[0] if len(ties) == 1 else ties[self.source.randrange(len(ties))]

    def tell(self, index: int, gain: float) -> None:
        known = self.node.children.get((index, gain))
        self.looked_up += known is not None
        self.node = known or self.model.next(self.node, index, gain, self._posterior())
        assert self.node.step is not None
        self.steps.append(self.node.step)

    def _posterior(self) -> Posterior:
        if self.posterior is None:
            self.posterior = Posterior(self.model.prior)
        for step in self.steps[self.posterior.count :]:
            self.posterior.follow(step)
        return self.posterior

    def unrecorded(self) -> None:
        raise AssertionError("The model asks only for what is in the table.")


def _model(name: str, *, knowledge: bool) -> Callable[[Table, Sequence[Direction]], Policy]:
    def prepare(table: Table, directions: Sequence[Direction]) -> Policy:
        model = Model(table, directions, knowledge=knowledge)
        return lambda seed: ModelRun(model, model.root, random.Random(derived_seed(name, table.name, seed)))

    return prepare


def _tpe(table: Table, directions: Sequence[Direction]) -> Policy:
    from optimizer.search.tpe_table import prepare

    return prepare(table)


_POLICIES: dict[str, Callable[[Table, Sequence[Direction]], Policy]] = {
    "evidence": _model("evidence", knowledge=True),
    "tpe": _tpe,
    "gp": _model("gp", knowledge=False),
    "random": _random,
}
