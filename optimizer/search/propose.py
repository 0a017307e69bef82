"""One proposal for the next launch, as a pure function of space, history and seed: an in-memory Optuna study is rebuilt
from the history for every ask and never told anything. A launch that crashed counts as infeasible at the worst known
value (told as failed, a sampler keeps proposing the crash region); one that broke a guard keeps its value and its
violation; duplicates are proposed anew, at most three times, then a seeded random point is taken."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optimizer.core.predicate import View
from optimizer.core.whole_space import exists
from optimizer.errors import OptimizerError
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json, derived_seed
from optimizer.model.space import Direction, Param, Space, Trial
from optimizer.search.gp_proposal import gp_proposal
from optimizer.search.grid import Point, bounds, choices, key, only, points, restricted, sample, valid
from optimizer.search.optuna_door import STARTUP_TRIALS, load

Sampler = Literal["tpe", "gp", "random"]

_ATTEMPTS = 3
_RANDOM_ATTEMPTS = 64


@dataclass(frozen=True)
class LeftOut:
    """A trial that this space cannot use, and why (journalled)."""

    trial: Trial
    why: str


def propose(
    space: Space,
    params: tuple[Param, ...],
    history: Sequence[Trial],
    seed: int,
    *,
    try_first: Sequence[Mapping[str, Value]] = (),
    fixed: Mapping[str, Value] | None = None,
    context: View | None = None,
    rejected: Sequence[Mapping[str, Value]] = (),
    pending: Sequence[Mapping[str, Value]] = (),
    sampler: Sampler = "tpe",
    tradeoff: bool = False,
    directions: Sequence[Direction] = (),
) -> dict[str, Value]:
    """The next point of ``space`` restricted to ``params`` (higher trial values are better), empty when none is left.

    ``try_first`` points come before any sampling, as long as they are valid and new. ``fixed`` holds settings that are
    not searched but decide which parameters exist; ``context`` the facts and effective settings for the same purpose.
    ``rejected`` are points that were refused before a launch: they are not proposed again; ``pending`` are being measured
    elsewhere. ``random`` asks no model. ``tradeoff`` searches the front of ``value`` against ``second`` (TPE only); ``gp`` is the Gaussian process over
    the points of the space, which starts from what ``directions`` expect."""
    held = dict(fixed or {})
    free = tuple(param for param in params if param.name not in held)
    usable, _ = split(free, history, held, context)
    away = [only(point, free) for point in pending]
    seen = {key(restricted(trial, free)) for trial in usable} | {key(only(point, free)) for point in (*rejected, *away)}
    for wish in try_first:
        point = only(wish, free)
        given: Point = {name: value for name, value in point.items() if value is not None}
        if given and valid(wish, (*free, *_held(held, params)), held, context) is None and key(given) not in seen:
            return given
    if not free or not _anything_left(free, held, context, seen):
        return {}
    if sampler == "gp" and not tradeoff:
        point = gp_proposal(free, usable, away, seen, derived_seed(seed, "gp"), held, context, directions)
        if point:
            return point
    if sampler == "random":
        return random_proposal(free, seed, seen=seen, fixed=held, context=context)
    usable = tuple(trial for trial in usable if not tradeoff or trial.infeasible or trial.second is not None)
    for attempt in range(_ATTEMPTS + 1):
        try:
            point = _ask(space, free, usable, away, derived_seed(seed, "ask", attempt), held, context, tradeoff)
        except Exception as error:  # Optuna and what it stands on may raise anything; a study outlives its sampler
            raise OptimizerError(f"Optuna could not propose a point of {space.id}: {type(error).__name__}: {error}") from error
        if point and key(point) not in seen:
            return point
    return random_proposal(free, seed, seen=seen, fixed=held, context=context)


def random_proposal(
    params: Sequence[Param],
    seed: int,
    *,
    seen: set[str] | frozenset[str] = frozenset(),
    fixed: Mapping[str, Value] | None = None,
    context: View | None = None,
) -> dict[str, Value]:
    """A seeded random point that is not in ``seen`` (keys of ``grid.key``), empty when there is none."""
    held = dict(fixed or {})
    for attempt in range(_RANDOM_ATTEMPTS):
        point = sample(params, derived_seed(seed, "random", attempt), held, context)
        if point and key(point) not in seen:
            return point
    every = points(params, held, context)
    return next((point for point in every if point and key(point) not in seen), {}) if every is not None else {}


def split(
    params: Sequence[Param],
    history: Sequence[Trial],
    fixed: Mapping[str, Value] | None = None,
    context: View | None = None,
) -> tuple[tuple[Trial, ...], tuple[LeftOut, ...]]:
    """The trials that these parameters can describe, in order, and the others with the reason."""
    usable: list[Trial] = []
    left_out: list[LeftOut] = []
    names = {param.name for param in params}
    for trial in history:
        point = restricted(trial, params)
        why = valid(point, params, fixed or {}, context)
        if why is None and trial.value is None and not trial.infeasible:
            why = "it was never measured"
        if why is None and not point and names:
            why = "it sets none of the parameters"
        if why is None:
            usable.append(trial)
        else:
            left_out.append(LeftOut(trial, why))
    return tuple(usable), tuple(left_out)


def _held(fixed: Mapping[str, Value], params: Sequence[Param]) -> tuple[Param, ...]:
    return tuple(param for param in params if param.name in fixed)


def _anything_left(params: Sequence[Param], fixed: Mapping[str, Value], context: View | None, seen: set[str]) -> bool:
    every = points(params, fixed, context)
    return every is None or any(point and key(point) not in seen for point in every)


# ---- Optuna ----------------------------------------------------------------------------------------------------------


def _ask(
    space: Space,
    params: Sequence[Param],
    history: Sequence[Trial],
    pending: Sequence[Point],
    seed: int,
    fixed: Mapping[str, Value],
    context: View | None,
    tradeoff: bool,
) -> Point:
    optuna = load()
    sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=True, group=True, constant_liar=bool(pending), n_startup_trials=STARTUP_TRIALS
    )
    study = optuna.create_study(sampler=sampler, directions=["maximize"] * (2 if tradeoff else 1), study_name=space.id)
    study.add_trials(trials_of(params, history, tradeoff=tradeoff))
    by_name = {param.name: param for param in params}
    for point in pending:
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params={name: internal(by_name[name], value) for name, value in point.items()},
                distributions={name: distribution(by_name[name]) for name in point},
            )
        )
    trial = study.ask()
    found: Point = {}
    for param in params:
        if exists(param, found, fixed, context):
            found[param.name] = _suggest(trial, param)
    return found


def trials_of(params: Sequence[Param], history: Sequence[Trial], *, tradeoff: bool = False) -> list[Any]:
    """The history as Optuna's own trials. Infeasible ones count as the worst value that was seen, with ``launch_ok`` above 0."""
    optuna = load()
    measured = [trial for trial in history if trial.value is not None and not trial.infeasible]
    worst = [min((trial.value for trial in measured if trial.value is not None), default=0.0)]
    if tradeoff:
        worst.append(min((trial.second for trial in measured if trial.second is not None), default=0.0))
    by_name = {param.name: param for param in params}
    guards = sorted({name for trial in history for name in trial.violations})
    frozen = []
    for trial in history:
        point = restricted(trial, params)
        bad = trial.infeasible or trial.value is None
        values = worst if bad else [trial.value, *([trial.second] if tradeoff else [])]
        frozen.append(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.COMPLETE,
                values=values,
                params={name: internal(by_name[name], value) for name, value in point.items()},
                distributions={name: distribution(by_name[name]) for name in point},
                constraints={"launch_ok": 1.0 if bad else -1.0, **{name: trial.violations.get(name, 0.0) for name in guards}},
            )
        )
    return frozen


