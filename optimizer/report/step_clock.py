"""How long the running step has taken, on the clock that the journal counts it by. On a simulated box that is the server's: its start
and its load run faster than our handling of them, and only what the load generator has offered counts of a measurement. For people who
wait, never for a decision."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.bench.so_far import load_time

ON_SERVER_CLOCK = frozenset({"measure", "check"})  # counted by their warm-ups and windows
TICK_S = 1.5  # real seconds between two lines of a load generator, and some


@dataclass
class _Load:
    """One load level: seconds of the server's clock that are over, and what its last line said, heard at ``heard`` of ours."""

    over: float = 0.0
    window: bool = False
    said: float = 0.0
    window_s: float | None = None
    heard: float = 0.0

    def seconds(self, now: float, scale: float) -> float:
        since = self.said + min(now - self.heard, TICK_S) * scale
        return self.over + (min(since, self.window_s) if self.window and self.window_s is not None else since)


class StepClock:
    """``kind``: of the step; ``began``: our clock then; ``scale``: seconds of the server's clock to one of ours."""

    def __init__(self, kind: str, began: float, scale: float) -> None:
        self.kind, self._began, self._scale = kind, began, scale
        self._loads: dict[str, _Load] = {}

    def heard(self, text: str, now: float) -> None:
        """News of the step. Lines that are no load generator's say nothing about time."""
        told = load_time(text)
        if told is None:
            return
        load = self._loads.get(told.level, _Load(heard=now))
        # A window opened, or the same level is offered again: what was said until now is over.
        over = load.over if told.window == load.window else max(load.over, load.seconds(now, self._scale) - (told.seconds if told.window else 0.0))
        self._loads[told.level] = _Load(over, told.window, told.seconds, told.window_s, now)

    def seconds(self, now: float) -> float:
        """Of the step until now; what its outcome will be journalled with, but for the pieces between two lines."""
        ours = now - self._began
        if self._scale == 1.0:
            return ours
        if self.kind == "await_ready":
            return ours * self._scale
        if self.kind not in ON_SERVER_CLOCK:
            return ours
        return max(ours, sum(load.seconds(now, self._scale) for load in tuple(self._loads.values())))  # another thread hears
