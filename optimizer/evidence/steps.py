"""Statistics over the step lines of a serving log (Decode and Prefill batches, periodic engine statistics): quantiles
over the
steady window, per rank and per load level. Engine-neutral: parsers hand in records, this module never sees text."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from optimizer.evidence.found import Found, mean, quantile
from optimizer.evidence.lines import Line
from optimizer.evidence.marks import Place


class Decode(NamedTuple):
    """One decode (or engine statistics) line. ``usage`` None: printed as zero beside running requests, hence not known.

    ``timed`` is false for the first line of a rank and for the first after an idle gap: its rate includes the idle
    time."""

    at: Place
    rank: str
    running: int
    queue: int
    usage: float | None
    graph: bool | None
    tokens_per_s: float | None
    accept_len: float | None
    timed: bool
    aux: tuple[tuple[str, float], ...] = ()

    @property
    def line(self) -> Line:
        return Line(*self.at)


class Prefill(NamedTuple):
    """One prefill step as logged."""

    at: Place
    rank: str
    new_tokens: int
    cached_tokens: int
    running: int
    queue: int
    usage: float | None
    graph: bool | None
    tokens_per_s: float | None
    timed: bool

    @property
    def line(self) -> Line:
        return Line(*self.at)


def decode_facts(
    found: Found,
    lines: Sequence[Decode],
    levels: Iterable[int] = (),
    draft_tokens: int | None = None,
    *,
    averaged: bool = False,
    count: int | None = None,
) -> None:
    """States batch, queue, pool and speed facts. ``levels`` are the offered concurrencies of the benchmark, if known.

    ``count``: how many such lines the log has, where only the last ones were read. ``averaged``: a line's rate is an average over seconds (vLLM), so a few lines of a short run give only a lower limit
    of the speed and no step time."""
    found.add("decode.lines", len(lines) if count is None else count, lines[-1].line if lines else None)
    if not lines:
        return
    last = lines[-1].line
    running = [float(item.running) for item in lines]
    for name, value in (
        ("decode.batch_p50", quantile(running, 0.5)),
        ("decode.batch_p90", quantile(running, 0.9)),
        ("decode.batch_max", max(running)),
    ):
        found.add(name, value, _nearest(lines, value))
    queue = [float(item.queue) for item in lines]
    for share, name in ((0.5, "queue.depth_p50"), (0.9, "queue.depth_p90"), (0.95, "queue.depth_p95")):
        value = quantile(queue, share)
        found.add(name, value, next((item.line for item in lines if item.queue == value), last))
    usage = [item.usage for item in lines if item.usage is not None]
    for share, name in ((0.5, "kv.usage_p50"), (0.9, "kv.usage_p90"), (0.95, "kv.usage_p95")):
        level = quantile(usage, share)
        if level is not None:
            found.add(name, level, next((item.line for item in lines if item.usage == level), last))
    if not usage:
        found.missing("kv.usage_p95", "no decode line printed the pool's use beside running requests")
    unread = [item.line for item in lines if item.usage is None]
    if unread:
        found.add("kv.token_readings_missing", len(unread), unread[0])
    _aux(found, lines)
    _graphs(found, lines)
    loaded = _loaded(lines)
    _speed(found, loaded, {}, averaged)
    _acceptance(found, lines, draft_tokens)
    _ranks(found, lines)
    wanted = sorted(set(levels))
    for index, level in enumerate(wanted):
        below = wanted[index - 1] if index else 0
        here = [item for item in lines if below < item.running + item.queue <= level]
        if here:
            _speed(found, _loaded(here), {"concurrency": level}, averaged)
            _graphs(found, here, {"concurrency": level})


def _nearest(lines: Sequence[Decode], value: float | None) -> Line:
    return next((item.line for item in lines if item.running == value), lines[-1].line)


def _loaded(lines: Sequence[Decode]) -> list[Decode]:
    """Lines near the top of the load, so that a sweep's small levels do not blur the figures of the large one."""
    top = quantile([float(item.running) for item in lines], 0.9) or 0.0
    return [item for item in lines if item.running >= 0.75 * top and item.running > 0]


def _graphs(found: Found, lines: Sequence[Decode], labels: dict[str, int] | None = None) -> None:
    known = [item for item in lines if item.graph is not None and item.running > 0]
    if not known:
        if not labels:
            found.missing(
                "decode.graph_off_share", "the decode lines of this build do not say whether a graph was replayed"
            )
        return
    off = [item for item in known if not item.graph]
    found.add("decode.graph_off_share", len(off) / len(known), (off or known)[0].line, labels=labels)


