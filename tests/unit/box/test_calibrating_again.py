"""A coordinator dies while it calibrates, and another one goes on at once: what ends the first one's processes leaves the second one's."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from optimizer.box.box import Box
from optimizer.model.outcome import Done
from optimizer.runner.calibrating import calibrate

from .conftest import alive, until

STEP = "s1:6-null"
COORDINATOR = f"""
import asyncio, sys
from pathlib import Path
from optimizer.box.box import Box
from optimizer.runner.calibrating import calibrate
from optimizer.transport.local import LocalTransport
asyncio.run(calibrate(Box(LocalTransport(home=Path(sys.argv[1]))), {STEP!r}, chunks_per_s=100, concurrency=8))
"""


def null_servers(home: Path) -> set[int]:
    """Living null servers of this step, by what is in their environment."""
    root, found = f"OPTIMIZER_ROOT={home}/.optimizer".encode(), set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pairs = (entry / "environ").read_bytes().split(b"\0")
            if root in pairs and any(pair.startswith(f"OPTIMIZER_LAUNCH_ID={STEP}".encode()) and pair.endswith(b":server") for pair in pairs):
                found.add(int(entry.name))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_the_end_of_an_interrupted_calibration_spares_the_next(box: Box, home: Path, spawn: Callable[..., object]) -> None:
    """The program on the box that notices last that its coordinator is gone ends its own job; the next one's has the same step."""
    spawn([sys.executable, "-c", COORDINATOR, str(home)])
    await until(lambda: null_servers(home), 60)
    (first,) = null_servers(home)
    program = parent(first)
    os.kill(program, signal.SIGSTOP)  # it is slow to notice
    os.kill(parent(program), signal.SIGKILL)
    again = asyncio.ensure_future(calibrate(box, STEP, chunks_per_s=100, concurrency=8))
    try:
        await until(lambda: null_servers(home) - {first} or again.done(), 60)
        os.kill(program, signal.SIGCONT)
        effect = await asyncio.wait_for(again, 120)
    finally:
        again.cancel()
    assert isinstance(effect.outcome, Done), effect.outcome
    await until(lambda: not alive(first) and not null_servers(home), 60)
