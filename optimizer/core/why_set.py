"""Why a setting is what it is after a study: the cause that it cures with the evidence on both sides, what was predicted, what was
measured, and what confirmed it. From the entries alone, without the knowledge files; pure, and it decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optimizer.core.closing import is_refuted
from optimizer.core.state import State
from optimizer.errors import UsageError
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.settings import Settings

_INTERVAL = ("ratio", "low", "high", "confidence", "n_candidate", "n_baseline", "verdict", "final", "reason")
_TRIED = (EntryKind.CHOSEN, EntryKind.PRUNED, EntryKind.DEFERRED)


def changed(state: State) -> dict[str, Any]:
    """The settings that the study changed and did not take back, by name; None for one that was taken off the command line."""
    if is_refuted(state):
        return {}
    return {name: value for name, value in sorted(state.baseline.values.items()) if value is not None or name in state.given}


def why_set(entries: Sequence[Entry], state: State, text: str) -> dict[str, Any]:
    """``answer``: changed, taken_back, absent (kept off a command line that it never was on), tested or given. ``text``: ``name``, ``--flag``, ``VARIABLE``, each with or without ``=value``.
    Raises UsageError for a setting that the study neither changed, tested nor found on the command line."""
    name = _of_cause(entries, state, text) or _name(text)
    tested = [entry for entry in entries if entry.kind in _TRIED and name in (entry.body.get("changes") or {})]
    kept = [entry for entry in entries if entry.kind == EntryKind.PROMOTED and name in entry.body["changes"]]
    study = state.spec.study if state.spec else ""
    if not kept and not tested and name not in state.given:
        known = ", ".join(changed(state)) or "none"
        if any(row["id"] == text.strip() for row in state.ranked) or text.strip() in state.beliefs:
            raise UsageError(f"The study {study} kept nothing for the cause {text.strip()!r}. Changed: {known}.",
                             hint=f"optimize why-not {study} {text.strip()} says what became of it.")  # fmt: skip
        raise UsageError(f"The study {study} did not change {name!r}. Changed: {known}.",
                         hint=f"optimize why-not {study} {text.strip()} says what ruled it out, or what its test would cost.")  # fmt: skip
    found: dict[str, Any] = {"study": study, "setting": name, "given": name in state.given, "given_value": state.given.get(name)}
    if not kept:
        return {**found, "answer": "tested" if tested else "given", "entry": tested[-1].seq if tested else None}
    promoted = _measured_one(kept)
    if not is_refuted(state) and name not in state.given and state.baseline.values.get(name, "") is None:
        return {**found, "answer": "absent", "entry": promoted.seq, "together": dict(promoted.body["changes"])}
    stands = name in changed(state)
    return {
        **found, "answer": "changed" if stands else "taken_back", "entry": promoted.seq, "value": promoted.body["changes"][name],
        "before": _before(state, promoted, name),
        "taken_back": None if stands else _taken_back(entries, state, promoted),
        "together": {other: value for other, value in promoted.body["changes"].items() if other != name and (value is not None or other in state.given)},
        **_idea(entries, promoted, name), **_look(entries, promoted, name),
        "result": {key: state.closed[key] for key in ("baseline", "best")} | {"entry": entries[-1].seq} if state.closed is not None and stands else None,
    }  # fmt: skip


def _of_cause(entries: Sequence[Entry], state: State, text: str) -> str | None:
    """The first setting that was changed for the cause of this name; None where it is none, or nothing was kept for it."""
    asked = text.strip()
    for entry in entries:
        if entry.kind == EntryKind.PROMOTED and asked in (entry.body["hypothesis"], *entry.body.get("companions", ())):
            changes = [name for name, value in sorted(entry.body["changes"].items()) if value is not None or name in state.given] or sorted(entry.body["changes"])
            mine = [name for name in changes if any(cause["id"] == asked for cause in _idea(entries, entry, name)["causes"])]
            return next(iter(mine or changes), None)
    return None


def _name(text: str) -> str:
    name = text.strip().partition("=")[0].partition(" ")[0]
    bare = name.removeprefix("env.")
    if bare and bare.isupper():
        return f"env.{bare}"
    return name.lstrip("-").replace("-", "_") if not name.startswith("env.") else name


def _measured_one(kept: Sequence[Entry]) -> Entry:
    """Of the same change on several boxes the first; of several changes of one setting the last."""
    last = kept[-1]
    return next(entry for entry in kept if entry.body["changes"] == last.body["changes"])


def _before(state: State, promoted: Entry, name: str) -> Any:
    """What it was under the settings that this change was compared with, as the server itself reported it; None if it told nothing."""
    before = promoted.body.get("before") or {}
    arm = state.arms.get(Settings(values=before).digest)
    return before.get(name, (arm.effective.get(name) if arm is not None else None) or state.given.get(name))


def _taken_back(entries: Sequence[Entry], state: State, promoted: Entry) -> dict[str, Any]:
    undone = next((entry for entry in entries if entry.seq > promoted.seq and entry.kind == EntryKind.ROLLED_BACK), None)
    if undone is not None:
        return {"entry": undone.seq, "why": undone.body.get("why", "")}
    return {"entry": entries[-1].seq, "why": "its fresh launch did not bear the gain out"}


def _idea(entries: Sequence[Entry], promoted: Entry, name: str) -> dict[str, Any]:
    """Each cause that the setting is to cure, as the last ranking before the choice saw it, and what was predicted."""
    hypothesis = promoted.body["hypothesis"]
    before = [entry for entry in entries if entry.seq < promoted.seq]
    chosen = next((entry for entry in reversed(before) if entry.kind == EntryKind.CHOSEN and entry.body["hypothesis"] == hypothesis), None)
    if chosen is None:
        return {"causes": [{"id": hypothesis, "claim": "", "for": [], "against": [], "entry": None}], "chosen": None, "predicted": None}
    companions = [item for item in chosen.body.get("companions", ()) if name in item.get("changes", {})]
    named = companions or [{"hypothesis": hypothesis, "claim": chosen.body.get("claim", "")}]
    ranked = next((entry for entry in reversed(before) if entry.kind == EntryKind.RANKED and entry.seq < chosen.seq), None)
    rows: Mapping[str, Any] = {row["id"]: row for row in ranked.body["hypotheses"]} if ranked is not None else {}
    causes = [
        {"id": item["hypothesis"], "claim": item.get("claim", ""), "for": list(rows.get(item["hypothesis"], {}).get("for", ())),
         "against": list(rows.get(item["hypothesis"], {}).get("against", ())), "entry": ranked.seq if ranked is not None else None}
        for item in named
    ]  # fmt: skip
    return {"causes": causes, "chosen": chosen.seq, "predicted": chosen.body.get("ratio")}


def _look(entries: Sequence[Entry], promoted: Entry, name: str) -> dict[str, Any]:
    """The last verdict on the change, which may be of after the promotion, and what the server's start did differently for it."""
    looks = [entry for entry in entries if entry.kind == EntryKind.JUDGED and entry.body.get("changes") == promoted.body["changes"]
             and entry.body.get("hypothesis") == promoted.body["hypothesis"]]  # fmt: skip
    measured = {key: looks[-1].body["judgement"][key] for key in _INTERVAL} | {"entry": looks[-1].seq, "launched": looks[-1].cause} if looks else None
    weighed = looks[-1].body.get("weighed", "") if looks else ""
    answers = next((entry.body["answers"] | {"entry": entry.seq} for entry in reversed(looks) if entry.body.get("answers")), None)
    side = [{"concurrency": row["concurrency"], "before": row["before"], "after": row["after"], "ratio": row["ratio"], "entry": looks[-1].seq,
             **({"invalid": row["invalid"]} if "invalid" in row else {})}
            for row in (looks[-1].body.get("side", ()) if looks else ())][1:]  # fmt: skip
    return {"measured": measured, "weighed": weighed, "kept_because": promoted.body.get("why", ""), "flips": list(_flips(entries, promoted, name)),
            "answers": answers, "side": side}  # fmt: skip


def _flips(entries: Sequence[Entry], promoted: Entry, name: str) -> Iterator[dict[str, Any]]:
    since = next((entry.seq for entry in reversed(entries) if entry.kind == EntryKind.CHOSEN and entry.seq < promoted.seq), 0)
    for entry in entries:
        if entry.kind == EntryKind.FLIPPED and since < entry.seq < promoted.seq:
            yield from ({"fact": flip["fact"], "before": flip["before"], "after": flip["after"], "entry": entry.seq} for flip in entry.body["flips"]
                        if name in flip.get("blame", ()) and not flip.get("minor"))  # fmt: skip
