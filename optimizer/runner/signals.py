"""Ctrl-C and SIGTERM: the running step is cancelled and the study closes, which restores what was found. Closing itself is
not cut short by a second one: a box left half restored would be worse than the wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from optimizer.runner.loop import StopRequest


@contextmanager
def interruptible(stop: StopRequest) -> Iterator[None]:
    """Route SIGINT and SIGTERM of this process to ``stop`` while the loop runs."""
    loop = asyncio.get_running_loop()
    names = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

    def asked(number: signal.Signals) -> None:
        stop.ask(f"Interrupted by {names[number]}.")

    for number in names:
        loop.add_signal_handler(number, asked, number)
    try:
        yield
    finally:
        for number in names:
            loop.remove_signal_handler(number)
