"""The guard dies at each of its points, or fires at the very moment at which its coordinator returns. However it goes, the original runs
once, nothing of ours is left, and of the two exactly one acts. ``OPTIMIZER_SWEEP=full``: every point in every situation, 100 races."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.box.results import GuardFired, PortTaken, ShimRefused
from optimizer.knowledge.library import Library
from optimizer.model.outcome import Done, Failed
from optimizer.model.step import Secure
from optimizer.runner.execute import LiveExecutor
from tests.unit.core.model_box import spec

from .conftest import alive, until
from .test_guard import QUICK, Original
from .test_launch import Server

FULL = os.environ.get("OPTIMIZER_SWEEP") == "full"
PATIENCE_S = 120.0  # only what never happens fails
ALWAYS, FIRING, DISARMING = ("begun", "recorded", "polled"), ("begun", "fenced", "swept", "over", "written"), ("read", "answered", "done")
RESTORING = ("started", "listens")
# (point, what the guard is doing then, whether there is an original)
POINTS = [
    *((point, "watching", owned) for point in ALWAYS for owned in (True, False)),
    *((f"disarm.{point}", "disarm", owned) for point in DISARMING for owned in (True, False)),
    *((f"fire.{point}", why, owned) for point in FIRING for why in ("silent", "asked") for owned in (True, False)),
    *((f"fire.{point}", why, True) for point in RESTORING for why in ("silent", "asked")),
]
SAMPLE = [("fire.swept", "silent", True), ("fire.started", "asked", True), ("disarm.answered", "disarm", False)]
SLOW = () if FULL else (pytest.mark.slow,)  # a race takes seconds: one point stays among the quick tests


def test_there_are_at_least_thirty_points() -> None:
    """And the guard's own text has each of them."""
    text = (Path(__file__).parents[3] / "optimizer/box/guard.py").read_text()
    assert len(POINTS) == len(set(POINTS)) >= 36 and set(SAMPLE) <= set(POINTS)
    assert {f'crash_point("{point}")' in text for point, _, _ in POINTS} == {True}
    assert text.count("crash_point(") - 1 == len({point for point, _, _ in POINTS})


class Theirs(Original):
    """The owner's server without credentials: the record on the box is enough to start it."""

    def __init__(self, argv: list[str], port: int, log: Path, spawn: Callable[..., Any], **env: str) -> None:
        self.argv, self.port, self.log = argv, port, log
        given = {"PATH": os.environ["PATH"], "HOME": "/", **env}
        self.process = spawn(argv, stdout=log.open("ab"), stderr=-2, env=given, cwd="/")


def ours(home: Path) -> list[int]:
    mark = f"OPTIMIZER_ROOT={home}/.optimizer".encode()
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if mark in (folder / "environ").read_bytes().split(b"\0") and alive(int(folder.name)):
                found.append(int(folder.name))
    return found


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def as_found(home: Path, theirs: Theirs | None, starts: int) -> None:
    """One original runs and listens, started ``starts`` times in all; of us there is nothing."""
    if theirs is not None:
        await until(lambda: listens(theirs.port), PATIENCE_S)
        await until(lambda: len(theirs.reports()) == starts, PATIENCE_S)
        assert [alive(report["pid"]) for report in theirs.reports()] == [False] * (starts - 1) + [True]
    assert not (home / ".optimizer").exists(), list((home / ".optimizer").rglob("*"))
    assert ours(home) == []


async def given_back(box: Box, owned: bool) -> None:
    """What a coordinator does that comes back: its launches end, the original is brought back, the box is free."""
    assert (await box.sweep("s1", term_s=2, gpu_wait_s=0)).clean
    if owned:
        await box.restore_original("s1", timeout_s=PATIENCE_S)
    assert (await box.sweep("s1", term_s=2, gpu_wait_s=0)).clean
    await box.disarm("s1", PATIENCE_S)
    await box.cleanup("s1")
    assert await box.unlock("s1")


@pytest.mark.parametrize(("point", "doing", "owned"), POINTS if FULL else [SAMPLE[0], *(pytest.param(*one, marks=SLOW) for one in SAMPLE[1:])])
async def test_killed_at_a_point(
    make_box: Callable[..., Box], home: Path, server: Server, free_port: int, tmp_path: Path, spawn: Callable[..., Any], point: str, doing: str, owned: bool
) -> None:
    fatal = {"OPTIMIZER_CRASH_AT": f"guard.{point}"}
    theirs = Theirs(server(free_port), free_port, tmp_path / "original.log", spawn, **fatal) if owned else None
    box = make_box(**({} if owned else fatal))  # a guard without an original has the environment of whoever arms it
    seen = await theirs.find(box) if theirs else None
    await box.lock("s1")
    guard, stopped = None, False
    try:
        guard = await box.secure("s1", seen, minutes=0.02 if doing == "silent" else 15, **QUICK)
    except ShimRefused as refused:
        assert refused.kind == "guard_failed" and doing == "watching"
    with contextlib.suppress(GuardFired, ShimRefused, PortTaken):  # it may be quicker than we are
        if seen is not None:
            stopped = bool((await box.stop_original("s1", seen, term_s=2, gpu_wait_s=0)).stopped)
        await box.launch("s1", "1", server(free_port), port=free_port)
    if doing == "asked":
        await box.fire("s1")
    if doing == "disarm":
        await box._call("order", 20, study="s1", order="disarm")
    if guard is not None:
        await until(lambda: not alive(guard.pid), PATIENCE_S)
    await given_back(make_box(), owned)
    await as_found(home, theirs, 1 + stopped)


