"""The answer to a ``Propose`` step, with everything that shaped it: which trials the space cannot use, and which dimensions the launches
themselves showed to matter for nothing. A function of the step and the pinned knowledge alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optimizer.core.sampling import asks_itself
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json
from optimizer.model.space import ARM, Direction, Param, Space
from optimizer.model.step import Propose
from optimizer.search.gp_proposal import importance
from optimizer.search.grid import restricted
from optimizer.search.propose import propose, split

NO_MATTER = 0.01  # of the variance that the launches leave explained: a dimension below it is left as it is
MOST_SAID = 20


def answered(step: Propose, space: Space, directions: Sequence[Direction] = ()) -> dict[str, Any]:
    """The body of the outcome: ``params`` (empty: nothing is left), ``left_out`` and ``unimportant`` where there are any."""
    params = tuple(_narrowed(param, step.grids) for param in space.params if param.name in step.params)
    unimportant = _unimportant(params, step)
    searched = tuple(param for param in params if param.name not in unimportant)
    values = propose(
        space, searched, step.history, step.seed, fixed=step.fixed, pending=step.pending, rejected=step.rejected, try_first=step.try_first,
        sampler=step.sampler, tradeoff=step.tradeoff, directions=directions,
    )  # fmt: skip
    _, left_out = split(params, step.history, step.fixed)
    body: dict[str, Any] = {"params": dict(values)}
    if left_out:
        body["left_out"] = [{"params": item.trial.params, "note": item.trial.note, "why": item.why} for item in left_out[:MOST_SAID]]
    if unimportant:
        body["unimportant"] = unimportant
    return body


def _narrowed(param: Param, grids: dict[str, list[Value]]) -> Param:
    """``param`` as this study may sample it; a condition on its own presence was decided before it was asked for."""
    changes: dict[str, Any] = {"grid": tuple(grids[param.name])} if param.name in grids else {}
    if asks_itself(param):
        changes["when"] = None
    return param.model_copy(update=changes) if changes else param


def _unimportant(params: Sequence[Param], step: Propose) -> dict[str, float]:
    """Dimensions whose share of the variance is next to nothing, once enough launches were measured; never the last one, and none that was
    never varied: that nobody saw it matter says nothing. Of a front, what moves neither the rate nor the latency."""
    if step.hypothesis == ARM:  # a plain sampler moves everything
        return {}
    told = [step.history]
    if step.tradeoff:
        told.append(tuple(trial.model_copy(update={"value": trial.second, "infeasible": trial.infeasible or trial.second is None}) for trial in step.history))
    shares = [importance(params, history, step.fixed) for history in told]
    most = {name: max(share[name] for share in shares) for name in shares[0] if all(name in share for share in shares)}
    measured = [restricted(trial, params) for trial in step.history if trial.value is not None and not trial.infeasible]
    found = {name: share for name, share in most.items() if share < NO_MATTER and len({canonical_json(point.get(name)) for point in measured}) > 1}
    return found if len(found) < len(params) else {}
