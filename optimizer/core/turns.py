"""Whose turn it is in a study on several boxes. Each box without a running step is asked, the leading one first, by the same state
machine that one box has; what would have two boxes do the same, or end the study under a box that still works, waits. The
answer is a function of the journal alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from optimizer.core import boxes, closing, credit
from optimizer.core.decision import BoxesDecision, Conclude, Finished, OnBox, PartDecision, Waiting
from optimizer.core.plan import Plan
from optimizer.core.state import State
from optimizer.errors import OptimizerError

MAX_UNKNOWN = 3  # attempts to find out how a step ended before its box is given up
AT_ONCE = ("met",)  # endings that nobody's test can change
Decide = Callable[[State, Plan], PartDecision]


def next_turn(state: State, plan: Plan, decide: Decide) -> BoxesDecision:
    """The next conclusion, or the next step of one of the boxes; Waiting while all that can be done is running."""
    running: list[str] = []
    idle: list[str] = []
    endings: dict[str, Conclude] = {}
    leader = boxes.leading(tuple(state.boxes.values())).box
    # The leading box first: what it chooses, the others leave alone.
    for name, part in sorted(state.boxes.items(), key=lambda item: item[0] != leader):
        if part.lost or part.open is not None:
            if (said := _of_link(state, part)) is not None:
                return said
            running += [] if part.lost else [name]
            continue
        seen = replace(part, peers=tuple(other for other in state.boxes.values() if other is not part))
        decision = _turn(seen, decide(seen, plan))
        match decision:
            case None:
                continue
            case Waiting():
                idle.append(decision.why)
            case Conclude() if _ends_study(decision) and decision.body["closing"] not in AT_ONCE:
                endings[name] = decision
            case _:
                return decision
    if running:
        return Waiting("; ".join(idle) or f"{', '.join(running)} at work")
    if endings:  # nobody has anything left to do: the leading box knows most of what was promoted
        return endings.get(leader) or next(iter(endings.values()))
    if idle:
        raise OptimizerError(f"Every box waits for another one ({'; '.join(idle)}): this is a defect of the state machine.")
    return _end(state, plan)


def _of_link(state: State, part: State) -> Conclude | None:
    """A box that does not answer is given up, and tried once more before the study closes."""
    if not part.lost and part.open is not None and part.open_failures >= MAX_UNKNOWN:
        why = (
            f"How the step '{part.open.kind}' ({part.open.key}) ended could not be found out in {MAX_UNKNOWN} attempts. The box is given up, its trial is "
            "open again for the others; the guard on it restores what was there."
        )
        return Conclude("note", {"lost": True, "text": why, "box": part.box})
    if part.lost and state.closing is not None and not part.last_try:
        return Conclude("note", {"back": True, "text": "Tried again, to bring it into its end state.", "box": part.box})
    return None


def _turn(part: State, decision: PartDecision) -> BoxesDecision | None:
    """The decision of the one-box machine as one of several boxes may carry it out; None when it has nothing left to do."""
    match decision:
        case Conclude(kind="closed"):
            return None
        case Conclude() if "closing" in decision.body and decision.body["closing"] not in boxes.BOX_ENDINGS:
            return decision
        case Conclude(kind="promoted"):
            return _promotion(part, decision)
        case Conclude():
            return _named(part, decision)
        case Waiting() | Finished():
            return decision
        case _:
            return OnBox(part.box, decision)


def _named(part: State, decision: Conclude) -> Conclude:
    return replace(decision, body={**decision.body, "box": part.box})


def _ends_study(decision: Conclude) -> bool:
    return decision.kind == "note" and "closing" in decision.body and "box" not in decision.body


def _promotion(part: State, decision: Conclude) -> Conclude | Waiting:
    """Only one chain of promotions: what was shown over a baseline that another box has replaced meanwhile is shown again over the new
    one. How the two work together is measured, not assumed."""
    body = decision.body
    if any(peer.provisional is not None and boxes.is_at_work(peer) for peer in part.peers):
        return Waiting(f"{part.box} waits for the confirmation of what another box promoted")
    ahead = next((peer for peer in part.peers if peer.provisional is None and len(peer.promoted) > len(part.promoted)), None)
    if ahead is None:
        return _named(part, decision)
    why = f"{body['why']} Meanwhile {ahead.box} promoted other settings: open again, to be tried on top of them."
    gained = body.get("bayes_db", part.test.judgement.bayes_db if part.test is not None and part.test.judgement is not None else 0.0)
    kept: Mapping[str, Any] = {key: body[key] for key in ("hypothesis", "changes", "settings_digest", "verdict")}
    if part.test is not None and part.test.judgement is not None:  # of several causes each keeps its own share
        kept = {**kept, **credit.of_test(part, part.test, part.test.judgement)}
    return _named(part, Conclude("deferred", {**kept, "why": why, "bayes_db": gained}, decision.cause))


def _end(state: State, plan: Plan) -> Conclude:
    if state.closing is not None:
        return Conclude("closed", closing.closed_body(state, plan), state.closing.entry)
    left = [part for part in state.boxes.values() if part.closing is not None]
    lost = [part.box for part in state.boxes.values() if part.lost]
    if lost:
        return Conclude("note", {"closing": "needs_operator", "text": f"No box is left to work on: {', '.join(lost)} cannot be reached."})
    ending = left[0].closing.ending if left and left[0].closing else "needs_operator"
    said = "; ".join(f"{part.box}: {part.closing.reason}" for part in left if part.closing is not None)
    return Conclude("note", {"closing": ending, "text": f"No box is left to work on. {said}"})
