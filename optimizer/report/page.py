"""The report as one HTML file that needs no network: a template, the document and its plots. It decides nothing about content."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from optimizer.report import charts
from optimizer.report.asking_view import facts_text
from optimizer.report.document import trial_rows
from optimizer.report.prose import gain_text, interval_text, number, result_text
from optimizer.report.setup import FEW, both_levels
from optimizer.report.status import status_text


def report_html(document: Mapping[str, Any]) -> str:
    """One self-contained page."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader("optimizer.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
                                     undefined=jinja2.StrictUndefined)  # fmt: skip
    environment.filters.update(number=number, status_text=status_text, gain_text=gain_text, result_text=result_text, facts_text=facts_text, span=lambda ends: interval_text(*ends)[1:-1].replace(", ", " to "), percent=lambda share: f"{100 * share:.1f} %")
    result = document["result"]
    before = {level["concurrency"]: level for level in result["baseline"].get("levels", [])}
    wide, narrow = _drawn(document, phone=False), _drawn(document, phone=True)
    text: str = environment.get_template("report.html.j2").render(
        **document, charts={name: Markup(_for_both(svg, narrow[name])) for name, svg in wide.items()}, before=before, both_levels=both_levels, few=FEW,
    )  # fmt: skip
    return text


def _drawn(document: Mapping[str, Any], *, phone: bool) -> dict[str, str]:
    result = document["result"]
    settled = {row["id"] for row in result["hypotheses"] if row["detail"] in ("supported", "kept")}
    return {
        "waterfall": charts.waterfall(document["waterfalls"], document["waterfall_labels"], phone=phone),
        "trials": charts.trials(document["trials"], document["target_value"], phone=phone),
        "beliefs": charts.belief_history(document["beliefs"], len(document["journal"]), settled, phone=phone),
        "levels": charts.levels(_by_concurrency(result["baseline"]), _by_concurrency(result["best"]), phone=phone),
    }


def _for_both(wide: str, narrow: str) -> str:
    """The page's style shows one of the two; the other is gone for screen readers too."""
    return f'<div class="room">{wide}</div><div class="phone">{narrow}</div>' if wide else ""


def _by_concurrency(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return sorted(result.get("levels", []), key=lambda level: level["concurrency"])


def report_csv(document: Mapping[str, Any]) -> str:
    """One row per launch."""
    rows = trial_rows(document)
    buffer = io.StringIO()
    columns = ["study", "settings", "launch", "state", "metric", "unit", "value", "mean_of_launches", "interval_low", "interval_high", "launches", "entry"]
    writer = csv.DictWriter(buffer, columns)
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
