"""Ctrl-C and SIGTERM: the first asks the loop to finish cleanly, the second to stop what is running at once. Neither
leaves the box as it is: the loop still closes the study and restores what it found."""

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
