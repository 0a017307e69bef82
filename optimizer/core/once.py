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
        self.last: tuple[tuple[object, ...], dict[tuple[object, ...], tuple[Any, Any]]] = ((), {})

    def get(self, now: tuple[object, ...], key: tuple[object, ...], about: tuple[object, ...], compute: Callable[[], T]) -> T:
        looked_at, known = self.last  # read and written as one: studies in other threads of this process decide at the same time
        if len(now) != len(looked_at) or any(a is not b for a, b in zip(now, looked_at, strict=True)):
            known = {}
            self.last = (now, known)
        if key not in known:
            known[key] = (about, compute())  # held, so that no other object gets their identity
        found: T = known[key][1]
        return found


_LAST = _Memory()
_LAST_MEASURED = _Memory()
_LAST_PLAN = _Memory()


def once(state: State, plan: Plan, name: str, compute: Callable[[], T], *about: object) -> T:
    """``compute()``, which may look at the plan, at what ``_measured`` lists and at the objects ``about``, and at nothing else of
    the state. The last results are kept, no others."""
    return _LAST.get(_measured(state, plan), (name, *(id(item) for item in about)), about, compute)


def once_measured(state: State, name: str, compute: Callable[[], T]) -> T:
    """The same for what looks at the spec, the survey and the arms of the state alone, whatever the plan."""
    return _LAST_MEASURED.get((state.spec, state.survey, state.arms), (name,), (), compute)


_KEPT: dict[tuple[object, ...], tuple[Any, Any]] = {}
_MOST_KEPT = 256


def once_for(name: str, compute: Callable[[], T], *about: object) -> T:
    """``compute()``, which looks at the objects ``about`` and at nothing else: remembered beyond the next measurement, since the
    launches before it stay as they are."""
    key = (name, *(id(item) for item in about))
    known = _KEPT.get(key)
    if known is None:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        known = _KEPT[key] = (about, compute())
    found: T = known[1]
    return found


def once_extended(state: State, plan: Plan, compute: Callable[[], Plan]) -> Plan:
    """A study's own plan, made of the pinned one: one object for as long as nothing is measured, so that ``once`` finds it again."""
    return _LAST_PLAN.get(_measured(state, plan), (), (), compute)


def _measured(state: State, plan: Plan) -> tuple[object, ...]:
    return (plan, state.spec, state.survey, state.survey_evidence, state.flags, state.given, state.baseline, state.arms)
