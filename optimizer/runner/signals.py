"""Ctrl-C and SIGTERM. Once: the running step is cancelled and the study closes, which restores what was found. Ctrl-C a second time: the
closing step is broken off as well, and the guard on the box, which restores by itself, is told to do it at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from optimizer.runner.loop import StopRequest

# Programs that start us pass a Ctrl-C on that the terminal has sent us already: so soon after the first it is the same one.
SAME_S = 0.5
TOLD = "Closing: our server is taken down and the box restored. Ctrl-C again leaves that to the guard on the box, at once."
HURRIED = "Ctrl-C again: the guard on the box is told to restore it at once."


@contextmanager
def interruptible(stop: StopRequest, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Route SIGINT and SIGTERM of this process to ``stop``. ``say`` gets what a waiting person should know; with one, this is a command
    that is about to leave with its result, and a signal that comes later than that changes nothing any more."""
    loop = asyncio.get_running_loop()
    names = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
    last = -SAME_S

    def asked(number: signal.Signals) -> None:
        nonlocal last
        now = loop.time()
        again, last = now - last > SAME_S, now
        if stop.reason is None:
            stop.ask(f"Interrupted by {names[number]}.")
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
