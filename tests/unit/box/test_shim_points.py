"""The program that acts on the box dies before and after each of its operations, and the box reboots between any two of them: whoever
asks again gets what was asked for, once, and the box ends as it was. ``OPTIMIZER_SWEEP=full``: the operations that look, too."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.box import shim
from optimizer.box.box import Box
from optimizer.errors import LinkLost

from .conftest import alive, until
from .test_guard import QUICK
from .test_guard_races import FULL, PATIENCE_S, Theirs, as_found, given_back, ours
from .test_launch import Server

Act = Callable[[Box], Awaitable[Any]]
JOB = b"print('line')"


def looks(port: int, pid: int) -> dict[str, Act]:
    """Every operation that writes nothing, on a box with a server."""
    return {
        "hello": lambda box: box.hello(),
        "command": lambda box: box.command(["true"]),
        "read_file": lambda box: box.read_file("/proc/version"),
        "find_servers": lambda box: box.find_servers(port),
        "listeners": lambda box: box.listeners(port),
        "server_key": lambda box: box.learn_key(port),
        "sample_gpu": lambda box: box.sample_gpu(0.1),
        "survey": lambda box: box.survey(pid, interval_s=0.1),
        "holder": lambda box: box.holder(),
        "guard_status": lambda box: box.guard_status("s1"),
        "state": lambda box: box.state("s1", "1"),
        "read_log": lambda box: box.read_log("s1", "1"),
        "listening": lambda box: box._call("listening", 30, pid=pid, start_time=1, ports=[port]),
    }


def changes(seen: Any, argv: list[str], port: int) -> dict[str, Act]:
    """Every operation that changes something, in an order in which a study could ask for it."""
    return {
        "lock": lambda box: box.lock("s1"),
        "secure": lambda box: box.secure("s1", seen, **QUICK),
        "heartbeat": lambda box: box.heartbeat("s1", 1),
        "stop_original": lambda box: box.stop_original("s1", seen, term_s=2, gpu_wait_s=0),
        "launch": lambda box: box.launch("s1", "1", argv, port=port),
        "run_job": lambda box: box.run_job(JOB, b"", "s1:2-load", 20, lambda line: None),
        "sweep": lambda box: box.sweep("s1", term_s=2, gpu_wait_s=0),
        "fence": lambda box: box._call("fence", 30, study="s1", epoch=1),
        "order": lambda box: box._call("order", 20, study="s1", order="disarm"),
        "start_original": lambda box: box._call("start_original", 60, study="s1"),
        "cleanup": lambda box: box.cleanup("s1"),
        "unlock": lambda box: box.unlock("s1"),
    }  # fmt: skip


async def test_dies_before_and_after_every_operation(
    make_box: Callable[..., Box], home: Path, server: Server, free_port: int, tmp_path: Path, spawn: Callable[..., Any]
) -> None:
    theirs = Theirs(server(free_port), free_port, tmp_path / "original.log", spawn)
    box = make_box()
    seen = await theirs.find(box)
    acts, deaths = changes(seen, server(free_port), free_port), 0
    assert set(acts) | set(looks(0, 0)) == set(shim.OPERATIONS)

    async def dies(name: str, act: Act) -> Any:
        nonlocal deaths
        for where in ("begin", "end"):
            with pytest.raises(LinkLost):
                await act(make_box(OPTIMIZER_CRASH_AT=f"shim.{name}.{where}"))
            deaths += 1
        return await act(box)

    for name, act in acts.items():
        done = await dies(name, act)
        if name == "launch":
            assert not done.launched and done.alive, "the launch whose answer was lost is the one that counts"
            if FULL:
                for other, look in looks(free_port, done.pid).items():
                    await dies(other, look)
        if name == "order":
            assert (await box.guard_ended("s1", PATIENCE_S)).guard is None
    assert deaths == (2 * len(shim.OPERATIONS) if FULL else 2 * len(acts))
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
