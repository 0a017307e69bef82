"""``optimize journal`` and ``optimize studies``: entries as prose, the chain of causes of one entry, and the list of studies.
Reads journals; writes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optimizer.core.state import fold
from optimizer.core.why_set import why_set
from optimizer.errors import OptimizerError, UsageError
from optimizer.journal import Journal, Place
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.target import unit_of
from optimizer.report.asking_view import facts_text
from optimizer.report.prose import interval_text, number, sentence
from optimizer.report.search_view import search_story
from optimizer.report.setting_view import setting_text

# What a reader of the story can do without: the effect's announcement where its outcome says the same.
ROUTINE_STEPS = {"await_ready", "stop", "secure", "calibrate", "observe"}
FOLLOW_S = 0.5
SETTLING = (EntryKind.JUDGED, EntryKind.PROMOTED, EntryKind.PRUNED, EntryKind.DEFERRED)


def journal_text(folder: Place, *, why: int | str | None = None, hypothesis: str | None = None, everything: bool = False) -> str:
    """The story; or one entry with its causes, or why a setting was set (``why``: the entry's number, or the setting's name)."""
    entries = _entries(folder)
    if isinstance(why, str):
        return setting_text(why_set(entries, fold(entries), why))
    if why is not None:
        return why_text(entries, why)
    wanted = _concerning(entries, hypothesis)
    shown = [entry for entry in entries if (everything or not _routine(entry)) and entry.seq in wanted]
    if hypothesis is not None and not shown:
        raise UsageError(f"The study {folder.name} never mentions {hypothesis!r}.", hint=f"optimize journal {folder.name} lists what it does.")
    return "\n".join(line_of(entry) for entry in shown)


def line_of(entry: Entry) -> str:
    cause = f"  <- {entry.cause}" if entry.cause else ""
    return f"{entry.seq:>4} {entry.kind.value:<10} {sentence(entry)}{cause}"


def why_text(entries: Sequence[Entry], seq: int) -> str:
    """One entry, the entries that caused it, and the log lines and facts that support them."""
    lines: list[str] = []
    for depth, entry in enumerate(_chain(entries, seq)):
        lines.append(f"{'  ' * depth}{line_of(entry)}")
        lines += [f"{'  ' * depth}       {text}" for text in _support(entry)]
    return "\n".join(lines)


def why_document(study: str, entries: Sequence[Entry], seq: int) -> dict[str, Any]:
    """The same chain for programs: each entry with its sentence, its interval where it has one, and what supports it."""
    chain = []
    for entry in _chain(entries, seq):
        judgement = entry.body.get("judgement")
        kept = _interval(judgement) if judgement else _interval_before(entries, entry) if entry.kind in _ON_A_VERDICT else None
        chain.append({"seq": entry.seq, "at_utc": entry.at_utc, "kind": entry.kind.value, "text": sentence(entry), "interval": kept,
                      "support": _support(entry)})  # fmt: skip
    return {"study": study, "seq": seq, "chain": chain, "text": why_text(entries, seq)}


_ON_A_VERDICT = (EntryKind.PROMOTED, EntryKind.DEFERRED, EntryKind.PRUNED, EntryKind.ROLLED_BACK)


def _interval(judgement: Mapping[str, Any]) -> dict[str, Any]:
    return {key: judgement[key] for key in ("verdict", "ratio", "low", "high", "confidence", "n_candidate", "n_baseline")}


def _interval_before(entries: Sequence[Entry], entry: Entry) -> dict[str, Any] | None:
    """Of the verdict that this entry follows from; None for one that follows from none."""
    led = next((item for item in _chain(entries, entry.seq) if item.kind not in _ON_A_VERDICT), None)
    return _interval(led.body["judgement"]) if led is not None and led.kind == EntryKind.JUDGED and led.body.get("judgement") else None


def asked_why(text: str) -> int | str:
    """What somebody who asks ``why`` means: the number of an entry, else the name of a setting."""
    return int(text) if text.isdecimal() else text


def setting_document(entries: Sequence[Entry], setting: str) -> dict[str, Any]:
    """Why a setting was set, for programs. Raises UsageError for one that the study neither changed, tested nor found."""
    found = why_set(entries, fold(entries), setting)
    return {**found, "text": setting_text(found)}


def _chain(entries: Sequence[Entry], seq: int) -> Iterator[Entry]:
    """The entry and those that led to it, nearest first. Raises UsageError where there is no such entry."""
    by_seq = {entry.seq: entry for entry in entries}
    if seq not in by_seq:
        raise UsageError(f"There is no entry {seq}; the journal has {len(entries)}.", hint=f"optimize journal {_study_of(entries)} --all lists them.")
    current: Entry | None = by_seq[seq]
    for _ in range(50):
        if current is None:
            return
        yield current
        cause = _implied_cause(entries, current) or current.cause
        current = by_seq.get(cause) if cause and cause < current.seq else None


def _study_of(entries: Sequence[Entry]) -> str:
    return next((str(entry.body["spec"]["study"]) for entry in entries if entry.kind == EntryKind.OPENED), "STUDY")


def _support(entry: Entry) -> list[str]:
    """What speaks for an entry: the evidence lines of a ranking, the claim and test of a choice, the verdict's sides."""
    body = entry.body
    if entry.kind == EntryKind.RANKED:
        rows = []
        for row in body["hypotheses"][:5]:
            for way in ("for", "against"):
                rows += [f"{way} {row['id']}: {text}" for text in facts_text([item for item in row.get(way, []) if "fact" in item])]
        for row in body.get("ruled_out", [])[:8]:
            facts = [f"{item['fact']} = {item['value']}" for item in row["against"] if "fact" in item]
            rows.append(f"ruled out without a launch: {row['id']} ({', '.join(facts)})")
        return rows
    if entry.kind == EntryKind.CHOSEN:
        refused = [f"left out: {item['why']}" for item in body.get("refused_parts", [])]
        return [f"claim: {body.get('claim', '')}", f"what would decide: {body.get('discriminating_test', '')}", *refused]
    if entry.kind == EntryKind.INTENT and body["step"]["kind"] == "check":
        return [f"its answer speaks about: {', '.join(body['step']['about'])}"]
    if entry.kind == EntryKind.OUTCOME and body["step"] == "check" and body["outcome"]["status"] == "done":
        return [f"{fact['name']} = {fact['value']}{_labels(fact)}" for fact in body["outcome"]["body"]["evidence"]["facts"]]
    if entry.kind == EntryKind.JUDGED:
        side = [f"at concurrency {row['concurrency']}: ×{row['ratio']:.3f}" for row in body.get("side", [])]
        return [f"measured at entry {entry.cause}", *side] if entry.cause else side
    if entry.kind == EntryKind.REFUSED and body.get("source"):
        return [f"source: {body['source']}"]
    return []


