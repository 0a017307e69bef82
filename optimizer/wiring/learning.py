"""The user's own knowledge file: what earlier studies made of predictions. It is read when a study is opened (and pinned with
it), added to when one closes, and can be looked at, exported, merged, cleared and switched off. Names no machine and no model."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optimizer.core.learned import merged, taught_by
from optimizer.core.state import State
from optimizer.errors import KnowledgeError, UsageError
from optimizer.model.base import Frozen
from optimizer.model.canonical import digest
from optimizer.model.entry import Entry
from optimizer.model.learned import Learned

VARIABLE = "OPTIMIZE_LEARNED"  # another path, or "off"
PINNED_NAME = "learned.yaml"
MOST_SEEN = 4000


class LearnedFile(Frozen):
    """``seen``: digests of the tests that are in the sums, so that none is counted twice."""

    version: int = 1
    rows: tuple[Learned, ...] = ()
    seen: tuple[str, ...] = ()
    off: bool = False


def path_of() -> Path | None:
    """Where the file is, None when the variable switches learning off altogether."""
    named = os.environ.get(VARIABLE, "")
    if named.lower() in ("off", "0", "no"):
        return None
    return Path(named) if named else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "optimize" / "learned.json"


def read(path: Path) -> LearnedFile:
    """An absent file is an empty one. Raises KnowledgeError when it is not what this release wrote."""
    if not path.is_file():
        return LearnedFile()
    try:
        found = LearnedFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError) as error:
        raise KnowledgeError(f"{path} cannot be read as learned knowledge: {str(error).splitlines()[0]}", hint=f"Move it away, or set {VARIABLE}=off.") from error
    if found.version != 1:
        raise KnowledgeError(f"{path} was written by a newer release.", hint=f"Use that release, or set {VARIABLE}=off.")
    return found


def pinned_text() -> str | None:
    """What a new study pins of it: the sums, without the digests; None when there is nothing, or it is switched off."""
    path = path_of()
    if path is None:
        return None
    found = read(path)
    if found.off or not found.rows:
        return None
    return json.dumps({"learned": "rows", "rows": [row.plain() for row in found.rows]}, indent=1, sort_keys=True)


def remember(study: str, entries: Sequence[Entry], state: State) -> int:
    """Add what this study taught; how many tests. A simulated box teaches nothing: its answers were written by somebody."""
    path = path_of()
    if path is None or state.spec is None or state.spec.host.kind == "sim":
        return 0
    known = read(path)
    if known.off:
        return 0
    return _add(path, known, [(digest([study, entries[0].hash, seq])[:16], row) for seq, row in taught_by(entries, state)])


def _add(path: Path, known: LearnedFile, tests: Iterable[tuple[str, Learned]]) -> int:
    fresh = [(mark, row) for mark, row in tests if mark not in known.seen]
    if fresh:
        rows = merged([*known.rows, *(row for _, row in fresh)])
        _write(path, known.model_copy(update={"rows": rows, "seen": (*known.seen, *(mark for mark, _ in fresh))[-MOST_SEEN:]}))
    return len(fresh)


def _write(path: Path, found: LearnedFile) -> None:
    """In one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.write_text(json.dumps(found.plain(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    beside.replace(path)


# ---- the command ----------------------------------------------------------------------------------------------------


def learned_document(*, export: Path | None, merge: Path | None, switch: bool | None, clear: bool) -> dict[str, Any]:
    """Show, and before that whatever was asked. Raises UsageError when learning is switched off by the variable."""
    path = path_of()
    if path is None:
        raise UsageError(f"Learning is switched off by {VARIABLE}.", hint=f"Unset {VARIABLE}, or give it a path.")
    known = read(path)
    said = []
    if clear:
        known = LearnedFile(off=known.off)
        _write(path, known)
        said.append("Everything that was learned is forgotten.")
    if merge is not None:
        if not merge.is_file():
            raise UsageError(f"There is no file {merge}.")
        theirs = read(merge)
        fresh = bool(set(theirs.seen) - set(known.seen))
        if not theirs.rows or not fresh:
            said.append(f"{merge} holds nothing new.")
        elif set(theirs.seen) & set(known.seen):
            raise UsageError(f"{merge} shares tests with what is known here: its sums would count them twice.", hint="Merge files that grew apart, or --clear first.")
        else:
            known = known.model_copy(update={"rows": merged([*known.rows, *theirs.rows]), "seen": (*known.seen, *theirs.seen)[-MOST_SEEN:]})
            _write(path, known)
            said.append(f"{sum(row.tests for row in theirs.rows)} tests of {merge} were added.")
    if switch is not None:
        known = known.model_copy(update={"off": not switch})
        _write(path, known)
        said.append("New studies use it." if switch else "New studies neither use it nor add to it.")
    if export is not None:
        _write(export, known)
        said.append(f"Written to {export}.")
    rows = [{**row.plain(), "measured_over_predicted": round(math.exp(row.sum_ln / row.held), 3) if row.held else None} for row in known.rows]
    return {"file": str(path), "on": not known.off, "tests": sum(row.tests for row in known.rows), "rows": rows, "text": _text(path, known, rows, said)}


def _text(path: Path, known: LearnedFile, rows: Sequence[dict[str, Any]], said: Sequence[str]) -> str:
    lines = [*said, f"{path}: {len(rows)} rows{'' if not known.off else ' (switched off)'}"]
    for row in rows:
        ratio = row["measured_over_predicted"]
        lines.append(
            f"  {row['cause']} ({row['engine']}, {row['box']}): paid off in {row['held']} of {row['tests']} tests"
            + (f", measured ×{ratio:.2f} of the middle of the prediction" if ratio is not None else "")
        )
    return "\n".join(lines if rows else [*lines, "  Nothing was learned yet: every study on a real box adds what it tested."])
