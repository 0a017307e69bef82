"""``guidellm run --output kind=json``: one document with a benchmark for each load. Read as written by guidellm 0.8.1."""

import json
from pathlib import Path
from typing import Any, ClassVar

from optimizer.bench.tools.base import About, Stated, Work, newest, object_of
from optimizer.model.measurement import LoadPoint
from optimizer.stats import tail

# Its inter-token latency is the mean gap of each request, which is our TPOT; its time per output token has the first token in it.
NAMES = {"time_to_first_token_ms": ("ttft", 1.0), "inter_token_latency_ms": ("tpot", 1.0), "request_latency": ("e2e", 1000.0)}
RATES = {"requests_per_s": "requests_per_second", "output_tokens_per_s": "output_tokens_per_second", "total_tokens_per_s": "tokens_per_second"}


class Guidellm:
    name: ClassVar[str] = "guidellm"
    program: ClassVar[tuple[str, ...]] = ("guidellm", "run")
    key_variable: ClassVar[str | None] = None
    rates: ClassVar[bool] = False
    remarks: ClassVar[tuple[str, ...]] = ("guidellm states no gap between single arrivals of text: no ITL",)

    def arguments(self, work: Work) -> list[str]:
        return ["--backend", f"kind=openai_http,target={work.url},model={work.model},request_format=/v1/completions",
                "--profile", f"kind=concurrent,streams={work.concurrency}", "--constraint", f"kind=max_requests,count={work.requests}",
                "--tokenizer", f"kind=hf_auto,model={work.tokenizer}", "--data", f"kind=synthetic_text,prompt_tokens={work.prompt_tokens},output_tokens={work.output_tokens}",
                "--output", f"kind=json,path={work.folder / 'result.json'}", "--disable-console"]  # fmt: skip

    def environment(self) -> dict[str, str]:
        # One process per stream up to ten otherwise, each of which imports for seconds: on few cores none gets ready.
        return {"GUIDELLM__MAX_WORKER_PROCESSES": "2"}

    def read(self, folder: Path, work: Work) -> Stated:
        told = object_of(newest(folder, "result.json").read_text(encoding="utf-8"))["benchmarks"][-1]
        metrics = told["metrics"]
        totals = metrics["request_totals"]
        latencies: dict[str, dict[float, float]] = {}
        for theirs, (ours, factor) in NAMES.items():
            quantiles = metrics[theirs]["successful"]["percentiles"]
            latencies[ours] = {float(q): factor * float(quantiles[f"p{q}"]) for q in tail.PERCENTILES if f"p{q}" in quantiles}
        rates = {ours: float(metrics[theirs]["successful"]["mean"]) for ours, theirs in RATES.items()}
        return Stated(
            completed=int(totals["successful"]), failed=int(totals["errored"]), duration_s=float(told["duration"]),
            output_tokens=round(metrics["output_token_count"]["successful"]["total_sum"]), prompt_tokens=round(metrics["prompt_token_count"]["successful"]["total_sum"]),
            output_tps=rates["output_tokens_per_s"], total_tps=rates["total_tokens_per_s"], requests_per_s=rates["requests_per_s"], latencies=latencies,
        )  # fmt: skip

    def written(self, points: list[LoadPoint], about: About) -> str:
        return json.dumps({"benchmarks": [self._one(point) for point in points]}, indent=1) + "\n"

    def _one(self, point: LoadPoint) -> dict[str, Any]:
        metrics: dict[str, Any] = {
            "request_totals": {"successful": point.requests_ok, "errored": point.requests_failed, "incomplete": 0, "total": point.requests_ok + point.requests_failed},
            "prompt_token_count": {"successful": {"total_sum": point.prompt_tokens}}, "output_token_count": {"successful": {"total_sum": point.output_tokens}},
        }  # fmt: skip
        metrics |= {theirs: {"successful": {"mean": point.metrics[ours]}} for ours, theirs in RATES.items() if ours in point.metrics}
        for theirs, (ours, factor) in NAMES.items():
            known = {f"p{q}": point.metrics[f"{ours}_p{q}_ms"] / factor for q in tail.PERCENTILES if f"{ours}_p{q}_ms" in point.metrics}
            metrics[theirs] = {"successful": {"percentiles": known}}
        return {"type_": "generative_benchmark", "duration": point.window_s, "metrics": metrics}
