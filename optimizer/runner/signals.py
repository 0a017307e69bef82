"""Ctrl-C, SIGTERM and SIGHUP (whose terminal or session is gone). Once: the running step is cancelled and the study closes, which
restores what was found. Ctrl-C a second time: the closing step is broken off as well, and the guard on the box, which restores by
itself, is told to do it at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from optimizer.runner.loop import StopRequest

# Programs that start us pass a Ctrl-C on that the terminal has sent us already: so soon after the first it is the same one.
SAME_S = 0.5
TOLD = "Closing: our server is taken down and the box restored. Ctrl-C again leaves that to the guard on the box, at once."
HURRIED = "Ctrl-C again: the guard on the box is told to restore it at once."

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP (its terminal was closed)"}

_in_threads: list[tuple[asyncio.AbstractEventLoop, StopRequest]] = []  # studies that no signal can reach by itself


def routed() -> dict[signal.Signals, str]:
    """The signals that end a command in order, with their names for people. Without SIGHUP under ``nohup``, which means: go on."""
    return {number: name for number, name in NAMES.items() if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN}


@contextmanager
def interruptible(stop: StopRequest, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Route SIGINT, SIGTERM and SIGHUP of this process to ``stop``. ``say`` gets what a waiting person should know; with one, this is a
    command that is about to leave with its result, and a signal that comes later than that changes nothing any more.

    In a thread other than the main one nothing is routed, as Python allows no handler there: ``ask_all`` reaches the study."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        _in_threads.append((loop, stop))
        try:
            yield
        finally:
            _in_threads.remove((loop, stop))
        return
    names = routed()
    last = -SAME_S

    def asked(number: signal.Signals) -> None:
        nonlocal last
        now = loop.time()
        again, last = now - last > SAME_S, now
        if stop.reason is None:
            stop.ask(stop.asked_by() or f"Interrupted by {names[number]}.")
            if say is not None:
                say(TOLD)
        elif number == signal.SIGINT and again:
            stop.hurry()
            if say is not None:
                say(HURRIED)

    for number in names:
        loop.add_signal_handler(number, asked, number)
    try:
        yield
    finally:
        for number in names:
            loop.remove_signal_handler(number)
            if say is not None:
                signal.signal(number, signal.SIG_IGN)


def ask_all(reason: str) -> int:
    """Ask every study that runs in another thread of this process to close, which restores what was found; how many those are."""
    running = list(_in_threads)
    for loop, stop in running:
        loop.call_soon_threadsafe(_ask, stop, reason)
    return len(running)


def _ask(stop: StopRequest, reason: str) -> None:
    if stop.reason is None:
        stop.ask(reason)
