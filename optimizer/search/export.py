"""A study as an Optuna study in a database, for optuna-dashboard and other tools. Writes only there; Optuna's copy is never
read back: the journal stays the one record."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from optimizer.errors import UsageError
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json
from optimizer.search.optuna_door import load

NOT_GIVEN = "(not given)"


@dataclass(frozen=True)
class ExportedTrial:
    """One launch. ``value`` in the metric's own unit; None with ``failed``: it crashed or gave nothing usable."""

    params: Mapping[str, Value]
    value: float | None
    failed: str = ""
    second: float | None = None  # the latency of a study that searched a front, in ms
    started: datetime | None = None
    ended: datetime | None = None
    notes: Mapping[str, Value] = field(default_factory=dict)


def export(
    url: str, name: str, metric: str, direction: str, trials: Sequence[ExportedTrial], notes: Mapping[str, Value], *, second: str = ""
) -> int:  # fmt: skip
    """Create the Optuna study ``name`` at ``url`` (sqlite:///file.db, postgresql://…) with these trials; how many were written.

    With ``second``, a latency, the study has both objectives, and a launch that measured only one of them counts as failed. UsageError when the database cannot be used or already holds a study of that name."""
    optuna = load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            storage = optuna.storages.RDBStorage(url)
            known = [study.study_name for study in optuna.study.get_all_study_summaries(storage)]
        except Exception as error:
            raise UsageError(f"Optuna cannot use {_shown(url)}: {str(error).splitlines()[0] if str(error) else type(error).__name__}.",
                             hint="Write it as sqlite:///study.db, or install the driver of the database.") from error  # fmt: skip
        if name in known:
            raise UsageError(f"{_shown(url)} already holds a study {name!r}.", hint="Export into another file, or delete it there first.")
        study = optuna.create_study(storage=storage, study_name=name, directions=[direction, *(["minimize"] if second else [])])
        study.set_metric_names([metric, *([second] if second else [])])
        for key, value in notes.items():
            study.set_user_attr(key, value)
        choices, same = _choices(trials)
        if same:
            study.set_user_attr("the same in every launch", same)
        for trial in trials:
            study.add_trial(_frozen(trial, choices, optuna, second))
        if hasattr(storage, "remove_session"):
            storage.remove_session()
    return len(trials)


def _choices(trials: Sequence[ExportedTrial]) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """Every parameter that differs between launches as a choice of what was launched, lists and objects as their JSON, and the others. A
    launch without a parameter has one that is not given: the dashboard compares only what every trial has."""
    every = dict.fromkeys(name for trial in trials for name in trial.params)
    found: dict[str, dict[str, Any]] = {}
    for name in every:
        for trial in trials:
            value = trial.params.get(name, NOT_GIVEN)
            found.setdefault(name, {})[canonical_json(value)] = _plain(value)
    varied = {name: tuple(value for _, value in sorted(values.items())) for name, values in found.items() if len(values) > 1}
    return varied, {name: next(iter(values.values())) for name, values in found.items() if len(values) == 1}


def _frozen(trial: ExportedTrial, choices: Mapping[str, tuple[Any, ...]], optuna: Any, second: str) -> Any:
    state, values, failed = optuna.trial.TrialState, [trial.value, *([trial.second] if second else [])], trial.failed
    if trial.value is not None and None in values:
        failed = f"it measured {trial.value:.6g}, and no {second}"
    made = optuna.trial.create_trial(
        state=state.FAIL if None in values else state.COMPLETE,
        values=None if None in values else values,
        params={name: _plain(trial.params.get(name, NOT_GIVEN)) for name in choices},
        distributions={name: optuna.distributions.CategoricalDistribution(known) for name, known in choices.items()},
        user_attrs={**dict(trial.notes), **({"why": failed} if failed else {})},
    )
    if trial.started is not None:
        made.datetime_start, made.datetime_complete = trial.started, trial.ended or trial.started
    return made


def _plain(value: Value) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else canonical_json(value)


def _shown(url: str) -> str:
    """Without the password that a database URL may carry."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else url
