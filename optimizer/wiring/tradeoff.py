"""``optimize tradeoff``: which of a study's measured settings and loads nobody beats in throughput and latency at once. Reads
the journal; a point that was not measured is not in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optimizer.core.closing import half_of, pooled
from optimizer.core.state import fold
from optimizer.core.tradeoff import RATE, FrontPoint, front, measured
from optimizer.errors import UsageError
from optimizer.journal import Journal
from optimizer.report.prose import changes_text
from optimizer.wiring import Roots

USUAL = "tpot_p50_ms"


def tradeoff(name: str, roots: Roots, latency: str | None) -> dict[str, Any]:
    """``latency`` None: the one that the study searched, else the usual. Raises UsageError when the study measured no such latency."""
    folder = roots.named(name)
    with Journal.open(folder, write=False) as journal:
        state = fold(journal.read())
    latency = latency or (state.spec.tradeoff if state.spec is not None else "") or USUAL
    points = measured(state, latency)
    if not points:
        known = sorted({metric for arm in state.arms.values() for result in arm.results for point in result.points for metric in point.metrics if metric.endswith("_ms")})
        raise UsageError(f"{folder.name} measured no {latency}.", hint=f"It measured: {', '.join(known) or 'nothing'}")
    best = front(points)
    noise = pooled(state)
    rows = [_row(point, half_of(state, state.arms[point.settings.digest].results, noise)) for point in best]
    return {"study": folder.name, "latency": latency, "front": rows, "beaten": len(points) - len(best), "noise": round(noise.sd, 4),
            "text": _text(folder.name, latency, rows, len(points))}  # fmt: skip


def _row(point: FrontPoint, half: float) -> dict[str, Any]:
    return {
        "settings": changes_text(point.settings.values), "concurrency": point.concurrency, RATE: round(point.rate, 2), "latency_ms": round(point.latency_ms, 3),
        "launches": point.launches, "rate_interval": [round(point.rate * math.exp(-half), 2), round(point.rate * math.exp(half), 2)],
    }  # fmt: skip


def _text(name: str, latency: str, rows: Sequence[dict[str, Any]], count: int) -> str:
    lines = [f"{name}: {len(rows)} of {count} measured points are beaten by none in {RATE} and {latency} at once. Intervals: 95 % over launches, by the study's noise."]
    for row in rows:
        low, high = row["rate_interval"]
        lines.append(
            f"  {row[RATE]:10,.1f} tok/s [{low:,.1f}, {high:,.1f}]  {row['latency_ms']:9,.1f} ms  concurrency {row['concurrency']}, "
            f"{row['launches']} launch{'es' * (row['launches'] != 1)}: {row['settings']}"
        )
    return "\n".join(lines)
