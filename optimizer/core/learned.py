"""Learning across studies: how predictions fared before moves the prior of a hypothesis and where its prediction lies. Pure and
bounded: experience from elsewhere is worth a few launches, never a verdict, and every idea is still tested here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from optimizer.core.plan import Plan
from optimizer.core.state import State
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.learned import Learned
from optimizer.model.playbook import EngineName, Playbook

MOST_DB = 5.0  # by which experience may move a prior
PRIOR_TESTS = 2.0  # what the playbook's own prediction counts for
ELSEWHERE = 0.3  # of a test on another class of box
MOST_SHIFT = math.log(2.0)  # by which a prediction may move
HELD = ("supported", "partial")
FAILED = ("harmful", "no_useful_effect", "below_prediction")


def box_class(survey: Mapping[str, object] | None) -> str:
    """Studies of one class may learn from each other without a discount."""
    known = survey or {}
    gpu, count = known.get("gpu"), known.get("gpu_count")
    return f"{gpu} x{count}" if gpu else "CPU"


def adapted(state: State, plan: Plan) -> Plan:
    """The plan with what was learned worked into its playbooks, once the engine and the box are known."""
    if not plan.learned or state.survey is None:
        return plan
    engine, box = str(state.survey.get("engine", "")), box_class(state.survey)
    by_cause: dict[str, list[tuple[float, Learned]]] = {}
    for row in plan.learned:
        if row.engine in ("any", engine):
            by_cause.setdefault(row.cause, []).append((1.0 if row.box == box else ELSEWHERE, row))
    books = tuple(_adapted(book, by_cause[book.id]) if book.id in by_cause else book for book in plan.playbooks)
    return replace(plan, playbooks=books, learned=())


def _adapted(book: Playbook, rows: Sequence[tuple[float, Learned]]) -> Playbook:
    held = math.fsum(weight * row.held for weight, row in rows)
    failed = math.fsum(weight * (row.tests - row.held) for weight, row in rows)
    db = max(-MOST_DB, min(MOST_DB, 10.0 * math.log10((held + 1.0) / (failed + 1.0))))
    changes: dict[str, object] = {"prior_db": max(-100.0, min(100.0, round(book.prior_db + db, 2)))}
    if book.predicts is not None and held > 0:
        total = math.fsum(weight * row.sum_ln for weight, row in rows)
        shift = max(-MOST_SHIFT, min(MOST_SHIFT, total / (held + PRIOR_TESTS)))
        low, high = (round(edge * math.exp(shift), 4) for edge in book.predicts.ratio)
        changes["predicts"] = book.predicts.model_copy(update={"ratio": (low, high)})
    return book.model_copy(update=changes)


def taught_by(entries: Iterable[Entry], state: State) -> tuple[tuple[int, Learned], ...]:
    """(journal entry, what it teaches) of every prediction that this study tested by itself and decided. A bundle teaches nothing
    about its parts."""
    engine: EngineName = "vllm" if (state.survey or {}).get("engine") == "vllm" else "sglang"
    if str((state.survey or {}).get("engine", "")) not in ("sglang", "vllm"):
        return ()
    box, found = box_class(state.survey), []
    ratios: dict[str, tuple[float, float]] = {}
    alone: dict[str, bool] = {}
    for entry in entries:
        body = entry.body
        if entry.kind == EntryKind.CHOSEN and body.get("ratio"):
            ratios[body["hypothesis"]] = (float(body["ratio"][0]), float(body["ratio"][1]))
            alone[body["hypothesis"]] = not body.get("bundle")
        elif entry.kind == EntryKind.JUDGED and body["judgement"].get("final"):
            name, judgement = body["hypothesis"], body["judgement"]
            verdict = judgement["verdict"]
            if verdict not in (*HELD, *FAILED) or name not in ratios or not alone[name]:
                continue
            held = verdict in HELD
            gap = math.log(float(judgement["ratio"])) - 0.5 * math.fsum(math.log(edge) for edge in ratios[name]) if held else 0.0
            found.append((entry.seq, Learned(cause=name, engine=engine, box=box, tests=1, held=int(held), sum_ln=round(gap, 6), sum_squares=round(gap * gap, 6))))
    return tuple(found)


def merged(rows: Iterable[Learned]) -> tuple[Learned, ...]:
    """One row for each cause, engine and class of box."""
    sums: dict[tuple[str, str, str], Learned] = {}
    for row in rows:
        key = (row.cause, row.engine, row.box)
        known = sums.get(key)
        sums[key] = row if known is None else known.model_copy(update={
            "tests": known.tests + row.tests, "held": known.held + row.held, "sum_ln": round(known.sum_ln + row.sum_ln, 6),
            "sum_squares": round(known.sum_squares + row.sum_squares, 6),
        })  # fmt: skip
    return tuple(sums[key] for key in sorted(sums))
