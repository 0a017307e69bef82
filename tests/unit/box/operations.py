"""The operations of the program on the box, each as a study could ask for it, in one list for every test that disturbs all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from optimizer.box import shim
from optimizer.box.box import Box

from .test_guard import QUICK
from .test_guard_races import PATIENCE_S

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


async def each_operation(seen: Any, argv: list[str], port: int, box: Callable[[], Box], tried: Callable[[str, Act], Awaitable[Any]], *, looking: bool) -> None:
    """Every operation that changes something, in order, through ``tried``, on a box of which ``seen`` is the original; with
    ``looking`` also those that look, while a launch of ``argv`` lives. What was asked for must be there once, however often it was
    asked for. ``box`` gives one that nothing disturbs."""
    acts = changes(seen, argv, port)
    assert set(acts) | set(looks(0, 0)) == set(shim.OPERATIONS)
    for name, act in acts.items():
        done = await tried(name, act)
        if name == "launch":
            assert not done.launched and done.alive, "the launch whose answer was lost is the one that counts"
            if looking:
                for other, look in looks(port, done.pid).items():
                    await tried(other, look)
        if name == "order":
            assert (await box().guard_ended("s1", PATIENCE_S)).guard is None
