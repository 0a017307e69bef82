"""Policies against each other on one table of measurements, over many seeds: how many launches each needs, what it would have
left on the table after each of them, and how often it asked for what nobody measured. Nothing is interpolated."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.model.base import Frozen
from optimizer.model.canonical import canonical_json, derived_seed
from optimizer.model.space import Direction
from optimizer.search.policies import policy
from optimizer.search.table import Table

SHARES = (0.90, 0.95, 0.99)
_CURVE = 40  # launches of a regret curve
_CLOSE = 1e-9


class Reached(Frozen):
    """Launches until the configuration that looks best reaches a share of the best. A run that never did counts one more than
    it had; ``reached`` is the share of the seeds that did, and below 1 the mean is a lower bound. ``se``: standard error of the mean over the
    seeds."""

    mean: float
    se: float
    median: float
    p90: float
    reached: float


class Score(Frozen):
    """One policy on one table, over all seeds. ``regret`` after launch 1, 2, …: mean share of the best that is missing."""

    policy: str
    launches_to: dict[str, Reached]
    regret: tuple[float, ...]
    not_recorded: float  # points asked for and never measured, per seed
    asked_again: float  # points asked for that had been measured already, per seed
    launches_above_default: float | None  # until the default is beaten (mean), None without one
    steps: int
    decided: int  # of the steps; the others were looked up, since another seed had met the same history
    own_s: float  # seconds of one core, without Optuna's own


@dataclass
class _Trace:
    """One seed: launch at which each share was reached (0 = never), and the regret after each launch."""

    reached: list[int]
    above_default: int
    regret: list[float]
    not_recorded: int
    asked_again: int
    steps: int
    foreign_s: float
    looked_up: int = 0


def contest(
    table: Table, names: Sequence[str], directions: Sequence[Direction], seeds: int, *, most_launches: int = 200
) -> tuple[Score, ...]:
    """Every policy over ``seeds`` seeds. A run ends within 1 % of the best, when nothing is left, or at ``most_launches``."""
    return tuple(_score(table, name, directions, seeds, most_launches) for name in names)


def _score(table: Table, name: str, directions: Sequence[Direction], seeds: int, most: int) -> Score:
    start = policy(name, table, directions)
    gains, index_of = table.gains(), {canonical_json(dict(point)): index for index, point in enumerate(table.points)}
    best = table.best
    shares = [table.share(value, best) for value in table.values]
    started = time.process_time()
    limit = min(most, len(table.points))
    traces = [_run(start(seed), table, gains, shares, index_of, derived_seed("results", seed), limit) for seed in range(seeds)]
    own = time.process_time() - started - sum(trace.foreign_s for trace in traces)
    missed = limit + 1
    reached = {}
    for place, share in enumerate(SHARES):
        counts = [trace.reached[place] or missed for trace in traces]
        reached[f"{share:.0%}"] = Reached(
            mean=statistics.fmean(counts),
            se=round(statistics.stdev(counts) / math.sqrt(len(counts)), 4) if len(counts) > 1 else 0.0,
            median=statistics.median(counts),
            p90=sorted(counts)[min(len(counts) - 1, math.ceil(0.9 * len(counts)) - 1)],
            reached=sum(1 for trace in traces if trace.reached[place]) / len(traces),
        )
    return Score(
        policy=name,
        launches_to=reached,
        regret=_curve(traces, limit),
        not_recorded=statistics.fmean(trace.not_recorded for trace in traces),
        asked_again=statistics.fmean(trace.asked_again for trace in traces),
        launches_above_default=None if table.default is None else statistics.fmean(trace.above_default or missed for trace in traces),
        steps=sum(trace.steps for trace in traces),
        decided=sum(trace.steps - trace.looked_up for trace in traces),
        own_s=own,
    )


def _run(
    run: Any, table: Table, gains: Sequence[Sequence[float]], shares: Sequence[float], index_of: dict[str, int], seed: int, limit: int
) -> _Trace:
    trace = _Trace([0] * len(SHARES), 0, [], 0, 0, 0, 0.0)
    measured: set[int] = set()
    best_gain, best_share = -math.inf, 0.0
    default = shares[table.default] if table.default is not None else math.inf
    while trace.steps < limit:
        asked = run.ask()
        index = asked if isinstance(asked, int) else index_of.get(canonical_json(dict(asked)))
        if index is None or index in measured:
            trace.not_recorded += index is None
            trace.asked_again += index is not None
            if trace.not_recorded + trace.asked_again > 100 * limit:
                break
            run.unrecorded()
            continue
        measured.add(index)
        found = gains[index]
        # Repeated rows are noise to live with: each launch gives one of them.
        gain = found[0] if len(found) == 1 else found[(seed + index) % len(found)]
        trace.steps += 1
        if gain > best_gain:
            best_gain, best_share = gain, shares[index]
            for place, share in enumerate(SHARES):
                if not trace.reached[place] and best_share >= share - _CLOSE:
                    trace.reached[place] = trace.steps
            if not trace.above_default and best_share > default + _CLOSE:
                trace.above_default = trace.steps
        if trace.steps <= _CURVE:
            trace.regret.append(1.0 - best_share)
        if trace.reached[-1] or trace.steps >= limit:
            break
        run.tell(index, gain)
    trace.foreign_s, trace.looked_up = getattr(run, "spent_s", 0.0), getattr(run, "looked_up", 0)
    return trace


def _curve(traces: Sequence[_Trace], limit: int) -> tuple[float, ...]:
    """Mean regret after each launch; a run that ended keeps its last value."""
    length = min(limit, _CURVE, max(len(trace.regret) for trace in traces))
    filled = np.array([(trace.regret + [trace.regret[-1]] * length)[:length] if trace.regret else [1.0] * length for trace in traces])
    return tuple(round(float(value), 5) for value in filled.mean(axis=0))
