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
from optimizer.search.gaussian import Posterior, Prior
from optimizer.search.table import Table

Ask = int | Mapping[str, Value]  # the index of a configuration, or a point that may have none

_KEPT_NODES = 4096
_KEPT_FLOATS = 30_000_000
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
    """What is decided after one history. ``ties`` are the configurations that are worth the same."""

    ties: list[int]
    posterior: Posterior
    best: float
    measured: frozenset[int]
    kept: bool = True  # in the model's memory, where other seeds find it
    children: dict[tuple[int, float], "_Node"] = field(default_factory=dict)


class Model:
    """The model's decisions for one table. Histories that were met before are looked up: seeds share most of them."""

    def __init__(self, table: Table, directions: Sequence[Direction], *, knowledge: bool) -> None:
        dims = dimensions(table.points, table.names, directions if knowledge else (), table.effect)
        count = len(table.points)
        self.expected: Array = sum((dim.expected for dim in dims), np.zeros(count))
        self.noise = max(table.noise() or _NOISE, 0.002)
        start = self.expected if knowledge else np.zeros(count)
        self.root = _Node(self._ties(start, frozenset()), Posterior(Prior(dims, count, knowledge=knowledge)), -np.inf, frozenset())
        self.begun = False  # whether the first launch was decided for some run
        self.room = min(_KEPT_NODES, _KEPT_FLOATS // (20 * count))

    def next(self, node: _Node, index: int, gain: float) -> _Node:
        known = node.children.get((index, gain))
        if known is not None:
            return known
        # Once the memory is full, a run goes on alone: nobody else continues from its node, so nothing is copied.
        posterior = node.posterior.copy() if node.kept else node.posterior
        posterior.observe(index, gain, self.noise**2)
        best, measured = max(node.best, gain), node.measured | {index}
        ties = self._ties(posterior.expected_gain(best), measured)
        found = _Node(ties, posterior, best, measured, kept=node.kept and self.room > 0)
        if found.kept:
            self.room -= 1
            node.children[(index, gain)] = found
        return found

    def best_of(self, node: _Node, left: set[int]) -> int:
        """The most promising of ``left``, the first of equals."""
        score = self.expected if node is self.root else node.posterior.expected_gain(node.best)
        return -max((float(score[index]), -index) for index in left)[1]

    def _ties(self, score: Array, measured: frozenset[int]) -> list[int]:
        """The best of what is left; several where they are worth the same."""
        worth = score.copy()
        if measured:
            worth[list(measured)] = -np.inf
        top = float(worth.max())
        if top == -np.inf:
            return []
        return [int(index) for index in np.flatnonzero(worth >= top - _TIE * max(1.0, abs(top)))]


@dataclass
class ModelRun:
    model: Model
    node: _Node
    source: random.Random
    looked_up: int = 0  # decisions that a run before had made of the same history

    def __post_init__(self) -> None:
        self.looked_up, self.model.begun = int(self.model.begun), True

    def ask(self) -> Ask:
        ties = self.node.ties
        return ties[0] if len(ties) == 1 else ties[self.source.randrange(len(ties))]

    def tell(self, index: int, gain: float) -> None:
        self.looked_up += (index, gain) in self.node.children
        self.node = self.model.next(self.node, index, gain)

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
