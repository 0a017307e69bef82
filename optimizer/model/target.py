"""The target grammar: ``1000tps``, ``1000tps@16``, ``ttft.p99<500ms``, combined by commas, by ``and`` or by repetition.

``1000tps`` means output tokens per second of the whole deployment, counted by the client from the server's usage
field over the steady window at the stated concurrency, with every guard met."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from optimizer.errors import UsageError
from optimizer.model.base import FiniteFloat, Frozen

RATES = {
    "tps": "output_tokens_per_s",
    "tok/s": "output_tokens_per_s",
    "total_tps": "total_tokens_per_s",
    "rps": "requests_per_s",
    "req/s": "requests_per_s",
    "goodput": "goodput_per_s",
}
LATENCIES = ("ttft", "tpot", "itl", "e2e")
UNITS = {"output_tokens_per_s": "tok/s", "total_tokens_per_s": "tok/s", "requests_per_s": "req/s", "goodput_per_s": "req/s", "error_rate": "ratio"}
EXAMPLES = "Examples: --target 1000tps, --target 1000tps@16, --target 1000tps@16,ttft.p99<500ms"

_RATE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?)\s*(?P<unit>total_tps|tps|tok/s|rps|req/s|goodput)(?:@(?P<at>[0-9]+))?")
_LATENCY = re.compile(r"(?P<name>ttft|tpot|itl|e2e)(?:\.p(?P<q>[1-9][0-9]?(?:\.[0-9]{1,2})?))?\s*<=?\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>ms|s)(?:@(?P<at>[0-9]+))?")
_JOINTS = re.compile(r",|\s+and\s+")
_PERCENTILE = re.compile(r"(?:ttft|tpot|itl|e2e)_p([0-9.]+)_ms")
_ERRORS = re.compile(r"error_rate\s*<=?\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%?)")


class Bound(Frozen):
    """One inequality on one metric of the measurement, for example ``ttft_p99_ms`` at most 500."""

    metric: str
    direction: Literal["at_least", "at_most"]
    value: FiniteFloat

    def holds(self, measured: float) -> bool:
        return measured >= self.value if self.direction == "at_least" else measured <= self.value

    @property
    def text(self) -> str:
        sign = "≥" if self.direction == "at_least" else "≤"
        return f"{self.metric} {sign} {self.value:g} {unit_of(self.metric)}"


class Target(Frozen):
    """What "met" means. ``bounds`` may be empty for commands that only observe."""

    bounds: tuple[Bound, ...] = ()
    concurrency: int | None = None
    text: str = ""

    @property
    def primary(self) -> Bound | None:
        """The bound that is optimized: the first throughput bound, else the first latency. An error rate is a guard wherever it
        stands beside another bound."""
        rates = [bound for bound in self.bounds if bound.direction == "at_least"]
        latencies = [bound for bound in self.bounds if bound.metric != "error_rate"]
        return next(iter(rates or latencies or self.bounds), None)

    @property
    def guards(self) -> tuple[Bound, ...]:
        return tuple(bound for bound in self.bounds if bound is not self.primary)


def percentile_of(metric: str) -> float | None:
    """The percentile in a metric's name, 99.9 for ``ttft_p99.9_ms``; None where it has none."""
    match = _PERCENTILE.fullmatch(metric)
    return float(match[1]) if match else None


def claimed(metric: str, metrics: Mapping[str, float]) -> float | None:
    """What a claim about ``metric`` is held against. Of a percentile beyond the median it is the bound that so many requests show
    at 99 % confidence, where one is stated: the percentile as measured is above its true value as often as below. Else the value."""
    percentile = percentile_of(metric)
    if percentile is None or percentile <= 50:
        return metrics.get(metric)
    return metrics.get(f"{metric.removesuffix('_ms')}_upper_ms", metrics.get(metric))


def unit_of(metric: str) -> str:
    """Unit of a metric name: latencies end in ``_ms``."""
    return "ms" if metric.endswith("_ms") else UNITS.get(metric, "")


def parse_target(texts: Iterable[str]) -> Target:
    """Parse one or several ``--target`` values. Raises UsageError with an example when a part makes no sense."""
    parts = [part.strip() for text in texts for part in _JOINTS.split(text)]
    if not parts or not all(parts):
        raise UsageError("The target is empty.", hint=EXAMPLES)
    bounds: list[Bound] = []
    levels: set[int] = set()
    for part in parts:
        bound, at = _parse_part(part)
        if any(known.metric == bound.metric and known.direction == bound.direction for known in bounds):
            raise UsageError(f"The target names {bound.metric} twice ({part!r}).", hint="Give each metric once.")
        bounds.append(bound)
        if at is not None:
            levels.add(at)
    if len(levels) > 1:
        raise UsageError(f"The target names several concurrencies: {sorted(levels)}.", why="One study has one target concurrency.", hint=EXAMPLES)
    if levels and not 1 <= min(levels) <= 65536:
        raise UsageError(f"The target's concurrency {min(levels)} must lie between 1 and 65536.", hint=EXAMPLES)
    return Target(bounds=tuple(bounds), concurrency=min(levels) if levels else None, text=",".join(parts))


def _parse_part(part: str) -> tuple[Bound, int | None]:
    if match := _RATE.fullmatch(part):
        bound = Bound(metric=RATES[match["unit"]], direction="at_least", value=_positive(part, match["number"], 1.0))
    elif match := _LATENCY.fullmatch(part):
        scale = 1.0 if match["unit"] == "ms" else 1000.0
        bound = Bound(metric=f"{match['name']}_p{float(match['q'] or 50):g}_ms", direction="at_most", value=_positive(part, match["number"], scale))
    elif match := _ERRORS.fullmatch(part):
        return Bound(metric="error_rate", direction="at_most", value=float(match["number"]) / (100 if match["unit"] else 1)), None
    else:
        raise UsageError(f"The target {part!r} is not understood.", hint=EXAMPLES)
    return bound, int(match["at"]) if match["at"] else None


def _positive(part: str, number: str, scale: float) -> float:
    value = float(number) * scale
    if not math.isfinite(value) or not 0 < value <= 1e12:
        raise UsageError(f"The target {part!r} must be a positive number up to 1e12.", hint=EXAMPLES)
    return value
