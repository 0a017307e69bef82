"""What ``optimize bench`` shows: progress on one line, a table, rows for a CSV file, one JSON document, a plot. It computes no
figure; what is missing is shown as missing."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from optimizer.bench.run import missing
from optimizer.model.measurement import ADVICE, LoadPoint
from optimizer.model.target import Target, claimed, unit_of
from optimizer.report import charts
from optimizer.report.prose import number
from optimizer.report.steady_stream import steady

COLUMNS = (
    ("output_tokens_per_s", "out tok/s"), ("total_tokens_per_s", "total tok/s"), ("requests_per_s", "req/s"), ("goodput_per_s", "good req/s"),
    ("ttft_p50_ms", "TTFT p50"), ("ttft_p99_ms", "p99"), ("tpot_p50_ms", "TPOT p50"), ("tpot_p99_ms", "p99"), ("itl_p99_ms", "ITL p99"),
    ("e2e_p50_ms", "E2E p50"), ("e2e_p99_ms", "p99"),
)  # fmt: skip
EVERY_S = 30.0
ALWAYS = {"output_tokens_per_s", "requests_per_s", "ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms"}


class BenchProgress:
    """One line that changes on a terminal; elsewhere one line for each load and phase, and again every ``EVERY_S``. A context manager."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, 0.0
        self._stream = steady(stream)
        self.console = Console(file=cast(TextIO, self._stream), highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._said = ""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        self._stream.settle()

    def note(self, text: str) -> None:
        """The small news of the running load."""
        if self._live is not None:
            self._live.update(Text(text, style="dim"))
        elif (head := text.partition(",")[0]) != self._said or self._clock() - self._at >= EVERY_S:
            self._said, self._at = head, self._clock()
            self.console.print(text, markup=False)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)


def load_text(load: float, open_loop: bool) -> str:
    return f"{load:g}/s" if open_loop else f"{load:g}"


def point_line(load: float, point: LoadPoint, open_loop: bool) -> str:
    """One load in one line, for the progress."""
    label = f"{load:g} requests/s" if open_loop else f"concurrency {load:g}"
    rate = point.metrics.get("output_tokens_per_s")
    said = f"{number(rate)} output tok/s" if rate is not None else "no rate"
    return f"{label}: {said}{' (not valid: ' + point.invalid[0].detail + ')' if point.invalid else ''}"


def bench_table(loads: Sequence[float], points: Sequence[LoadPoint], *, open_loop: bool, width: int | None = None) -> str:
    """One row a load, then what is to be said about each."""
    shown = [(metric, title) for metric, title in COLUMNS if metric in ALWAYS or any(metric in point.metrics for point in points)]
    for metric in sorted({name for point in points for name in point.metrics}):
        if metric.endswith("_ms") and "upper" not in metric and _odd(metric):
            shown.append((metric, metric.removesuffix("_ms").replace("_", " ")))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("load" if open_loop else "users", justify="right")
    for _, title in shown:
        table.add_column(title, justify="right")
    table.add_column("errors", justify="right")
    table.add_column("")
    for load, point in zip(loads, points, strict=True):
        cells = [_cell(point.metrics.get(metric), metric) for metric, _ in shown]
        failed = f"{point.requests_failed}" if point.requests_failed else "0"
        table.add_row(load_text(load, open_loop), *cells, failed, "" if not point.invalid else "not valid")
    out = io.StringIO()
    console = Console(file=out, width=width or 160, highlight=False)
    console.print(table)
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return "\n".join([text, "times in ms; - : too few requests for the claim, or nothing was measured", *_remarks(loads, points, open_loop)])


def _odd(metric: str) -> bool:
    return not any(f"_p{usual}_ms" in metric for usual in (50, 90, 95, 99)) and "_p" in metric


def _cell(value: float | None, metric: str) -> str:
    return "-" if value is None else number(value, 3) if metric.endswith("_ms") else number(value, 4)


def _remarks(loads: Sequence[float], points: Sequence[LoadPoint], open_loop: bool) -> list[str]:
    lines: list[str] = []
    noted: dict[str, list[str]] = {}
    for load, point in zip(loads, points, strict=True):
        label = load_text(load, open_loop)
        for item in point.invalid:
            lines.append(f"{label}: not valid, {item.code}: {item.detail}. {ADVICE[item.code]}")
        if point.errors:
            lines.append(f"{label}: failures by class, warm-up included: " + ", ".join(f"{name} {count}" for name, count in sorted(point.errors.items())))
        for note in point.notes:
            noted.setdefault(note, []).append(label)
    lines += [f"{', '.join(dict.fromkeys(labels))}: {note}" for note, labels in noted.items()]  # one that every load has stands once
    return list(dict.fromkeys(lines))


