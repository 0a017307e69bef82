"""The user's own knowledge file: what earlier studies made of predictions. It is read when a study is opened (and pinned with
it), added to when one closes, and can be looked at, exported, merged, cleared and switched off. Names no machine and no model."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optimizer.core.learned import merged, taught_by
from optimizer.core.state import State
from optimizer.errors import KnowledgeError, UsageError
from optimizer.journal import Database
from optimizer.model.base import Frozen
from optimizer.model.canonical import digest
from optimizer.model.entry import Entry
from optimizer.model.learned import Learned

VARIABLE = "OPTIMIZE_LEARNED"  # another path, or "off"
PINNED_NAME = "learned.yaml"
VERSION = 2


class LearnedFile(Frozen):
    """``tests``: what each test taught, under a digest of its own, so that files can be merged again and again and none counts twice.
    ``rows`` and ``seen`` are of files of version 1: sums that cannot be taken apart, and the digests of the tests in them."""

    version: int = VERSION
    tests: dict[str, Learned] = {}
    rows: tuple[Learned, ...] = ()
    seen: tuple[str, ...] = ()
    off: bool = False

    @property
    def sums(self) -> tuple[Learned, ...]:
        """One row for each cause, engine and class of box; the same whatever order the tests came in."""
        return merged([*self.rows, *(self.tests[mark] for mark in sorted(self.tests))])

    @property
    def marks(self) -> set[str]:
        return {*self.tests, *self.seen}


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
    except (OSError, ValueError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error).splitlines()[0]
        raise KnowledgeError(f"{path} cannot be read as learned knowledge: {said}", hint=f"Move it away, or set {VARIABLE}=off.") from error
    if found.version > VERSION:
        raise KnowledgeError(f"{path} was written by a newer release.", hint=f"Use that release, or set {VARIABLE}=off.")
    return found


def known(path: Path, database: Database | None) -> LearnedFile:
    """What this user's studies start from: the file, or what the team's store holds. The switch is each user's own, in the file."""
    mine = read(path)
    if database is None:
        return mine
    from optimizer.journal.postgres import taught

    found = taught(database)
    tests = {mark: Learned.model_validate_json(sums) for mark, sums in found if sums is not None}
    return LearnedFile(tests=tests, seen=tuple(mark for mark, sums in found if sums is None), off=mine.off)


def pinned_text(database: Database | None = None) -> str | None:
    """What a new study pins of it: the sums, without the digests; None when there is nothing, or it is switched off."""
    path = path_of()
    if path is None:
        return None
    found = known(path, database)
    if found.off or not found.sums:
        return None
    return json.dumps({"learned": "rows", "rows": [row.plain() for row in found.sums]}, indent=1, sort_keys=True)


def remember(study: str, entries: Sequence[Entry], state: State, database: Database | None = None) -> int:
    """Add what this study taught; how many tests. A simulated box teaches nothing: its answers were written by somebody."""
    path = path_of()
    if path is None or state.spec is None or state.spec.host.kind == "sim":
        return 0
    mine = read(path)
    if mine.off:
        return 0
    tests = [(digest([study, entries[0].hash, seq])[:16], row) for seq, row in taught_by(entries, state)]
    if database is None:
        return _add(path, tests)
    from optimizer.journal.postgres import teach

    return teach(database, [(mark, row.model_dump_json()) for mark, row in tests]) if tests else 0


