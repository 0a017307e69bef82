"""How a study's search went, told from its entries: what it started from, which parameters left a space and by what, which trials were
stopped early and what that saved, and what became of each of several boxes. Pure: entries in, a document, text and Markdown out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optimizer.model.entry import Entry, EntryKind
from optimizer.model.measurement import STOPPED_EARLY
from optimizer.model.space import ARM
from optimizer.report.prose import by_reason, changes_text

_TITLES = {
    "started_from": "What the search started from",
    "left_the_space": "Parameters that left a space",
    "stopped_early": "Trials that were stopped early",
    "boxes": "Boxes",
}
_NOTHING = {
    "started_from": "Nothing but its own baseline: no earlier study, no prior art, and no point that a playbook tries first.",
    "left_the_space": "None: no sampler was asked, or every parameter that was searched stayed in.",
    "stopped_early": "None.",
    "boxes": "One box.",
}
_SHOWN = 12  # names in a line
PRIOR_ART = "prior-art"


def search_story(entries: Sequence[Entry], study: str) -> dict[str, Any]:
    """``started_from``, ``left_the_space``, ``stopped_early`` and ``boxes``: rows with the entry that says so; ``text`` for people."""
    found = {
        "started_from": list(_started(entries)), "left_the_space": list(_left(entries)), "stopped_early": list(_stopped(entries)),
        "boxes": list(_boxes(entries)),
    }  # fmt: skip
    document: dict[str, Any] = {"study": study, **found, "limits": _limits(entries)}
    return {**document, "text": _text(document)}


def search_parts(entries: Sequence[Entry]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(title, rows) of every part that has something to say, for reports."""
    story = search_story(entries, "")
    return [(title, story[part]) for part, title in _TITLES.items() if story[part]]


def search_markdown(entries: Sequence[Entry]) -> list[str]:
    """The same as lines of a report; empty where there is nothing to say."""
    lines = []
    for title, rows in search_parts(entries):
        lines += [f"**{title}**", "", *(f"- {row['said']} (entry {row['entry']})" for row in rows), ""]
    return ["## How the search went", "", *lines] if lines else []


def _text(story: Mapping[str, Any]) -> str:
    lines = [f"How the search of {story['study']} went:"]
    for part, title in _TITLES.items():
        rows = [f"    {row['said']} (entry {row['entry']})" for row in story[part]]
        nothing = _no_stop(story["limits"]) if part == "stopped_early" and story["limits"] else _NOTHING[part]
        lines += [f"  {title}:", *(rows or [f"    {nothing}"])]
    return "\n".join([*lines, f"  An entry with all that led to it: optimize journal {story['study']} --why ENTRY"])


def _no_stop(limits: int) -> str:
    return f"None: {limits} candidate{'s' * (limits != 1)} had a rate below which the first windows end the measurement, and none fell below it."


# ---- what it started from -------------------------------------------------------------------------------------------


