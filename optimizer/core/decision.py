"""What a decision can be, beside a step. Plain records; who makes them is ``decide`` and, for several boxes, ``turns``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.model.step import Step


@dataclass(frozen=True)
class Conclude:
    """A decision without an effect: appended as an entry of this kind."""

    kind: str
    body: Mapping[str, Any]
    cause: int | None = None


@dataclass(frozen=True)
class Finished:
    """Nothing more to do."""


@dataclass(frozen=True)
class OnBox:
    """A step for one of several boxes."""

    box: str
    step: Step


@dataclass(frozen=True)
class Waiting:
    """Nothing to decide until a running step ends. ``why``: for people who look at an idle box."""

    why: str


Decision = Step | Conclude | Finished  # of a study on one box
PartDecision = Decision | Waiting  # of one of several boxes
BoxesDecision = Conclude | Finished | OnBox | Waiting  # of a study on several
