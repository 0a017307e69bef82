"""What is known of one SGLang log while it is read: settings, stages with their seconds, warnings and reasons. Reads no
line itself."""

import math
from collections.abc import Callable

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Clock, Line, text
from optimizer.evidence.nccl_log import NcclLog
from optimizer.model.base import Value

Handler = Callable[["SglangState", Line, bytes], None]


class SglangState:
    """Shared by the handlers of one log."""

    def __init__(self, source: str = "server.log", version: str = "") -> None:
        self.found = Found(source, basis="log")
        self.version = version
        self.clock = Clock()
        self.nccl = NcclLog(self.found)
        self.args: dict[str, Value] = {}
        self.args_line: Line | None = None
        self.ready: Line | None = None
        self.ready_s: float | None = None
        self.first_s: float | None = None
        self.last_stage = ""
        self.argued = 0  # servers that printed their arguments
        self.listened = 0  # server processes that began to listen
        self.warnings: dict[str, tuple[int, Line]] = {}
        self.retracted = 0
        self.retract_line: Line | None = None
        self.jit = 0
        self.jit_line: Line | None = None
        self.gc_ms = 0.0
        self.weights = 0
        self.decode_captured = False
        self.custom: tuple[str, Line] | None = None
        self.graph_gib: dict[tuple[str, str], float] = {}
        self.free_gib: dict[str, tuple[float, Line]] = {}
        self._seconds: dict[str, dict[str, float]] = {}

    def warn(self, code: str, line: Line) -> None:
        count, first = self.warnings.get(code, (0, line))
        self.warnings[code] = (count + 1, first)

    def because(self, fact: str, line: Line, message: bytes) -> None:
        """Keeps the engine's own words for a value that differs from what one would expect."""
        self.found.add("startup.reason", text(message, 240).strip(), line, labels={"fact": fact})

    def stage(self, name: str) -> None:
        self.last_stage = name

    def took(self, stage: str, line: Line, seconds: float) -> None:
        """Adds seconds of a stage for the rank that logged it; ranks work side by side, so the slowest counts."""
        ranks = self._seconds.setdefault(stage, {})
        rank = rank_of(line.raw)
        ranks[rank] = ranks.get(rank, 0.0) + seconds

    def free(self, stage: str, line: Line, gib: float) -> None:
        """Memory left on the fullest GPU behind a stage."""
        known = self.free_gib.get(stage)
        if known is None or gib < known[0]:
            self.free_gib[stage] = (gib, line)

    def stage_facts(self) -> None:
        for stage, per_rank in self._seconds.items():
            self.found.add("startup.phase_s", max(per_rank.values()), labels={"stage": stage})
        for stage, (gib, line) in self.free_gib.items():
            self.found.add("memory.free_gib", gib, line, labels={"stage": stage})


def rank_of(raw: bytes, end: int = -1) -> str:
    """``DP1 TP0`` style ranks between the stamp and its bracket (at ``end``), without date, time or milliseconds."""
    if end < 0:
        end = raw.find(b"] ", 0, 160)
    begin = raw.rfind(b"[2", 0, max(0, end))
    space = raw.find(b" ", begin + 12, end) if begin >= 0 else -1
    return raw[space + 1 : end].decode("ascii", "replace").strip() if space >= 0 else ""


def number(value: bytes | None) -> float | None:
    """A finite number as printed; None for anything else."""
    try:
        read = float(value) if value else math.nan
    except ValueError:
        return None
    return read if math.isfinite(read) else None
