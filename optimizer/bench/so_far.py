"""What a load generator's progress line says to a person who waits: where the load is, the rate now, and the mean so far with its interval.
Pure text; what counts is computed from the whole run (``bench.run``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.stats import steady


def so_far(seen: Mapping[str, Any]) -> str:
    """``measuring, 24 of 60 s, 1,070 tok/s; mean so far 1,062 [1,041, 1,083]``. The interval (95 %) is of this window alone, from five of
    its twenty parts on; launches differ by more."""
    elapsed, rate = seen.get("elapsed_s", 0.0), seen.get("tokens_per_s")
    now = f"{_tokens(rate)} tok/s" if isinstance(rate, int | float) else "no rate yet"
    if seen.get("phase") != "window":
        return f"warming up, {elapsed:.0f} s, {now}"
    mean = steady.window_mean([float(one) for one in seen.get("rates", ())])
    told = ""
    if mean is not None:
        low, high = max(0.0, mean.mean * (1 - mean.half_width)), mean.mean * (1 + mean.half_width)
        told = f"; mean so far {_tokens(mean.mean)} [{_tokens(low)}, {_tokens(high)}]"
    of = f" of {seen['window_s']:.0f}" if seen.get("window_s") else ""
    return f"measuring, {elapsed:.0f}{of} s, {now}{told}"


def _tokens(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
