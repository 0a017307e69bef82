"""The box's clock of the day is set, forward and back, in the life of a study: everything that counts time there goes on."""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.box.results import BoxLocked
from optimizer.transport.local import LocalTransport
from tests.clocks import SetClock

from .conftest import alive, until
from .test_launch import Server

HOUR_S = 3600.0
GUARD_S = 6.0  # beats come far more often, also on a busy machine


class _Transport(LocalTransport):
    """The box's Python is one whose clock can be set."""

    def __init__(self, python: str, home: Path) -> None:
        super().__init__(home=home)
        self.program = python

    async def _inner_python(self) -> str:
        return self.program


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    (tmp_path / "clock").mkdir()
    return SetClock(tmp_path / "clock")


@pytest.fixture
def box(clock: SetClock, home: Path) -> Box:
    return Box(_Transport(clock.python, home))


@pytest.fixture
def held(home: Path, box: Box) -> Callable[..., Any]:
    """Locks the box for a study of a coordinator on another machine, whose life only its silence can tell."""

    async def lock(study: str) -> None:
        await box.lock(study)
        record = home / ".optimizer/box.lock/holder.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "coordinator_boot_id": "another", "coordinator_name": "laptop"}))

    return lock


async def beating(box: Box) -> None:
    """As the coordinator does beside its steps."""
    for beat in itertools.count():
        assert await box.heartbeat("s1", beat)
        await asyncio.sleep(0.2)


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Servers that the guard has started again, without a marker of ours."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.fault("F38")
async def test_the_guard_waits_as_long_as_it_should(
    box: Box, clock: SetClock, home: Path, server: Server, free_port: int, spawn: Callable[..., Any], started: list[int]
) -> None:
    """An hour forward while the coordinator is heard: nothing happens. An hour back, and it falls silent: the box is restored."""
    owner = spawn(server(free_port), stdout=-3, env={"PATH": os.environ["PATH"]}, cwd="/")
    await until(lambda: owner.poll() is None and Path(f"/proc/{owner.pid}/exe").exists())
    seen = None
    while seen is None:
        seen = next((one for one in (await box.find_servers(free_port)).servers if one.pid == owner.pid and one.ports), None)
    await box.lock("s1")
    guard = await box.secure("s1", seen, minutes=GUARD_S / 60, poll_s=0.1, listen_wait_s=20.0)
    heart = asyncio.create_task(beating(box))
    assert Path(f"/proc/{guard.pid}/cmdline").read_bytes().split(b"\0")[0] == sys.executable.encode()
    await box.stop_original("s1", seen, term_s=2)
    owner.wait(10)
    launched = await box.launch("s1", "1", seen.argv, port=free_port)
    before = await box.hello()
    clock.step(HOUR_S)
    after = await box.hello()
    assert after.clock_unix_s - before.clock_unix_s > HOUR_S - 60 and after.clock_monotonic_s - before.clock_monotonic_s < 60
    await asyncio.sleep(0.5)
    assert alive(guard.pid) and alive(launched.pid)
    assert (await box.run_job(b"print('job')", b"", "s1:j", 20, lambda line: None)).exit == 0
    await asyncio.sleep(0.5)
    heart.cancel()
    await asyncio.gather(heart, return_exceptions=True)
    assert await box.heartbeat("s1", -1)
    clock.step(-HOUR_S)
    assert (await box.hello()).clock_unix_s < time.time() - HOUR_S + 60
    silent = time.monotonic()
    await until(lambda: not alive(guard.pid), 60)
    fired = (await box.guard_status("s1")).fired
    assert fired is not None and fired.restored and fired.clean and fired.pid is not None, fired
    started.append(fired.pid)
    assert time.monotonic() - silent > GUARD_S / 2 and fired.reason == "silent"
    assert not alive(launched.pid)
    log = (home / ".optimizer/runs/s1/guard/guard.log").read_text().split()
    assert int(log[0]) < time.time() - HOUR_S + 600, "the guard's clock was not set back"


@pytest.mark.fault("F38")
async def test_a_clock_that_is_set_is_no_silence(box: Box, clock: SetClock, home: Path, held: Callable[..., Any]) -> None:
    """Who holds the box from another machine is judged by its silence, when its guard is gone."""
    await held("other")
    guard = await box.secure("other", None)
    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not alive(guard.pid))
    assert await box.heartbeat("other", 1)
    clock.step(HOUR_S)
    with pytest.raises(BoxLocked, match="laptop"):
        await box.lock("mine", patience_s=900)
    # ... and a clock that was set back hides none.
    clock.step(-HOUR_S)
    for path in (home / ".optimizer/box.lock/holder.json", home / ".optimizer/studies/other/heartbeat"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "monotonic_s": record["monotonic_s"] - 1000}))
    await box.lock("mine", patience_s=900)
