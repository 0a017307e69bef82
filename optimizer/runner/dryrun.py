"""The executor behind ``optimize plan``: reading steps for real, the rest only as what would be done. Opens no writable door: no
claim, no lock, no launch."""

from __future__ import annotations

from optimizer.model.outcome import Failed
from optimizer.model.step import Observe, Step
from optimizer.runner.base import Effect
from optimizer.runner.execute import LiveExecutor


class DryRunExecutor:
    """Reads for real through the live executor; every other step answers what it would do."""

    def __init__(self, live: LiveExecutor) -> None:
        self._live = live

    async def execute(self, step: Step) -> Effect:
        if isinstance(step, Observe):
            return await self._live.execute(step)
        return Effect(Failed(cause="interrupted", message=f"Would do: {step.kind}.", retryable=True))

    async def reconcile(self, step: Step) -> Effect:
        return await self.execute(step)
