"""``optimize doctor`` for people. Text from a document; nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.report.wrapping import within

MARKS = {"ok": "ok  ", "warning": "WARN", "problem": "FAIL"}
VERDICTS = {
    "ok": "Nothing was found that would stand in the way of a study.",
    "warning": "A study can run; the warnings say what it could not do or what may blur its numbers.",
    "problem": "A study would not get far: mend what is marked FAIL first.",
}


NARROW = 70  # columns; in fewer, texts begin below the check's name instead of beside it


def doctor_text(found: Mapping[str, Any], columns: int | None = None) -> str:
    """One paragraph a check, what to do below it, the verdict last. ``columns`` of the terminal, where there is one: lines end between
    words then."""
    width = max((len(item["check"]) for item in found["findings"]), default=0)
    pad = " " * (6 if columns is not None and columns < NARROW else width + 8)
    lines = []
    for item in found["findings"]:
        head = f"{MARKS[item['level']]}  {item['check']:<{width}}  "
        said = within(item["said"], columns, pad)
        lines += [head.rstrip(), *said] if len(pad) < len(head) else [head + said[0].strip(), *said[1:]]
        if item["level"] != "ok":
            lines += [line for text in (item["why"], *item["do"].splitlines()) if text for line in within(text, columns, pad)]
    verdict = f"{found['host']}: {VERDICTS[found['verdict']]} ({found['seconds']:.1f} s, nothing was changed)"
    return "\n".join([*lines, "", *within(verdict, columns, "")])