def _speed(found: Found, lines: Sequence[Decode], labels: dict[str, int], averaged: bool) -> None:
    rated = [item for item in lines if item.tokens_per_s and item.running > 0]
    timed = [item for item in rated if item.timed]
    # Short runs may leave only lines behind an idle gap. Their rate contains idle time, so it is a lower limit
    # and said to be one.
    exact = bool(timed) and not (averaged and len(timed) < 3)
    used = timed or rated
    if not used:
        if not labels:
            found.missing("decode.throughput_tps", "no decode line printed a rate")
        return
    rates = [item.tokens_per_s for item in used if item.tokens_per_s]
    rate = quantile(rates, 0.5 if exact else 1.0)
    at = next(item.line for item in used if item.tokens_per_s == rate)
    steps = [1000.0 * item.running * (item.accept_len or 1.0) / item.tokens_per_s for item in used if item.tokens_per_s]
    step = quantile(steps, 0.5) if exact else min(steps)
    found.add("decode.throughput_tps", rate, at, labels=labels, bound=None if exact else "at_least")
    if averaged and not exact:
        return
    found.add("decode.step_ms_p50", step, at, labels=labels, basis="derived", bound=None if exact else "at_most")


def _acceptance(found: Found, window: Sequence[Decode], draft_tokens: int | None) -> None:
    lengths = [(item.accept_len, item.running, item.line) for item in window if item.accept_len]
    if not lengths:
        return
    weight = sum(running for _, running, _ in lengths) or 1
    average = sum(length * running for length, running, _ in lengths) / weight
    found.add("spec.accept_len", average, lengths[-1][2])
    if draft_tokens:
        found.add(
            "spec.accept_share", min(1.0, max(0.0, (average - 1.0) / draft_tokens)), lengths[-1][2], basis="derived"
        )
    if len(lengths) >= 8:
        half = len(lengths) // 2
        early = mean([length for length, _, _ in lengths[:half]]) or 1.0
        late = mean([length for length, _, _ in lengths[half:]]) or 1.0
        change = late / early
        found.add(
            "spec.accept_trend", "rising" if change > 1.1 else "falling" if change < 0.9 else "stable", lengths[-1][2]
        )


def _aux(found: Found, window: Sequence[Decode]) -> None:
    pools: dict[str, list[float]] = {}
    for item in window:
        for pool, value in item.aux:
            pools.setdefault(pool, []).append(value)
    for pool, values in pools.items():
        found.add("kv.aux_usage_p95", quantile(values, 0.95), window[-1].line, labels={"pool": pool})


def _ranks(found: Found, window: Sequence[Decode]) -> None:
    ranks: dict[str, list[float]] = {}
    for item in window:
        ranks.setdefault(item.rank, []).append(float(item.running))
    if len(ranks) < 2:
        return
    middles = [quantile(values, 0.5) or 0.0 for values in ranks.values()]
    total = sum(middles)
    found.add("decode.global_batch", total, window[-1].line, basis="derived")
    if total > 0:
        found.add("decode.rank_imbalance_ratio", max(middles) * len(middles) / total, window[-1].line, basis="derived")


def prefill_facts(found: Found, lines: Sequence[Prefill], count: int | None = None) -> None:
    """States prefill rate, chunk size in use, prefix hits and how many prefill steps replayed a graph. ``count`` as
    above."""
    found.add("prefill.lines", len(lines) if count is None else count, lines[-1].line if lines else None)
    if not lines:
        return
    known = [item for item in lines if item.graph is not None]
    if known:
        used = [item for item in known if item.graph]
        found.add("prefill.graph_used_share", len(used) / len(known), (used or known)[0].line)
    sizes = [float(item.new_tokens) for item in lines]
    found.add("prefill.tokens_per_step_p50", quantile(sizes, 0.5), lines[-1].line)
    _prefill_speed(found, lines)
    fresh = sum(item.new_tokens for item in lines)
    cached = sum(item.cached_tokens for item in lines)
    if fresh + cached > 0:
        found.add("kv.prefix_hit_share", cached / (fresh + cached), lines[-1].line)


def _prefill_speed(found: Found, lines: Sequence[Prefill]) -> None:
    """Only full-size steps behind other work tell the speed; without any, the fastest step is a lower limit."""
    top = 0.5 * max(item.new_tokens for item in lines)
    sized = [item for item in lines[1:] if item.tokens_per_s and item.new_tokens >= top]
    timed = [item for item in sized if item.timed]
    rates = [item.tokens_per_s for item in timed or sized if item.tokens_per_s]
    rate = quantile(rates, 0.5 if timed else 1.0)
    if rate is None:
        found.missing("prefill.throughput_tps", "no prefill line behind other work printed a rate")
        return
    at = next(item.line for item in timed or sized if item.tokens_per_s == rate)
    found.add("prefill.throughput_tps", rate, at, bound=None if timed else "at_least")
