"""Named points at which a test may kill this process, to show that dying there loses nothing. Does nothing at all
unless an environment variable names a point; decides nothing, catches nothing, and is never used by the pure packages.

``OPTIMIZER_CRASH_AT=journal.append.before_commit:3`` dies by SIGKILL at the third passage of that point, ``*:17`` at
the seventeenth passage of any point. ``OPTIMIZER_CRASH_TRACE=FILE`` appends the name of every point that is passed,
which is how a crash suite enumerates them."""

import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Die here if the environment says so."""
    wanted, trace = os.environ.get("OPTIMIZER_CRASH_AT"), os.environ.get("OPTIMIZER_CRASH_TRACE")
    if not wanted and not trace:
        return
    _passed[name] += 1
    _passed["*"] += 1
    if trace:
        descriptor = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{name}\n".encode())
        finally:
            os.close(descriptor)
    if wanted:
        point, _, count = wanted.rpartition(":")
        if not point or not count.isdigit():
            raise ValueError(f"OPTIMIZER_CRASH_AT={wanted!r} must read NAME:COUNT")
        if point in (name, "*") and _passed[point] == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
