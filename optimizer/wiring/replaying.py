"""``optimize replay``: a recorded study driven again without its box, or every decision of it recomputed and compared."""

from __future__ import annotations

import asyncio
from typing import Any

from optimizer.core.state import fold
from optimizer.errors import JournalError
from optimizer.journal import Journal, Place
from optimizer.model.entry import Entry, EntryKind
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, NotRecorded, RecordedExecutor
from optimizer.runner.recorded import verify as verify_entries
from optimizer.runner.recorded_boxes import RecordedBoxes, drive_recorded
from optimizer.wiring import Roots, plans_by_entry


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
    entries = entries[:until] if until else entries
    found = verify_entries(entries, plan_at)
    wrong = [{"seq": item.seq, "kind": item.kind, "recorded": item.recorded, "recomputed": item.recomputed} for item in found.mismatches]
    text = f"{folder.name}: {found.decisions} decisions in {found.entries} entries recomputed, {len(wrong)} differ."
    for item in wrong[:3]:
        text += f"\n  entry {item['seq']} ({item['kind']})\n    recorded   {str(item['recorded'])[:600]}\n    recomputed {str(item['recomputed'])[:600]}"
    return {"study": folder.name, "entries": found.entries, "decisions": found.decisions, "mismatches": wrong, "identical": not wrong, "text": text}


def _driven(folder: Place, until: int | None) -> dict[str, Any]:
    """Let today's policy ask, and the journal answer. Where it asks for something that was never measured, replay stops."""
    with Journal.open(folder, write=False) as journal:
        entries = journal.read()
        plan = plans_by_entry(journal, entries)(entries[-1].seq)
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
