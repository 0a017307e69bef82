"""``optimize export``: a study's launches for other tools. Reads the journal, writes one database, changes nothing else."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from optimizer.core.state import State, apply
from optimizer.errors import UsageError
from optimizer.journal import Journal
from optimizer.model.base import Value
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.outcome import INFEASIBLE
from optimizer.model.step import STEP, Launch, Measure
from optimizer.search.export import ExportedTrial, export
from optimizer.wiring import Roots


def export_study(name: str, roots: Roots, url: str) -> dict[str, Any]:
    """Every launch of the study as a trial. Raises UsageError when nothing was launched or the database cannot be used."""
    folder = roots.named(name)
    with Journal.open(folder, write=False) as journal:
        entries = journal.read()
    state, trials = trials_of(entries)
    if not trials or state.spec is None:
        raise UsageError(f"{folder.name} launched nothing: there is nothing to export.", hint="optimize studies lists the others.")
    primary = state.spec.target.primary
    metric = primary.metric if primary else "output_tokens_per_s"
    direction = "minimize" if primary is not None and primary.direction != "at_least" else "maximize"
    survey = state.survey or {}
    notes: dict[str, Value] = {"target": state.spec.target.text, "host": state.spec.host.name, "engine": str(survey.get("engine", "")),
                               "engine_version": str(survey.get("engine_version") or ""), "ending": str((state.closed or {}).get("ending", "unfinished"))}  # fmt: skip
    second = state.spec.tradeoff if state.spec.tradeoff != metric else ""
    written = export(url, folder.name, metric, direction, trials, notes, second=second)
    objectives = f"{metric}, {direction}" + (f"; {second}, minimize" if second else "")
    text = f"{folder.name}: {written} launches written as the Optuna study {folder.name!r} ({objectives}). Look at it with: optuna-dashboard {url.partition('@')[0] if '@' not in url else 'URL'}"
    return {"study": folder.name, "trials": written, "metric": metric, "direction": direction, **({"second": second} if second else {}), "text": text}


def trials_of(entries: list[Entry] | Any) -> tuple[State, list[ExportedTrial]]:
    """Each launch with what was measured of it last, or why it failed."""
    state, order = State(), list[str]()
    rows: dict[str, dict[str, Any]] = {}
    for entry in entries:
        step = STEP.validate_python(entry.body["step"]) if entry.kind == EntryKind.INTENT else state.boxes.get(entry.box, state).open
        state = apply(state, entry)
        if entry.kind == EntryKind.INTENT and isinstance(step, Launch):
            order.append(step.key)
            rows[step.key] = {"settings": step.settings, "purpose": step.purpose, "started": _time(entry.at_utc), "entry": entry.seq, "box": entry.box}
        elif entry.kind == EntryKind.OUTCOME and isinstance(step, Launch | Measure):
            row = rows.get(step.key if isinstance(step, Launch) else step.launch)
            if row is not None:
                row["ended"] = _time(entry.at_utc)
                _learn(row, entry, state.boxes.get(entry.box, state), step)
    return state, [_trial(rows[key], state) for key in order if "value" in rows[key] or "failed" in rows[key]]


def _learn(row: dict[str, Any], entry: Entry, state: State, step: Launch | Measure) -> None:
    outcome = entry.body["outcome"]
    if outcome.get("status") == "failed" or "cause" in outcome:
        row["failed"] = f"{outcome.get('cause')}: {outcome.get('message', '')}"
        row["infeasible"] = outcome.get("cause") in INFEASIBLE
    elif isinstance(step, Measure):
        result = next((found for found in state.arm(row["settings"]).results if found.launch == step.launch), None)
        if result is not None:
            row["value"] = result.value
            row["second"] = result.points[0].metrics.get(state.spec.tradeoff) if state.spec is not None and result.points else None
            row.pop("failed", None)
        else:
            row["failed"] = "; ".join(why for launch, why in state.arm(row["settings"]).invalid if launch == step.launch) or "the run gave no usable number"


def _trial(row: dict[str, Any], state: State) -> ExportedTrial:
    params = {name: value for name, value in {**state.given, **row["settings"].values}.items() if value is not None}
    return ExportedTrial(
        params=params, value=row.get("value"), failed=row.get("failed", ""), second=row.get("second"), started=row["started"], ended=row.get("ended"),
        notes={"purpose": row["purpose"], "journal_entry": row["entry"], "infeasible": bool(row.get("infeasible", False)),
               **({"box": row["box"]} if row["box"] else {})},
    )  # fmt: skip


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).replace(tzinfo=None)
    except ValueError:
        return None
