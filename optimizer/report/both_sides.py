"""What spoke for and against every cause that a study ranked: as it was first seen, and where that differs, as it was seen last. From the
rankings in the journal; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.core.plan import Plan
from optimizer.model.entry import Entry, EntryKind
from optimizer.report.asking_view import facts_text


def both_sides(entries: Sequence[Entry], hypotheses: Sequence[Mapping[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    """One row for each of ``hypotheses`` (rows with ``id``): claim and ``seen``, one or two views with entry, probability, for, against. A
    cause that no ranking names has no view: it was known from its test alone."""
    rows = []
    for hypothesis in hypotheses:
        name = hypothesis["id"]
        seen = [view for entry in entries if entry.kind == EntryKind.RANKED and (view := _view(entry, name)) is not None]
        views = seen[:1]
        if seen and (_facts(seen[-1]["for"]), _facts(seen[-1]["against"])) != (_facts(seen[0]["for"]), _facts(seen[0]["against"])):
            views.append(seen[-1])
        book = plan.playbook(name)
        rows.append({"id": name, "claim": book.claim if book is not None else "", "detail": hypothesis.get("detail", ""), "seen": views})
    return rows


def _view(entry: Entry, name: str) -> dict[str, Any] | None:
    row = next((row for row in entry.body["hypotheses"] if row["id"] == name), None)
    if row is None:
        return None
    return {"entry": entry.seq, "probability": row["probability"], "prior_db": row["prior_db"], "for": list(row.get("for", ())), "against": list(row.get("against", ()))}


def _facts(hits: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, float]]:
    """What was read, without the line that it was read from: another launch has another log."""
    return [(str(hit.get("fact", hit.get("rule"))), str(hit.get("value")), float(hit["db"])) for hit in hits]


def both_sides_markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A paragraph for each cause."""
    lines = ["## Evidence for and against", ""] if rows else []
    for row in rows:
        lines.append(f"- **{row['id']}**: {row['claim']}")
        for view in row["seen"]:
            lines.append(f"  - entry {view['entry']}, probability {view['probability']:.2f}")
            lines += [f"    - for: {text}" for text in facts_text(view["for"])] or ["    - for: nothing that was read"]
            lines += [f"    - against: {text}" for text in facts_text(view["against"])] or ["    - against: nothing that was read"]
        if not row["seen"]:
            lines.append("  - no ranking names it: it is known from its test alone")
    return [*lines, ""] if rows else []