def distribution(param: Param) -> Any:
    """How Optuna sees a parameter: ordered numbers as their index on the grid."""
    optuna = load()
    options = choices(param)
    if options and param.type in ("int", "float"):
        return optuna.distributions.IntDistribution(0, len(options) - 1)  # ordered: the index on the grid
    if options:
        return optuna.distributions.CategoricalDistribution([spelled(option) for option in options])
    low, high = bounds(param)
    log = low > 0 and high / low >= 100
    if param.type == "int":
        return optuna.distributions.IntDistribution(math.ceil(low), math.floor(high), log=log)
    return optuna.distributions.FloatDistribution(low, high, log=log)


def _suggest(trial: Any, param: Param) -> Value:
    options = choices(param)
    if options and param.type in ("int", "float"):
        return options[int(trial.suggest_int(param.name, 0, len(options) - 1))]
    if options:
        chosen = trial.suggest_categorical(param.name, [spelled(option) for option in options])
        return next(option for option in options if spelled(option) == chosen and type(spelled(option)) is type(chosen))
    low, high = bounds(param)
    log = low > 0 and high / low >= 100
    if param.type == "int":
        return int(trial.suggest_int(param.name, math.ceil(low), math.floor(high), log=log))
    return float(trial.suggest_float(param.name, low, high, log=log))


def internal(param: Param, value: Value) -> Any:
    """A value as ``distribution`` spells it."""
    options = choices(param)
    if options and param.type in ("int", "float"):
        return options.index(value)
    return spelled(value)


def spelled(value: Value) -> Any:
    """Optuna's choices are numbers, words or null: a list is told by its canonical text."""
    return canonical_json(value) if isinstance(value, list | dict) else value
