"""What the adapters of load testing tools have in common, and how far their figures go.

Such a tool states figures of a whole run, ramp and tail included, without the single requests. So a load point from it holds
what it stated and nothing else: what it does not say is absent, and every validity check that needs more is named in the point's
notes as not made, never taken as passed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from optimizer.bench.run import OUTPUT_TOLERANCE
from optimizer.model.measurement import Invalidity, LoadPoint, ValidityCode
from optimizer.model.workload import Workload
from optimizer.stats import tail

# Checks of ours that need single requests, sub-windows, the tool's own clock or the server's counters.
NOT_CHECKED = "foreign traffic, a load generator that is the limit, prefix cache, steady rate, clock steps, over-saturation, usage field"


@dataclass(frozen=True)
class Work:
    """One load for a tool: ``requests`` in all, ``concurrency`` at a time, or arriving at ``rate_per_s`` (Poisson)."""

    url: str
    model: str
    tokenizer: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    rate_per_s: float | None
    ignore_eos: bool
    seed: int
    folder: Path  # results go below it


@dataclass(frozen=True)
class Stated:
    """What a tool said. Latencies in ms by metric name and percentile; None and absent: it did not say."""

    completed: int
    failed: int
    duration_s: float
    output_tokens: int
    prompt_tokens: int | None
    output_tps: float
    total_tps: float | None
    requests_per_s: float | None
    latencies: Mapping[str, Mapping[float, float]] = field(default_factory=dict)  # ttft, tpot, itl, e2e


class Tool(Protocol):
    """One tool. ``program``: the words that start it when the user names none."""

    name: ClassVar[str]
    program: ClassVar[tuple[str, ...]]
    key_variable: ClassVar[str | None]  # of the environment, by which it takes an API key; None: only by its command line
    rates: ClassVar[bool]  # whether it is offered arrivals by a clock
    remarks: ClassVar[tuple[str, ...]]  # where its figures mean something else than ours

    def arguments(self, work: Work) -> list[str]:
        """What follows ``program``."""
        ...

    def environment(self) -> dict[str, str]: ...

    def read(self, folder: Path, work: Work) -> Stated:
        """Raises OSError, ValueError, LookupError or TypeError where the result is not there or not of the known form."""
        ...

    def written(self, points: list[LoadPoint], about: "About") -> str:
        """Our load points in the form of its result file; what we do not know is left out."""
        ...


@dataclass(frozen=True)
class About:
    """What an exported file says beside the figures."""

    url: str
    model: str
    workload: Workload
    date: str  # UTC, YYYYmmdd-HHMMSS


def newest(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if not found:
        raise FileNotFoundError(f"it wrote no {pattern}")
    return found[-1]


def object_of(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the result is not an object")
    return value


def flat_latencies(told: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, dict[float, float]]:
    """``p99_ttft_ms`` and ``median_ttft_ms``, as vLLM and SGLang write them. ``names``: their name to ours."""
    found: dict[str, dict[float, float]] = {}
    for theirs, ours in names.items():
        values = {float(q): float(told[key]) for q in tail.PERCENTILES if isinstance(told.get(key := f"p{q}_{theirs}_ms"), int | float)}
        if isinstance(middle := told.get(f"median_{theirs}_ms"), int | float):
            values[50.0] = float(middle)
        if values:
            found[ours] = values
    return found


def flat_written(point: LoadPoint, names: Mapping[str, str]) -> dict[str, float]:
    """The reverse of ``flat_latencies``."""
    out: dict[str, float] = {}
    for theirs, ours in names.items():
        for q in tail.PERCENTILES:
            value = point.metrics.get(f"{ours}_p{q}_ms")
            if value is not None:
                out["median_" + theirs + "_ms" if q == 50 else f"p{q}_{theirs}_ms"] = value
    return out


def load_point(stated: Stated, work: Work, tool: Tool) -> LoadPoint:
    """A tool's figures as a load point. A percentile stands only where the number of requests carries it."""
    invalid: list[Invalidity] = []
    notes = [f"measured by {tool.name}: figures of its whole run, ramp and tail included; not checked: {NOT_CHECKED}", *tool.remarks]
    metrics: dict[str, float] = {}
    mean = stated.output_tokens / stated.completed if stated.completed else None
    if stated.failed:
        invalid.append(Invalidity(code=ValidityCode.ERRORS, detail=f"{stated.failed} of {stated.failed + stated.completed} requests failed, says {tool.name}"))
    if not stated.completed or not stated.output_tokens:
        invalid.append(Invalidity(code=ValidityCode.TOO_FEW_REQUESTS, detail=f"{stated.completed} requests and {stated.output_tokens} tokens ended, says {tool.name}"))
    elif work.ignore_eos and mean is not None and abs(mean / work.output_tokens - 1) > OUTPUT_TOLERANCE:
        invalid.append(Invalidity(code=ValidityCode.OUTPUT_LENGTH, detail=f"{mean:.1f} output tokens on average, asked for {work.output_tokens}"))
    if stated.completed:
        metrics["output_tokens_per_s"] = stated.output_tps
        metrics["output_tokens_per_s_per_user"] = stated.output_tps / work.concurrency
        if stated.total_tps is not None:
            metrics["total_tokens_per_s"] = stated.total_tps
        if stated.requests_per_s is not None:
            metrics["requests_per_s"] = stated.requests_per_s
    if stated.completed + stated.failed:
        metrics["error_rate"] = stated.failed / (stated.completed + stated.failed)
    for name, values in stated.latencies.items():
        samples = stated.completed if name != "itl" else max(0, stated.output_tokens - stated.completed)
        metrics |= {f"{name}_p{q:g}_ms": value for q, value in values.items() if tail.supported(q, samples)}
    return LoadPoint(
        concurrency=work.concurrency, requests_ok=stated.completed, requests_failed=stated.failed, prompt_tokens=stated.prompt_tokens or 0,
        output_tokens=stated.output_tokens, window_s=stated.duration_s, metrics=metrics, errors={"unknown": stated.failed} if stated.failed else {},
        mean_output_tokens=mean, invalid=tuple(invalid), notes=tuple(notes),
    )  # fmt: skip


def no_result(why: str, work: Work, tool: Tool) -> LoadPoint:
    """The tool ended without figures."""
    lost = Invalidity(code=ValidityCode.ERRORS, detail=f"{tool.name} gave no result: {why}")
    return LoadPoint(concurrency=work.concurrency, requests_ok=0, requests_failed=0, prompt_tokens=0, output_tokens=0, window_s=0.0, metrics={}, invalid=(lost,))
