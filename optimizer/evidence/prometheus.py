"""Reads a Prometheus text exposition and turns SGLang, vLLM and llama.cpp metrics into facts. With two snapshots,
counters are
differences; with one, they count from the start of the server."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from optimizer.evidence.found import Found, quantile
from optimizer.evidence.lines import Line, Piece, blocks, pieces_of
from optimizer.evidence.series_table import counter_facts, read_table

_SAMPLE = re.compile(rb"([A-Za-z_:][A-Za-z0-9_:]{0,200})(?:\{(.{0,4000})\})? ([^\s]{1,40})(?: -?\d{1,20})?\s*$")
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]{0,100})="((?:[^"\\]|\\.){0,1000})"')
MAX_SAMPLES = 200_000
MAX_SERIES = 20_000


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float
    line: Line


class Metrics:
    """Samples by name. Duplicates are kept in order; NaN and infinities are left out; ``_created`` and buckets are not
    read."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._samples: dict[str, list[Sample]] = {}
        self.unreadable = 0
        for sample in samples:
            self._samples.setdefault(sample.name, []).append(sample)

    def all(self, *names: str) -> list[Sample]:
        """Samples of the first of ``names`` that exists, with or without ``_total``."""
        for name in names:
            for spelling in (name, f"{name}_total", name.removesuffix("_total")):
                if spelling in self._samples:
                    return self._samples[spelling]
        return []

    def total(self, *names: str, **labels: str) -> float | None:
        """Sum over all series with these labels (rank 0 only where several tensor-parallel ranks report the same
        counter)."""
        found = [
            item for item in self.all(*names) if all(item.labels.get(key) == value for key, value in labels.items())
        ]
        if len({item.labels.get("tp_rank") for item in found}) > 1:
            found = [item for item in found if item.labels.get("tp_rank") == "0"]
        return sum(item.value for item in found) if found else None

    def line(self, *names: str) -> Line | None:
        found = self.all(*names)
        return found[0].line if found else None

    def __bool__(self) -> bool:
        return bool(self._samples)


def parse_metrics(data: bytes | Iterable[Piece]) -> Metrics:
    """All samples of an exposition; lines that are not samples are skipped and counted in ``unreadable``."""
    unreadable = [0]
    metrics = Metrics(_samples(pieces_of(data), unreadable))
    metrics.unreadable = unreadable[0]
    return metrics


def _samples(pieces: tuple[Piece, ...], unreadable: list[int]) -> Iterator[Sample]:
    """A snapshot repeats the series of the one before, so what stands before the value is read once."""
    count = 0
    known: dict[bytes, tuple[str, dict[str, str]]] = {}
    for block in blocks(pieces):
        for index, raw in enumerate(block.lines):
            if raw[:1] == b"#" or b"_bucket{" in raw or b"_created" in raw or not raw:
                continue
            cut = raw.rfind(b" ")
            series = known.get(raw[:cut])
            printed = raw[cut + 1 :]
            if series is None:
                match = _SAMPLE.match(raw)
                if not match:
                    unreadable[0] += 1
                    continue
                labels = {
                    key.decode("ascii", "replace"): text.decode("utf-8", "replace")
                    for key, text in _LABEL.findall(match[2] or b"")
                }
                series = (match[1].decode("ascii", "replace"), labels)
                printed = match[3]
                if match.start(3) == cut + 1 and len(known) < MAX_SERIES:
                    known[raw[:cut]] = series
            try:
                value = float(printed)
            except ValueError:
                unreadable[0] += 1
                continue
            if not math.isfinite(value) or count >= MAX_SAMPLES:
                continue
            count += 1
            yield Sample(*series, value, block.line(index))


def metrics_facts(found: Found, now: Metrics, before: Metrics | None = None) -> None:
    """States the facts of whichever engine wrote the metrics."""
    if not now:
        found.missing("kv.usage_p95", "the metrics hold no sample")
    elif now.all(
        "sglang:num_running_reqs",
        "sglang:max_total_num_tokens",
        "sglang:prompt_tokens_total",
        "sglang:cuda_graph_passes_total",
    ):
        _sglang(found, now, before)
    elif now.all("vllm:num_requests_running", "vllm:prompt_tokens_total"):
        _vllm(found, now, before)
    elif now.all("llamacpp:tokens_predicted_total", "llamacpp:n_decode_total"):
        _llamacpp(found, now, before)
    else:
        found.missing("kv.usage_p95", "the metrics are of no engine that is known here")


