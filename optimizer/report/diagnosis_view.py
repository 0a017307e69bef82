"""``optimize diagnose`` for people: the cause, what speaks for and against it, the next step. Text from a document."""

from __future__ import annotations

from typing import Any

from optimizer.model.measurement import ADVICE
from optimizer.report.asking_view import labelled

SHOWN = 4
ABOUT_EVEN = 1.10  # two launches of one setting differ by as much, and so does the draft model from what then ran
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
    lines += _fallbacks(found.flips)
    lines += _waterfall(found.ceilings)
    lines += _drafts(found.drafts)
    for dead in found.dead_settings:
        lines.append(f"\nDoes nothing here: {dead.setting}: {dead.why}")
    if found.next_step:
        lines.append(f"\nNext: {found.next_step}")
    lines += [f"Note: {note}" for note in found.notes]
    lines.append(f"\n{len(found.facts)} facts were read, {len(found.missing)} are missing (--all lists them with their places and reasons).")
    return "\n".join(lines)


def _fallbacks(flips: Any) -> list[str]:
    """What the server quietly did worse than it could, by its own log or against the other bundle."""
    fell = [flip for flip in flips if flip.towards_fallback and not flip.minor]
    return ["\nFell back at the start:", *(f"  {flip.text}{_place(flip)}" for flip in fell)] if fell else []


def _waterfall(levels: Any) -> list[str]:
    """The highest level in full: what it could reach, what it did, and where the time between goes."""
    known = [level for level in levels if not level.unknown]
    unknown = list(dict.fromkeys(level.unknown for level in levels if level.unknown))
    more = f" ({len(unknown) - 1} more level(s) alike)" if len(unknown) > 1 else ""
    reasons = [f"\nNo ceiling: {unknown[0]}{more}"] if unknown else []
    if not known:
        return reasons
    level = max(known, key=lambda item: item.concurrency)
    lines = [
        f"\nWhere the time goes at concurrency {level.concurrency}: roofline {level.ceiling_tokens_per_s:,.0f} tok/s ({level.bound}), "
        f"expected of a healthy launch {level.expected_tokens_per_s:,.0f}, measured {level.measured_tokens_per_s:,.0f}; shares are of a round, one token to each request"
    ]
    lines += [f"  {part.bucket:<12}{100 * part.share:5.1f} %  {part.ms:8.2f} ms  {part.why}" for part in level.lost if part.share >= 0.005]
    others = ", ".join(f"{item.measured_tokens_per_s:,.0f} of {item.ceiling_tokens_per_s:,.0f} at {item.concurrency}" for item in known if item is not level)
    lines += [f"  other levels: {others} tok/s"] if others else []
    return [*lines, *(f"  note: {note}" for note in level.notes), *reasons]


def _drafts(found: Any) -> list[str]:
    """Depth and break-even, as predicted from this launch alone."""
    if found is None:
        return []
    pays = "pay at every load" if found.break_even is None else "never pay" if found.break_even < 1 else f"break even at about {found.break_even:.0f} concurrent requests"
    lines = [f"\nDrafts: {found.draft_tokens} deep, {found.accept_len:.2f} tokens a round; they {pays} (predicted from this launch; one more confirms it)"]
    for level in found.levels:
        now, best, none = level.tokens_per_s[found.draft_tokens], level.tokens_per_s[level.best], level.tokens_per_s[0]
        even = level.best != found.draft_tokens and best < now * ABOUT_EVEN
        choice = "no other depth is sure to be better" if even else f"best {best:,.0f} with {level.best}"
        without = f"about even without drafts ({none:,.0f})" if max(now, none) < min(now, none) * ABOUT_EVEN else f"{none:,.0f} without drafts"
        lines.append(f"  at {level.concurrency:>3}: {now:,.0f} tok/s now, {without}, {choice}")
    return lines


def _line(evidence: Any) -> str:
    return f"{evidence.fact}{labelled(evidence.labels)} = {_short(evidence.value)}{_place(evidence)}"


def _place(found: Any) -> str:
    return f" ({found.source}{f' line {found.line}' if found.line else ''})" if found.source else ""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
