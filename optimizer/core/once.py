"""What was computed from the measured part of a state, remembered until that part changes: a decision asks for the same view,
scores and inputs many times over, and most entries of a journal measure nothing. Changes no result; states and plans are
immutable and held, so identity is enough."""

from collections.abc import Callable
from typing import Any, TypeVar

from optimizer.core.plan import Plan
from optimizer.core.state import State

T = TypeVar("T")


class _Memory:
    def __init__(self) -> None:
        self.looked_at: tuple[object, ...] = ()
        self.found: dict[tuple[object, ...], tuple[Any, Any]] = {}


_LAST = _Memory()


def once(state: State, plan: Plan, name: str, compute: Callable[[], T], *about: object) -> T:
    """``compute()``, which may look at the plan, at what ``_measured`` lists and at the objects ``about``, and at nothing else of
    the state. The last results are kept, no others."""
    now = _measured(state, plan)
    if len(now) != len(_LAST.looked_at) or any(a is not b for a, b in zip(now, _LAST.looked_at, strict=True)):
        _LAST.looked_at, _LAST.found = now, {}
    key = (name, *(id(item) for item in about))
    if key not in _LAST.found:
        _LAST.found[key] = (about, compute())  # held, so that no other object gets their identity
    found: T = _LAST.found[key][1]
    return found


def _measured(state: State, plan: Plan) -> tuple[object, ...]:
    return (plan, state.spec, state.survey, state.survey_evidence, state.flags, state.given, state.baseline, state.arms)
