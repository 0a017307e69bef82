"""The job of one load point, and what its output means. Pure: bytes in, domain types out; it starts nothing and reads
no clock. It is the only place where a load point is called invalid from what the client saw; what only the server or
the box can tell (foreign traffic, throttling, wrong server) is added by those who look there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optimizer.bench.workload import declared_cached_share, job_prompts, offered
from optimizer.errors import OptimizerError, UsageError
from optimizer.model.evidence import Fact
from optimizer.model.measurement import STOPPED_EARLY, Invalidity, LoadPoint, ValidityCode
from optimizer.model.target import percentile_of
from optimizer.model.workload import Workload
from optimizer.stats import saturation, steady, tail

# Fewer events with text than this give a rate with a counting error of its own above 20 %.
MIN_CHUNKS = 25
HELD_BACK_TOKENS = 32  # of one piece; stream intervals and draft lengths stay below
OUTPUT_TOLERANCE = 0.01
MORE_THAN_ASKED = 2  # tokens: an end-of-text token that is counted, a draft that ends with it
CACHED_TOLERANCE = 0.02
CHAT_TEMPLATE_TOKENS = 64
START_TOKENS = 4  # llama.cpp reuses single tokens: the one that begins every text, and the few that two random texts share by chance
CPU_SHARE_LIMIT = 0.8
LAG_SHARE_LIMIT = 0.10
COUNTED_TOLERANCE = 0.01  # between what the engine counted and what came here
IN_FLIGHT_TOKENS = 32  # of one request: made by the server when we hung up, not read any more
CLOCK_STEP_LIMIT_S = 1.0
STALLED_TIMES, STALLED_AT_LEAST_S = 3.0, 2.0  # silent so many times longer than any request took that ended: it hangs


def build_job(
    workload: Workload,
    *,
    concurrency: int,
    window_s: float,
    base_url: str,
    model: str,
    seed: int | str,
    salt: str,
    time_scale: float = 1.0,
    api_key_env: str | None = None,
    rate_per_s: float | None = None,
    native_generate: bool = False,
    cpus: Sequence[int] | str = (),
    beside_server: bool = False,
    metrics_path: str | None = None,
    ca_file: str | None = None,
    max_connections: int | None = None,
    stop_below: float | None = None,
) -> dict[str, Any]:
    """The JSON object that ``loadgen.py`` reads from its stdin, on one line.

    Times are server seconds; ``rate_per_s`` (requests per server second) replaces the workload's and makes it an open loop,
    with Poisson arrivals unless the workload says otherwise. ``api_key_env`` names an environment variable of the load
    generator's process: the key itself never lies in a job. ``beside_server``: it runs on the server's machine, asks the
    server's own process for its API key, and keeps off its CPUs. ``cpus`` pins the process to these. ``metrics_path``:
    where the server's own token counters are read, before and after the load. ``stop_below``: output tokens per server second;
    a lower rate after a third of the window ends it there.
    """
    if not time_scale > 0:
        raise UsageError(
            f"A time scale of {time_scale} makes no sense: it must be greater than 0.", hint="Real servers use 1; --time-scale is for simulated boxes."
        )
    job: dict[str, Any] = {
        "base_url": base_url,
        "api": "generate" if native_generate else workload.api,
        "model": model,
        "concurrency": concurrency,
        "output_tokens": workload.output_tokens,
        "prompts": job_prompts(workload, seed, salt),
        "warmup_min_s": workload.warmup_min_s,
        "warmup_max_s": max(workload.warmup_min_s, workload.warmup_max_s),
        "window_s": window_s,
        "time_scale": time_scale,
    }
    job |= offered(workload, seed)
    if api_key_env:
        job["api_key_env"] = api_key_env
    if rate_per_s is not None:
        job["rate_per_s"] = rate_per_s
        job.setdefault("arrival", "poisson")
    if beside_server:
        job |= {"api_key_of_server": True, "cpus": "auto"}
    if cpus:
        job["cpus"] = cpus if isinstance(cpus, str) else list(cpus)
    for name, value in (("metrics_path", metrics_path), ("ca_file", ca_file), ("max_connections", max_connections), ("stop_below", stop_below)):
        if value is not None:
            job[name] = value
    return job


def longest_s(job: Mapping[str, Any]) -> float:
    """Real seconds after which the load generator has ended by itself, start-up and connecting included: the deadline
    to give it."""
    scale = float(job.get("time_scale", 1.0))
    return (
        (float(job["warmup_max_s"]) + float(job["window_s"]) + float(job.get("drain_s", 0.0))) / scale
        + float(job.get("connect_timeout_s", 10.0))
        + 30.0
    )


def progress(line: bytes) -> dict[str, Any] | None:
    """The content of a progress line, None for every other line."""
    value = _parse(line)
    return value if value is not None and value.get("t") == "progress" else None


def summarise(lines: Iterable[bytes], workload: Workload, concurrency: int) -> LoadPoint:
    """All stdout lines of one run to its load point, with everything that makes it invalid.

    Raises UsageError when the load generator refused the job, OptimizerError never for what a server did.
    """
    rows: list[list[Any]] = []
    summary: dict[str, Any] | None = None
    for line in lines:
        value = _parse(line)
        if value is None:
            continue
        kind = value.get("t")
        if kind == "r":
            rows.append(value["v"])
        elif kind == "summary":
            summary = value
        elif kind == "refused":
            raise UsageError(
                f"The load generator refused its job: {value.get('why')}.",
                why="Nothing was measured.",
                hint="Check the server's address, the workload and the name of the API key's environment variable.",
            )
    if summary is None:
        lost = Invalidity(
            code=ValidityCode.ERRORS, detail="the load generator ended without a result; nothing was measured"
        )
        return LoadPoint(
            concurrency=concurrency,
            requests_ok=0,
            requests_failed=0,
            prompt_tokens=0,
            output_tokens=0,
            window_s=0.0,
            metrics={},
            invalid=(lost,),
        )
    if summary.get("version") != 1:
        raise OptimizerError(
            f"The load generator speaks version {summary.get('version')}, this program reads version 1.",
            hint="An old copy of it lies on the box; remove ~/.optimizer there and start again.",
        )
    return _Point(summary, rows, workload, concurrency).load_point()


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:  # a line cut off by a kill, or something else that wrote to the same stdout
        return None
    return value if isinstance(value, dict) else None


class _Point:
    """The summary and the requests of one run, read together."""

    def __init__(self, summary: dict[str, Any], rows: list[list[Any]], workload: Workload, concurrency: int) -> None:
        self.summary, self.workload, self.concurrency = summary, workload, concurrency
        self.rows = [dict(zip(summary["fields"], row, strict=True)) for row in rows]
        self.window_s = float(summary["measured_s"])
        # In steady state, requests whose event lies in the window are a fair sample of that event, however long they
        # run; requests that began in the window are not, because the slow ones among them are cut.
        self.ended = [
            row for row in self.rows if row["ok"] and row["ended"] is not None and 0 <= row["ended"] < self.window_s
        ]
        self.full = [row for row in self.ended if not row["first_wave"]]
        self.first = [row for row in self.rows if row["first"] is not None and 0 <= row["first"] < self.window_s]
        self.tokens = sum(summary["tokens"])
        self.stalled = self._stalled()
        self.failed = sum(summary["errors_window"].values()) + self.stalled
        self.invalid: list[Invalidity] = []
        self.notes: list[str] = []

    def _stalled(self) -> int:
        """Requests that were cut and had been silent for much longer than any other took from asking to its end. The deadline of a
        silent request is a minute or more: a window may be over before it."""
        took = [row["ended"] - row["scheduled"] for row in self.rows if row["ok"] and row["ended"] is not None]
        if len(took) < 3:
            return 0
        limit = max(STALLED_AT_LEAST_S, STALLED_TIMES * max(took))
        return sum(silent > limit for silent in self.summary.get("silent_s", ()))

    def load_point(self) -> LoadPoint:
        prompts = [row["prompt"] for row in self.ended if row["prompt"] is not None]
        mean_prompt = sum(prompts) / len(prompts) if prompts else 0.0
        cached = [row["cached"] for row in self.ended if row["cached"] is not None]
        lengths = [row["output"] for row in self.full if row["output"] is not None]
        windows = self._windows()
        metrics = self._metrics(mean_prompt, windows)
        self._judge(metrics, mean_prompt, lengths, windows)
        return LoadPoint(
            concurrency=self.concurrency,
            requests_ok=len(self.ended),
            requests_failed=self.failed,
            prompt_tokens=sum(prompts),
            output_tokens=round(self.tokens),
            cached_tokens=sum(cached) if cached else None,
            warmup_s=self.summary["warmup_s"],
            window_s=self.window_s,
            metrics=metrics,
            windows_tokens_per_s=tuple(windows),
            errors={str(key): int(count) for key, count in self.summary["errors"].items()} | ({"stalled": self.stalled} if self.stalled else {}),
            mean_output_tokens=sum(lengths) / len(lengths) if lengths else None,
            client_cpu_share=self.summary["cpu_share"],
            invalid=tuple(self.invalid),
            notes=tuple(self.notes),
        )

    def _windows(self) -> list[float]:
        """Tokens per second in the sub-windows that were measured to their end (all, unless the run ended early)."""
        tokens = self.summary["tokens"]
        width = float(self.summary["window_s"]) / len(tokens)
        whole = int(self.window_s / width + 1e-6)
        return [count / width for count in tokens[:whole]]

    def _metrics(self, mean_prompt: float, windows: Sequence[float]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self.window_s <= 0:
            return metrics
        rate = self.tokens / self.window_s
        asked = len(self.ended) + self.failed
        metrics["output_tokens_per_s"] = rate
        metrics["output_tokens_per_s_per_user"] = rate / self.concurrency
        if mean_prompt or not self.first:  # without a word on the prompts it would be the output rate under another name
            metrics["total_tokens_per_s"] = rate + mean_prompt * len(self.first) / self.window_s
        metrics["requests_per_s"] = len(self.ended) / self.window_s
        if asked:
            metrics["error_rate"] = self.failed / asked
        if self.summary.get("repeat_share") is not None:
            metrics["output_repeat_share"] = float(self.summary["repeat_share"])
        mean = steady.window_mean(windows)
        if mean is not None:
            metrics["output_tokens_per_s_rel_se"] = mean.relative_se
        ttft = [(row["first"] - row["scheduled"]) * 1000 for row in self.first if not row["first_wave"]]
        wanted = sorted({*tail.PERCENTILES, *self.workload.percentiles})
        add_percentiles(metrics, "ttft", ttft, wanted)
        add_percentiles(metrics, "tpot", self._tpot(), wanted)
        add_percentiles(metrics, "e2e", [(row["ended"] - row["scheduled"]) * 1000 for row in self.full], wanted)
        if self.workload.limits and asked:
            good = sum(self._good(row) for row in self.ended)
            metrics["goodput_per_s"] = good / self.window_s
            metrics["good_share"] = good / asked
            reached = [ratio for row in self.ended if (ratio := self._slo_ratio(row)) is not None]
            if reached:
                metrics["slo_ratio_p50"] = tail.quantile(sorted(reached), 50)
        counted = self.summary.get("counters")
        if counted is not None and counted["generated"] > 0:
            metrics["engine_tokens_ratio"] = self._nearest(counted) / counted["generated"]
        if self._held_back():
            self.notes.append("the server holds its text back and sends an answer in a few pieces: no token times can be stated")
        else:
            _add_histogram(metrics, "itl", self.summary["itl_ms"], wanted)
        return metrics

    def _good(self, row: Mapping[str, Any]) -> bool:
        """Whether this request kept every limit of the workload's ``slo``."""
        ratio = self._slo_ratio(row)
        return ratio is not None and ratio <= 1

    def _slo_ratio(self, row: Mapping[str, Any]) -> float | None:
        """The request's value over its limit, of the limit it is furthest beyond: at most 1 keeps the ``slo``. None without text."""
        seen: dict[str, float | None] = {"e2e": (row["ended"] - row["scheduled"]) * 1000, "ttft": None, "tpot": None}
        if row["first"] is not None:
            seen["ttft"] = (row["first"] - row["scheduled"]) * 1000
            seen["tpot"] = _request_tpot(row) if row["chunks"] > 1 and row["output"] else 0.0
        ratios = [None if (value := seen[bound.metric]) is None else value / bound.value for bound in self.workload.limits]
        return max(known) if len(known := [ratio for ratio in ratios if ratio is not None]) == len(ratios) else None

    @staticmethod
    def _nearest(counted: Mapping[str, float]) -> float:
        """Tokens of ours to hold against the engine's counter: some engines count a token when it is made, some count a request
        when it ends, and what was cut by us in part, wholly or not at all."""
        return min(max(counted["generated"], counted["finished"]), counted["finished"] + counted["partial"])

    def _held_back(self) -> bool:
        """Most answers came in pieces of more tokens than any stream interval or draft explains."""
        sizes = sorted(row["output"] / row["chunks"] for row in self.full if row["chunks"] and row["output"])
        return bool(sizes) and sizes[len(sizes) // 2] > HELD_BACK_TOKENS

    def _tpot(self) -> list[float]:
        """(last - first) / (tokens - 1) in ms, of the requests that ended; where fewer than three did, of all that
                streamed a while.

        A chunk may carry several tokens: those of the first chunk came with it, so the span from first to last chunk
        produced the tokens of the other chunks. With one token per chunk that is the usual formula. A server that holds
        its text back sends an answer in a few large pieces, which say nothing about single tokens: recorded on a real
        GPU, two pieces for 512 tokens once gave twice the true figure.
        """
        if self._held_back():
            return []
        values = []
        for row in self.full:
            if row["chunks"] > 1 and row["output"]:
                values.append(_request_tpot(row))
        if len(values) >= tail.MEDIAN_NEEDS:
            return values
        per_chunk = self.summary["tokens_per_chunk"] or 1.0
        return [
            (row["last"] - row["first"]) * 1000 / ((row["chunks"] - 1) * per_chunk)
            for row in self.rows
            if row["chunks"] >= 8 and row["last"] > 0
        ]

    # -- validity

    def _judge(
        self, metrics: Mapping[str, float], mean_prompt: float, lengths: Sequence[int], windows: Sequence[float]
    ) -> None:
        summary = self.summary
        self._errors()
        if summary["chunks_window"] < MIN_CHUNKS:
            self._reject(
                ValidityCode.TOO_FEW_REQUESTS,
                f"{summary['chunks_window']} chunks in {self.window_s:.0f} s, needed {MIN_CHUNKS}{self._silence()}",
            )
        elif not summary["finished_ok"]:
            self.notes.append("no request finished before the window ended: tokens were counted from chunks, one each")
        if summary["usage_missing"]:
            self._reject(
                ValidityCode.USAGE_MISSING,
                f"{summary['usage_missing']} of {summary['finished_ok']} answers carried no usage; chunks were counted",
            )
        if summary.get("stopped_early"):
            self.notes.append(f"{STOPPED_EARLY} {self.window_s:.0f} s: {summary['stopped_early']}")
        self._output_length(lengths)
        self._cached(mean_prompt)
        self._counted()
        self._client(metrics)
        self._steady(windows)
        if summary["clock_step_real_s"] > CLOCK_STEP_LIMIT_S:
            self._reject(
                ValidityCode.CLOCK_STEP,
                f"the client's clocks disagree by {summary['clock_step_real_s']:.1f} s over the window",
            )
        if summary["rate_per_s"]:
            ttft = [(row["scheduled"], row["first"] - row["scheduled"]) for row in self.first]
            in_flight = [(at, float(count)) for at, count in summary["in_flight"]]
            if saturation.over_saturated(in_flight, sorted(ttft)):
                self._reject(
                    ValidityCode.OVER_SATURATED,
                    f"requests in flight and TTFT both grew at {summary['rate_per_s']:g} requests/s",
                )

    def _silence(self) -> str:
        silent = self.summary.get("silent_s") or ()
        if self.summary["chunks_window"] or not silent:
            return ""
        return f"; {len(silent)} requests were under way, and none had brought anything for {min(silent):.3g} s or longer"

    def _output_length(self, lengths: Sequence[int]) -> None:
        """The same work in every arm: as many tokens as were asked for, on average over the requests that ended; and never more
        than were allowed, which no average of answers that end by themselves would show."""
        most = [(row["output"], row.get("asked", self.workload.output_tokens)) for row in self.rows if row["ok"] and row["output"] is not None]
        beyond = [(output, asked) for output, asked in most if output > asked + MORE_THAN_ASKED]
        if beyond and not self.workload.ignore_eos:
            output, asked = max(beyond)
            self._reject(ValidityCode.OUTPUT_LENGTH, f"{len(beyond)} answers count more tokens than they may have, up to {output:,} of {asked:,}")
        if not lengths or not self.workload.ignore_eos:
            return
        rows = [row for row in self.full if row["output"] is not None]
        asked = sum(row.get("asked", self.workload.output_tokens) for row in rows) / len(rows)
        mean = sum(lengths) / len(lengths)
        if abs(mean / asked - 1) > OUTPUT_TOLERANCE:
            self._reject(ValidityCode.OUTPUT_LENGTH, f"{mean:.1f} output tokens on average, asked for {asked:g}")

    def _counted(self) -> None:
        """The engine's own counters over the whole run. More than came here: somebody else asked as well. Fewer: its counters
        leave something out (several servers behind one address), which is only said."""
        counted = self.summary.get("counters")
        if counted is None or not counted["generated"]:
            return
        generated, ours = counted["generated"], self._nearest(counted)
        slack = IN_FLIGHT_TOKENS * (self.concurrency + self.summary["cut"])
        if abs(generated - ours) <= COUNTED_TOLERANCE * ours + (slack if counted["partial"] else 0):
            return
        if generated > ours:
            self._reject(
                ValidityCode.FOREIGN_TRAFFIC,
                f"the engine counted {generated:,.0f} generated tokens during this run, {ours:,.0f} of them were asked for here",
            )
        else:
            self.notes.append(f"the engine counted {generated:,.0f} generated tokens during this run, {ours:,.0f} came here by its usage")

    def _reject(self, code: ValidityCode, detail: str) -> None:
        self.invalid.append(Invalidity(code=code, detail=detail))

    def _errors(self) -> None:
        summary = self.summary
        failed = dict(summary["errors_window"]) | ({"stalled": self.stalled} if self.stalled else {})
        classes = ", ".join(f"{name} {count}" for name, count in sorted(failed.items()))
        if summary.get("interrupted"):
            self._reject(ValidityCode.INTERRUPTED, f"stopped by a signal after {self.window_s:.3g} s of the window of {summary['window_s']:g} s")
        elif summary["gave_up"]:
            self._reject(ValidityCode.ERRORS, f"given up: {summary['gave_up']}")
        elif self.failed:
            example = f" ({summary['examples'][0]})" if summary["examples"] else ""
            self._reject(ValidityCode.ERRORS, f"{self.failed} requests failed in the window: {classes}{example}")
        elif summary["errors"]:
            total = sum(summary["errors"].values())
            self.notes.append(f"{total} requests failed during the warm-up: {', '.join(sorted(summary['errors']))}")

    def _cached(self, mean_prompt: float) -> None:
        rows = [row for row in self.ended if row["cached"] is not None and row["prompt"]]
        if not rows:
            return
        share = sum(row["cached"] for row in rows) / sum(row["prompt"] for row in rows)
        declared = declared_cached_share(self.workload)
        # A chat template begins every prompt with the same tokens; that is the engine's own sharing, not a warm cache.
        template = (CHAT_TEMPLATE_TOKENS if self.workload.api == "chat" else START_TOKENS) / mean_prompt
        if share > declared + CACHED_TOLERANCE + template:
            self._reject(
                ValidityCode.CACHED_PREFIX,
                f"{share:.1%} of the prompt tokens came from the cache, declared {declared:.1%}",
            )
        elif share < declared - CACHED_TOLERANCE:
            self.notes.append(
                f"{share:.1%} of the prompt tokens came from the cache although {declared:.1%} are shared"
            )

    def _client(self, metrics: Mapping[str, float]) -> None:
        summary = self.summary
        cpu, lag = summary["cpu_share"], summary["lag_p99_real_ms"]
        if cpu is not None and cpu > CPU_SHARE_LIMIT:
            self._reject(ValidityCode.CLIENT_BOUND, f"the load generator used {cpu:.0%} of a core")
        # A late client sends its next request late: what it loses is the lag's share of a request's duration. It also
        # delays what it sees of the first token, which is only said.
        duration = metrics.get("e2e_p50_ms")
        mean_lag = summary["lag_mean_real_ms"]
        if duration and mean_lag is not None and mean_lag * summary["time_scale"] > LAG_SHARE_LIMIT * duration:
            self._reject(
                ValidityCode.CLIENT_BOUND,
                f"the load generator woke {mean_lag:.1f} ms late on average, requests take {duration:.0f} ms",
            )
        ttft = metrics.get("ttft_p50_ms")
        if ttft and lag is not None and lag * summary["time_scale"] > 0.5 * ttft:
            self.notes.append(f"the load generator woke up to {lag:.1f} ms late (p99): TTFT is too long by up to that")

    def _steady(self, windows: Sequence[float]) -> None:
        summary = self.summary
        mean = steady.window_mean(windows)
        if mean is None or summary["chunks_window"] < MIN_CHUNKS:
            return  # nothing to judge; too few says it already
        if mean.moved:
            self._reject(ValidityCode.NEVER_STEADY, f"the rate moved by {mean.trend.change:+.0%} during the window")
        elif summary["steady"] == "level":
            self.notes.append(
                f"the rate was level but rough after the warm-up; the window's mean is known to ±{mean.half_width:.1%}"
            )
        elif summary["steady"] == "never":
            said = f"never steady in {summary['warmup_s']:.0f} s of warm-up"
            if mean.usable:
                self.notes.append(f"{said}; no trend in the window, its mean is known to ±{mean.half_width:.1%}")
            else:
                self._reject(
                    ValidityCode.NEVER_STEADY, f"{said}, and the window's mean is known to ±{mean.half_width:.0%} only"
                )


def _request_tpot(row: Mapping[str, Any]) -> float:
    """Time per output token of one request, in ms; see ``_Point._tpot``."""
    return float((row["last"] - row["first"]) * 1000 / (row["output"] * (1 - 1 / row["chunks"])))


def add_percentiles(metrics: dict[str, float], name: str, samples: Sequence[float], wanted: Sequence[float]) -> None:
    ordered = sorted(samples)
    for percentile in wanted:
        if not tail.supported(percentile, len(ordered)):
            continue
        metrics[f"{name}_p{percentile:g}_ms"] = tail.quantile(ordered, percentile)
        if percentile > 50 and (bound := tail.upper_bound(ordered, percentile)) is not None:
            metrics[f"{name}_p{percentile:g}_upper_ms"] = bound  # "p99 is at most this", at 99 % confidence


def _add_histogram(
    metrics: dict[str, float], name: str, bins: Sequence[Sequence[float]], percentiles: Sequence[float]
) -> None:
    """Percentiles of the gaps between arrivals; a read that brought several chunks is one arrival."""
    total = sum(int(count) for _, count in bins)
    for percentile in percentiles:
        if not tail.supported(percentile, total):
            continue
        metrics[f"{name}_p{percentile:g}_ms"] = _at_rank(bins, percentile / 100 * total)
        if percentile > 50 and (allowed := tail.misses_allowed(percentile, total)) is not None:
            metrics[f"{name}_p{percentile:g}_upper_ms"] = _at_rank(bins, total - allowed)


def _at_rank(bins: Sequence[Sequence[float]], rank: float) -> float:
    """The value of the bin that holds the sample of this rank, the smallest being 1."""
    seen = 0
    for value, count in bins:
        seen += int(count)
        if seen >= rank:
            return float(value)
    return float(bins[-1][0])


def missing(metric: str, point: LoadPoint) -> str:
    """Why a load point holds no ``metric``, and what would give it: how many more requests, and about how long a window."""
    percentile = percentile_of(metric)
    if percentile is None:
        return f"{metric} was not measured"
    needed = tail.MEDIAN_NEEDS if percentile <= 50 else tail.requests_needed(percentile)
    if point.requests_ok >= needed:
        return f"{metric} cannot be stated: {'; '.join(point.notes) or 'the answers carry no token times'}"
    said = f"{point.requests_ok} requests ended in the window; a claim about {metric} needs {needed} without a miss, {needed - point.requests_ok} more"
    return f"{said} (a window of about {point.window_s * needed / point.requests_ok:.0f} s at this load)" if point.requests_ok else said


def facts(point: LoadPoint, workload: Workload | None = None, source: str = "bench") -> tuple[Fact, ...]:
    """What one load point says, under the names of the fact vocabulary. Nothing is said for what was not measured.

    ``client.itl_ms_*`` are TPOT where it could be measured, since one chunk may carry several tokens; the p99 of TPOT
    needs 459 requests, so the p99 of the gaps stands in for it only while a chunk is one token.
    """
    metrics, labels = point.metrics, {"concurrency": point.concurrency}
    found: list[Fact] = []

    def add(name: str, value: float | int | str | None, unit: str, **more: str) -> None:
        if value is not None:
            found.append(Fact(name=name, value=value, unit=unit, labels={**labels, **more}, source=source))

    found.append(Fact(name="client.concurrency", value=point.concurrency, unit="requests", source=source))
    add("client.output_tps", metrics.get("output_tokens_per_s"), "tokens/s")
    add("client.total_tps", metrics.get("total_tokens_per_s"), "tokens/s")
    add("client.ttft_ms_p50", metrics.get("ttft_p50_ms"), "ms", delta="content")
    add("client.itl_ms_p50", metrics.get("tpot_p50_ms", metrics.get("itl_p50_ms")), "ms")
    add("client.itl_ms_p99", metrics.get("tpot_p99_ms"), "ms")
    add("client.e2e_ms_p50", metrics.get("e2e_p50_ms"), "ms")
    plain = {"client.requests_per_s": (metrics.get("requests_per_s"), "requests/s")}
    asked = point.requests_ok + point.requests_failed
    if asked:
        plain["client.served_share"] = (point.requests_ok / asked, "ratio")
    if point.requests_ok and point.prompt_tokens:
        plain["client.input_tokens"] = (round(point.prompt_tokens / point.requests_ok), "tokens")
    if point.mean_output_tokens is not None:
        plain["client.output_tokens"] = (round(point.mean_output_tokens), "tokens")
    for name, (value, unit) in plain.items():
        if value is not None:
            found.append(Fact(name=name, value=value, unit=unit, source=source))
    add("client.output_repeat_share", metrics.get("output_repeat_share"), "ratio")
    found.append(Fact(name="client.sampling", value="greedy", unit="none", source=source))
    found.append(Fact(name="client.prompt_source", value="random", unit="none", source=source))
    return tuple(found)
