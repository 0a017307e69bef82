"""``optimize tradeoff``: which of a study's measured settings and loads nobody beats in throughput and latency at once. Reads
the journal; a point that was not measured is not in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.core.closing import pooled
from optimizer.core.state import ArmState, State, fold
from optimizer.errors import UsageError
from optimizer.journal import Journal
from optimizer.report.prose import changes_text
from optimizer.wiring import Roots

RATE = "output_tokens_per_s"


@dataclass(frozen=True)
class _Point:
    settings: str
    concurrency: int
    rate: float
    latency_ms: float
    launches: int


def tradeoff(name: str, roots: Roots, latency: str) -> dict[str, Any]:
    """Raises UsageError when the study measured no such latency."""
    folder = roots.named(name)
    with Journal.open(folder, write=False) as journal:
        state = fold(journal.read())
    points = [point for arm in state.arms.values() for point in _points(arm, latency)]
    if not points:
        known = sorted({metric for arm in state.arms.values() for result in arm.results for point in result.points for metric in point.metrics if metric.endswith("_ms")})
        raise UsageError(f"{folder.name} measured no {latency}.", hint=f"It measured: {', '.join(known) or 'nothing'}")
    front = [point for point in points if not any(_beats(other, point) for other in points)]
    front.sort(key=lambda point: -point.rate)
    noise = pooled(state).sd
    rows = [_row(point, noise) for point in front]
    return {"study": folder.name, "latency": latency, "front": rows, "beaten": len(points) - len(front), "noise": round(noise, 4), "text": _text(folder.name, latency, rows, len(points), state)}


def _points(arm: ArmState, latency: str) -> list[_Point]:
    """One per load level that any valid launch of the arm measured: geometric means over its launches."""
    levels = sorted({point.concurrency for result in arm.results for point in result.points})
    found = []
    for level in levels:
        seen = [point.metrics for result in arm.results for point in result.points if point.concurrency == level]
        both = [(metrics[RATE], metrics[latency]) for metrics in seen if metrics.get(RATE, 0) > 0 and metrics.get(latency, 0) > 0]
        if both:
            rate, delay = (math.exp(math.fsum(math.log(pair[side]) for pair in both) / len(both)) for side in (0, 1))
            found.append(_Point(changes_text(arm.settings.values), level, rate, delay, len(both)))
    return found


def _beats(other: _Point, point: _Point) -> bool:
    no_worse = other.rate >= point.rate and other.latency_ms <= point.latency_ms
    return no_worse and (other.rate > point.rate or other.latency_ms < point.latency_ms)


def _row(point: _Point, noise: float) -> dict[str, Any]:
    spread = noise / math.sqrt(point.launches)
    return {
        "settings": point.settings, "concurrency": point.concurrency, RATE: round(point.rate, 2), "latency_ms": round(point.latency_ms, 3),
        "launches": point.launches, "rate_interval": [round(point.rate * math.exp(-2 * spread), 2), round(point.rate * math.exp(2 * spread), 2)],
    }  # fmt: skip


def _text(name: str, latency: str, rows: Sequence[dict[str, Any]], count: int, state: State) -> str:
    lines = [f"{name}: {len(rows)} of {count} measured points are beaten by none in {RATE} and {latency} at once."]
    for row in rows:
        low, high = row["rate_interval"]
        lines.append(
            f"  {row[RATE]:10,.1f} tok/s [{low:,.1f}, {high:,.1f}]  {row['latency_ms']:9,.1f} ms  concurrency {row['concurrency']}, "
            f"{row['launches']} launch{'es' * (row['launches'] != 1)}: {row['settings']}"
        )
    return "\n".join(lines)
