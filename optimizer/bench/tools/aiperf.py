"""``aiperf profile``: ``profile_export_aiperf.json``, one document a run. Read as written by aiperf 0.13."""

import json
from pathlib import Path
from typing import Any, ClassVar

from optimizer.bench.tools.base import About, Stated, Work, newest, object_of
from optimizer.model.measurement import LoadPoint
from optimizer.stats import tail

# Its inter-token latency is the mean gap of each request, which is our TPOT; its inter-chunk latency is our ITL.
NAMES = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "inter_chunk_latency": "itl", "request_latency": "e2e"}
RATES = {
    "requests_per_s": ("request_throughput", "requests/sec"),
    "output_tokens_per_s": ("output_token_throughput", "tokens/sec"),
    "total_tokens_per_s": ("total_token_throughput", "tokens/sec"),
}


class Aiperf:
    name: ClassVar[str] = "aiperf"
    program: ClassVar[tuple[str, ...]] = ("aiperf", "profile")
    key_variable: ClassVar[str | None] = None
    rates: ClassVar[bool] = False
    remarks: ClassVar[tuple[str, ...]] = ()

    def arguments(self, work: Work) -> list[str]:
        words = ["--model", work.model, "--url", work.url, "--endpoint-type", "completions", "--streaming", "--concurrency", str(work.concurrency),
                 "--request-count", str(work.requests), "--isl", str(work.prompt_tokens), "--osl", str(work.output_tokens), "--tokenizer", work.tokenizer,
                 "--use-server-token-count", "--random-seed", str(work.seed), "--ui", "none", "--artifact-dir", str(work.folder)]  # fmt: skip
        return [*words, "--extra-inputs", "ignore_eos:true"] if work.ignore_eos else words

    def environment(self) -> dict[str, str]:
        return {}

    def read(self, folder: Path, work: Work) -> Stated:
        told = object_of(newest(folder, "profile_export_aiperf.json").read_text(encoding="utf-8"))
        done = int(told["request_count"]["avg"])
        latencies = {ours: {float(q): float(told[theirs][f"p{q}"]) for q in tail.PERCENTILES if f"p{q}" in told[theirs]} for theirs, ours in NAMES.items() if theirs in told}
        rates = {ours: float(told[theirs]["avg"]) for ours, (theirs, _) in RATES.items() if theirs in told}
        prompt = told.get("total_isl")
        return Stated(
            completed=done, failed=max(0, work.requests - done), duration_s=float(told["benchmark_duration"]["avg"]), output_tokens=round(told["total_output_tokens"]["avg"]),
            prompt_tokens=None if prompt is None else round(prompt["avg"]), output_tps=rates["output_tokens_per_s"], total_tps=rates.get("total_tokens_per_s"),
            requests_per_s=rates.get("requests_per_s"), latencies=latencies,
        )  # fmt: skip

    def written(self, points: list[LoadPoint], about: About) -> str:
        """The last load: a document of it holds one run."""
        point = points[-1]
        out: dict[str, Any] = {"request_count": {"unit": "requests", "avg": float(point.requests_ok)}, "benchmark_duration": {"unit": "sec", "avg": point.window_s}}
        out["total_output_tokens"] = {"unit": "tokens", "avg": float(point.output_tokens)}
        if point.prompt_tokens:
            out["total_isl"] = {"unit": "tokens", "avg": float(point.prompt_tokens)}
        out |= {theirs: {"unit": unit, "avg": point.metrics[ours]} for ours, (theirs, unit) in RATES.items() if ours in point.metrics}
        for theirs, ours in NAMES.items():
            known = {f"p{q}": point.metrics[f"{ours}_p{q}_ms"] for q in tail.PERCENTILES if f"{ours}_p{q}_ms" in point.metrics}
            if known:
                out[theirs] = {"unit": "ms", **known}
        return json.dumps(out, indent=1) + "\n"
