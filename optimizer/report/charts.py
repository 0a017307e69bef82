"""The plots of a report as inline SVG, drawn by matplotlib: text stays text, colours follow the page's light or dark theme, and the
same document always gives the same bytes. It computes nothing but positions."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from optimizer.report.prose import interval_text, number

# Okabe & Ito's colours that keep their contrast on white and on near-black; told apart without colour by marker and line style too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7A7A7A")
STYLES, MARKERS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v", "P", "X")
INK = "#010203"  # stands for the page's own text colour until the SVG is written
RC: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "optimize", "font.family": "sans-serif", "font.size": 11, "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "axes.grid": True, "grid.alpha": 0.25, "grid.color": INK, "axes.titlesize": 11,
}  # fmt: skip
SHOWN_BELIEFS = 6
FAR = 3.0  # times the best: with the target in the picture nobody could tell the launches apart
PAGE_INCHES, PHONE_INCHES = 8.0, 4.6  # a plot of the first, squeezed onto a phone, could not be read


def _figure(height: float, phone: bool) -> tuple[Figure, Any]:
    """Inches at 72 units each: text of 11 units is then about as many pixels on a screen that is so wide."""
    figure = Figure(figsize=(PHONE_INCHES if phone else PAGE_INCHES, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _svg(figure: Figure, identity: str, title: str, description: str) -> str:
    """Inline SVG with a title and a description for who cannot see it. ``identity`` keeps the ids of several plots apart, and its width
    those of the two drawings of one."""
    identity = f"{identity}-phone" if figure.get_figwidth() == PHONE_INCHES else identity
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'(?<=\bid=")', f"{identity}-", text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\1{identity}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head[0])
    assert box is not None
    opening = (
        f'<svg {box[0]} role="img" aria-labelledby="{identity}-title {identity}-description" xmlns="http://www.w3.org/2000/svg" '
        'xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{identity}-title">{_escaped(title)}</title><desc id="{identity}-description">{_escaped(description)}</desc>'
    )
    return opening + text[head.end() :].strip()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def ink_on(colour: str) -> str:
    """Black or white, whichever is read better on ``#RRGGBB``: WCAG's contrast is then at least 4.5 on any colour."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.1791 else "#ffffff"


def waterfall(rows: Sequence[Mapping[str, Any]], labels: Sequence[str], *, phone: bool = False) -> str:
    """Where one decode step's time goes, at first and at last: stacked bars in milliseconds."""
    rows = [row for row in rows if row["step_ms"] is not None]
    if not rows:
        return ""
    buckets = list(dict.fromkeys(part["bucket"] for row in rows for part in row["lost"]))
    with mpl.rc_context(RC):
        figure, axes = _figure(1.2 + 0.75 * len(rows) + 0.3 * phone, phone)
        labels = labels[: len(rows)]
        for index, row in enumerate(rows):
            left = 0.0
            parts = [("roofline", row["roofline_ms"]), *((part["bucket"], part["ms"]) for part in row["lost"])]
            for name, ms in parts:
                colour = COLOURS[2] if name == "roofline" else COLOURS[(buckets.index(name) + (0 if buckets.index(name) < 2 else 1)) % len(COLOURS)]
                axes.barh(-index, ms, left=left, height=0.55, color=colour, label=name if index == 0 or name not in axes.get_legend_handles_labels()[1] else None)
                if ms > (0.2 if phone else 0.08) * max(item["step_ms"] for item in rows):
                    axes.text(left + ms / 2, -index, f"{name}\n{number(ms, 3)} ms", ha="center", va="center", color=ink_on(colour), fontsize=9)
                left += ms
        axes.set_yticks([-index for index in range(len(rows))], [textwrap.fill(label, 10) if phone else label for label in labels])
        axes.set_xlabel(f"ms of one decode step at concurrency {rows[0]['concurrency']}")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=min(3 if phone else 6, len(buckets) + 1))
        losses = [", ".join(f"{part['bucket']} {100 * part['share']:.0f} %" for part in row["lost"]) for row in rows]
        said = "; ".join(f"{label}: {text}" for label, text in zip(labels, losses, strict=False))
        return _svg(figure, "waterfall", "Where the time of a decode step goes", f"Losses against the roofline. {said}.")


def trials(rows: Sequence[Mapping[str, Any]], target: float | None, *, phone: bool = False) -> str:
    """Every setting with its launches (points) and the interval of their mean (bar)."""
    rows = [row for row in rows if row["value"] is not None]
    if not rows:
        return ""
    with mpl.rc_context(RC):
        names = [_lines(row["text"], 26 if phone else 44) for row in rows]
        figure, axes = _figure(1.2 + 0.5 * len(rows) + 0.15 * sum(name.count("\n") for name in names), phone)
        for index, row in enumerate(rows):
            low, high = row["interval"]
            axes.plot([low, high], [-index, -index], color=COLOURS[0], linewidth=5, alpha=0.35, solid_capstyle="butt")
            axes.plot([row["value"]], [-index], marker="|", color=COLOURS[0], markersize=16, markeredgewidth=2)
            axes.plot([item["value"] for item in row["launches"]], [-index] * len(row["launches"]), "o", color=COLOURS[0], markersize=5, alpha=0.8)
            if row["confirmed"] is not None:
                axes.plot([row["confirmed"]], [-index], "D", color=COLOURS[1], markersize=8, label="fresh confirmation")
        far = target is not None and target > FAR * max(max(row["interval"][1], row["value"]) for row in rows)
        if target is not None and not far:
            axes.axvline(target, color=COLOURS[1], linestyle="--", linewidth=1.5, label="target")
        axes.set_yticks([-index for index in range(len(rows))], names, fontsize=8 if phone else 9)
        axes.set_ylim(0.6 - len(rows), 0.6)
        beyond = f"; the target, {number(target)}, is far to the right" if far else ""
        axes.set_xlabel(f"{rows[0]['metric'].replace('_per_s', '').replace('_', ' ')}, {rows[0]['unit']}{beyond}")
        axes.set_xlim(left=0)
        handles, keys = axes.get_legend_handles_labels()
        if keys:
            unique = dict(zip(keys, handles, strict=True))
            figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=2)
        said = "; ".join(f"{row['text']}: {interval_text(row['interval'][0], row['interval'][1], row['value'], row['unit'])}" for row in rows)
        return _svg(figure, "trials", "Every setting that was launched", f"Mean and 95 % interval over launches. {said}.")


