"""How long a study may still take, by its own pace: for people who wait, never for a decision. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.core.closing import launches_left
from optimizer.core.phase import phase_of
from optimizer.core.state import State


@dataclass(frozen=True)
class Remaining:
    """Minutes of the server's clock. ``soonest``: if what ``condition`` names comes true; ``latest``: until the budget is spent;
    ``pace``: of one launch, by those that have ended; ``unfinished``: what the launch of now still takes by it, 0 where none is up."""

    soonest: float
    latest: float
    pace: float
    condition: str
    unfinished: float = 0.0


def remaining(state: State, launched_at: float, running: float = 0.0) -> Remaining | None:
    """``launched_at``: minutes of the study when the launch of now began; ``running``: those that its running step has taken. None until
    the first launch has ended, and while the study closes."""
    assert state.spec is not None
    phase = phase_of(state)
    in_flight = (state.server is not None and state.server.status in ("launched", "ready")) or (state.open is not None and state.open.kind == "launch")
    ended = state.launches_baseline + state.launches_after - in_flight
    before = launched_at if in_flight else state.minutes
    if ended < 1 or before <= 0 or phase in ("closing", "closed"):
        return None
    pace, spent = before / ended, state.minutes - before + running
    load = state.spec.workload
    confirmation = max(pace, pace + (load.confirm_window_s - load.window_s) / 60.0)
    at_once = max(1, sum(1 for part in state.boxes.values() if not part.lost)) if state.boxes else 1
    latest = min(max(0.0, state.spec.budget.minutes - state.minutes - running), launches_left(state, 0) * pace / at_once + confirmation)
    if phase == "confirm":
        soonest, condition = 0.0 if _measured(state) else max(0.0, confirmation - spent), "if this confirmation holds"
    elif phase == "test":
        soonest, condition = (0.0 if _measured(state) else max(0.0, pace - spent)) + confirmation, "if this candidate meets the target"
    elif state.promoted and state.base_arm.confirmed is None:  # what was kept may be all that is needed
        soonest, condition = confirmation, "if what was kept meets the target"
    else:
        soonest, condition = max(0.0, pace - spent if in_flight else 0.0) + pace + confirmation, "if the next candidate meets the target"
    return Remaining(min(soonest, latest), latest, pace, condition, max(0.0, (confirmation if phase == "confirm" else pace) - spent) if in_flight else 0.0)


def _measured(state: State) -> bool:
    """Whether the launch that the phase waits for has been measured: what is left of it takes no time."""
    server = state.server
    return server is not None and server.status == "measured" and (state.test is None or server.settings == state.test.settings)


def remaining_text(state: State, launched_at: float, running: float = 0.0) -> str:
    """``14 min if this candidate meets the target, at most 52 min (6.8 min a launch so far)``; empty while the study closes."""
    found = remaining(state, launched_at, running)
    if found is None:
        return "" if phase_of(state) in ("closing", "closed") else "known when the first launch has been measured"
    assert state.spec is not None
    clock = " of the server's clock" if state.spec.time_scale != 1 else ""
    soonest = f"{_minutes(found.soonest)} {found.condition}, " if found.latest - found.soonest >= 1 else ""
    return f"{soonest}at most {_minutes(found.latest)}{clock} ({found.pace:.1f} min a launch so far)"


def _minutes(value: float) -> str:
    return "under 1 min" if value < 1 else f"{value:.0f} min" if value < 120 else f"{value / 60:.1f} h"
