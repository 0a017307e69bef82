"""``optimize doctor`` for people. Text from a document; nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARKS = {"ok": "ok  ", "warning": "WARN", "problem": "FAIL"}
VERDICTS = {
    "ok": "Nothing was found that would stand in the way of a study.",
    "warning": "A study can run; the warnings say what it could not do or what may blur its numbers.",
    "problem": "A study would not get far: mend what is marked FAIL first.",
}


def doctor_text(found: Mapping[str, Any]) -> str:
    """One line a check, what to do below it, the verdict last."""
    width = max((len(item["check"]) for item in found["findings"]), default=0)
    lines = []
    for item in found["findings"]:
        lines.append(f"{MARKS[item['level']]}  {item['check']:<{width}}  {item['said']}")
        if item["level"] != "ok":
            pad = " " * (width + 8)
            lines += [f"{pad}{text}" for text in (item["why"], *item["do"].splitlines()) if text]
    return "\n".join([*lines, "", f"{found['host']}: {VERDICTS[found['verdict']]} ({found['seconds']:.1f} s, nothing was changed)"])
