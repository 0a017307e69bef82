"""``python -m sglang.bench_serving --output-file``: one JSON object a line. Read as written by SGLang 0.5.23."""

import json
from pathlib import Path
from typing import ClassVar

from optimizer.bench.tools.base import About, Stated, Work, flat_latencies, flat_written, newest, object_of
from optimizer.model.measurement import LoadPoint

NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2e"}


class Sglang:
    name: ClassVar[str] = "sglang"
    program: ClassVar[tuple[str, ...]] = ("python3", "-m", "sglang.bench_serving")
    key_variable: ClassVar[str | None] = "OPENAI_API_KEY"
    rates: ClassVar[bool] = True
    remarks: ClassVar[tuple[str, ...]] = ("sglang counts prompt tokens with the tokenizer that it was given, not by the server's usage",)

    def arguments(self, work: Work) -> list[str]:
        words = ["--backend", "vllm", "--base-url", work.url, "--model", work.model, "--tokenizer", work.tokenizer, "--dataset-name", "random-ids",
                 "--random-input-len", str(work.prompt_tokens), "--random-output-len", str(work.output_tokens), "--random-range-ratio", "1.0",
                 "--num-prompts", str(work.requests), "--seed", str(work.seed), "--output-file", str(work.folder / "result.jsonl"), "--disable-tqdm"]  # fmt: skip
        words += ["--request-rate", f"{work.rate_per_s:g}"] if work.rate_per_s is not None else ["--max-concurrency", str(work.concurrency)]
        return words if work.ignore_eos else [*words, "--disable-ignore-eos"]

    def environment(self) -> dict[str, str]:
        return {}

    def read(self, folder: Path, work: Work) -> Stated:
        lines = newest(folder, "result.jsonl").read_text(encoding="utf-8").splitlines()
        told = object_of(lines[-1])
        done = int(told["completed"])
        return Stated(
            completed=done, failed=max(0, work.requests - done), duration_s=float(told["duration"]), output_tokens=int(told["total_output_tokens"]),
            prompt_tokens=int(told["total_input_tokens"]), output_tps=float(told["output_throughput"]), total_tps=float(told["total_throughput"]),
            requests_per_s=float(told["request_throughput"]), latencies=flat_latencies(told, NAMES),
        )  # fmt: skip

    def written(self, points: list[LoadPoint], about: About) -> str:
        return "".join(json.dumps(self._one(point, about)) + "\n" for point in points)

    def _one(self, point: LoadPoint, about: About) -> dict[str, object]:
        closed = about.workload.arrival == "closed"
        out: dict[str, object] = {
            "tag": "optimize bench", "backend": "vllm", "max_concurrency": point.concurrency if closed else None, "duration": point.window_s,
            "completed": point.requests_ok, "total_input_tokens": point.prompt_tokens, "total_output_tokens": point.output_tokens,
        }  # fmt: skip
        renamed = {"requests_per_s": "request_throughput", "output_tokens_per_s": "output_throughput", "total_tokens_per_s": "total_throughput"}
        out |= {theirs: point.metrics[ours] for ours, theirs in renamed.items() if ours in point.metrics}
        return out | flat_written(point, NAMES)