def series_facts(found: Found, data: bytes | Iterable[Piece]) -> int:
    """States batch, queue and pool use from expositions that were taken one after another under load and concatenated, or
    from a table of the same.

    Returns the number of snapshots. Finer than vLLM's ten-second statistics lines."""
    pieces = pieces_of(data)
    table = read_table(found, pieces)
    if table is not None:
        running, waiting, usage = table.running, table.waiting, table.usage
        counter_facts(found, table)
    else:
        series = parse_metrics(pieces)
        running = _rows(series, "sglang:num_running_reqs", "vllm:num_requests_running", "llamacpp:requests_processing")
        waiting = _rows(series, "sglang:num_queue_reqs", "vllm:num_requests_waiting", "llamacpp:requests_deferred")
        usage = _rows(
            series,
            "sglang:full_token_usage",
            "sglang:token_usage",
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
        )
    busy = [index for index, (value, _) in enumerate(running) if value > 0]
    if not busy:
        return len(running)
    window = slice(busy[0], busy[-1] + 1)
    for rows, names in (
        (running, ((0.5, "decode.batch_p50"), (0.9, "decode.batch_p90"), (1.0, "decode.batch_max"))),
        (waiting, ((0.5, "queue.depth_p50"), (0.9, "queue.depth_p90"), (0.95, "queue.depth_p95"))),
        (usage, ((0.5, "kv.usage_p50"), (0.9, "kv.usage_p90"), (0.95, "kv.usage_p95"))),
    ):
        kept = rows[window]
        for share, name in names:
            value = quantile([number for number, _ in kept], share)
            if value is not None:
                found.add(name, value, next(line for number, line in kept if number == value))
    if len(waiting) == len(running):
        held = [(now + rest, line) for (now, line), (rest, _) in zip(running, waiting, strict=True) if now + rest > 0]
        high = quantile([number for number, _ in held], 0.9)
        if high is not None:
            found.add(
                "server.in_flight_p90", high, next(line for number, line in held if number == high), basis="derived"
            )
    return len(running)


def _rows(series: Metrics, *names: str) -> list[tuple[float, Line]]:
    """One value per snapshot and line: rank 0 where ranks of one engine repeat the same gauge."""
    return [(item.value, item.line) for item in series.all(*names) if item.labels.get("tp_rank", "0") == "0"]


def _difference(now: Metrics, before: Metrics | None, *names: str, **labels: str) -> float | None:
    """Increase of a counter; the whole counter when there is no earlier snapshot or when the server restarted in
    between."""
    value = now.total(*names, **labels)
    if value is None or before is None:
        return value
    start = before.total(*names, **labels)
    return value if start is None or start > value else value - start


def _share(part: float | None, rest: float | None) -> float | None:
    total = (part or 0.0) + (rest or 0.0)
    return (part or 0.0) / total if total > 0 and (part is not None or rest is not None) else None