def belief_history(
    history: Mapping[str, Sequence[tuple[int, float]]], journal: int, settled: Collection[str] = (), *, phone: bool = False
) -> str:
    """Probability of the causes that were ever likely, over the entries of the journal. A line goes to the end where the last ranking
    still names its cause, or where it is ``settled``."""
    shown = list(history.items())[:SHOWN_BELIEFS]
    if not shown:
        return ""
    with mpl.rc_context(RC):
        figure, axes = _figure(3.6 + 0.7 * phone, phone)
        end = max((points[-1][0] for name, points in history.items() if name not in settled), default=0)
        for index, (name, points) in enumerate(shown):
            xs, ys = [seq for seq, _ in points], [probability for _, probability in points]
            if (xs[-1] == end or name in settled) and journal > xs[-1]:
                xs, ys = [*xs, journal], [*ys, ys[-1]]
            axes.plot(xs, ys, STYLES[index % 4], marker=MARKERS[index % 7], markersize=4, color=COLOURS[index % 7], drawstyle="steps-post", label=name)
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("probability")
        axes.set_xlabel("journal entry")
        figure.legend(loc="outside lower center", ncols=1 if phone else 2, fontsize=9)
        said = "; ".join(f"{name} from {points[0][1]:.2f} to {points[-1][1]:.2f}" for name, points in shown)
        return _svg(figure, "beliefs", "How the ranking moved", f"{said}.")


def levels(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], *, phone: bool = False) -> str:
    """Throughput against latency at each concurrency, before and after: one launch each, no interval."""
    with mpl.rc_context(RC):
        figure, axes = _figure(3.6, phone)
        drawn = []
        for index, (label, points) in enumerate((("as found", before), ("at the end", after))):
            usable = [point for point in points if point.get("output_tokens_per_s") and point.get("tpot_p50_ms")]
            if not usable or (index == 1 and list(after) == list(before)):
                continue
            xs, ys = [point["tpot_p50_ms"] for point in usable], [point["output_tokens_per_s"] for point in usable]
            axes.plot(xs, ys, STYLES[index], marker=MARKERS[index], color=COLOURS[index], label=label)
            for point, x, y in zip(usable, xs, ys, strict=True):  # the line rises to the right: above it, to its left, and in the picture
                axes.annotate(f"c={point['concurrency']}", (x, y), textcoords="offset points", xytext=(-6, 6), ha="right", fontsize=9)
            drawn.append(f"{label}: " + ", ".join(f"{number(y)} tok/s at {number(x, 3)} ms (c={point['concurrency']})" for point, x, y in zip(usable, xs, ys, strict=True)))
        if not drawn:
            return ""
        axes.set_xlabel("TPOT p50, ms")
        axes.set_ylabel("output tok/s")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.margins(0.12)
        figure.legend(loc="outside lower center", ncols=2)
        return _svg(figure, "levels", "Throughput and latency before and after", f"{'; '.join(drawn)}.")


def _lines(text: str, width: int) -> str:
    """At most 176 characters: settings that are kept on top of one another begin alike, and differ at their end."""
    return "\n".join(textwrap.wrap(text, width, max_lines=176 // width, placeholder=" …", break_on_hyphens=False))


def escaped(text: str) -> str:
    """Text for a place inside HTML or SVG."""
    return _escaped(text)


def load_curves(series: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> str:
    """Output rate against the two latencies that users feel, one line a server, one point a load (its ``load`` is its label)."""
    panels = (("ttft_p50_ms", "TTFT p50, ms"), ("tpot_p50_ms", "TPOT p50, ms"))
    drawn: list[str] = []
    with mpl.rc_context(RC):
        figure = Figure(figsize=(10.0, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        for place, (metric, label) in enumerate(panels, 1):
            axes = figure.add_subplot(1, 2, place)
            for index, (name, points) in enumerate(series.items()):
                usable = [point for point in points if point.get("output_tokens_per_s") and point.get(metric)]
                xs, ys = [point["output_tokens_per_s"] for point in usable], [point[metric] for point in usable]
                axes.plot(xs, ys, STYLES[index % 4], marker=MARKERS[index % 7], color=COLOURS[index % 7], label=name if place == 1 else None)
                for point, x, y in zip(usable, xs, ys, strict=True):
                    axes.annotate(point["load"], (x, y), textcoords="offset points", xytext=(5, 5), fontsize=9)
                    drawn.append(f"{name} at {point['load']}: {number(x)} tok/s, {label.split(',')[0]} {number(y, 3)} ms")
            axes.set_xlabel("output tok/s")
            axes.set_ylabel(label)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.margins(0.12)
        if not drawn:
            return ""
        figure.legend(loc="outside lower center", ncols=2)
        return _svg(figure, "load", title, f"{'; '.join(drawn)}.")
