"""Proposals from a Gaussian process over the points of a space, and what each parameter has to do with the result. Optuna's
own GP needs torch and SciPy; launches are few and spaces are discrete, so the model of the replay does."""

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from optimizer.core.predicate import View
from optimizer.model.base import Value
from optimizer.model.canonical import derived_seed
from optimizer.model.space import Direction, Param, Trial
from optimizer.search.encode import Array, dimensions
from optimizer.search.gaussian import Posterior, Prior
from optimizer.search.grid import Point, key, points, restricted, sample

_MOST_POINTS = 400
_NOISE = 0.02
# Below, an importance says more about the prior than about the box.
ENOUGH_FOR_IMPORTANCE = 8


def gp_proposal(
    params: Sequence[Param],
    history: Sequence[Trial],
    pending: Sequence[Mapping[str, Value]],
    seen: set[str],
    seed: int,
    fixed: Mapping[str, Value],
    context: View | None,
    directions: Sequence[Direction] = (),
) -> Point:
    """The new point with the largest expected improvement, empty when there is none. ``value`` is ln of the metric."""
    measured = [trial for trial in history if trial.value is not None and not trial.infeasible and _allowed(trial)]
    candidates = [point for point in _points(params, seed, fixed, context) if point and key(point) not in seen]
    if not candidates:
        return {}
    known = [restricted(trial, params) for trial in history] + [dict(point) for point in pending]
    every = [*known, *candidates]
    posterior, model_mean = _posterior(every, [param.name for param in params], directions)
    worst = min((trial.value for trial in measured if trial.value is not None), default=0.0)
    best = max((trial.value for trial in measured if trial.value is not None), default=0.0)
    for index, trial in enumerate(history):
        good = trial.value is not None and not trial.infeasible and _allowed(trial)
        posterior.observe(index, float(trial.value) if good and trial.value is not None else worst, _NOISE**2)
    for place in range(len(pending)):  # what is being measured elsewhere is taken to come out as expected
        index = len(history) + place
        posterior.observe(index, float(posterior.mean()[index]) + (best - posterior.relative(best)), _NOISE**2)
    score = posterior.expected_gain(best) if measured else model_mean
    free = score[len(known) :]
    top = np.flatnonzero(free >= free.max() - 1e-12)
    return candidates[int(top[derived_seed(seed, "tie") % len(top)])]


def importance(
    params: Sequence[Param], history: Sequence[Trial], fixed: Mapping[str, Value] | None = None, context: View | None = None
) -> dict[str, float]:
    """Functional ANOVA of the model's mean: the share of the variance over the space that each parameter explains alone.
    Empty as long as fewer than eight launches were measured."""
    measured = [trial for trial in history if trial.value is not None and not trial.infeasible]
    if len(measured) < ENOUGH_FOR_IMPORTANCE:
        return {}
    space = [point for point in _points(params, 0, fixed or {}, context) if point]
    every = [*(restricted(trial, params) for trial in measured), *space]
    posterior, _ = _posterior(every, [param.name for param in params], ())
    for index, trial in enumerate(measured):
        posterior.observe(index, float(trial.value or 0.0), _NOISE**2)
    mean = posterior.mean()[len(measured) :]
    total = float(mean.var())
    if total <= 0:
        return {param.name: 0.0 for param in params}
    found = {}
    for param in params:
        groups: dict[str, list[float]] = {}
        for point, value in zip(space, mean, strict=True):
            groups.setdefault(key({param.name: point.get(param.name)}), []).append(float(value))
        overall = float(mean.mean())
        between = sum(len(values) * (sum(values) / len(values) - overall) ** 2 for values in groups.values()) / len(space)
        found[param.name] = round(min(1.0, between / total), 4)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _posterior(every: Sequence[Point], names: Sequence[str], directions: Sequence[Direction]) -> tuple[Posterior, Array]:
    dims = dimensions(every, names, directions, "throughput")
    before = Prior(dims, len(every), knowledge=bool(directions))
    return Posterior(before), before.means.max(axis=0)


def _points(params: Sequence[Param], seed: int, fixed: Mapping[str, Value], context: View | None) -> list[Point]:
    """All points of a small space; of a large or continuous one a seeded sample."""
    every = points(params, fixed, context)
    if every is not None:
        found = list(islice(every, _MOST_POINTS + 1))
        if len(found) <= _MOST_POINTS:
            return found
    drawn = {key(point): point for number in range(_MOST_POINTS) if (point := sample(params, derived_seed(seed, "point", number), fixed, context))}
    return list(drawn.values())


def _allowed(trial: Trial) -> bool:
    return all(value <= 0 for value in trial.violations.values())