def _mean_ms(now: Metrics, before: Metrics | None, *names: str) -> float | None:
    """Mean of the first of these histograms that exists: engines rename them."""
    for name in names:
        seconds, count = _difference(now, before, f"{name}_sum"), _difference(now, before, f"{name}_count")
        if seconds is not None and count:
            return 1000.0 * seconds / count
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _sglang(found: Found, now: Metrics, before: Metrics | None) -> None:
    found.add("engine.name", "sglang", now.line("sglang:num_running_reqs", "sglang:cuda_graph_passes_total"))
    passes = "sglang:cuda_graph_passes_total"
    at = now.line(passes)
    kinds = {
        kind: _difference(now, before, passes, mode=kind)
        for kind in ("decode_cuda_graph", "decode_none", "prefill_cuda_graph", "prefill_none")
    }
    for kind, name in (
        ("decode_cuda_graph", "decode.graph_passes"),
        ("decode_none", "decode.eager_passes"),
        ("prefill_cuda_graph", "prefill.graph_passes"),
        ("prefill_none", "prefill.eager_passes"),
    ):
        if at is not None:
            line = next((item.line for item in now.all(passes) if item.labels.get("mode") == kind), at)
            found.add(name, _whole(kinds[kind] or 0.0), line)
    found.add("decode.graph_off_share", _share(kinds["decode_none"], kinds["decode_cuda_graph"]), at)
    found.add("prefill.graph_used_share", _share(kinds["prefill_cuda_graph"], kinds["prefill_none"]), at)
    pool = now.total("sglang:max_total_num_tokens")
    found.add("kv.pool_tokens", _whole(pool), now.line("sglang:max_total_num_tokens"))
    retracted = _difference(now, before, "sglang:num_retracted_requests_total")
    found.add("kv.preemptions", _whole(retracted), now.line("sglang:num_retracted_requests_total"))
    computed = _difference(now, before, "sglang:realtime_tokens_total", mode="prefill_compute")
    cached = _difference(now, before, "sglang:realtime_tokens_total", mode="prefill_cache")
    found.add("kv.prefix_hit_share", _share(cached or 0.0, computed), now.line("sglang:realtime_tokens_total"))
    accept = now.total("sglang:spec_accept_length")
    if accept is not None and accept >= 1:
        found.add("spec.accept_len", accept, now.line("sglang:spec_accept_length"))
    _server(found, now, before, "sglang", "sglang:num_requests_total", "sglang:queue_time_seconds")
    _processes(found, now, "sglang:process_cpu_seconds_total")


