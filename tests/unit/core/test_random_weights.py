"""A server with random weights answers in circles. That is no workload that repeats itself: n-gram drafts are no cause there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optimizer.core.decide import Conclude, decide
from optimizer.core.plan import Plan
from optimizer.core.state import State, apply, fold
from optimizer.journal import Journal
from optimizer.model.entry import Entry
from optimizer.wiring import Roots, library, plan_of

ROOT = Path(__file__).parents[3]
BASELINE_KNOWN = 15  # the last entry of the recorded study before its first ranking


def test_circles_of_random_weights_ask_for_no_drafts_from_the_text() -> None:
    """Recorded on an H200 with --load-format dummy: 99 % of the answers' pieces repeat. Today's knowledge cures the two real causes only."""
    with Journal.open(Roots(runs=ROOT / "tests/histories").named(str(ROOT / "tests/histories/h200-7b-eager")), write=False) as journal:
        entries = journal.read()
    state, plan = fold(entries[:BASELINE_KNOWN]), plan_of(library(Roots(runs=ROOT, knowledge=ROOT)))
    assert state.effective["load_format"] == "dummy" and (state.base_arm.evidence.number("client.output_repeat_share") or 0) > 0.95
    ranked = _next(state, plan)
    causes = {row["id"]: row["probability"] for row in ranked.body["hypotheses"]}
    assert causes.get("ngram-speculation-off", 0.0) < 0.1
    state = _after(state, entries, ranked)
    chosen = _next(state, plan)
    assert (chosen.kind, chosen.body["hypothesis"], chosen.body["bundle"]) == ("chosen", "admission-cap-too-low", ["cuda-graph-disabled"])


def _next(state: State, plan: Plan) -> Conclude:
    decision = decide(state, plan)
    assert isinstance(decision, Conclude)
    return decision


def _after(state: State, entries: Sequence[Entry], decision: Conclude) -> State:
    entry = entries[state.seq].model_copy(update={"kind": decision.kind, "body": decision.body, "cause": decision.cause})
    return apply(state, entry)


def test_a_long_queue_does_not_hide_what_eager_decode_costs() -> None:
    """Recorded on an H200 with four slots and no graphs: requests queue for 72 % of a round and eager launches hold 16 %, which is more
    than half of the rest. Both causes are cured together; the study itself, with the rule of its day, took a launch for each."""
    with Journal.open(Roots(runs=ROOT / "runs/recorded").named(str(ROOT / "runs/recorded/h200-7b-killed")), write=False) as journal:
        entries = journal.read()
    state, plan = fold(entries[:11]), plan_of(library(Roots(runs=ROOT, knowledge=ROOT)))
    ranked = _next(state, plan)
    chosen = _next(_after(state, entries, ranked), plan)
    assert (chosen.kind, chosen.body["hypothesis"], chosen.body["bundle"]) == ("chosen", "admission-cap-too-low", ["cuda-graph-disabled"])
