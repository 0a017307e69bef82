"""The box's sshd is killed, with every session, while an operation begins and while it ends; the program on the box goes on by itself.
Whoever asks again over a new sshd gets what was asked for, once, and the box ends as it was. ``OPTIMIZER_SWEEP=full``: every operation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.box import shim
from optimizer.box.box import Box
from optimizer.errors import LinkLost
from optimizer.transport.ssh import SSHTransport
from tests.unit.box.conftest import free_port, server, spawn, until  # noqa: F401  fixtures
from tests.unit.box.operations import Act, each_operation
from tests.unit.box.test_guard_races import FULL, PATIENCE_S, Theirs, as_found
from tests.unit.box.test_launch import Server

from .conftest import Sshd

PAUSE_S = 2.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def at_work(home: Path, point: str) -> bool:
    """Whether a program of a session is on its way to the point, or at it."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            int(folder.name)
            variables = (folder / "environ").read_bytes().split(b"\0")
            if f"OPTIMIZER_PAUSE_AT={point}".encode() in variables and f"HOME={home}".encode() in variables and b"python" in (folder / "cmdline").read_bytes():
                return True
    return False


@pytest.mark.fault("F4")
async def test_sshd_is_killed_in_an_operation(
    sshd: Sshd, connect: Callable[..., SSHTransport], server: Server, free_port: int, tmp_path: Path, spawn: Callable[..., Any]  # noqa: F811
) -> None:
    sshd.start()
    theirs = Theirs(server(free_port), free_port, tmp_path / "original.log", spawn)
    seen = await theirs.find(Box(connect()))
    kills = 0

    async def killed(point: str, act: Act) -> None:
        nonlocal kills
        sshd.stop()
        sshd.start(OPTIMIZER_PAUSE_AT=point, OPTIMIZER_PAUSE_S=str(PAUSE_S))
        call = asyncio.ensure_future(act(Box(connect())))
        await until(lambda: call.done() or at_work(sshd.home, point), PATIENCE_S)
        await asyncio.sleep(PAUSE_S / 4)
        assert not call.done(), f"{point} was not passed"
        sshd.stop()
        with pytest.raises(LinkLost):
            await call
        kills += 1

    async def cut(name: str, act: Act) -> Any:
        await killed(f"shim.{name}.begin", act)
        await killed(f"shim.{name}.end", act)
        sshd.start()
        return await act(Box(connect()))

    def undisturbed() -> Box:
        return Box(connect())

    async def tried(name: str, act: Act) -> Any:
        return await (cut(name, act) if FULL or name == "launch" else act(undisturbed()))

    await each_operation(seen, server(free_port), free_port, undisturbed, tried, looking=FULL)
    assert kills == (2 * len(shim.OPERATIONS) if FULL else 2)
    await as_found(sshd.home, theirs, 2)