def _vllm(found: Found, now: Metrics, before: Metrics | None) -> None:
    found.add("engine.name", "vllm", now.line("vllm:num_requests_running"))
    preempted = _difference(now, before, "vllm:num_preemptions_total")
    found.add("kv.preemptions", _whole(preempted), now.line("vllm:num_preemptions_total"))
    hits = _difference(now, before, "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
    queries = _difference(now, before, "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
    if queries:
        found.add(
            "kv.prefix_hit_share",
            (hits or 0.0) / queries,
            now.line("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        )
    _vllm_speculation(found, now, before)
    waiting = {
        item.labels.get("reason", ""): item for item in now.all("vllm:num_requests_waiting_by_reason") if item.value > 0
    }
    if waiting:
        reason, item = max(waiting.items(), key=lambda pair: pair[1].value)
        found.add(
            "queue.reason", {"capacity": "capacity", "deferred": "deferred", "slots": "slots"}.get(reason), item.line
        )
    for sample in now.all("vllm:cache_config_info"):
        size, blocks = sample.labels.get("block_size", ""), sample.labels.get("num_gpu_blocks", "")
        if size.isdigit():
            found.add("kv.block_tokens", int(size), sample.line)
            if blocks.isdigit() and int(blocks) > 0:
                found.add("kv.pool_tokens", int(size) * int(blocks), sample.line, basis="derived")
        prefix = sample.labels.get("enable_prefix_caching")
        if prefix in ("True", "False"):
            found.add("kv.prefix_cache", prefix == "True", sample.line)
    _server(found, now, before, "vllm", "vllm:request_success_total", "vllm:request_queue_time_seconds")
    aborted = _difference(now, before, "vllm:request_success_total", finished_reason="abort")
    found.add("server.aborted_requests", _whole(aborted), now.line("vllm:request_success_total"))


def _vllm_speculation(found: Found, now: Metrics, before: Metrics | None) -> None:
    drafts = _difference(now, before, "vllm:spec_decode_num_drafts_total")
    drafted = _difference(now, before, "vllm:spec_decode_num_draft_tokens_total")
    accepted = _difference(now, before, "vllm:spec_decode_num_accepted_tokens_total")
    if drafts is None or drafted is None or accepted is None:
        return
    at = now.line("vllm:spec_decode_num_drafts_total")
    found.add("spec.drafted_tokens", _whole(drafted), at)
    found.add("spec.accepted_tokens", _whole(accepted), at)
    if drafts > 0:
        found.add("spec.accept_len", 1 + accepted / drafts, at)
    if drafted > 0:
        found.add("spec.accept_share", accepted / drafted, at)
    produced = _difference(now, before, "vllm:generation_tokens_total")
    if produced:
        # Steps without a draft do not count in the acceptance length; this tells how much of the output drafts touched.
        found.add("spec.draft_share", min(1.0, (accepted + drafts) / produced), at, basis="derived")
    positions = {}
    for item in now.all("vllm:spec_decode_num_accepted_tokens_per_pos_total"):
        place = item.labels.get("position", "")
        if place.isdigit():
            positions[int(place)] = (
                _difference(now, before, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=place) or 0.0
            )
    if positions and drafts > 0:
        found.add("spec.accept_by_position", [round(positions[key] / drafts, 4) for key in sorted(positions)], at)


def _server(found: Found, now: Metrics, before: Metrics | None, engine: str, requests: str, queue: str) -> None:
    for name, metric in (
        ("server.prompt_tokens_total", f"{engine}:prompt_tokens_total"),
        ("server.output_tokens_total", f"{engine}:generation_tokens_total"),
        ("server.requests_total", requests),
    ):
        found.add(name, _whole(_difference(now, before, metric)), now.line(metric))
    for name, metrics in (
        ("server.mean_ttft_ms", (f"{engine}:time_to_first_token_seconds",)),
        # vLLM's name until 0.12 was the second one.
        ("server.mean_itl_ms", (f"{engine}:inter_token_latency_seconds", f"{engine}:time_per_output_token_seconds")),
        ("server.queue_time_ms", (queue,)),
    ):
        found.add(name, _mean_ms(now, before, *metrics), now.line(*(f"{metric}_sum" for metric in metrics)))


def _processes(found: Found, now: Metrics, name: str) -> None:
    for item in now.all(name):
        component = item.labels.get("component")
        if component in ("tokenizer", "detokenizer"):
            found.add("host.proc_cpu_s", item.value, item.line, labels={"process": component})


def _llamacpp(found: Found, now: Metrics, before: Metrics | None) -> None:
    found.add("engine.name", "llamacpp", now.line("llamacpp:tokens_predicted_total"))
    busy = now.total("llamacpp:n_busy_slots_per_decode")
    if busy:
        found.add("decode.batch_p50", busy, now.line("llamacpp:n_busy_slots_per_decode"))
    tokens, seconds = (
        _difference(now, before, "llamacpp:tokens_predicted_total"),
        _difference(now, before, "llamacpp:tokens_predicted_seconds_total"),
    )
    if tokens and seconds:
        # Seconds are summed over slots that decode side by side.
        found.add(
            "decode.throughput_tps",
            tokens / seconds * (busy or 1.0),
            now.line("llamacpp:tokens_predicted_total"),
            basis="derived",
        )
    computed, cached = (
        _difference(now, before, "llamacpp:prompt_tokens_total"),
        _difference(now, before, "llamacpp:prompt_tokens_cached_total"),
    )
    found.add(
        "kv.prefix_hit_share",
        _share(cached or 0.0, computed),
        now.line("llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total"),
    )
    drafted, accepted = (
        _difference(now, before, "llamacpp:spec_decode_num_draft_tokens_total"),
        _difference(now, before, "llamacpp:spec_decode_num_accepted_tokens_total"),
    )
    drafts = _difference(now, before, "llamacpp:spec_decode_num_drafts_total")
    if drafts and accepted is not None and drafted:
        found.add("spec.accept_len", 1 + accepted / drafts, now.line("llamacpp:spec_decode_num_drafts_total"))
        found.add("spec.accept_share", accepted / drafted, now.line("llamacpp:spec_decode_num_drafts_total"))
    found.add("server.prompt_tokens_total", _whole(computed), now.line("llamacpp:prompt_tokens_total"))
    found.add("server.output_tokens_total", _whole(tokens), now.line("llamacpp:tokens_predicted_total"))