ACTS = ("launch", "disarm", "restore", "stop the original", "arm again")


@pytest.mark.parametrize("race", [pytest.param(race, marks=SLOW) for race in range(100 if FULL else 3)])
async def test_fires_while_the_coordinator_returns(
    box: Box, home: Path, server: Server, free_port: int, tmp_path: Path, spawn: Callable[..., Any], race: int
) -> None:
    rng = random.Random(race)
    theirs = Theirs(server(free_port), free_port, tmp_path / "original.log", spawn)
    seen = await theirs.find(box)
    await box.lock("s1")
    guard = await box.secure("s1", seen, minutes=3 / 60, **QUICK)
    try:
        stopped = bool((await box.stop_original("s1", seen, term_s=2, gpu_wait_s=0)).stopped)
        launched = await box.launch("s1", "1", server(free_port), port=free_port)
    except (GuardFired, ShimRefused):  # so slow a machine that the race is over before it began
        await until(lambda: not alive(guard.pid), PATIENCE_S)
        await given_back(box, True)
        pytest.skip("the guard fired before the race")
    # Until now it heard of nobody for some time; it fires about three seconds after it was armed, and needs half a second for it.
    await asyncio.sleep(rng.uniform(0.5, 3.5))
    act, acted = ACTS[race % len(ACTS)], True
    try:
        if act == "launch":
            acted = (await box.launch("s1", "2", server(0))).alive
        elif act == "disarm":
            acted = (await box.disarm("s1", PATIENCE_S)).fired is None
        elif act == "restore":
            await box.restore_original("s1", timeout_s=PATIENCE_S)
        elif act == "stop the original":
            acted = bool((await box.stop_original("s1", seen, term_s=2, gpu_wait_s=0)).stopped)
        else:
            acted = (await box.secure("s1", None, minutes=15, **QUICK)).pid != guard.pid
    except (GuardFired, ShimRefused):
        acted = False
    if act != "disarm" or not acted:
        await until(lambda: not alive(guard.pid), PATIENCE_S)
    fired = (await box.guard_status("s1")).fired
    if act == "disarm" and acted:  # the coordinator was first: the guard did nothing at all
        assert fired is None and alive(launched.pid) and len(theirs.reports()) == 1
    else:  # the guard was first, or acted after it: nothing that the coordinator did is left of it
        assert fired is not None and fired.clean and fired.restored
        assert not alive(launched.pid) and (await box.state("s1", "2")).state in ("dead", "not_claimed")
        with pytest.raises(GuardFired):
            await box.launch("s1", "3", server(0))
        assert act not in ("stop the original", "arm again") or not acted
    await given_back(box, True)
    await as_found(home, theirs, 1 + stopped)


def executor_of(box: Box, told: list[str]) -> LiveExecutor:
    executor = LiveExecutor(box, spec().model_copy(update={"study": "s1"}), Library.model_construct())
    executor.guard_lost = told.append
    return executor


async def test_armed_and_fired_before_anybody_wrote_that_it_is_armed(box: Box, home: Path) -> None:
    """The coordinator died between the two: whoever goes on leaves nothing on a box that nothing was changed on."""
    await box.lock("s1")
    guard = await box.secure("s1", None, minutes=0.01, **QUICK)
    await until(lambda: not alive(guard.pid), PATIENCE_S)
    told: list[str] = []
    effect = await executor_of(box, told).reconcile(Secure(key="4", op="arm", minutes=0.01))
    assert isinstance(effect.outcome, Failed) and effect.outcome.cause == "guard_fired" and told
    await as_found(home, None, 0)


async def test_what_is_left_to_serve_was_taken_down_by_the_guard_meanwhile(box: Box, server: Server) -> None:
    """It fires at the moment at which it is told to end: then the winner does not serve, and nobody may say that it does."""
    await box.lock("s1")
    guard = await box.secure("s1", None, **QUICK)
    await box.launch("s1", "1", server(0))
    await box.fire("s1")
    await until(lambda: not alive(guard.pid), PATIENCE_S)
    effect = await executor_of(box, []).execute(Secure(key="9", op="disarm", keep="1"))
    assert isinstance(effect.outcome, Done) and effect.outcome.body == {"armed": False, "guard_restored": True}
    assert await box.holder() is None and not await box.left_by("s1")
