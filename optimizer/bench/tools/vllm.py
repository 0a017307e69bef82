"""``vllm bench serve --save-result``: one JSON object a run. Read as written by vLLM 0.32."""

import json
from pathlib import Path
from typing import ClassVar

from optimizer.bench.tools.base import About, Stated, Work, flat_latencies, flat_written, newest, object_of
from optimizer.model.measurement import LoadPoint

NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}


class Vllm:
    name: ClassVar[str] = "vllm"
    program: ClassVar[tuple[str, ...]] = ("vllm", "bench", "serve")
    key_variable: ClassVar[str | None] = "OPENAI_API_KEY"
    rates: ClassVar[bool] = True
    remarks: ClassVar[tuple[str, ...]] = ("vllm counts prompt tokens with the tokenizer that it was given, not by the server's usage",)

    def arguments(self, work: Work) -> list[str]:
        words = ["--backend", "openai", "--base-url", work.url, "--model", work.model, "--tokenizer", work.tokenizer, "--dataset-name", "random",
                 "--random-input-len", str(work.prompt_tokens), "--random-output-len", str(work.output_tokens), "--num-prompts", str(work.requests),
                 "--seed", str(work.seed), "--temperature", "0", "--save-result", "--result-dir", str(work.folder), "--result-filename", "result.json",
                 "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99", "--disable-tqdm"]  # fmt: skip
        words += ["--request-rate", f"{work.rate_per_s:g}"] if work.rate_per_s is not None else ["--max-concurrency", str(work.concurrency)]
        return [*words, "--ignore-eos"] if work.ignore_eos else words

    def environment(self) -> dict[str, str]:
        return {}

    def read(self, folder: Path, work: Work) -> Stated:
        told = object_of(newest(folder, "result.json").read_text(encoding="utf-8"))
        done = int(told["completed"])
        return Stated(
            completed=done, failed=int(told.get("failed", int(told["num_prompts"]) - done)), duration_s=float(told["duration"]),
            output_tokens=int(told["total_output_tokens"]), prompt_tokens=int(told["total_input_tokens"]), output_tps=float(told["output_throughput"]),
            total_tps=float(told["total_token_throughput"]), requests_per_s=float(told["request_throughput"]), latencies=flat_latencies(told, NAMES),
        )  # fmt: skip

    def written(self, points: list[LoadPoint], about: About) -> str:
        """One object a line, as with its ``--append-result``."""
        return "".join(json.dumps(self._one(point, about)) + "\n" for point in points)

    def _one(self, point: LoadPoint, about: About) -> dict[str, object]:
        closed = about.workload.arrival == "closed"
        out: dict[str, object] = {
            "date": about.date, "backend": "openai", "label": "optimize bench", "model_id": about.model, "num_prompts": point.requests_ok + point.requests_failed,
            "max_concurrency": point.concurrency if closed else None, "duration": point.window_s, "completed": point.requests_ok, "failed": point.requests_failed,
            "total_input_tokens": point.prompt_tokens, "total_output_tokens": point.output_tokens,
        }  # fmt: skip
        if closed:
            out["request_rate"] = "inf"
        renamed = {"requests_per_s": "request_throughput", "goodput_per_s": "request_goodput", "output_tokens_per_s": "output_throughput", "total_tokens_per_s": "total_token_throughput"}
        out |= {theirs: point.metrics[ours] for ours, theirs in renamed.items() if ours in point.metrics}
        return out | flat_written(point, NAMES)
