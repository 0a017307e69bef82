"""What a person types while a panel is drawn is not shown: a typed Ctrl-C would stand as ^C at the end of its last line, begin another
line there, and leave a piece of the old frame on the screen; Enter would scroll it."""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


@contextmanager
def quiet_keys(stream: TextIO) -> Iterator[None]:
    """Until the end; keys keep their meaning, and what was typed is the next reader's. Nothing where ``stream`` is no terminal or we are
    in its background, where a change would stop us."""
    try:
        terminal = stream.fileno()
        before = termios.tcgetattr(terminal)
        ours = os.tcgetpgrp(terminal) == os.getpgrp()
    except (OSError, ValueError, termios.error):
        ours = False
    if not ours:
        yield
        return
    changed = [*before]
    changed[3] &= ~(termios.ECHO | termios.ECHOCTL)
    termios.tcsetattr(terminal, termios.TCSANOW, changed)  # at once: a terminal that was stopped never takes what is on its way
    try:
        yield
    finally:
        with suppress(OSError, termios.error):  # it may be gone
            if os.tcgetpgrp(terminal) == os.getpgrp():
                termios.tcsetattr(terminal, termios.TCSANOW, before)