def _labels(fact: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in fact.get("labels", {}).items())
    return f" ({shown})" if shown else ""


def _implied_cause(entries: Sequence[Entry], entry: Entry) -> int | None:
    """What a reader wants next: an outcome's intent, the choice behind a launch, the ranking behind a choice, the verdict behind
    a promotion. None: the recorded cause is the answer."""
    before = [item for item in entries if item.seq < entry.seq and (not entry.box or item.box in ("", entry.box))]

    def last(*kinds: EntryKind) -> int | None:
        return next((item.seq for item in reversed(before) if item.kind in kinds), None)

    match entry.kind:
        case EntryKind.OUTCOME:
            return next((item.seq for item in reversed(before) if item.kind == EntryKind.INTENT and item.key == entry.key), None)
        case EntryKind.INTENT if entry.body["step"]["kind"] == "check":
            return last(EntryKind.RANKED)
        case EntryKind.INTENT:
            return last(EntryKind.CHOSEN, EntryKind.PROMOTED, EntryKind.NOTE, EntryKind.ROLLED_BACK)
        case EntryKind.CHOSEN | EntryKind.REFUSED:
            return last(EntryKind.RANKED)
        case EntryKind.RANKED:
            ceiling = last(EntryKind.CEILING)
            tested = next((item.seq for item in reversed(before) if item.kind == EntryKind.OUTCOME and item.body["step"] == "check"), None)
            return tested if tested is not None and tested > (ceiling or 0) else ceiling
        case EntryKind.PROMOTED | EntryKind.PRUNED | EntryKind.DEFERRED:
            judged = [item for item in before if item.kind == EntryKind.JUDGED and item.body.get("hypothesis") == entry.body.get("hypothesis")]
            return judged[-1].seq if judged else None
        case EntryKind.JUDGED:
            return last(EntryKind.CHOSEN)
        case EntryKind.CLOSED | EntryKind.NOTE:
            return last(EntryKind.RANKED, EntryKind.JUDGED) if entry.body.get("closing") or entry.kind == EntryKind.CLOSED else None
    return None


def journal_document(folder: Place, *, why: int | str | None = None, hypothesis: str | None = None) -> dict[str, Any]:
    """The same as one JSON document."""
    entries = _entries(folder)
    if isinstance(why, str):
        return setting_document(entries, why)
    if why is not None:
        return {"study": folder.name, "why": why, "text": why_text(entries, why)}
    wanted = _concerning(entries, hypothesis)
    return {"study": folder.name, "entries": [entry_row(entry) for entry in entries if entry.seq in wanted]}


def search_document(folder: Place) -> dict[str, Any]:
    """How the study's search went, for people and programs."""
    return search_story(_entries(folder), folder.name)


def entry_row(entry: Entry) -> dict[str, Any]:
    """An entry for programs: its sentence and its body."""
    box = {"box": entry.box} if entry.box else {}
    return {"seq": entry.seq, "at_utc": entry.at_utc, "kind": entry.kind.value, "cause": entry.cause, "text": sentence(entry), "body": entry.body, **box}


