"""A box in memory for tests of the state machine: settings in, speed out, with scripted faults. No process, no clock."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from optimizer.core.plan import Plan
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import Invalidity, LoadPoint, Measurement, ValidityCode
from optimizer.model.outcome import Done, Failed, Outcome, Unknown
from optimizer.model.playbook import EvidenceRule, HandOver, Playbook, Prediction, SetAction, SpaceAction
from optimizer.model.space import Param, Space
from optimizer.model.step import (
    ORIGINAL,
    AwaitReady,
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
from optimizer.model.study import Budget, HostSpec, LaunchSpec, StudySpec
from optimizer.model.target import parse_target
from optimizer.model.workload import Workload
from optimizer.runner.base import Effect
from optimizer.testing.in_memory import InMemoryExecutor

GRAPHS = Playbook(
    id="cuda-graph-disabled", family="config", claim="Graphs are off.", addresses="none",
    evidence=(EvidenceRule(id="flag", group="mode", when={"fact": "graphs.disable_flag", "eq": True}, if_true_db=18, if_false_db=-12),),
    predicts=Prediction(ratio=(1.5, 4.0)), actions=(SetAction(params={"disable_cuda_graph": None}),), source="test",
)  # fmt: skip
ADMISSION = Playbook(
    id="admission-cap-too-low", family="capacity", claim="Too few requests run.", addresses="none",
    evidence=(EvidenceRule(id="queue", group="queue", when={"fact": "queue.depth_p95", "ge": 4}, if_true_db=14, if_false_db=-12),),
    predicts=Prediction(ratio=(1.3, 3.0)), actions=(SetAction(params={"max_running_requests": 16}),), source="test",
)  # fmt: skip
MEMORY = Playbook(
    id="kv-capacity-queueing", family="capacity", claim="The KV pool is too small.", addresses="none",
    evidence=(EvidenceRule(id="small", group="kv", when={"fact": "kv.pool_tokens", "lt": 5000}, if_true_db=12, if_false_db=-12),),
    predicts=Prediction(ratio=(1.1, 1.5)),
    actions=(SpaceAction(space="test/memory", try_first=({"mem_fraction_static": 0.9},)),), source="test",
)  # fmt: skip
KERNEL = Playbook(
    id="arch-fallback-kernel", family="kernel", claim="A fallback kernel runs.", addresses="kernel",
    evidence=(EvidenceRule(id="fallback", group="kernel", when={"fact": "kernel.fallback", "eq": True}, if_true_db=14, if_false_db=-12),),
    predicts=Prediction(ratio=(2.0, 6.0)), actions=(HandOver(text="It needs another kernel."),), source="test",
)  # fmt: skip
SPACE = Space(id="test/memory", engine="any",
              params=(Param(name="mem_fraction_static", type="float", grid=(0.8, 0.85, 0.9, 0.95)),))  # fmt: skip
PLAN = Plan(playbooks=(GRAPHS, ADMISSION, MEMORY, KERNEL), spaces=(SPACE,), digest="test")

Speed = Callable[[Mapping[str, Value]], float]


def spec(target: str = "1000tps@16", **changes: Any) -> StudySpec:
    base = StudySpec(
        study="test", host=HostSpec(name="box", kind="local"), target=parse_target([target]), workload=Workload(concurrency=16, side_levels=()),
        launch=LaunchSpec(argv=("python3", "-m", "sglang.launch_server")), budget=Budget(minutes=100_000, launches=20), consent=True,
    )  # fmt: skip
    return base.model_copy(update=changes)


class ModelBox(InMemoryExecutor):
    """An executor. ``speed``: effective settings -> tok/s. ``crash``: settings -> cause. ``fault``: asked before every step."""

    def __init__(
        self, given: Mapping[str, Value], speed: Speed, *, noise: float = 0.01, seed: int = 1, original: bool = False, kernel: bool = False,
        crash: Callable[[Mapping[str, Value]], str | None] = lambda settings: None, fault: Callable[[Step, int], Outcome | None] = lambda step, n: None,
        gpu_count: int = 1,
        answers: Callable[[Check, Mapping[str, Value]], Outcome] = lambda step, settings: Failed(cause="refused_by_box", message="no test is scripted"),
    ) -> None:  # fmt: skip
        self.given, self.speed, self.noise, self.seed = dict(given), speed, noise, seed
        self.answers = answers
        self.original, self.kernel, self.crash, self.fault, self.gpu_count = original, kernel, crash, fault, gpu_count
        self.running: dict[str, dict[str, Value]] = {ORIGINAL: dict(given)} if original else {}
        self.armed = self.changed_before_armed = False
        self.calls: list[Step] = []
        self.launched: list[str] = []

    async def execute(self, step: Step) -> Effect:
        self.calls.append(step)
        outcome = self.fault(step, len(self.calls)) or self._do(step)
        return Effect(outcome.model_copy(update={"duration_s": 60.0}))

    async def reconcile(self, step: Step) -> Effect:
        if isinstance(step, Launch) and step.key in self.running:
            return Effect(Done(body={"pid": 1, "adopted": True}))
        if isinstance(step, Measure):
            return Effect(Failed(cause="interrupted", message="cut", retryable=True))
        return Effect(self._do(step))

    def observe(self, step: Observe) -> Outcome:
        box = {"engine": "sglang", "engine_version": "0.5.12", "gpu": None, "gpu_count": self.gpu_count, "facts": {}}
        facts = self._facts(self.given).plain()
        return Done(body={"box": box, "evidence": facts, "given": self.given, "original": self.original, "engine": "sglang"})

    def secure(self, step: Secure) -> Outcome:
        if step.op == "disarm":
            assert not [key for key in self.running if key not in (ORIGINAL, step.keep)], "disarmed with a launch of ours running"
        self.armed = step.op == "arm"
        return super().secure(step)

    def launch(self, step: Launch) -> Outcome:
        assert self.armed, "launched before the guard was armed"
        assert not self.running, "two servers at once"
        assert step.key not in self.launched, "one key launched twice"
        self.launched.append(step.key)
        self.running[step.key] = self._effective(step.settings.values)
        return Done(body={"pid": 1})

    def ready(self, step: AwaitReady) -> Outcome:
        cause = self.crash(self.running[step.launch])
        if cause:
            return Failed(cause=cause, message="it crashed", retryable=cause == "port_busy")  # type: ignore[arg-type]
        return Done(body={"launch": step.launch, "ready_s": 60.0, "mismatches": []})

    def measure(self, step: Measure) -> Outcome:
        return self._measure(step)

    def check(self, step: Check) -> Outcome:
        assert step.launch in self.running, "a test on a server that does not run"
        return self.answers(step, self.running[step.launch])

    def stop(self, step: Stop) -> Outcome:
        self.running.pop(step.launch, None)
        return super().stop(step)

    def restore(self, step: Restore) -> Outcome:
        self.running[ORIGINAL] = dict(self.given)
        return super().restore(step)

    def propose(self, step: Propose) -> Outcome:
        choices = [0.8, 0.85, 0.9, 0.95]
        return Done(body={"params": {step.params[0]: random.Random(step.seed).choice(choices)}})

    def _effective(self, overlay: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in {**self.given, **overlay}.items() if value is not None}

    def _measure(self, step: Measure) -> Outcome:
        settings = self.running[step.launch]
        rng = random.Random(f"{self.seed}/{step.launch}")
        rate = self.speed(settings) * math.exp(rng.gauss(0, self.noise))
        point = LoadPoint(concurrency=16, requests_ok=100, requests_failed=0, prompt_tokens=51200, output_tokens=25600, window_s=60.0,
                          metrics={"output_tokens_per_s": rate}, mean_output_tokens=256.0)  # fmt: skip
        body = {"measurement": Measurement(points=(point,)).plain(), "evidence": self._facts(settings).plain(), "effective": dict(settings)}
        return Done(body=body)

    def _facts(self, settings: Mapping[str, Value]) -> Evidence:
        cap = settings.get("max_running_requests")
        values: dict[str, Value] = {
            "engine.name": "sglang", "graphs.disable_flag": settings.get("disable_cuda_graph") is True,
            "queue.depth_p95": 16 - cap if isinstance(cap, int) and cap < 16 else 0,
            "kv.pool_tokens": 4000 if settings.get("mem_fraction_static") == 0.5 else 100_000, "kernel.fallback": self.kernel,
        }  # fmt: skip
        return Evidence(facts=tuple(Fact(name=name, value=value, source="test") for name, value in values.items()))


def invalid_point(code: ValidityCode = ValidityCode.ERRORS) -> Outcome:
    point = LoadPoint(concurrency=16, requests_ok=0, requests_failed=9, prompt_tokens=0, output_tokens=0, window_s=60.0, metrics={"output_tokens_per_s": 1.0},
                      invalid=(Invalidity(code=code, detail="scripted"),))  # fmt: skip
    return Done(body={"measurement": Measurement(points=(point,)).plain(), "evidence": Evidence().plain(), "effective": {}})


def unknown() -> Outcome:
    return Unknown(reason="the link died")
