"""How long each step of a study will take on this box, before it is begun: from what the server's own log says of its last start, from
earlier studies of the same box, and from the workload's own bounds. What none of them tells is unknown, and said so. Pure; seconds of
the server's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimizer.model.evidence import Evidence
from optimizer.model.study import Budget
from optimizer.model.workload import Workload

CANDIDATE, CONFIRMATION = ("start", "measure"), ("start", "confirm")  # stopping the one before takes seconds beside them


@dataclass(frozen=True)
class Earlier:
    """What earlier studies of the same box and engine took. ``seconds``: kind of step -> one value for each time that it was done;
    ``warmup`` is how long the load at the target level took to become steady. ``by``: which of the studies did that kind of step."""

    studies: tuple[str, ...] = ()
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def span(self, kind: str) -> tuple[float, float] | None:
        values = self.seconds.get(kind, ())
        return (min(values), max(values)) if values else None


@dataclass(frozen=True)
class Duration:
    """One step: what is done, between how many seconds (None: unknown), and who says so."""

    kind: str
    step: str
    seconds: tuple[float, float] | None
    source: str

    def plain(self) -> dict[str, Any]:
        low, high = self.seconds or (None, None)
        return {"kind": self.kind, "step": self.step, "low_s": low, "high_s": high, "source": self.source}


def durations(load: Workload, evidence: Evidence, earlier: Earlier, *, running: bool, looked_s: float, deadline_s: float) -> list[Duration]:
    """The steps, each once. ``running``: a server that is measured first, as found; ``looked_s``: what this look took."""
    start, told = _start(evidence, earlier, deadline_s)
    load_told = _load_source(load, earlier)
    return [
        Duration("read", "read the box", (looked_s, looked_s), "this look"),
        _small("secure", "lock it, arm the guard, calibrate the load generator", ("secure", "calibrate"), earlier, "well under a minute"),
        Duration("start", "start the server", start, told),
        Duration("measure", "measure a launch", _measurement(load, load.window_s, earlier), load_told),
        Duration("confirm", "measure the last one, to confirm it", _measurement(load, load.confirm_window_s, earlier), f"{load_told}; its window is {load.confirm_window_s:g} s"),
        _small("stop", "stop a server", ("stop",), earlier, "some seconds"),
        _restoring(start, told, earlier) if running else _small("end", "end the guard, clean up", ("disarm",), earlier, "some seconds"),
    ]


def whole(steps: Sequence[Duration], kinds: Sequence[str]) -> tuple[float, float] | None:
    """Several steps one after the other, in seconds; None where one of them is unknown."""
    spans = [step.seconds for step in steps if step.kind in kinds]
    known = [span for span in spans if span is not None]
    if len(known) < len(spans) or not spans:
        return None
    return math.fsum(low for low, _ in known), math.fsum(high for _, high in known)


def candidates_that_fit(steps: Sequence[Duration], budget: Budget) -> tuple[int, int] | None:
    """How many candidates fit into the budget beside baseline and confirmation, at the slowest and at the fastest; None: unknown."""
    each, confirm = whole(steps, CANDIDATE), whole(steps, CONFIRMATION)
    if each is None or confirm is None:
        return None
    fits = [math.floor(max(0.0, 60 * budget.minutes - each[side] - confirm[side]) / max(each[side], 1.0)) for side in (1, 0)]
    most = max(0, budget.launches - 3)
    return min(most, fits[0]), min(most, fits[1])


def _start(evidence: Evidence, earlier: Earlier, deadline_s: float) -> tuple[tuple[float, float] | None, str]:
    fact = next((fact for fact in evidence.facts if fact.name == "startup.phase_s" and fact.labels.get("stage") == "total"), None)
    if fact is not None and isinstance(fact.value, int | float):
        where = f"{fact.source} line {fact.line}" if fact.line else fact.source
        return (float(fact.value), float(fact.value)), f"its last start ({where})"
    before = earlier.span("start")
    if before is not None:
        count = len(earlier.seconds["start"])
        return before, f"{count} start{'s' if count != 1 else ''} of {_named(earlier, 'start')}"
    return None, f"no log of a start and no earlier study of this box; waited for at most {deadline_s / 60:.0f} min"


def _measurement(load: Workload, window_s: float, earlier: Earlier) -> tuple[float, float]:
    """Every level: until it is steady, the window, and the pause between two."""
    warm = earlier.span("warmup") or (load.warmup_min_s, load.warmup_max_s)
    extra = earlier.span("around") or (0.0, 0.0)
    sides = [level for level in load.side_levels if level != load.concurrency]
    each = (load.warmup_min_s / 6 + load.side_window_s, load.warmup_min_s / 3 + load.side_window_s)
    return tuple(warm[end] + window_s + extra[end] + len(sides) * each[end] for end in (0, 1))  # type: ignore[return-value]


def _load_source(load: Workload, earlier: Earlier) -> str:
    if earlier.seconds.get("warmup"):
        return f"warm-ups of {_named(earlier, 'warmup')}"
    return f"a warm-up of {load.warmup_min_s:g} to {load.warmup_max_s:g} s, ended when the rate is steady"


def _small(kind: str, step: str, kinds: Sequence[str], earlier: Earlier, usually: str) -> Duration:
    spans = [span for name in kinds if (span := earlier.span(name)) is not None]
    if len(spans) < len(kinds):
        return Duration(kind, step, None, f"never done here; usually {usually}")
    return Duration(kind, step, (math.fsum(low for low, _ in spans), math.fsum(high for _, high in spans)), _named(earlier, *kinds))


def _restoring(start: tuple[float, float] | None, told: str, earlier: Earlier) -> Duration:
    before = earlier.span("restore")
    return Duration("end", "bring back what ran", before or start, _named(earlier, "restore") if before is not None else f"as a start: {told}")


def _named(earlier: Earlier, *kinds: str) -> str:
    """The studies that did such steps."""
    names = [name for name in earlier.studies if not earlier.by or any(name in earlier.by.get(kind, ()) for kind in kinds)]
    return f"{'study' if len(names) == 1 else 'studies'} {', '.join(names)}"

