"""By which measurement a change was kept, as it stands at the end: what its last verdict says, not what was expected of it on the day.
From the journal; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.core.score import probability_of
from optimizer.core.state import State
from optimizer.model.entry import Entry, EntryKind


def measured_text(entries: Sequence[Entry], promoted: Entry) -> str:
    """With its interval, wherever one was judged: after a provisional promotion that is the verdict of its fresh launch."""
    body = promoted.body
    looks = [entry for entry in entries if entry.kind == EntryKind.JUDGED and entry.body.get("hypothesis") == body["hypothesis"]
             and entry.body.get("changes") == body["changes"]]  # fmt: skip
    if not looks or looks[-1].seq < promoted.seq:
        return str(body["why"]).replace(") Answers ", "). Answers ").rstrip(".")
    look = looks[-1].body["judgement"]
    verdict = look["verdict"].replace("_", " ") if look["final"] else "not yet decided"
    kept = "" if look["verdict"] in ("supported", "partial") else "; kept because a fresh launch with it meets the target, which is no proof of its own part"
    weighed = f"; {looks[-1].body['weighed']}" if looks[-1].body.get("weighed") else ""
    return (f"×{look['ratio']:.3f} [{look['low']:.3f}, {look['high']:.3f}] at {100 * look['confidence']:.4g} %, {look['n_candidate']} against {look['n_baseline']} "
            f"launch{'es' * (look['n_baseline'] != 1)}: {verdict} (entry {looks[-1].seq}){kept}{weighed}")  # fmt: skip


def explained(entries: Sequence[Entry], state: State, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table of hypotheses, where each cause that was cured says by what, in whose company, and from where its probability came."""
    promoted = {entry.seq: entry for entry in entries if entry.kind == EntryKind.PROMOTED}
    told = []
    for row in rows:
        belief = state.beliefs.get(row["id"])
        entry = promoted.get(belief.entry) if belief is not None else None
        if belief is None or entry is None or belief.final_db is None or row["detail"] not in ("supported", "kept"):
            told.append(dict(row))
            continue
        others = [name for name in (entry.body["hypothesis"], *entry.body.get("companions", ())) if name != row["id"]]
        together = f" One launch with {', '.join(others)}: the ratio is of all of them." if others else ""
        told.append({**row, "reason": f"{measured_text(entries, entry)}.{together}{_moved(entries, entry, row['id'], belief.final_db)}"})
    return told


def _moved(entries: Sequence[Entry], promoted: Entry, name: str, final_db: float) -> str:
    """From the last ranking before the test to the end."""
    before = [row for entry in entries if entry.kind == EntryKind.RANKED and entry.seq < promoted.seq for row in entry.body["hypotheses"] if row["id"] == name]
    if not before:
        return ""
    return f" Probability {before[-1]['probability']:.2f} as ranked before it, {probability_of(final_db):.2f} with the {final_db - before[-1]['score_db']:+.1f} db of the measurement."
