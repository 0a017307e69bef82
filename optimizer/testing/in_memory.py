"""The steps of the real loop carried out in memory: what tests and benchmarks have in common when no process runs and no clock ticks."""

from __future__ import annotations

from optimizer.model.outcome import Done, Outcome
from optimizer.model.step import (
    AwaitReady,
    Calibrate,
    Check,
    Launch,
    Measure,
    Observe,
    Propose,
    Restore,
    Secure,
    Step,
    Stop,
)
from optimizer.runner.base import Effect


class InMemoryExecutor:
    """An executor whose box is whatever a subclass makes of it. ``_do`` finds the step's method; those that only a box with
    processes would need are done by saying so."""

    async def execute(self, step: Step) -> Effect:
        return Effect(self._do(step))

    async def reconcile(self, step: Step) -> Effect:
        return Effect(self._do(step))

    def _do(self, step: Step) -> Outcome:
        match step:
            case Observe():
                return self.observe(step)
            case Secure():
                return self.secure(step)
            case Calibrate():
                return Done(body={"tokens_per_s": 1e6})
            case Launch():
                return self.launch(step)
            case AwaitReady():
                return self.ready(step)
            case Measure():
                return self.measure(step)
            case Check():
                return self.check(step)
            case Stop():
                return self.stop(step)
            case Restore():
                return self.restore(step)
            case Propose():
                return self.propose(step)
        raise AssertionError(step)

    def observe(self, step: Observe) -> Outcome:
        raise NotImplementedError

    def launch(self, step: Launch) -> Outcome:
        raise NotImplementedError

    def ready(self, step: AwaitReady) -> Outcome:
        raise NotImplementedError

    def measure(self, step: Measure) -> Outcome:
        raise NotImplementedError

    def check(self, step: Check) -> Outcome:
        raise NotImplementedError

    def propose(self, step: Propose) -> Outcome:
        raise NotImplementedError

    def secure(self, step: Secure) -> Outcome:
        return Done(body={"armed": step.op == "arm"})

    def stop(self, step: Stop) -> Outcome:
        return Done(body={})

    def restore(self, step: Restore) -> Outcome:
        return Done(body={})