def follow_journal(folder: Place) -> Iterator[Entry]:
    """Entries as they are written, until the study is closed."""
    seen = 0
    while True:
        with Journal.open(folder, write=False) as journal:
            entries = journal.read(seen)
        for entry in entries:
            seen = entry.seq
            yield entry
            if entry.kind == EntryKind.CLOSED:
                return
        time.sleep(FOLLOW_S)


def study_rows(folders: Sequence[Place]) -> list[dict[str, Any]]:
    """One row per study; a journal that cannot be read says why in its row."""
    rows: list[dict[str, Any]] = []
    for folder in folders:
        row: dict[str, Any] = {"study": folder.name, "folder": str(folder)}
        try:
            state = fold(_entries(folder))
        except OptimizerError as error:
            message, why, do = error.parts
            rows.append({**row, "ending": "unreadable", "said": message, "why": why, "do": do})
            continue
        if state.spec is None:
            rows.append({**row, "ending": "never opened"})
            continue
        best = (state.closed or {}).get("best", {})
        rows.append({
            **row, "host": state.spec.host.name, "target": state.spec.target.text, "ending": state.closed["ending"] if state.closed else "open",
            "measured": state.closed is None or any(arm.results for arm in state.arms.values()), "launches": state.launches_after, "minutes": round((state.closed or {}).get("minutes", state.minutes), 1), "best": best.get("value"), "metric": best.get("metric"),
            "interval": best.get("interval"),
        })  # fmt: skip
    return rows


def study_table(rows: Sequence[dict[str, Any]], *, everything: bool = False) -> str:
    """A line for each. Those that ended before anything was measured (a typing error, a box that was not fit) are named in the last line,
    unless ``everything`` is wanted."""
    if not rows:
        return "No study yet. Start one: optimize run --host sim:h200-7b"
    idle = [row["study"] for row in rows if not everything and not row.get("measured", True)]
    rows = [row for row in rows if row["study"] not in idle]
    cells = [_COLUMNS, *([row["study"], row["ending"].replace("_", " "), row.get("target", ""), row.get("host", ""), str(row.get("launches", "")), _minutes_of(row), _best(row)] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = []
    for line, found in zip(cells, [None, *rows], strict=True):
        lines.append("  ".join(text.rjust(width) if column in (4, 5) else text.ljust(width) for column, (text, width) in enumerate(zip(line, widths, strict=True))).rstrip())
        if found is not None and "do" in found:
            lines += [f"{'':<{widths[0]}}  {text}" for text in (found["said"], found["why"], *found["do"].splitlines())]
    if idle:
        named = ", ".join(idle[:5]) + (", …" if len(idle) > 5 else "")
        lines.append(f"{len(idle)} more ended before anything was measured ({named}): optimize studies --all")
    return "\n".join(lines)


_COLUMNS = ["study", "ending", "target", "host", "launches after the baseline", "minutes", "best, with its 95 % interval"]


def _minutes_of(row: Mapping[str, Any]) -> str:
    return f"{row['minutes']:,.1f}" if "minutes" in row else ""


def _best(row: Mapping[str, Any]) -> str:
    if not isinstance(row.get("best"), int | float):
        return ""
    unit = unit_of(row["metric"])
    if not row.get("interval"):
        return f"{number(row['best'])} {unit}"
    low, high = row["interval"]
    return interval_text(low, high, row["best"], unit)


def _entries(folder: Place) -> list[Entry]:
    with Journal.open(folder, write=False) as journal:
        return journal.read()


def _routine(entry: Entry) -> bool:
    if entry.kind == EntryKind.LEASE_TAKEN:
        return True
    if entry.kind == EntryKind.INTENT:
        return entry.body["step"]["kind"] not in ("launch", "measure", "restore")
    if entry.kind == EntryKind.OUTCOME:
        # The launch itself is told at its intent.
        return entry.body["step"] in (ROUTINE_STEPS - {"observe"}) | {"launch"} and bool(entry.body["outcome"]["status"] == "done")
    return entry.kind == EntryKind.NOTE and "dead_checked" in entry.body


def _concerning(entries: Sequence[Entry], hypothesis: str | None) -> set[int]:
    """The entries that name a cause, and the verdicts on launches that were chosen for it beside others; all where none is asked for."""
    if hypothesis is None:
        return {entry.seq for entry in entries}
    found = {entry.seq for entry in entries if _names(entry, hypothesis)}
    tests = [(entry.body["hypothesis"], entry.body.get("changes")) for entry in entries if entry.kind == EntryKind.CHOSEN and entry.seq in found]
    return found | {entry.seq for entry in entries if entry.kind in SETTLING and (entry.body.get("hypothesis"), entry.body.get("changes")) in tests}


def _names(entry: Entry, hypothesis: str) -> bool:
    body = entry.body
    named = [*body.get("companions", ()), *body.get("cures", ()), *body.get("bundle", ()), *body.get("hypotheses", ())]
    return body.get("hypothesis") == hypothesis or any(hypothesis in ((item.get("id"), item.get("hypothesis")) if isinstance(item, dict) else (item,)) for item in named)
