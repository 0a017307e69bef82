"""The loop beside the core: attempts of a resumed process, replay of a study with a lost link, and a measurement that is cut."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from optimizer.engines.registry import engine
from optimizer.errors import BoxError, NeedsOperator, UsageError
from optimizer.model.outcome import Unknown
from optimizer.model.step import Launch, Level, Measure
from optimizer.model.study import LaunchSpec
from optimizer.runner import measure as measuring
from optimizer.runner.base import Effect
from optimizer.runner.context import BoxContext, Served, Session, Worker
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog, RecordedExecutor
from optimizer.wiring import Options, Roots, prepare
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


def test_an_error_rate_alone_is_no_target(tmp_path: Path) -> None:
    roots = Roots(runs=tmp_path)
    with pytest.raises(UsageError, match="error rate alone"):
        prepare(Options(host="localhost", target=("error_rate<0",)), roots)
    found = prepare(Options(host="localhost", target=("error_rate<1%,ttft.p99<500ms",)), roots).spec.target
    assert found.primary is not None and found.primary.metric == "ttft_p99_ms"
    assert [bound.metric for bound in found.guards] == ["error_rate"]
