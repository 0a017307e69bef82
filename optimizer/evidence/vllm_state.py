"""What is known of one vLLM log while it is read: configuration, stages, warnings and reasons. Reads no line itself."""

import math
import re
from collections.abc import Callable

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line, text
from optimizer.evidence.nccl_log import NcclLog
from optimizer.model.base import Value

Handler = Callable[["VllmState", Line, bytes], None]
_STAMP = re.compile(rb"(?:INFO|WARNING|ERROR|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")


class VllmState:
    """Shared by the handlers of one log."""

    def __init__(self, source: str = "server.log", version: str = "") -> None:
        self.found = Found(source, basis="log")
        self.version = version
        self.nccl = NcclLog(self.found)
        self.asked: dict[str, Value] = {}
        self.asked_line: Line | None = None
        self.config: dict[str, Value] = {}
        self.config_line: Line | None = None
        self.ready: Line | None = None
        self.ready_s: float | None = None
        self.first_s: float | None = None
        self.last_stage = ""
        self.warnings: dict[str, tuple[int, Line]] = {}
        self.preemptions = 0
        self.preempted_v0 = 0  # V0 prints a running total, and that only now and then
        self.preempt_line: Line | None = None
        self.failed_starts = 0
        self.argued = 0  # servers that printed their arguments
        self.failed_line: Line | None = None
        self.graphs_done = False
        self.graph_mode: tuple[str, Line] | None = None  # what the engine made of the mode that was asked for
        self.eager: Line | None = None
        self.truncated: int | None = None
        self.jit = 0
        self.jit_line: Line | None = None
        self.custom: tuple[str, Line] | None = None
        self._reasons: set[str] = set()

    def warn(self, code: str, line: Line) -> None:
        count, first = self.warnings.get(code, (0, line))
        self.warnings[code] = (count + 1, first)

    def because(self, fact: str, line: Line, message: bytes, *, weak: bool = False) -> None:
        """Keeps the engine's own words for a value. A ``weak`` reason gives way to one that names a cause."""
        if weak and fact in self._reasons:
            return
        if not weak:
            self._reasons.add(fact)
        self.found.add("startup.reason", text(message, 240).strip(), line, labels={"fact": fact})

    def named(self, line: Line, message: bytes, fact: str) -> None:
        """The server says which flag made it fall back."""
        match = re.search(rb"--([a-z][a-z0-9-]{1,60})", message)
        if match:
            name = match[1].decode().replace("-", "_")
            self.found.add("startup.fallback", name, line, labels={"fact": fact})


def seconds_of(raw: bytes) -> float | None:
    """Seconds of a stamp without a year, comparable within one log."""
    match = _STAMP.search(raw[:200])
    if not match:
        return None
    month, day, hour, minute, second = (int(match[group]) for group in range(1, 6))
    return (month * 31 + day) * 86400.0 + hour * 3600 + minute * 60 + second


def number(value: bytes | str | None) -> float | None:
    """A finite number as printed; None for anything else."""
    try:
        read = float(value) if value else math.nan
    except ValueError:
        return None
    return read if math.isfinite(read) else None


def commas(value: bytes) -> int:
    digits = value.replace(b",", b"")
    return int(digits) if digits.isdigit() else 0
