"""A study's journal as a report in one of its forms, and two of them side by side; reads journals only."""

from __future__ import annotations

import json
import shlex
from typing import Any

from optimizer.core.plan import Plan
from optimizer.core.state import fold
from optimizer.engines.base import Engine
from optimizer.engines.registry import engine, engines
from optimizer.errors import JournalError
from optimizer.journal import Journal, Place
from optimizer.model.entry import EntryKind
from optimizer.model.flags import FlagTable
from optimizer.redact import Redactor
from optimizer.report.document import study_document
from optimizer.wiring import pinned_library, plan_of


def report_of(folder: Place, form: str) -> str:
    """``html``, ``md``, ``json`` or ``csv``. A study that still runs is reported as far as it got."""
    with Journal.open(folder, write=False) as journal:
        entries = journal.read()
        state = fold(entries)
        if state.spec is None:
            raise JournalError(f"The study {folder.name} was never opened completely.", why="There is nothing to report: nothing was asked or done.", hint="`optimize studies` lists the others.")
        plan = plan_of(pinned_library(journal, entries))
    if form == "md":
        from optimizer.report.study import report_markdown

        return report_markdown(entries, state, plan)
    document = study_document(entries, state, plan)
    if form == "json":
        return json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"
    from optimizer.report.page import report_csv, report_html

    return report_csv(document) if form == "csv" else report_html(document)


def compare_studies(before: Place, after: Place, *, best: bool) -> dict[str, Any]:
    """Two studies side by side; see ``core.forensics``."""
    from optimizer.core.forensics import compare

    states, ceilings = [], []
    plan = Plan()
    for folder in (before, after):
        with Journal.open(folder, write=False) as journal:
            entries = journal.read()
            states.append(fold(entries))
            told = [entry.body for entry in entries if entry.kind == EntryKind.CEILING]
            ceilings.append((told[-1] if best else told[0]) if told else None)
            plan = plan_of(pinned_library(journal, entries))
    found: dict[str, Any] = Redactor().value(compare(states[0], states[1], plan, best=best, ceilings=(ceilings[0], ceilings[1])))
    name = found["after"]["engine"]
    if name in engines():
        for row in found["suspects"]:
            row["how"] = _spelled(engine(name), states[1].flags, row["setting"], row["back_to"])
    return found


def _spelled(adapter: Engine, flags: FlagTable, param: str, value: Any) -> str | None:
    """How the later build's command line has ``param`` at ``value``; None where this build has no word for it."""
    if param.startswith("env."):
        return f"unset {param[4:]}" if value is None else f"{param[4:]}={shlex.quote(str(value))} in its environment"
    flag = adapter.dialect.offered(param, flags)
    if flag is None:
        return None
    if value is None:
        return f"leave {flag} away"
    if isinstance(value, bool):
        return flag if value else f"leave {flag} away"
    words = [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
    return " ".join([flag, *map(shlex.quote, words)])
