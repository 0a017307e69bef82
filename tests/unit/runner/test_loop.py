"""The loop beside the core: attempts of a resumed process, replay of a study with a lost link, and a measurement that is cut."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from optimizer.engines.registry import engine
from optimizer.errors import BoxError, NeedsOperator, UsageError
from optimizer.model.outcome import Unknown
from optimizer.model.step import Calibrate, Launch, Level, Measure
from optimizer.model.study import LaunchSpec
from optimizer.runner import measure as measuring
from optimizer.runner.base import Effect
from optimizer.runner.context import BoxContext, Served, Session, Worker
from optimizer.runner.loop import StopRequest, drive
from optimizer.runner.recorded import MemoryLog, RecordedExecutor
from optimizer.runner.signals import interruptible, routed
from optimizer.wiring import STOPPED, Options, Roots, prepare
from tests.unit.core.model_box import PLAN, ModelBox, spec, unknown
from tests.unit.core.test_state_machine import EAGER, speed


def opened() -> MemoryLog:
    log = MemoryLog()
    log.append("opened", {"spec": spec().plain()}, expect=0)
    return log


class LostLink(ModelBox):
    """The link dies at the first launch and stays down until ``back``."""

    back = False

    async def reconcile(self, step: Any) -> Effect:
        return await super().reconcile(step) if self.back else Effect(Unknown(reason="still down"))


def test_who_resumes_after_a_long_outage_gets_new_attempts() -> None:
    box, log = LostLink(EAGER, speed, fault=lambda step, n: unknown() if isinstance(step, Launch) and n < 5 else None), opened()
    with pytest.raises(NeedsOperator):
        asyncio.run(drive(log, box, PLAN))
    with pytest.raises(NeedsOperator):  # still down: it tries, and asks again
        asyncio.run(drive(log, box, PLAN))
    box.back = True
    state = asyncio.run(drive(log, box, PLAN))
    assert state.closed is not None and state.closed["ending"] == "met"


def test_a_study_with_a_lost_link_can_be_driven_again() -> None:
    log = opened()
    box = ModelBox(EAGER, speed, fault=lambda step, n: unknown() if isinstance(step, Launch) and n < 5 else None)
    state = asyncio.run(drive(log, box, PLAN))
    replayed = asyncio.run(drive(opened(), RecordedExecutor(log.read()), PLAN))
    assert replayed.promoted == state.promoted
    assert replayed.closed is not None and state.closed is not None
    assert replayed.closed["ending"] == state.closed["ending"]


def test_a_measurement_that_is_cut_leaves_nobody_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling: list[str] = []

    class Sampled:
        async def sample_gpu(self, *_: Any) -> str:
            sampling.append("begun")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                sampling.append("ended")
                raise
            return ""

        async def command(self, *_: Any, **__: Any) -> Any:
            raise BoxError("no list of processes")

        async def forward(self, port: int) -> tuple[str, int]:
            return "127.0.0.1", port

    async def load(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(0.01)
        raise ConnectionError("the load could not be offered")

    monkeypatch.setattr(measuring, "offer_load", load)
    level = Level(concurrency=1, warmup_min_s=1, warmup_max_s=1, window_s=1)
    step = Measure(key="9", launch="8", purpose="baseline", levels=(level,), run_index=0)

    async def main() -> None:
        nothing: Any = None
        session = Session()
        session.context = BoxContext(engine="sglang", launch=LaunchSpec(argv=("x",)), original_port=1, boot_id="b", hostname="h", has_nvidia_smi=True)
        box: Any = Sampled()
        served = Served(port=1, model="m", workers=(Worker(name=None, role="server", port=1, argv=("x",), env={}),))
        with pytest.raises(ConnectionError):
            await measuring.measure(box, spec(), session, engine("sglang"), step, served=served, progress=print, classify=lambda: nothing)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert sampling == ["begun", "ended"]


class StuckIn(ModelBox):
    """A step of kind ``step`` never ends; ``stop`` is asked as soon as it runs, some of our milliseconds later."""

    def __init__(self, step: type[Launch | Measure | Calibrate], stop: StopRequest, after_s: float) -> None:
        super().__init__(EAGER, speed)
        self.stuck, self.asked, self.after_s = step, stop, after_s

    async def execute(self, step: Any) -> Effect:
        if isinstance(step, self.stuck):
            asyncio.get_running_loop().call_later(self.after_s, self.asked.ask, "Interrupted by Ctrl-C.")
            await asyncio.sleep(60)
        return await super().execute(step)


@pytest.mark.parametrize(("step", "scale"), [(Measure, 1.0), (Measure, 1000.0), (Launch, 1000.0), (Calibrate, 1.0)])
def test_an_interrupted_step_costs_the_time_that_it_ran_on_the_servers_clock(step: Any, scale: float) -> None:
    stop, log, after_s = StopRequest(), MemoryLog(), 0.05
    box = StuckIn(step, stop, after_s)
    log.append("opened", {"spec": spec(time_scale=scale).plain()}, expect=0)
    asyncio.run(drive(log, box, PLAN, stop=stop))
    cut = [entry.body["outcome"] for entry in log.read() if entry.kind == "outcome" and entry.body["outcome"].get("cause") == "interrupted"]
    assert len(cut) == 1
    assert after_s * scale <= cut[0]["duration_s"] < (after_s + 30) * scale


def test_a_closed_terminal_ends_a_study_in_order_and_nohup_means_go_on() -> None:
    held = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert set(routed()) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert set(routed()) == {signal.SIGINT, signal.SIGTERM}
    finally:
        signal.signal(signal.SIGHUP, held)


def test_an_error_rate_alone_is_no_target(tmp_path: Path) -> None:
    roots = Roots(runs=tmp_path)
    with pytest.raises(UsageError, match="error rate alone"):
        prepare(Options(host="localhost", target=("error_rate<0",)), roots)
    found = prepare(Options(host="localhost", target=("error_rate<1%,ttft.p99<500ms",)), roots).spec.target
    assert found.primary is not None and found.primary.metric == "ttft_p99_ms"
    assert [bound.metric for bound in found.guards] == ["error_rate"]


@pytest.mark.parametrize(("asked_by", "said"), [("", "Interrupted by SIGTERM."), (STOPPED, STOPPED)])
def test_a_signal_says_who_sent_it_where_that_is_known(asked_by: str, said: str) -> None:
    async def signalled() -> str | None:
        stop = StopRequest()
        stop.asked_by = lambda: asked_by
        with interruptible(stop):
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(500):
                if stop.reason is not None:
                    break
                await asyncio.sleep(0.01)
        return stop.reason

    assert asyncio.run(signalled()) == said
