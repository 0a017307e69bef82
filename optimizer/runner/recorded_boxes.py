"""Replay of a study on several boxes: today's decisions, answered from what each box recorded, in the order in which the boxes' steps
ended then. Another policy would have met another order; where it opens steps that were never recorded, replay stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from optimizer.core.decide import decide_boxes
from optimizer.core.decision import Conclude, Finished, OnBox, Waiting
from optimizer.core.plan import Plan
from optimizer.core.state import State, apply, fold
from optimizer.model.entry import Entry, EntryKind
from optimizer.runner.base import EntryLog
from optimizer.runner.recorded import RecordedExecutor


class RecordedBoxes:
    """The boxes of ``entries``, each answering for itself. ``not_recorded``: what was asked and never measured."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        names = [str(box["name"]) for box in entries[0].body["spec"]["boxes"]]
        self.executors = {name: RecordedExecutor([entry for entry in entries if entry.box == name]) for name in names}
        self._ended = deque(entry.box for entry in entries if entry.kind == EntryKind.OUTCOME and entry.box)

    @property
    def not_recorded(self) -> list[str]:
        return [f"{name}: {question}" for name, executor in self.executors.items() for question in executor.not_recorded]

    def next_to_end(self, open_: Sequence[str]) -> str:
        """Of the boxes with a step under way, the one whose step ended first when it was recorded."""
        while self._ended:
            name = self._ended.popleft()
            if name in open_:
                return name
        return open_[0]


async def drive_recorded(log: EntryLog, boxes: RecordedBoxes, plan: Plan) -> State:
    """Decide the study in ``log`` to its end. Raises NotRecorded where the journal has no answer."""
    state = fold(log.read())

    def append(kind: str, body: dict[str, Any], **more: Any) -> State:
        return apply(state, log.append(kind, body, expect=state.seq, **more))

    while True:
        decision = decide_boxes(state, plan)
        match decision:
            case Finished():
                return state
            case Conclude():
                state = append(decision.kind, dict(decision.body), cause=decision.cause)
            case OnBox():
                state = append("intent", {"step": decision.step.model_dump(mode="json"), "box": decision.box}, key=decision.step.key)
            case Waiting():
                open_ = [name for name, part in state.boxes.items() if part.open is not None and not part.lost]
                name = boxes.next_to_end(open_)
                step = state.boxes[name].open
                assert step is not None
                effect = await boxes.executors[name].execute(step)
                state = append("outcome", {"step": step.kind, "outcome": effect.outcome.model_dump(mode="json"), "box": name}, key=step.key)
