"""What a load generator's progress line says to a person who waits: where the load is, the rate now, and the mean so far with its interval.
Pure text; what counts is computed from the whole run (``bench.run``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from optimizer.stats import steady

FIRST_S = 3.0  # of a window; what comes in one burst when it opens is no rate
_TIME = re.compile(r"([^:]*): (warming up|measuring), (\d+)(?: of (\d+))? s,")


class LoadTime(NamedTuple):
    """Where a load level is: ``seconds`` of its warm-up, or of its window, which is ``window_s`` long where that is known; the server's."""

    level: str
    window: bool
    seconds: float
    window_s: float | None


def load_time(line: str) -> LoadTime | None:
    """What a line of ``so_far`` behind its level's name says of time; None for any other line."""
    found = _TIME.match(line)
    return LoadTime(found[1], found[2] == "measuring", float(found[3]), float(found[4]) if found[4] else None) if found else None


def so_far(seen: Mapping[str, Any]) -> str:
    """``measuring, 24 of 60 s, 1,070 tok/s; mean so far 1,062 tok/s [1,041, 1,083] at 95 %``. The interval (95 %) is of this window alone, from five of
    its twenty parts on; launches differ by more."""
    elapsed, rate = seen.get("elapsed_s", 0.0), seen.get("tokens_per_s")
    early = seen.get("phase") == "window" and elapsed < min(FIRST_S, seen.get("window_s", 60.0) / 10)
    now = f"{_tokens(rate)} tok/s" if isinstance(rate, int | float) and not early else "no rate yet"
    if seen.get("phase") != "window":
        return f"warming up, {elapsed:.0f} s, {now}"
    mean = steady.window_mean([float(one) for one in seen.get("rates", ())])
    told = ""
    if mean is not None:
        low, high = max(0.0, mean.mean * (1 - mean.half_width)), mean.mean * (1 + mean.half_width)
        told = f"; mean so far {_tokens(mean.mean)} tok/s [{_tokens(low)}, {_tokens(high)}] at 95 %"
    of = f" of {seen['window_s']:.0f}" if seen.get("window_s") else ""
    return f"measuring, {elapsed:.0f}{of} s, {now}{told}"


def _tokens(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
