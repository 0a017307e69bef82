"""``optimize diagnose`` for people: the cause, what speaks for and against it, the next step. Text from a document."""

from __future__ import annotations

from typing import Any

from optimizer.model.measurement import ADVICE

SHOWN = 4
VERDICTS = {
    "healthy": "Nothing stands out: the server is healthy for this load.",
    "load_limited": "The offered load is the limit, not the server.",
    "ambiguous": "Cannot tell: several causes fit equally well.",
    "evidence_missing": "Cannot tell: the evidence that would decide is missing.",
}


def diagnosis_text(found: Any) -> str:
    """A Diagnosis as text, best hypothesis first."""
    best = found.hypotheses[0] if found.hypotheses else None
    if found.verdict == "diagnosed" and best is not None:
        lines = [f"Cause: {best.id} ({best.family}), probability {best.probability:.2f}", f"  {best.claim}"]
    else:
        lines = [VERDICTS.get(found.reason, "Cannot tell.")]
    contaminated = [f"Contaminated ({item.code}): {item.detail}. {ADVICE[item.code]}" for item in found.contaminated]
    if contaminated:
        lines = ["The numbers of this evidence must not be believed.", *contaminated, "", *lines]
    for item in found.hypotheses[:SHOWN]:
        if item.probability < 0.05:
            break
        lines.append(f"\n{item.id}  ({item.family}, {item.score_db:+.1f} db, probability {item.probability:.2f})")
        lines += [f"  for      {_line(evidence)}" for evidence in item.evidence[:4]]
        lines += [f"  against  {_line(evidence)}" for evidence in item.against[:3]]
        if item.predicts is not None:
            low, high = item.predicts.ratio
            lines.append(f"  predicts {item.predicts.metric} ×{low:.2f} to ×{high:.2f} (no measurement behind it yet)")
    for dead in found.dead_settings:
        lines.append(f"\nDoes nothing here: {dead.setting}: {dead.why}")
    if found.next_step:
        lines.append(f"\nNext: {found.next_step}")
    lines += [f"Note: {note}" for note in found.notes]
    lines.append(f"\n{len(found.facts)} facts were read, {len(found.missing)} are missing (--all lists them with their places and reasons).")
    return "\n".join(lines)


def _line(evidence: Any) -> str:
    where = f" ({evidence.source}{f' line {evidence.line}' if evidence.line else ''})" if evidence.source else ""
    return f"{evidence.fact} = {_short(evidence.value)}{where}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