def _add(path: Path, tests: Iterable[tuple[str, Learned]]) -> int:
    with _alone(path):
        known = read(path)
        fresh = {mark: row for mark, row in tests if mark not in known.marks}
        if fresh:
            _write(path, known.model_copy(update={"tests": {**known.tests, **fresh}}))
        return len(fresh)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Studies that close at the same time add one after the other, so that none of them overwrites what another has learned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _write(path: Path, found: LearnedFile) -> None:
    """In one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.write_text(json.dumps(found.model_copy(update={"version": VERSION}).plain(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    beside.replace(path)


# ---- the command ----------------------------------------------------------------------------------------------------


def learned_document(
    *, export: Path | None, merge: Path | None, switch: bool | None, clear: bool, database: Database | None = None
) -> dict[str, Any]:
    """Show, and before that whatever was asked. Raises UsageError when learning is switched off by the variable."""
    path = path_of()
    if path is None:
        raise UsageError(f"Learning is switched off by {VARIABLE}.", hint=f"Unset {VARIABLE}, or give it a path.")
    if clear and database is not None:
        raise UsageError(
            f"What {database} has learned belongs to everybody who uses it, and is not cleared from here.",
            hint="Who administers it can: DELETE FROM optimize.taught. For you alone: optimize learned --off",
        )
    said: list[str] = []
    with _alone(path) if clear or merge is not None or switch is not None else nullcontext():
        found = known(path, database)
        if clear:
            found = LearnedFile(off=found.off)
            _write(path, found)
            said.append("Everything that was learned is forgotten.")
        if merge is not None:
            found = _merged_in(merge, found, path, database, said)
        if switch is not None:
            found = found.model_copy(update={"off": not switch})
            _write(path, found if database is None else read(path).model_copy(update={"off": not switch}))
            said.append("New studies use it." if switch else "New studies neither use it nor add to it.")
    if export is not None:
        _write(export, found)
        said.append(f"Written to {export}.")
    where, sums = str(path if database is None else database), found.sums
    rows = [{**row.plain(), "measured_over_predicted": round(math.exp(row.sum_ln / row.held), 3) if row.held else None} for row in sums]
    return {"file": where, "on": not found.off, "tests": sum(row.tests for row in sums), "rows": rows, "text": _text(where, found, rows, said)}


def _merged_in(merge: Path, found: LearnedFile, path: Path, database: Database | None, said: list[str]) -> LearnedFile:
    """``found`` with what is new in somebody else's file, written where it belongs."""
    if not merge.is_file():
        raise UsageError(f"There is no file {merge}.")
    theirs = read(merge)
    fresh = {mark: row for mark, row in theirs.tests.items() if mark not in found.marks}
    sums = () if set(theirs.seen) <= found.marks else theirs.rows
    if not fresh and not sums:
        said.append(f"{merge} holds nothing new.")
        return found
    if sums and set(theirs.seen) & found.marks:
        raise UsageError(
            f"{merge} is of an older release and shares tests with what is known here: its sums would count them twice.",
            hint="Its tests cannot be told apart. Take it before anything else (--clear, then --merge), or leave it.",
        )
    if database is None:
        seen = (*found.seen, *theirs.seen) if sums else found.seen
        found = found.model_copy(update={"tests": {**found.tests, **fresh}, "rows": merged([*found.rows, *sums]), "seen": seen})
        _write(path, found)
    else:
        from optimizer.journal.postgres import teach

        # Sums of an older release are not to be had apart by test: each row stands with one of its marks, or with one made of the file.
        marks = [*theirs.seen, *(f"{theirs.seen[-1]}+{at}" for at in range(len(sums) - len(theirs.seen)))] if sums else []
        told: list[str | None] = [row.model_dump_json() for row in sums]
        rows = list(zip(marks, [*told, *[None] * (len(marks) - len(told))], strict=True))
        teach(database, [*((mark, row.model_dump_json()) for mark, row in fresh.items()), *rows])
        found = known(path, database)
    said.append(f"{sum(row.tests for row in (*fresh.values(), *sums))} tests of {merge} were added.")
    return found


def _text(where: str, known: LearnedFile, rows: Sequence[dict[str, Any]], said: Sequence[str]) -> str:
    lines = [*said, f"{where}: {len(rows)} rows{'' if not known.off else ' (switched off)'}"]
    for row in rows:
        ratio = row["measured_over_predicted"]
        lines.append(
            f"  {row['cause']} ({row['engine']}, {row['box']}): paid off in {row['held']} of {row['tests']} tests"
            + (f", measured ×{ratio:.2f} of the middle of the prediction" if ratio is not None else "")
        )
    return "\n".join(lines if rows else [*lines, "  Nothing was learned yet: every study on a real box adds what it tested."])
