"""The program that acts on the box dies before and after each of its operations, and the box reboots between any two of them: whoever
asks again gets what was asked for, once, and the box ends as it was. ``OPTIMIZER_SWEEP=full``: the operations that look, too."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.box import shim
from optimizer.box.box import Box
from optimizer.errors import LinkLost

from .conftest import alive, until
from .operations import Act, changes, each_operation
from .test_guard_races import FULL, PATIENCE_S, Theirs, as_found, given_back, ours
from .test_launch import Server


async def test_dies_before_and_after_every_operation(
    make_box: Callable[..., Box], home: Path, server: Server, free_port: int, tmp_path: Path, spawn: Callable[..., Any]
) -> None:
    theirs = Theirs(server(free_port), free_port, tmp_path / "original.log", spawn)
    box = make_box()
    seen = await theirs.find(box)
    deaths = 0

    async def dies(name: str, act: Act) -> Any:
        nonlocal deaths
        for where in ("begin", "end"):
            with pytest.raises(LinkLost):
                await act(make_box(OPTIMIZER_CRASH_AT=f"shim.{name}.{where}"))
            deaths += 1
        return await act(box)

    await each_operation(seen, server(free_port), free_port, lambda: box, dies, looking=FULL)
    assert deaths == 2 * len(shim.OPERATIONS if FULL else changes(seen, [], 0))
    await as_found(home, theirs, 2)


def reboot(home: Path, theirs: Theirs) -> None:
    """Every process is gone, and what was written names another boot."""
    for pid in [*ours(home), *(report["pid"] for report in theirs.reports())]:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    theirs.process.wait()
    for path in (home / ".optimizer").rglob("*.json"):
        record = json.loads(path.read_text())
        if record and "boot_id" in record:
            path.write_text(json.dumps({**record, "boot_id": "another", **({"coordinator_boot_id": "another"} if "coordinator_boot_id" in record else {})}))


STAGES = ("lock", "secure", "heartbeat", "stop_original", "launch", "run_job", "sweep", "fence")


@pytest.mark.fault("F45")
@pytest.mark.parametrize("stage", STAGES if FULL else ("launch",))
async def test_rebooted_after_an_operation(
    box: Box, home: Path, server: Server, free_port: int, tmp_path: Path, spawn: Callable[..., Any], stage: str
) -> None:
    """Nothing of before counts as living, whatever has its process id by now, and the original is started from the record, if there is one."""
    theirs = Theirs(server(free_port), free_port, tmp_path / "original.log", spawn)
    seen = await theirs.find(box)
    for name, act in changes(seen, server(free_port), free_port).items():
        await act(box)
        if name == stage:
            break
    recorded = stage != "lock"
    reboot(home, theirs)
    assert (await box.guard_status("s1")).guard is None
    state = await box.state("s1", "1")
    assert (state.state, state.rebooted) == (("dead", True) if STAGES.index(stage) >= STAGES.index("launch") else ("not_claimed", False))
    await box.lock("s1")  # its holder did not survive either
    await given_back(box, recorded)
    await until(lambda: not ours(home), PATIENCE_S)
    await as_found(home, theirs if recorded else None, 2)
