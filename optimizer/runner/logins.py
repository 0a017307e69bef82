"""Whether what a user leaves running on a box outlives the login: systemd's logind can be told to end it with the session (it is not, on
most systems). Text in, an answer out; the one question goes to the box."""

from __future__ import annotations

import re
from collections.abc import Sequence

from optimizer.box.box import Box
from optimizer.errors import BoxError

_MANAGER = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
ASKED: tuple[str, ...] = ("busctl", "get-property", *_MANAGER, "KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
_NAME = re.compile(r'"([^"]*)"')


def ends_with_session(told: str, user: str) -> bool:
    """What logind does with processes of ``user``, from busctl's three lines (a truth value and two lists of users; logind.conf(5))."""
    lines = told.splitlines()
    if len(lines) != 3 or lines[0].split() != ["b", "true"]:
        return False
    only, excluded = (_names(line) for line in lines[1:])
    return user not in excluded and (not only or user in only)


def _names(line: str) -> Sequence[str]:
    return _NAME.findall(line)


async def lost_at_logout(box: Box, user: str) -> bool:
    """Whether logind ends the guard with the login that started it. False where there is no logind to ask, or no session."""
    try:
        placed = await box.command(["cat", "/proc/self/cgroup"])
        if b"/session-" not in placed.stdout:
            return False
        done = await box.command(list(ASKED))
    except BoxError:
        return False
    return done.exit == 0 and ends_with_session(done.stdout.decode("utf-8", "replace"), user)
