"""The trade-offs of a study that searched them, for its report."""

from __future__ import annotations

from optimizer.core.front_shown import Spread, kept, shown
from optimizer.core.state import State
from optimizer.core.tradeoff import FrontPoint
from optimizer.report.prose import changes_text, interval_text


def front_markdown(state: State) -> list[str]:
    """The settings that no other beats in throughput and latency at once, of a study that searched them."""
    if state.spec is None or not state.spec.tradeoff:
        return []
    load, latency = state.spec.workload.concurrency, state.spec.tradeoff
    points, found, by = shown(state, latency, load)
    if not points:
        return ["## Throughput against latency", "", f"No launch told {latency}.", ""]
    own, rows = kept(state, points), []
    for place, choice in enumerate(found, 1):
        remarks = [(choice.point, ""), *((point, "not told apart from it") for point in choice.ties), *((point, "ahead within the noise only") for point in choice.by_noise)]
        rows += [_front_row(place, point, remark, by, own) for point, remark in remarks]
    said = f"Of {len(points)} settings measured at concurrency {load}, those that no other beats in both at once; what the launches do not tell apart is one trade-off."
    if own is not None and not any(own in (choice.point, *choice.ties, *choice.by_noise) for choice in found):
        rows.append(_front_row(None, own, "beaten in one, and no better in the other", by, own))
    head = [f"| | settings | output tok/s, 95 % interval over launches | {latency}, 95 % interval over launches | launches | remarks |", "|---|---|---|---|---|---|"]
    return ["## Throughput against latency", "", said, "", *head, *rows, ""]


def _front_row(place: int | None, point: FrontPoint, remark: str, by: Spread, own: FrontPoint | None) -> str:
    (low, high), (least, most) = by.intervals(point)
    remarks = "; ".join(part for part in (remark, "kept by the study" if point == own else "") if part)
    return (f"| {place or ''} | {changes_text(point.settings.values)} | {interval_text(low, high, point.rate)} | "
            f"{interval_text(least, most, point.latency_ms)} | {point.launches} | {remarks} |")  # fmt: skip
