"""Answers about a study, from its entries and the state they fold to: what ruled a setting or a cause in or out, with the interval or
the evidence, or what its test would cost here. Pure; it writes no sentence longer than a reason and decides nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optimizer.core import checks, closing, economy, rank
from optimizer.core.plan import Plan
from optimizer.core.prior import PRIOR_ART, compared
from optimizer.core.refuse import foreseen, refuse
from optimizer.core.resolve import canonical_settings
from optimizer.core.score import probability_of
from optimizer.core.state import Belief, State
from optimizer.errors import UsageError
from optimizer.model.base import Value
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.playbook import Playbook, SetAction, SpaceAction
from optimizer.model.settings import Settings
from optimizer.model.step import ORIGINAL
from optimizer.model.verdict import given_up

_ENV = re.compile(r"(?:env\.)?([A-Z][A-Z0-9_]{1,80})")
_NAME = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_.-]{0,100}")
_SETTLING = (EntryKind.PROMOTED, EntryKind.PRUNED, EntryKind.DEFERRED)



@dataclass(frozen=True)
class Question:
    """A cause, or a setting with (``valued``) or without a value. ``value`` None: not given at all."""

    kind: str  # cause or setting
    name: str
    value: Value = None
    valued: bool = False


def parse(text: str, state: State, plan: Plan) -> Question:
    """``NAME``, ``NAME=VALUE``, ``--flag``, ``--flag VALUE``, an environment variable or the id of a cause. Raises UsageError for what
    neither this build nor the knowledge files know."""
    asked = text.strip()
    if plan.playbook(asked) is not None:
        return Question("cause", asked)
    if asked == PRIOR_ART:
        known = state.spec.prior_art if state.spec is not None else ()
        said = "; ".join(f"{item.name}: {compared(state, item)}" for item in known if state.survey is not None)
        raise UsageError(f"No prior art concerned this study. {said or 'None was there when it opened.'}", hint="optimize run --prior STUDY|FILE names one.")
    name, valued, value = _split(asked)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{text!r} is neither a setting nor a cause.", hint="Examples: cuda_graph_max_bs=64, --mem-fraction-static, NCCL_PROTO=LL, speculation-off")
    spelled = _setting_name(name, plan)
    if spelled not in _known(state, plan):
        near = _near(spelled, sorted(_known(state, plan) | {book.id for book in plan.playbooks}))
        raise UsageError(f"Neither this build nor the knowledge files know {name!r}.", hint=f"Did you mean {', '.join(near)}?" if near else f"`optimize journal {state.spec.study if state.spec else 'STUDY'}` lists what it tried.")
    return Question("setting", spelled, _value(value) if valued else None, valued)


def _split(text: str) -> tuple[str, bool, str]:
    name, sign, value = text.partition("=")
    if not sign and text.startswith("--") and " " in text:
        name, sign, value = text.partition(" ")
    return name.strip(), bool(sign), value.strip()


def _value(text: str) -> Value:
    try:
        found: Value = json.loads(text)
    except ValueError:
        return None if text.lower() in ("", "none", "null") else {"true": True, "false": False}.get(text.lower(), text)
    return found


def _setting_name(name: str, plan: Plan) -> str:
    if match := _ENV.fullmatch(name):
        return f"env.{match[1]}"
    flag = name if name.startswith("--") else f"--{name.replace('_', '-')}"
    for space in plan.spaces:
        for param in space.params:
            if param.name == name or flag in param.flag:
                return param.name
    return name.lstrip("-").replace("-", "_")


def _known(state: State, plan: Plan) -> set[str]:
    names = {param.name for space in plan.spaces for param in space.params} | set(state.given)
    names |= {name for item in plan.dead for name in (*item.params, *(f"env.{one}" for one in item.env))}
    names |= {flag.name.lstrip("-").replace("-", "_") for flag in state.flags.flags}
    names |= {name for arm in state.arms.values() for name in arm.settings.values}
    names |= {name for refusal in state.refusals for name in refusal.get("params", {})}
    return names | {name for book in plan.playbooks for action in book.actions if isinstance(action, SetAction) for name in action.params} | _any_env(plan)


def _any_env(plan: Plan) -> set[str]:
    """Variables are settings as soon as an engine or a library reads them; those of a known family need no list."""
    return {f"env.{name}" for name in ("NCCL_PROTO", "NCCL_ALGO", "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE", "OMP_NUM_THREADS")}


def _near(name: str, known: Sequence[str]) -> list[str]:
    """Names that share most letter pairs with what was typed."""
    def pairs(text: str) -> set[str]:
        plain = text.casefold().replace("-", "_")
        return {plain[at : at + 2] for at in range(len(plain) - 1)}

    wanted = pairs(name)
    rated = [(len(wanted & pairs(other)) / max(1, len(wanted | pairs(other))), other) for other in known]
    return [other for rate, other in sorted(rated, key=lambda item: (-item[0], item[1]))[:3] if rate >= 0.35]


# ---- the answer -----------------------------------------------------------------------------------------------------------


def why_not(entries: Sequence[Entry], state: State, plan: Plan, question: Question) -> dict[str, Any]:
    """``answer``: kept, in_force, ruled_out, not_shown, refused, handed_over, being_tested or never_tested, and beside it everything that
    it rests on, each with its entry; ``cost``: of a test that was never made."""
    books = [book for book in plan.playbooks if _speaks_of(book, question, plan)]
    measured = list(_measured(entries, question))
    refused = list(_refused(entries, question))
    evidence = [one for book in books if (one := _evidence(state, plan, book)) is not None]
    found: dict[str, Any] = {
        "study": state.spec.study if state.spec else "", "asked": question.name if not question.valued else f"{question.name}={json.dumps(question.value)}",
        "kind": question.kind, "closed": state.closed is not None,
        "measured": measured, "refused": refused, "rule": _rule(state, plan, question), "evidence": evidence,
        "checks": list(_checks(entries, {book.id for book in books})),
        "now": _now(state, question), "foreseen": _foreseen(state, plan, question),
    }  # fmt: skip
    found["answer"] = _answer(state, question, found)
    untested = not measured and found["answer"] in ("never_tested", "ruled_out")
    found["cost"] = _cost(entries, state, [row for book in books if (row := _row_of(state, plan, book.id)) is not None]) if untested else None
    return found


def _answer(state: State, question: Question, found: Mapping[str, Any]) -> str:
    if state.test is not None and _concerns_test(state, question):
        return "being_tested"
    if found["measured"]:
        last = found["measured"][-1]
        if last["kept"]:
            return "kept"
        return "ruled_out" if last["ruled_out"] else "not_shown"
    if found["now"]["in_force"]:
        return "in_force"
    if question.kind == "cause" and found["refused"] and found["refused"][-1]["kind"] == "hand_over":
        return "handed_over"
    if found["refused"] or found["rule"] is not None:
        return "refused"
    if found["evidence"] and all(row["ruled_out"] for row in found["evidence"]):
        return "ruled_out"
    return "never_tested"


def _concerns_test(state: State, question: Question) -> bool:
    assert state.test is not None
    if question.kind == "cause":
        return question.name in (state.test.hypothesis, *state.test.bundle)
    return question.name in state.test.changes and (not question.valued or state.test.changes[question.name] == question.value)


def _fits(changes: Mapping[str, Any], question: Question) -> bool:
    return question.name in changes and (not question.valued or changes[question.name] == question.value)


def _measured(entries: Sequence[Entry], question: Question) -> Iterator[dict[str, Any]]:
    """Every test of the setting or cause that was settled, with the interval of its last look."""
    looks: dict[str, Entry] = {}
    for entry in entries:
        body = entry.body
        if entry.kind == EntryKind.JUDGED:
            looks[body["hypothesis"]] = entry
        names = {body.get("hypothesis"), *body.get("companions", ()), *body.get("bundle", ())} if entry.kind in _SETTLING else set()
        if entry.kind in _SETTLING and (question.name in names if question.kind == "cause" else _fits(body.get("changes", {}), question)):
            look = looks.get(body["hypothesis"])
            judgement = look.body["judgement"] if look is not None and look.body.get("changes") == body.get("changes") else None
            yield {
                "entry": entry.seq, "hypothesis": body["hypothesis"], "changes": body.get("changes", {}), "verdict": body.get("verdict", ""),
                "why": body.get("why", ""), "kept": entry.kind == EntryKind.PROMOTED and not _undone(entries, entry),
                "ruled_out": entry.kind == EntryKind.PRUNED and not given_up(body), "stale": _stale(entries, entry), "judged": look.seq if judgement and look else None,
                "interval": {key: judgement[key] for key in ("ratio", "low", "high", "confidence", "n_candidate", "n_baseline")} if judgement else None,
            }  # fmt: skip


def _undone(entries: Sequence[Entry], promoted: Entry) -> bool:
    return any(entry.kind == EntryKind.ROLLED_BACK and entry.seq > promoted.seq and entry.body["hypothesis"] == promoted.body["hypothesis"] for entry in entries)


def _stale(entries: Sequence[Entry], settled: Entry) -> int | None:
    """The later entry that changed the baseline under this verdict; None while it still holds."""
    if settled.kind == EntryKind.PROMOTED:
        return None
    return next((entry.seq for entry in entries if entry.seq > settled.seq and entry.kind in (EntryKind.PROMOTED, EntryKind.DRIFTED)), None)


def _refused(entries: Sequence[Entry], question: Question) -> Iterator[dict[str, Any]]:
    for entry in entries:
        parts = [entry.body] if entry.kind == EntryKind.REFUSED else list(entry.body.get("refused_parts", ())) if entry.kind == EntryKind.CHOSEN else []
        for part in parts:
            params = part.get("params", {})
            named = part.get("hypothesis") == question.name if question.kind == "cause" else _fits(params, question)
            if named:
                yield {"entry": entry.seq, "kind": part["kind"], "params": params, "why": part["why"], "source": part.get("source", "")}


def _rule(state: State, plan: Plan, question: Question) -> dict[str, Any] | None:
    """Why the setting would not be launched today, whoever proposed it; None where nothing forbids it, or nothing is known yet."""
    if question.kind != "setting" or state.survey is None:
        return None
    ground = rank.ground(state, plan)
    for value in [question.value] if question.valued else _sample_values(state, plan, question.name):
        found = [item for item in refuse({question.name: value}, ground) if question.valued or item.kind in ("dead", "unavailable", "lossy")]
        if not found:
            return None
        first = found[0]
    return first.plain() if found else None


def _foreseen(state: State, plan: Plan, question: Question) -> list[dict[str, Any]]:
    """What the engine would make of the value, or do beside it without a word; empty where no value was asked about."""
    if question.kind != "setting" or not question.valued or state.survey is None:
        return []
    return [
        {"rule": item.rule, "effect": item.effect, "sets": item.sets, "why": item.why, "source": item.source}
        for item in foreseen({question.name: question.value}, rank.ground(state, plan))
    ]


def _sample_values(state: State, plan: Plan, name: str) -> list[Value]:
    param = next((param for space in plan.spaces for param in space.params if param.name == name), None)
    now = state.effective.get(name)
    if param is not None and param.grid:
        return [value for value in param.grid if value != now] or [param.grid[0]]
    if param is not None and param.type == "bool":
        return [now is not True]
    return [1 if now != 1 else 2]


def _now(state: State, question: Question) -> dict[str, Any]:
    given = canonical_settings(Settings(values=dict(state.given)).merged(state.baseline.values), keep_none=False).values
    value = given.get(question.name, state.effective.get(question.name))
    in_force = question.kind == "setting" and question.valued and value == question.value
    return {"value": value, "in_force": in_force, "given": question.name in state.given}


def _speaks_of(book: Playbook, question: Question, plan: Plan) -> bool:
    if question.kind == "cause":
        return book.id == question.name
    for action in book.actions:
        if isinstance(action, SetAction) and question.name in action.params:
            return True
        if isinstance(action, SpaceAction):
            space = plan.space(action.space)
            names = set(action.only) or {param.name for param in (space.params if space else ())}
            if question.name in names:
                return True
    return False


def _row_of(state: State, plan: Plan, name: str) -> Mapping[str, Any] | None:
    """The cause's latest row: from the journal's ranking, else scored now (the journal shows those that stand out)."""
    for row in state.ranked:
        if row["id"] == name:
            return row
    if state.survey is None:
        return None
    return next((row for row in rank.rows(state, plan) if row["id"] == name), None)


def _evidence(state: State, plan: Plan, book: Playbook) -> dict[str, Any] | None:
    """What speaks for and against a cause, and whether that alone ruled it out."""
    row = _row_of(state, plan, book.id)
    belief = state.beliefs.get(book.id)
    if row is None:
        return None
    out = next((item for item in state.ruled_out if item["id"] == book.id), None)
    return {
        "id": book.id, "claim": book.claim, "probability": row["probability"], "probability_measured": _with_measurement(belief), "score_db": row["score_db"], "prior_db": row["prior_db"],
        "for": row["for"], "against": out["against"] if out else row["against"], "ruled_out": out is not None, "testable": row["testable"],
        "predicts": row["ratio"], "status": belief.status if belief else "open", "reason": belief.reason if belief else "",
        "entry": belief.entry if belief else 0, "why_untested": _why_untested(state, row, belief), "what_would_decide": book.discriminating_test,
    }  # fmt: skip


def _with_measurement(belief: Belief | None) -> float | None:
    """The probability with the weight of the measurement that cured the cause; None: nothing was kept for it."""
    return None if belief is None or belief.final_db is None else probability_of(belief.final_db)


def _why_untested(state: State, row: Mapping[str, Any], belief: Belief | None) -> str:
    """Why no launch was spent on a cause that is open; empty when one was, although the baseline has changed since."""
    if row["status"] == "pruned":
        return ""
    if row["status"] == "refused" and belief is not None:
        return f"refused at entry {belief.entry}: {belief.reason}"
    if row["testable"]:
        return "" if state.closed is None else "the study ended before its turn came"
    if row["hand_over"]:
        return "no setting cures it"
    if row["ratio"] is None:
        return "it predicts nothing about this target's metric"
    if row["probability"] < rank.MIN_PROBABILITY:
        return f"its probability of {row['probability']:.2f} is below {rank.MIN_PROBABILITY:g}, where an idea waits for evidence"
    if row["value"] <= 0:
        return "what it could win is too small to be told from noise, or more than the loss that it addresses"
    return f"it is {row['status'].replace('_', ' ')}"


def _checks(entries: Sequence[Entry], causes: set[str]) -> Iterator[dict[str, Any]]:
    """Cheap tests whose answer spoke about one of the causes."""
    asked: dict[str | None, Mapping[str, Any]] = {}
    for entry in entries:
        if entry.kind == EntryKind.INTENT and entry.body["step"]["kind"] == "check":
            asked[entry.key] = entry.body["step"]
        elif entry.kind == EntryKind.OUTCOME and entry.body["step"] == "check" and entry.key in asked and causes & set(asked[entry.key].get("about", ())):
            outcome = entry.body["outcome"]
            said = outcome["body"]["text"] if outcome["status"] == "done" else outcome.get("message", outcome.get("reason", ""))
            yield {"entry": entry.seq, "test": asked[entry.key]["test"], "text": said}


def _minutes_of_tests(entries: Sequence[Entry]) -> Iterator[float]:
    """Of every launch that was measured as a test is: its start and its measurement. The server as found was not started by us, and the
    confirmation is measured for longer."""
    intents = {entry.key: entry.body["step"] for entry in entries if entry.kind == EntryKind.INTENT}
    took: dict[str, float] = {}
    for entry in entries:
        step = intents.get(entry.key, {}) if entry.kind == EntryKind.OUTCOME else {}
        if step.get("kind") not in ("launch", "await_ready", "measure"):
            continue
        launch, outcome = str(step.get("launch", step["key"])), entry.body["outcome"]
        took[launch] = took.get(launch, 0.0) + float(outcome.get("duration_s") or 0.0)
        if step["kind"] == "measure" and outcome["status"] == "done" and step["purpose"] in ("baseline", "candidate") and launch != ORIGINAL:
            yield took[launch] / 60.0


def _cost(entries: Sequence[Entry], state: State, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Launches and minutes of a test here: of the predicted effect where one is predicted, else of an effect of unknown size."""
    measured = list(_minutes_of_tests(entries))
    minutes = sum(measured) / len(measured) if measured else checks.launch_minutes(replace(state, launches_baseline=0, launches_after=0))
    launches = [float(row["launches"]) for row in rows if row.get("launches")]
    expected = min(launches) if launches else economy.expected_launches(0.0)
    return {
        "launches": round(expected, 1), "minutes": round(expected * minutes, 1), "minutes_per_launch": round(minutes, 1), "measured_launches": len(measured),
        "predicted": bool(launches), "launches_left": closing.launches_left(state, reserve=0) if state.spec else None,
    }  # fmt: skip
