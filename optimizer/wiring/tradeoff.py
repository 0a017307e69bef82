"""``optimize tradeoff``: which of a study's measured settings and loads nobody beats in throughput and latency at once. Reads
the journal; a point that was not measured is not in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optimizer.core.front_shown import Choice, Spread, kept, shown
from optimizer.core.state import fold
from optimizer.core.tradeoff import RATE, FrontPoint
from optimizer.errors import UsageError
from optimizer.journal import Journal
from optimizer.report.prose import changes_text, interval_text
from optimizer.wiring import Roots

USUAL = "tpot_p50_ms"


def tradeoff(name: str, roots: Roots, latency: str | None) -> dict[str, Any]:
    """``latency`` None: the one that the study searched, else the usual. Raises UsageError when the study measured no such latency."""
    folder = roots.named(name)
    with Journal.open(folder, write=False) as journal:
        state = fold(journal.read())
    latency = latency or (state.spec.tradeoff if state.spec is not None else "") or USUAL
    points, found, by = shown(state, latency)
    if not points:
        known = sorted({metric for arm in state.arms.values() for result in arm.results for point in result.points for metric in point.metrics if metric.endswith("_ms")})
        raise UsageError(f"{folder.name} measured no {latency}.", hint=f"It measured: {', '.join(known) or 'nothing'}")
    own = kept(state, points)
    rows = [_choice(choice, by, own) for choice in found]
    listed = sum(1 + len(choice.ties) + len(choice.by_noise) for choice in found)
    document = {
        "study": folder.name, "latency": latency, "front": rows, "beaten": len(points) - listed, "noise": round(by.rate.sd, 4), "latency_noise": round(by.latency.sd, 4),
        "kept": None if own is None else {**_row(own, by, own), "place": _place(own, found, by)},
    }  # fmt: skip
    return {**document, "text": _text(folder.name, latency, document, len(points))}


def _choice(choice: Choice, by: Spread, own: FrontPoint | None) -> dict[str, Any]:
    return {
        **_row(choice.point, by, own), "not_told_apart": [_row(point, by, own) for point in choice.ties],
        "ahead_by_noise": [_row(point, by, own) for point in choice.by_noise],
    }  # fmt: skip


def _row(point: FrontPoint, by: Spread, own: FrontPoint | None) -> dict[str, Any]:
    rate, latency = by.intervals(point)
    return {
        "settings": changes_text(point.settings.values), "concurrency": point.concurrency, RATE: round(point.rate, 2), "latency_ms": round(point.latency_ms, 4),
        "launches": point.launches, "rate_interval": [round(value, 2) for value in rate], "latency_interval": [round(value, 4) for value in latency],
        "kept": point == own,
    }  # fmt: skip


def _place(own: FrontPoint, found: Sequence[Choice], by: Spread) -> str:
    """Where what the study kept stands among the trade-offs."""
    for place, choice in enumerate(found, 1):
        if own == choice.point:
            return f"trade-off {place}"
        if own in choice.ties:
            return f"not told apart from trade-off {place}"
    beaten = next((place for place, choice in enumerate(found, 1) if by.covers(choice.point, own)), None)
    return f"beaten by trade-off {beaten}" if beaten is not None else "none of the trade-offs"


def _text(name: str, latency: str, document: dict[str, Any], count: int) -> str:
    rows = document["front"]
    lines = [
        f"{name}: {len(rows)} trade-off{'s' * (len(rows) != 1)} of {RATE} and {latency} among {count} measured points, as far as their launches tell them apart"
        f"{f'; {beaten} of the points are beaten in both' if (beaten := document['beaten']) > 1 else '; one of the points is beaten in both' if beaten else ''}. "
        f"Intervals: 95 % over launches, by the study's noise ({document['noise']:.1%} of a launch; of the latency {document['latency_noise']:.1%})."
    ]
    for place, row in enumerate(rows, 1):
        lines.append(f"  {place}. {_line(row)}")
        lines += [f"     not told apart from it: {_line(other)}" for other in row["not_told_apart"]]
        lines += [f"     no trade-off, since it is ahead within the noise only: {_line(other)}" for other in row["ahead_by_noise"]]
    own = document["kept"]
    if own is not None and not own["place"].startswith("trade-off"):
        lines.append(f"  What the study kept is {own['place']}: {_line({**own, 'kept': False})}")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    (low, high), (least, most) = row["rate_interval"], row["latency_interval"]
    return (
        f"{interval_text(low, high, row[RATE], 'tok/s')}  {interval_text(least, most, row['latency_ms'], 'ms')}  concurrency {row['concurrency']}, "
        f"{row['launches']} launch{'es' * (row['launches'] != 1)}: {row['settings']}{' (kept by the study)' * row['kept']}"
    )
