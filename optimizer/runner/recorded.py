"""Replay: fold a recorded study, recompute every decision and compare, or drive another policy over what was measured.
Touches no box; a configuration that was never measured is NotRecorded, never interpolated."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimizer.core.decide import decide, decide_boxes
from optimizer.core.decision import BoxesDecision, Conclude, Decision, Finished, OnBox, Waiting
from optimizer.core.plan import Plan
from optimizer.core.state import OUTCOME, State, apply
from optimizer.errors import JournalError, NondeterminismError
from optimizer.model.canonical import canonical_json
from optimizer.model.entry import GENESIS, Entry, EntryKind, chain_hash
from optimizer.model.outcome import Failed, Outcome, Unknown
from optimizer.model.step import STEP, AwaitReady, Check, Launch, Measure, Step
from optimizer.runner.base import Effect

OPERATOR_KINDS = {EntryKind.OPENED, EntryKind.OUTCOME, EntryKind.LEASE_TAKEN, EntryKind.KNOWLEDGE_CHANGED, EntryKind.GUARD_FIRED}


@dataclass(frozen=True)
class Mismatch:
    """One decision that today's code does not make as recorded."""

    seq: int
    kind: str
    recorded: str
    recomputed: str


@dataclass(frozen=True)
class Verification:
    entries: int
    decisions: int
    mismatches: tuple[Mismatch, ...] = field(default_factory=tuple)

    def raise_if_bad(self) -> None:
        if self.mismatches:
            first = self.mismatches[0]
            raise NondeterminismError(
                f"{len(self.mismatches)} of {self.decisions} decisions differ; the first is entry {first.seq} ({first.kind}).",
                hint=f"recorded:   {first.recorded[:400]}\nrecomputed: {first.recomputed[:400]}",
            )


def verify(entries: Sequence[Entry], plan_at: Callable[[int], Plan]) -> Verification:
    """Recompute each intent and conclusion from the entries before it and compare byte for byte.

    A stop note or anything an operator wrote is input, not a decision. ``plan_at`` gives the knowledge that was in force at
    an entry: an operator may have adopted changed files in between."""
    state, mismatches, decisions = State(), [], 0
    for entry in entries:
        if _is_decision(entry):
            decisions += 1
            plan = plan_at(entry.seq)
            recomputed = _spelled(decide_boxes(state, plan) if state.boxes else decide(state, plan))
            recorded = _as_recorded(entry)
            if recomputed != recorded:
                mismatches.append(Mismatch(entry.seq, str(entry.kind), recorded, recomputed))
        state = apply(state, entry)
    return Verification(entries=len(entries), decisions=decisions, mismatches=tuple(mismatches))


def _is_decision(entry: Entry) -> bool:
    if entry.kind in OPERATOR_KINDS:
        return False
    return not (entry.kind == EntryKind.NOTE and not ({"closing", "dead_checked", "lost"} & entry.body.keys()))


def _spelled(decision: Decision | BoxesDecision) -> str:
    match decision:
        case Finished():
            return "finished"
        case Waiting():
            return f"waiting: {decision.why}"
        case Conclude():
            return canonical_json([decision.kind, decision.body, decision.cause])
        case OnBox():
            return canonical_json(["intent", {"step": decision.step.model_dump(mode="json"), "box": decision.box}, None])
        case _:
            return canonical_json(["intent", {"step": decision.model_dump(mode="json")}, None])


def _as_recorded(entry: Entry) -> str:
    return canonical_json([str(entry.kind), entry.body, entry.cause])


class MemoryLog:
    """An entry log that lives in memory: for replay and for dry runs. Same rules, same chain, no file."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._entries = list(entries)

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        key: str | None = None,
        cause: int | None = None,
        expect: int,
        blobs: Mapping[str, bytes] | None = None,
    ) -> Entry:
        if expect != len(self._entries):
            raise JournalError(f"Expected entry {expect}, the log is at {len(self._entries)}.")
        seq, prev = expect + 1, self._entries[-1].hash if self._entries else GENESIS
        text = canonical_json(dict(body))
        digest = chain_hash(seq=seq, at_utc="", epoch=1, kind=kind, key=key, cause=cause, schema=1, body=text, prev=prev)
        entry = Entry(seq=seq, at_utc="", epoch=1, kind=EntryKind(kind), key=key, cause=cause, body=dict(body), prev=prev, hash=digest)
        self._entries.append(entry)
        return entry

    def read(self, after: int = 0) -> Sequence[Entry]:
        return self._entries[after:]


class NotRecorded(JournalError):
    """The replayed policy asked for something that was never measured."""

    matters = "A result that nobody measured is not made up, so the replay stops here."
    todo = "Replay with a policy that stays within what was measured, or measure the setting in a study of your own."


class RecordedExecutor:
    """Answers every step from a recorded journal. Launches of one setting are handed out in the order they were measured."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._answers: dict[str, deque[Outcome]] = defaultdict(deque)
        self._launched: dict[str, str] = {}
        launched: dict[str, str] = {}
        opened: dict[str, Step] = {}
        for entry in entries:
            if entry.kind == EntryKind.INTENT:
                step = STEP.validate_python(entry.body["step"])
                opened[step.key] = step
                if isinstance(step, Launch):
                    launched[step.key] = step.settings.digest
            elif entry.kind == EntryKind.OUTCOME and entry.key in opened:
                outcome = OUTCOME.validate_python(entry.body["outcome"])
                if not isinstance(outcome, Unknown):  # an intent may have any number of them; its answer is the one that settled it
                    self._answers[_question(opened[entry.key], launched)].append(outcome)
        self.not_recorded: list[str] = []

    async def execute(self, step: Step) -> Effect:
        if isinstance(step, Launch):
            self._launched[step.key] = step.settings.digest
        question = _question(step, self._launched)
        answers = self._answers.get(question)
        if not answers:
            self.not_recorded.append(question)
            raise NotRecorded(f"The study holds no measurement for: {question}", why="Nothing is interpolated, so the replay stops here.")
        return Effect(answers.popleft() if len(answers) > 1 or isinstance(step, Launch | Measure) else answers[0])

    async def reconcile(self, step: Step) -> Effect:
        return Effect(Failed(cause="interrupted", message="Replayed from an interrupted study.", retryable=True))


def _question(step: Step, launched: Mapping[str, str]) -> str:
    """What a step asks, without its key: the same question may be asked at another place of another policy's study."""
    match step:
        case Launch():
            return f"launch {step.settings.digest} {step.purpose}"
        case AwaitReady():
            return f"await_ready {launched.get(step.launch, step.launch)}"
        case Check():
            return f"check {launched.get(step.launch, step.launch)} {step.test}"
        case Measure():
            return f"measure {launched.get(step.launch, step.launch)} {step.purpose}"
        case _:
            body = {key: value for key, value in step.model_dump(mode="json").items() if key not in ("key", "launch", "keep", "seed", "history")}
            return f"{step.kind} {canonical_json(body)}"
