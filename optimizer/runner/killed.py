"""A launch that a signal ended without a word in its log: the kernel for want of memory, which the settings may be to blame for, or
somebody on the box, which says nothing about them. The kernel's own count of such kills tells the two apart where it has one."""

from __future__ import annotations

import re
import signal

from optimizer.box.box import Box
from optimizer.errors import BoxError
from optimizer.model.outcome import Failed

# What is sent by people and by the kernel's killer; all others are the program's own doing.
SENT = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
KILLED_BY = "killed_by"  # in the body of an outcome: number of the signal
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


def sent(code: int | None, number: int | None) -> int | None:
    """The signal that may have come from outside, of an exit code (137 of a shell is 9) or a signal number; else None."""
    found = number or (-code if code is not None and code < 0 else code - 128 if code is not None and code > 128 else None)
    return found if found in SENT else None


class Kills:
    """Of one study on one box. Settings whose launch was killed are launched once more before that counts against them."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._before: dict[str, int | None] = {}  # launch key -> count of the kernel when it began
        self.excused: set[str] = set()  # digests of settings

    async def begin(self, launch: str) -> None:
        self._before[launch] = await self._count()

    async def judged(self, failed: Failed, launch: str, digest: str) -> Failed:
        """``failed`` as it counts: retryable the first time that these settings were killed by nobody knows whom."""
        if KILLED_BY not in failed.body or failed.retryable:
            return failed
        before, now = self._before.get(launch), await self._count()
        if before is not None and now is not None and now > before:
            return failed.model_copy(update={"message": f"{failed.message} The kernel has killed {now - before} for want of memory on this box meanwhile."})
        if digest in self.excused:
            return failed
        self.excused.add(digest)
        why = "The kernel has killed nobody for want of memory meanwhile" if before is not None and now is not None else "Who did it cannot be told"
        return failed.model_copy(update={"retryable": True, "message": f"{failed.message} {why}, so these settings are launched once more before they are judged."})

    async def _count(self) -> int | None:
        """Processes that the kernel has killed for want of memory since it booted; None where it does not count them."""
        try:
            match = _COUNT.search((await self._box.command(["cat", "/proc/vmstat"])).stdout)
        except BoxError:
            return None
        return int(match[1]) if match else None
