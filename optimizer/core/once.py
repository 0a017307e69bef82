"""What was computed for one state, remembered while that state is looked at: a decision asks for the same view, scores and
inputs many times over. Changes no result; states and plans are immutable and held, so identity is enough."""

from collections.abc import Callable
from typing import Any, TypeVar

from optimizer.core.plan import Plan
from optimizer.core.state import State

T = TypeVar("T")


class _Memory:
    def __init__(self) -> None:
        self.state: State | None = None
        self.plan: Plan | None = None
        self.found: dict[tuple[object, ...], tuple[Any, Any]] = {}


_LAST = _Memory()


def once(state: State, plan: Plan, name: str, compute: Callable[[], T], *about: object) -> T:
    """``compute()`` for this state, these objects and this name; the last state's results are kept, no other's."""
    if _LAST.state is not state or _LAST.plan is not plan:
        _LAST.state, _LAST.plan, _LAST.found = state, plan, {}
    key = (name, *(id(item) for item in about))
    if key not in _LAST.found:
        _LAST.found[key] = (about, compute())  # held, so that no other object gets their identity
    found: T = _LAST.found[key][1]
    return found
