"""Several boxes in memory, driven step by step in any order: the loop of the product without tasks, so that a test chooses which box's
step ends next."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from optimizer.core.decide import decide_boxes
from optimizer.core.decision import Conclude, Finished, OnBox, Waiting
from optimizer.core.plan import Plan
from optimizer.core.state import State, apply
from optimizer.model.entry import EntryKind
from optimizer.model.study import BoxSpec, HostSpec, StudySpec
from optimizer.runner.recorded import MemoryLog

from .model_box import PLAN, ModelBox, spec

NAMES = ("a", "b", "c", "d")


def several(count: int, **changes: Any) -> StudySpec:
    base = spec(**changes)
    boxes = tuple(BoxSpec(name=name, host=HostSpec(name=name, kind="ssh"), launch=base.launch) for name in NAMES[:count])
    return base.model_copy(update={"boxes": boxes, "host": boxes[0].host})


class Driver:
    """``executors`` by box. ``order`` picks the box whose step ends next; ``cut``: (number of the step) -> die before its outcome."""

    def __init__(
        self, study: StudySpec, executors: Mapping[str, ModelBox], plan: Plan = PLAN, *, order: Callable[[list[str]], str] | None = None, seed: int = 1
    ) -> None:
        self.log = MemoryLog()
        self.plan, self.executors = plan, executors
        self.rng = random.Random(seed)
        self.order = order or (lambda names: self.rng.choice(names))
        self.state = apply(State(), self.log.append("opened", {"spec": study.plain()}, expect=0))
        self.running: dict[str, Any] = {}  # box -> effect that is on its way
        self.check: Callable[[State], None] = lambda state: None

    def append(self, kind: str, body: Mapping[str, Any], **more: Any) -> None:
        entry = self.log.append(kind, body, expect=self.state.seq, **more)
        assert entry.seq < 3000, "the study does not end"
        self.state = apply(self.state, entry)
        self.check(self.state)

    def step(self) -> bool:
        """One decision or one outcome; False at the end."""
        decision = decide_boxes(self.state, self.plan)
        match decision:
            case Finished():
                return False
            case Conclude():
                self.append(decision.kind, decision.body, cause=decision.cause)
            case OnBox():
                self.append("intent", {"step": decision.step.model_dump(mode="json"), "box": decision.box}, key=decision.step.key)
            case Waiting():
                open_ = [name for name, part in self.state.boxes.items() if part.open is not None and not part.lost]
                assert open_, f"nobody works: {decision.why}"
                self.end(self.order(open_))
        return True

    def end(self, name: str) -> None:
        part = self.state.boxes[name]
        assert part.open is not None
        work = self.executors[name].reconcile(part.open) if part.open_failures else self.executors[name].execute(part.open)
        effect = asyncio.run(work)
        self.append("outcome", {"step": part.open.kind, "outcome": effect.outcome.model_dump(mode="json"), "box": name}, key=part.open.key)

    def run(self) -> State:
        while self.step():
            pass
        return self.state

    def of(self, kind: EntryKind, box: str | None = None) -> list[Any]:
        return [entry for entry in self.log.read() if entry.kind == kind and (box is None or entry.box == box)]
