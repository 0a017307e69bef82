"""The two protocols that the loop stands on: something that executes steps, and something that remembers entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from optimizer.model.entry import Entry
from optimizer.model.outcome import Outcome
from optimizer.model.step import Step


@dataclass(frozen=True)
class Effect:
    """How a step ended, and the files that support it (name -> bytes), committed with the outcome."""

    outcome: Outcome
    blobs: Mapping[str, bytes] = field(default_factory=dict)


class Executor(Protocol):
    """Live, recorded or dry: the core cannot tell which."""

    async def execute(self, step: Step) -> Effect:
        """Do it. Returns an Outcome whatever happens; raises only for defects and for NeedsOperator."""
        ...

    async def reconcile(self, step: Step) -> Effect:
        """Find out how ``step`` ended whose outcome was never written, and finish it."""
        ...


class EntryLog(Protocol):
    """An append-only, gapless log with compare-and-append."""

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        key: str | None = None,
        cause: int | None = None,
        expect: int,
        blobs: Mapping[str, bytes] | None = None,
    ) -> Entry: ...

    def read(self, after: int = 0) -> Sequence[Entry]: ...