def _started(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        body = entry.body
        if entry.kind == EntryKind.OPENED:
            spec = body["spec"]
            for study in spec.get("earlier", ()):
                count = len(study.get("arms", ()))
                yield _row(entry, f"launches of an earlier study that ran before this one were pinned: {study['name']}, {count} setting{'s' * (count != 1)}")
            for record in spec.get("prior_art", ()):
                settings = {name: record["settings"].get(name) for name in record["chosen"]} or record["settings"]
                yield _row(entry, f"known-good settings of {record['name']} ({record['kind']}) were pinned: {changes_text(settings)}")
        elif entry.kind == EntryKind.CHOSEN and body["hypothesis"] == PRIOR_ART:
            yield _row(entry, f"prior art was tried: {changes_text(body['changes'] or {})}")
        elif entry.kind == EntryKind.CHOSEN and body.get("changes") and body["hypothesis"] != ARM:
            yield _row(entry, f"the playbook of {body['hypothesis']} named what to try, so no sampler was asked: {changes_text(body['changes'])}")
        elif entry.kind == EntryKind.INTENT and body["step"]["kind"] == "propose":
            yield _row(entry, _asked(body["step"]))


def _asked(step: Mapping[str, Any]) -> str:
    notes = [str(trial.get("note", "")) for trial in step["history"]]
    earlier = {name: notes.count(f"study {name}") for name in sorted(note.removeprefix("study ") for note in set(notes) if note.startswith("study "))}
    refused = sum(note == "refused before a launch" for note in notes)
    own = len(notes) - sum(earlier.values()) - refused
    parts = [f"{own} launch{'es' * (own != 1)} of this study, the baseline among them"]
    parts += [f"{count} of {name}" for name, count in earlier.items()]
    parts += [f"{refused} that rules refused before a launch"] * bool(refused)
    parts += [f"{len(step.get('pending', ()))} that other boxes were measuring"] * bool(step.get("pending"))
    first = f"; what did best in earlier studies came first: {'; '.join(changes_text(point) for point in step['try_first'])}" if step.get("try_first") else ""
    return f"the sampler of {step['space']} was asked ({'tpe, for the front' if step.get('tradeoff') else step.get('sampler', 'tpe')}), knowing {', '.join(parts)}{first}"


# ---- which parameters left a space ----------------------------------------------------------------------------------


def _left(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    said: set[tuple[str, str]] = set()
    for entry in entries:
        body = entry.body
        if entry.kind == EntryKind.CHOSEN and body.get("left_out"):
            for why, names in by_reason(body["left_out"]):
                new = [name for name in names if (name, why) not in said]
                said |= {(name, why) for name in new}
                if new:
                    yield {**_row(entry, f"{_named(new)}: {why}{_ruled_out_by(entries, entry, why)}"), "params": new, "space": body.get("space"), "by": "evidence" if why.startswith("ruled out with") else "rules"}
        elif _done(entry, "propose"):
            answer = body["outcome"]["body"]
            if answer.get("unimportant"):
                shares = ", ".join(f"{name} ({share:.1%})" for name, share in answer["unimportant"].items())
                yield {**_row(entry, f"{shares}: explains so little of the variance that the launches leave (functional ANOVA, less than 1 %) that it was left as it is"),
                       "params": list(answer["unimportant"]), "space": None, "by": "importance"}  # fmt: skip
            for why in sorted({str(item["why"]) for item in answer.get("left_out", ()) if item.get("note")}):
                yield {**_row(entry, f"launches of an earlier study had no place in today's space: {why}"), "params": [], "space": None, "by": "another space"}


def _ruled_out_by(entries: Sequence[Entry], chosen: Entry, why: str) -> str:
    """Which entries ruled the causes out that would have changed the parameter: a launch, else what the evidence says in the latest ranking."""
    causes = why.removeprefix("ruled out with ").split(", ") if why.startswith("ruled out with ") and "(entry " not in why else []
    before = [entry for entry in entries if entry.seq < chosen.seq and entry.box in ("", chosen.box)]
    ranked = next((entry for entry in reversed(before) if entry.kind == EntryKind.RANKED), None)
    facts = {row["id"]: row["against"] for row in (ranked.body.get("ruled_out", ()) if ranked is not None else ())}
    told = []
    for cause in causes:
        launched = next((entry for entry in reversed(entries) if entry.seq < chosen.seq and entry.kind == EntryKind.PRUNED and entry.body.get("hypothesis") == cause), None)
        if launched is not None:
            told.append(f"{cause} by a launch, entry {launched.seq}")
        elif ranked is not None:
            against = ", ".join(f"{fact['fact']} = {fact['value']}" for fact in facts.get(cause, ())[:1] if "fact" in fact)
            told.append(f"{cause} by evidence{f' ({against})' if against else ''}, entry {ranked.seq}")
    return f" ({'; '.join(told)})" if told else ""


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


# ---- which trials were stopped early --------------------------------------------------------------------------------


def _limits(entries: Sequence[Entry]) -> int:
    """Candidates whose measurement had a rate below which it ends."""
    return sum(entry.kind == EntryKind.INTENT and entry.body["step"]["kind"] == "measure" and entry.body["step"].get("stop_below") is not None for entry in entries)


def _stopped(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    steps = {(entry.box, entry.key): entry.body["step"] for entry in entries if entry.kind == EntryKind.INTENT}
    spec = entries[0].body.get("spec", {}) if entries else {}
    for entry in entries:
        body = entry.body
        if _done(entry, "measure"):
            points = body["outcome"]["body"].get("measurement", {}).get("points", ())
            step = steps.get((entry.box, entry.key), {})
            if points and (note := stopped_note(points[0])) and step:
                window = points[0]["window_s"]
                sides = [level for level in step["levels"][1:] if not any(point["concurrency"] == level["concurrency"] for point in points[1:])]
                saved = step["levels"][0]["window_s"] - window + sum(level["window_s"] + level["warmup_min_s"] for level in sides)
                loads = f", and the side load{'s' * (len(sides) != 1)} at {', '.join(str(level['concurrency']) for level in sides)}" * bool(sides)
                yield {**_row(entry, f"launch {step['launch']}, {note}; the limit was fixed before the launch. It saved at least {saved:.0f} s of load: {step['levels'][0]['window_s'] - window:.0f} s of its window{loads}"),
                       "launch": step["launch"], "by": "first windows", "saved_s": round(saved, 1)}  # fmt: skip
        elif entry.kind == EntryKind.PRUNED and body.get("verdict") == "hopeless":
            load = spec.get("workload", {})
            saved = load.get("warmup_min_s", 0.0) + load.get("window_s", 0.0) + sum(load.get("side_window_s", 0.0) for level in load.get("side_levels", ()) if level != load.get("concurrency"))
            yield {**_row(entry, f"{changes_text(body.get('changes', {}))} for {body['hypothesis']}: {body['why']} It saved at least {saved:.0f} s of load"),
                   "launch": None, "by": "start-up facts", "saved_s": round(saved, 1)}  # fmt: skip


def stopped_note(point: Mapping[str, Any]) -> str:
    """What a load point says of having been ended by its first windows; empty where it was not."""
    return next((str(note) for note in point.get("notes", ()) if str(note).startswith(STOPPED_EARLY)), "")


# ---- what became of the boxes ---------------------------------------------------------------------------------------


def _boxes(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    names = [one["name"] for one in (entries[0].body.get("spec", {}).get("boxes") or ())] if entries else []
    for entry in entries:
        body, box = entry.body, entry.box or str(entry.body.get("box", ""))
        if entry.kind == EntryKind.NOTE and body.get("lost") and any(item.seq < entry.seq and item.kind == EntryKind.NOTE and item.body.get("back") and item.box == entry.box for item in entries):
            yield {**_row(entry, f"{box} still did not answer; the guard there restores what was there, and `optimize restore --host {box}` does it once it answers"), "box": box, "event": "lost"}
        elif entry.kind == EntryKind.NOTE and body.get("lost"):
            yield {**_row(entry, f"{box} was lost: {_trial_of_the_lost(entries, entry)}. {body['text']}"), "box": box, "event": "lost"}
        elif entry.kind == EntryKind.NOTE and body.get("back"):
            yield {**_row(entry, f"{box}: {body['text']}"), "box": box, "event": "tried again"}
        elif entry.kind == EntryKind.CLOSED and names:
            for row in body.get("boxes", ()):
                state = f"lost: {row['lost']}" if row.get("lost") else str(row["runs"]) if row.get("runs") else "ended"
                yield {**_row(entry, f"{row['box']}: {row['launches']} launches after its baseline, {row['minutes']:.1f} minutes, {state}"), "box": row["box"], "event": "closed"}


def _trial_of_the_lost(entries: Sequence[Entry], lost: Entry) -> str:
    """What becomes of the trial that a lost box was in the midst of."""
    here = [entry for entry in entries if entry.box == lost.box and entry.seq < lost.seq]
    test = next((entry for entry in reversed(here) if entry.kind == EntryKind.CHOSEN), None)
    settled = (EntryKind.PROMOTED, EntryKind.PRUNED, EntryKind.DEFERRED, EntryKind.REFUSED)
    if test is None or any(entry.kind in settled and entry.seq > test.seq for entry in here):
        return "it was in the midst of no trial"
    name = test.body["hypothesis"]
    again = next((entry for entry in entries if entry.seq > lost.seq and entry.kind == EntryKind.CHOSEN and entry.box != lost.box and entry.body["hypothesis"] == name), None)
    return f"its trial ({name}, entry {test.seq}) is open again for the others" + (f", and {again.box} took it up at entry {again.seq}" if again is not None else "")


def _done(entry: Entry, step: str) -> bool:
    return bool(entry.kind == EntryKind.OUTCOME and entry.body["step"] == step and entry.body["outcome"]["status"] == "done")


def _row(entry: Entry, said: str) -> dict[str, Any]:
    return {"entry": entry.seq, "said": said}
