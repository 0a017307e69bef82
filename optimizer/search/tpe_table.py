"""Optuna's TPE over the configurations of a table, for comparison: it asks for a point, and where nobody measured that point
the nearest one that was measured and is still free is launched in its place and told to it as what it is."""

import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from optimizer.model.canonical import canonical_json, derived_seed
from optimizer.search.encode import Array, number
from optimizer.search.optuna_door import STARTUP_TRIALS, load
from optimizer.search.table import Table

_KEPT_FLOATS = 10_000_000  # distances that are remembered for all seeds of a table


class Axes:
    """How a table's parameters look to Optuna: ordered numbers as their index, everything else as choices."""

    def __init__(self, table: Table) -> None:
        optuna = load()
        self.table, self.names = table.name, table.names
        self.grids: dict[str, list[Any]] = {}
        self.distributions: dict[str, Any] = {}
        self.originals: dict[str, dict[float, Any]] = {}
        columns = []
        for name in table.names:
            values = [point[name] for point in table.points]
            numbers = [number(value) for value in values]
            if all(one is not None for one in numbers):
                grid: list[Any] = sorted({one for one in numbers if one is not None})
                self.originals[name] = {one: value for one, value in zip(numbers, values, strict=True) if one is not None}
                self.distributions[name] = optuna.distributions.IntDistribution(0, len(grid) - 1)
                places = [grid.index(one) / (len(grid) - 1) for one in numbers]
            else:
                grid = sorted({canonical_json(value) for value in values})
                self.distributions[name] = optuna.distributions.CategoricalDistribution(tuple(grid))
                places = [float(grid.index(canonical_json(value))) for value in values]
            self.grids[name] = grid
            columns.append(places)
        self.places: Array = np.array(columns, dtype=np.float64).T
        self.params = [self._params(index) for index in range(len(self.places))]
        self.choice = np.array([not self.ordered(name) for name in self.names])
        self._asked: dict[tuple[Any, ...], tuple[Array, dict[str, Any]]] = {}
        self._room = _KEPT_FLOATS // max(1, len(self.places))

    def ordered(self, name: str) -> bool:
        return not hasattr(self.distributions[name], "choices")

    def asked(self, params: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
        """How far every configuration is from a point that Optuna asked for, and the point in the table's own values."""
        key = tuple(params[name] for name in self.names)
        known = self._asked.get(key)
        if known is None:
            wanted = self.place(params)
            apart = np.where(self.choice, self.places != wanted, np.abs(self.places - wanted)).sum(axis=1)
            known = (apart, self.spelled(params))
            if len(self._asked) < self._room:
                self._asked[key] = known
        return known

    def spelled(self, params: dict[str, Any]) -> dict[str, Any]:
        """A point that Optuna asked for in the table's own values; of ordered numbers it knows only the place."""
        return {name: self.originals[name][self.grids[name][params[name]]] if self.ordered(name) else json.loads(params[name]) for name in self.names}

    def place(self, params: dict[str, Any]) -> Array:
        found = [
            params[name] / (len(self.grids[name]) - 1) if self.ordered(name) else float(self.grids[name].index(params[name]))
            for name in self.names
        ]
        return np.array(found)

    def _params(self, index: int) -> dict[str, Any]:
        """What Optuna is told about a configuration."""
        found = {}
        for column, name in enumerate(self.names):
            grid, place = self.grids[name], float(self.places[index, column])
            found[name] = round(place * (len(grid) - 1)) if self.ordered(name) else grid[int(place)]
        return found


class TpeRun:
    """One study in memory. ``spent_s``: seconds inside Optuna so far."""

    def __init__(self, axes: Axes, seed: int) -> None:
        self.axes = axes
        started = time.process_time()
        self.optuna = load()
        self.source = random.Random(derived_seed("tpe ties", axes.table, seed))
        self.free = np.ones(len(axes.places), dtype=np.bool_)
        self.instead: int | None = None
        sampler = self.optuna.samplers.TPESampler(
            seed=derived_seed("tpe", axes.table, seed), multivariate=True, group=True, n_startup_trials=STARTUP_TRIALS
        )
        self.study = self.optuna.create_study(direction="maximize", sampler=sampler)
        self.spent_s = time.process_time() - started  # inside Optuna

    def ask(self) -> int | dict[str, Any]:
        if self.instead is not None:
            return self.instead
        started = time.process_time()
        trial = self.study.ask(self.axes.distributions)
        # The trial is told as the configuration that is launched, under its own values.
        self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        params = dict(trial.params)  # a deep copy, each time that it is read
        self.spent_s += time.process_time() - started
        apart, spelled = self.axes.asked(params)
        left = np.where(self.free, apart, np.inf)
        nearest = np.flatnonzero(left <= left.min() + 1e-9)
        index = int(nearest[self.source.randrange(len(nearest))])
        if left[index] < 1e-9:
            return index
        self.instead = index
        return spelled

    def unrecorded(self) -> None:
        """The next ``ask`` gives the nearest configuration that was measured."""

    def tell(self, index: int, gain: float) -> None:
        self.instead = None
        self.free[index] = False
        started = time.process_time()
        self.study.add_trial(
            self.optuna.trial.create_trial(value=gain, params=self.axes.params[index], distributions=self.axes.distributions)
        )
        self.spent_s += time.process_time() - started


def prepare(table: Table) -> Callable[[int], TpeRun]:
    axes = Axes(table)
    return lambda seed: TpeRun(axes, seed)
