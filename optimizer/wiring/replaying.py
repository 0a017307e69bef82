"""``optimize replay``: a recorded study driven again without its box, or every decision of it recomputed and compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from optimizer import __version__
from optimizer.core.state import fold
from optimizer.errors import JournalError, UsageError
from optimizer.journal import Journal, Place
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.study import POLICY_VERSION
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, NotRecorded, RecordedExecutor
from optimizer.runner.recorded import verify as verify_entries
from optimizer.runner.recorded_boxes import RecordedBoxes, drive_recorded
from optimizer.wiring import Roots, plans_by_entry

SHOWN = 300  # characters of what differs
_NOTHING = object()


def replay_study(name: str, roots: Roots, *, verify: bool, until: int | None) -> dict[str, Any]:
    """``identical`` tells whether today's code decides as recorded; ``text`` says it for people."""
    folder = roots.named(name)
    with Journal.open(folder, write=False) as journal:
        if not journal.last_seq:
            raise JournalError(f"The journal of {folder.name} holds no entry.", why="It ended before it began: there is nothing to replay.", hint="`optimize studies` lists the others.")
    return _verified(folder, until) if verify else _driven(folder, until)


def _verified(folder: Place, until: int | None) -> dict[str, Any]:
    with Journal.open(folder, write=False) as journal:
        journal.verify()
        entries = journal.read()
        plan_at = plans_by_entry(journal, entries)
    _check_until(folder, entries, until)
    entries = entries[:until] if until else entries
    found = verify_entries(entries, plan_at)
    wrong = [{"seq": item.seq, "kind": item.kind, "recorded": item.recorded, "recomputed": item.recomputed} for item in found.mismatches]
    text = f"{folder.name}: {found.decisions} decisions in {found.entries} entries recomputed, {len(wrong)} differ."
    ended = bool(until) or any(entry.kind == EntryKind.CLOSED for entry in entries)
    if not ended:
        text += " It has no closing entry: the study has not ended, or the end of the record was taken off, which a chain cannot show."
    for item in found.mismatches[:3]:
        where, recorded, recomputed = first_difference(item.recorded, item.recomputed)
        text += f"\n  entry {item.seq} ({item.kind}), first in {where}\n    recorded   {recorded}\n    recomputed {recomputed}"
    if wrong and (made := _made_by(entries)):
        text += f"\n{made}"
    return {"study": folder.name, "entries": found.entries, "decisions": found.decisions, "mismatches": wrong, "identical": not wrong, "ended": ended, "text": text}


def _check_until(folder: Place, entries: Sequence[Entry], until: int | None) -> None:
    if until is not None and until > len(entries):
        raise UsageError(f"{folder.name} has {len(entries)} entries: there is no entry {until}.", hint="Leave --until out to replay all of them.")


def _made_by(entries: Sequence[Entry]) -> str:
    """Why an old study may be decided otherwise today; empty where its policy is today's."""
    spec = entries[0].body.get("spec", {})
    version = spec.get("policy_version", 1)
    if version == POLICY_VERSION:
        return ""
    return (f"It was decided under policy version {version} (of release {entries[0].body.get('release', 'unknown')}), this release ({__version__}) has version {POLICY_VERSION} and "
            "not every rule of the older ones: what differs need be no fault of the record. The build that made it recomputes it identically.")  # fmt: skip


def first_difference(recorded: str, recomputed: str) -> tuple[str, str, str]:
    """(place, recorded there, recomputed there) of two decisions in canonical JSON: the first place in which they differ."""
    try:
        one, other = json.loads(recorded), json.loads(recomputed)
    except ValueError:  # a word instead of an entry: finished, waiting
        return "the decision", recorded[:SHOWN], recomputed[:SHOWN]
    place = ""
    while type(one) is type(other) and isinstance(one, dict | list):
        keys = [*one, *(key for key in other if key not in one)] if isinstance(one, dict) else range(max(len(one), len(other)))
        key: Any = next((key for key in keys if _at(one, key) != _at(other, key)), None)
        if key is None:
            break
        place, one, other = f"{place}[{key}]" if isinstance(key, int) else f"{place}.{key}", _at(one, key), _at(other, key)
    recorded, recomputed = (("nothing" if value is _NOTHING else json.dumps(value, ensure_ascii=False))[:SHOWN] for value in (one, other))
    return place.removeprefix("[1].") or "the decision", recorded, recomputed


def _at(value: Any, key: Any) -> Any:
    try:
        return value[key]
    except (KeyError, IndexError):
        return _NOTHING


def _driven(folder: Place, until: int | None) -> dict[str, Any]:
    """Let today's policy ask, and the journal answer. Where it asks for something that was never measured, replay stops."""
    with Journal.open(folder, write=False) as journal:
        entries = journal.read()
        plan = plans_by_entry(journal, entries)(entries[-1].seq)
    _check_until(folder, entries, until)
    entries = entries[:until] if until else entries
    log = MemoryLog()
    first = entries[0]
    log.append("opened", first.body, expect=0)
    several = bool(first.body.get("spec", {}).get("boxes"))
    executor = RecordedBoxes(entries) if several else RecordedExecutor(entries)
    stopped = ""
    try:
        asyncio.run(drive_recorded(log, executor, plan) if isinstance(executor, RecordedBoxes) else drive(log, executor, plan))
    except NotRecorded as error:
        stopped = error.message
    state, was = fold(log.read()), fold(entries)
    ending, recorded = _ending(log.read()), _ending(entries)
    text = f"{folder.name}: recorded ending {recorded} after {was.launches_after} launches; replayed {ending or 'unfinished'} after {state.launches_after}."
    if until:
        text = f"{folder.name}: replayed up to entry {until}; the rest was left out as asked."
    elif stopped:
        text += f"\n  {stopped}"
    return {
        "study": folder.name, "ending": ending, "recorded_ending": recorded, "launches": state.launches_after, "not_recorded": executor.not_recorded,
        "promoted": [dict(changes) for changes in state.promoted], "identical": bool(until) or (not stopped and ending == recorded and state.promoted == was.promoted),
        "text": text,
    }  # fmt: skip


def _ending(entries: Any) -> str | None:
    closed: list[Entry] = [entry for entry in entries if entry.kind == EntryKind.CLOSED]
    return str(closed[-1].body["ending"]) if closed else None
