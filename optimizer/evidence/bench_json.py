"""Reads benchmark rows (``bench.json``) into client facts: one set per load level, and one without a label for the
highest level."""

from collections.abc import Mapping, Sequence

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line
from optimizer.evidence.literal import strict_json
from optimizer.evidence.positions import Positions
from optimizer.model.base import Scalar, Value

_METRICS = (
    ("output_tps", "client.output_tps"),
    ("total_tps", "client.total_tps"),
    ("ttft_p50_ms", "client.ttft_ms_p50"),
    ("ttft_p99_ms", "client.ttft_ms_p99"),
    ("tpot_p50_ms", "client.itl_ms_p50"),
    ("tpot_p99_ms", "client.itl_ms_p99"),
    ("itl_p50_ms", "client.itl_ms_p50"),
    ("itl_p99_ms", "client.itl_ms_p99"),
    ("e2e_p50_ms", "client.e2e_ms_p50"),
    ("repeat_share", "client.output_repeat_share"),
    ("requests", "client.requests"),
    ("failed", "client.failed_requests"),
    ("duration_s", "client.duration_s"),
)


def read_bench(data: bytes) -> tuple[dict[str, Value], ...]:
    """The rows. Raises ValueError when it is not a list of objects."""
    rows = strict_json(data)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it must be a list of objects, one per load level")
    return tuple(rows)


def levels_of(rows: Sequence[Mapping[str, Value]]) -> tuple[int, ...]:
    return tuple(sorted({level for row in rows if (level := _count(row.get("c"))) is not None}))


def bench_facts(found: Found, rows: Sequence[Mapping[str, Value]], data: bytes = b"") -> None:
    """States client.*; a second workload at the same concurrency gets a ``prompts`` label, so that it never replaces
    the first. ``data``: the file's text, for the lines."""
    seen: set[int] = set()
    place = Positions(data).at
    where: Line | None = None
    top: Mapping[str, Value] | None = None
    for index, row in enumerate(rows):
        level = _count(row.get("c"))
        line = place("c", index)
        if level is None:
            continue
        labels: dict[str, Scalar] = {"concurrency": level}
        workload = row.get("workload")
        if level in seen:
            labels["prompts"] = workload if isinstance(workload, str) else "other"
        elif top is None or level > (_count(top.get("c")) or 0):
            top, where = row, line
        seen.add(level)
        _state(found, row, labels, line)
    if top is None:
        found.missing(
            "client.output_tps", "the benchmark has no row: the server never became ready, or nothing was measured"
        )
        return
    found.add("client.concurrency", _count(top.get("c")), where)
    _state(found, top, {}, where)
    found.add("client.input_tokens", _count(top.get("prompt_tokens")), where)
    found.add("client.output_tokens", _count(top.get("out_tokens")), where)
    source = {"random": "random", "repeat": "repeated", "dataset": "dataset", "production": "production"}.get(
        str(top.get("workload"))
    )
    found.add("client.prompt_source", source, where)
    asked, failed = _number(top.get("requests")), _number(top.get("failed"))
    duration = _number(top.get("duration_s"))
    if asked and failed is not None:
        found.add("client.served_share", max(0.0, 1 - failed / asked), where, basis="derived")
        if duration:
            found.add("client.requests_per_s", max(0.0, asked - failed) / duration, where, basis="derived")


def _state(found: Found, row: Mapping[str, Value], labels: Mapping[str, Scalar], at: Line | None = None) -> None:
    for key, name in _METRICS:
        value = _number(row.get(key))
        if value is not None:
            found.add(name, value, at, labels=labels)


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _count(value: Value) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 10**9 else None
