"""Where a server is in its start, from the last line that it wrote: for people who wait, never for a decision."""

from __future__ import annotations

import re
from typing import NamedTuple

# From the last phase to the first: a line of a later phase may name an earlier one's subject.
_PHASES = (
    ("answering", re.compile(r"fired up|startup complete|server is listening|all slots are idle", re.IGNORECASE)),
    ("warming up", re.compile(r"warm(?:ing)?[ -]?up|prefill batch", re.IGNORECASE)),
    ("capturing graphs", re.compile(r"captur(?:e|ing) |graph capturing", re.IGNORECASE)),
    ("compiling kernels", re.compile(r"torch\.compile|compil(?:e|ing|ation)|dynamo|autotun", re.IGNORECASE)),
    ("allocating the KV pool", re.compile(r"kv cache|memory pool|kv_cache|kv_size", re.IGNORECASE)),
    ("loading weights", re.compile(r"load(?:ing)? (?:weight|safetensors|pt |model|checkpoint|shard)|loading weights|load_tensors|multi-thread loading", re.IGNORECASE)),
    ("joining the ranks", re.compile(r"init torch distributed|nccl|world_size", re.IGNORECASE)),
)
_PERCENT = re.compile(r"\b(\d{1,3})%(?: Completed|\s*\|)")
_OF = re.compile(r"\|\s*(\d+)/(\d+)\s*\[")


class Startup(NamedTuple):
    """``share``: of this phase, 0 to 1, where the server itself tells; None where it does not."""

    phase: str
    share: float | None


def startup_progress(line: str) -> Startup | None:
    """The phase that a log line belongs to; None for a line that tells nothing about it."""
    phase = next((name for name, pattern in _PHASES if pattern.search(line)), None)
    if phase is None:
        return None
    share = None
    if found := _PERCENT.search(line):
        share = min(1.0, int(found[1]) / 100)
    elif found := _OF.search(line):
        share = min(1.0, int(found[1]) / max(1, int(found[2])))
    return Startup(phase, share)
