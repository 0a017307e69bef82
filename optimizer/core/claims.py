"""What a launch shows of a bound of the target. A percentile beyond the median as it was measured lies above its true value as often
as below, so whether the target is met is held against what so many requests prove at 99 % confidence; studies of an older policy
are recomputed as they were decided. Pure; it judges no setting."""

from __future__ import annotations

from optimizer.core import since
from optimizer.core.state import ArmState, State, metric_value
from optimizer.model.measurement import LoadPoint
from optimizer.model.target import Bound, claimed, percentile_of, unit_of


def holds(state: State, bound: Bound, point: LoadPoint) -> bool:
    """Whether this load point shows that the bound is kept; what was not measured is not."""
    value = _value(state, bound.metric, point)
    return value is not None and bound.holds(value)


def unshown(state: State, arm: ArmState) -> str:
    """A sentence on each bound that the latest launch kept as measured and did not show; empty where there is none."""
    last = arm.confirmed or (arm.results[-1] if arm.results else None)
    if state.spec is None or last is None or not last.points:
        return ""
    point, said = last.points[0], []
    for bound in state.spec.target.bounds:
        measured, value = metric_value(point, bound.metric), _value(state, bound.metric, point)
        if measured is not None and value is not None and bound.holds(measured) and not bound.holds(value):
            unit = unit_of(bound.metric)
            said.append(f" {bound.metric} was {measured:.4g} {unit}, but its {point.requests_ok} requests prove at most {value:.4g} {unit} (99 % confidence); a longer window_s may show it.")
    return "".join(said)


def _value(state: State, metric: str, point: LoadPoint) -> float | None:
    if percentile_of(metric) is None or not since.decides_by(state.spec, since.PROVEN_PERCENTILES):
        return metric_value(point, metric)
    return claimed(metric, point.metrics)