def bench_document(
    name: str, workload: Mapping[str, Any], target: Target, open_loop: bool, loads: Sequence[float], points: Sequence[LoadPoint], *,
    knee: Mapping[str, Any] | None = None, note: str = "", interrupted: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """What ``bench --json`` prints."""
    rows = []
    for load, point in zip(loads, points, strict=True):
        met = {bound.text: (None if (value := claimed(bound.metric, point.metrics)) is None else bound.holds(value)) for bound in target.bounds}
        rows.append({"load": load, "unit": "requests/s" if open_loop else "users", "valid": not point.invalid, **({"target": met} if met else {}), **point.plain()})
    return {"server": name, "workload": workload, "target": target.text, "points": rows, "knee": knee, "note": note, "interrupted": interrupted}


def csv_text(servers: Iterable[tuple[str, Sequence[float], Sequence[LoadPoint]]], open_loop: bool) -> str:
    """One row a load; a metric that was not measured is an empty cell. Units stand in the names."""
    rows: list[dict[str, Any]] = []
    for name, loads, points in servers:
        for load, point in zip(loads, points, strict=True):
            rows.append({
                "server": name, ("rate_per_s" if open_loop else "concurrency"): load, "valid": int(not point.invalid),
                "requests_ok": point.requests_ok, "requests_failed": point.requests_failed, "prompt_tokens": point.prompt_tokens,
                "output_tokens": point.output_tokens, "warmup_s": point.warmup_s, "window_s": point.window_s, **point.metrics,
                "invalid": " ".join(item.code for item in point.invalid),
            })  # fmt: skip
    fixed = list(rows[0])[:9] if rows else []
    metrics = sorted({key for row in rows for key in row} - {*fixed, "invalid"})
    out = io.StringIO()
    writer = csv.DictWriter(out, [*fixed, *metrics, "invalid"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def plot(servers: Sequence[tuple[str, Sequence[float], Sequence[LoadPoint]]], *, open_loop: bool, html: bool, title: str) -> str:
    """Throughput against latency as SVG, or as a page that holds it. Empty where no load gave both."""
    series = {
        name: [{"load": load_text(load, open_loop), **point.metrics} for load, point in zip(loads, points, strict=True) if not point.invalid]
        for name, loads, points in servers
    }
    drawn = charts.load_curves(series, title)
    if not drawn or not html:
        return drawn
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{charts.escaped(title)}</title>'
    style = "<style>:root{color-scheme:light dark}body{font:16px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}svg{width:100%;height:auto}</style>"
    return f"{head}{style}</head><body><h1>{charts.escaped(title)}</h1>\n{drawn}\n</body></html>\n"


def comparison_text(first: tuple[str, Sequence[float], Sequence[LoadPoint]], second: tuple[str, Sequence[float], Sequence[LoadPoint]], open_loop: bool) -> str:
    """The second server over the first, load by load. One launch of each: no claim about their settings follows from it."""
    lines = [f"{second[0]} over {first[0]} (one launch of each: what differs between two launches of the same server is in it)"]
    points = dict(zip(second[1], second[2], strict=True))
    for load, one in zip(first[1], first[2], strict=True):
        other = points.get(load)
        if other is None or one.invalid or other.invalid:
            lines.append(f"  {load_text(load, open_loop):>8}  no ratio: {'not measured' if other is None else 'a measurement is not valid'}")
            continue
        parts = []
        for metric, title in COLUMNS:
            if metric in ALWAYS and one.metrics.get(metric) and metric in other.metrics:
                parts.append(f"{title} {other.metrics[metric] / one.metrics[metric]:.3f}x")
        lines.append(f"  {load_text(load, open_loop):>8}  " + "  ".join(parts))
    return "\n".join(lines)


def knee_text(knee: Mapping[str, Any] | None, target: Target, open_loop: bool, note: str) -> str:
    if knee is None:
        return note
    unit = "requests/s" if open_loop else "users"
    good, bad = knee["good"], knee["bad"]
    if note:
        found = f"; up to {good:g} {unit} met it so far" if good is not None else ""
        return f"The knee was not found{found}: {note}."
    if good is None:
        return f"No load meets {target.text}: {bad:g} {unit} is too much already." if bad is not None else "Nothing was measured."
    limit = f", {bad:g} does not" if bad is not None else "; the limit was not reached"
    return f"Knee: {good:g} {unit} meets {target.text}{limit} ({knee['steps']} loads measured)."


def met_text(target: Target, point: LoadPoint) -> str:
    """Each bound of the target at one load."""
    parts = []
    for bound in target.bounds:
        value = point.metrics.get(bound.metric)
        shown = claimed(bound.metric, point.metrics)
        if value is None or shown is None:
            said = missing(bound.metric, point)
        elif bound.holds(value) and not bound.holds(shown):
            said = f"{number(value)} {unit_of(bound.metric)}, not shown: its {point.requests_ok} requests prove at most {number(shown)} (99 % confidence)"
        else:
            said = f"{number(value)} {unit_of(bound.metric)}, {'met' if bound.holds(value) else 'not met'}"
        parts.append(f"{bound.text}: {said}")
    return "; ".join(parts)
