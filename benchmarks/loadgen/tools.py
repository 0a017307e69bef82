"""The load testing tools of the field as they are installed here: how each is told to do one piece of work, and where it writes
what it has measured. Each lies in a virtual environment of its own below ``.clients`` (see compare.py), vLLM's and SGLang's
below ``.engines``."""

import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS, ENGINES = ROOT / ".clients", ROOT / ".engines"
TOKENIZER = ENGINES / "model"
PROMPT_TOKENS = 64
VLLM = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser
except ImportError:
    Parser = argparse.ArgumentParser
parser = Parser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True)
class Work:
    """``requests`` of ``tokens`` each, ``streams`` at a time. Results go below ``folder``."""

    url: str
    streams: int
    requests: int
    tokens: int
    folder: Path


@dataclass(frozen=True)
class Tool:
    name: str
    program: Path
    command: Callable[[Work], list[str]]
    figures: Callable[[Path], dict[str, float]]  # output_tps, ttft_p99_ms, itl_p99_ms, as the tool states them
    env: dict[str, str]


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if not found:
        raise FileNotFoundError(f"it wrote no {pattern}")
    return found[-1]


def _served(folder: Path) -> dict[str, float]:
    told = json.loads(_one(folder, "out.json*").read_text().splitlines()[-1])
    return {"output_tps": told["output_throughput"], "ttft_p99_ms": told["p99_ttft_ms"], "itl_p99_ms": told["p99_itl_ms"]}


def _vllm(work: Work) -> list[str]:
    return [str(ENGINES / "vllm/bin/python"), "-c", VLLM, "--backend", "openai", "--base-url", work.url, "--model", "null", "--tokenizer", str(TOKENIZER),
            "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(work.tokens), "--num-prompts", str(work.requests),
            "--max-concurrency", str(work.streams), "--ignore-eos", "--save-result", "--result-dir", str(work.folder), "--result-filename", "out.json",
            "--percentile-metrics", "ttft,tpot,itl", "--disable-tqdm"]  # fmt: skip


def _sglang(work: Work) -> list[str]:
    return [str(ENGINES / "sglang/bin/python"), "-m", "sglang.bench_serving", "--backend", "vllm", "--base-url", work.url, "--model", "null", "--tokenizer", str(TOKENIZER),
            "--dataset-name", "random-ids", "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(work.tokens), "--random-range-ratio", "1.0",
            "--num-prompts", str(work.requests), "--max-concurrency", str(work.streams), "--output-file", str(work.folder / "out.jsonl"), "--disable-tqdm"]  # fmt: skip


def _aiperf(work: Work) -> list[str]:
    return [str(CLIENTS / "aiperf/bin/aiperf"), "profile", "--model", "nullmodel", "--url", work.url, "--endpoint-type", "completions", "--streaming",
            "--concurrency", str(work.streams), "--request-count", str(work.requests), "--isl", str(PROMPT_TOKENS), "--osl", str(work.tokens),
            "--tokenizer", "null/tiny", "--use-server-token-count", "--ui", "none", "--artifact-dir", str(work.folder)]  # fmt: skip


def _aiperf_figures(folder: Path) -> dict[str, float]:
    told = json.loads(_one(folder, "profile_export_aiperf.json").read_text())
    return {"output_tps": told["output_token_throughput"]["avg"], "ttft_p99_ms": told["time_to_first_token"]["p99"],
            "itl_p99_ms": told["inter_token_latency"]["p99"]}  # fmt: skip


def _guidellm(work: Work) -> list[str]:
    return [str(CLIENTS / "guidellm/bin/guidellm"), "run", "--backend", f"kind=openai_http,target={work.url},model=nullmodel,request_format=/v1/completions",
            "--profile", f"kind=concurrent,streams={work.streams}", "--constraint", f"kind=max_requests,count={work.requests}",
            "--tokenizer", f"kind=hf_auto,model={TOKENIZER}", "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={work.tokens}",
            "--output", f"kind=json,path={work.folder / 'out.json'}", "--disable-console"]  # fmt: skip


def _guidellm_figures(folder: Path) -> dict[str, float]:
    told = json.loads(_one(folder, "out.json").read_text())["benchmarks"][0]["metrics"]
    return {"output_tps": told["output_tokens_per_second"]["successful"]["mean"], "ttft_p99_ms": told["time_to_first_token_ms"]["successful"]["percentiles"]["p99"],
            "itl_p99_ms": told["inter_token_latency_ms"]["successful"]["percentiles"]["p99"]}  # fmt: skip


def _genai(work: Work) -> list[str]:
    return [str(CLIENTS / "genai-bench/bin/genai-bench"), "benchmark", "--api-backend", "openai", "--api-base", work.url, "--api-key", "x", "--task", "text-to-text",
            "--api-model-name", "null", "--model-tokenizer", str(TOKENIZER), "--traffic-scenario", f"D({PROMPT_TOKENS},{work.tokens})",
            "--num-concurrency", str(work.streams), "--max-time-per-run", "3", "--max-requests-per-run", str(work.requests), "--experiment-base-dir", str(work.folder)]  # fmt: skip


def _genai_figures(folder: Path) -> dict[str, float]:
    told = json.loads(_one(folder, "D*.json").read_text())["aggregated_metrics"]
    stats = told["stats"]
    return {"output_tps": told["mean_output_throughput_tokens_per_s"], "ttft_p99_ms": 1000 * stats["ttft"]["p99"], "itl_p99_ms": 1000 * stats["tpot"]["p99"]}


TOOLS = (
    Tool("vLLM bench serve", ENGINES / "vllm/bin/python", _vllm, _served, {}),
    Tool("SGLang bench_serving", ENGINES / "sglang/bin/python", _sglang, _served,
         {"PYTHONPATH": str(ROOT / "scripts/engines/shims"), "SGLANG_USE_CPU_ENGINE": "1"}),
    Tool("aiperf", CLIENTS / "aiperf/bin/aiperf", _aiperf, _aiperf_figures, {}),
    # As many processes as streams, up to ten, unless told otherwise; each imports for seconds, and on two cores none is ready within a minute.
    Tool("guidellm", CLIENTS / "guidellm/bin/guidellm", _guidellm, _guidellm_figures, {"GUIDELLM__MAX_WORKER_PROCESSES": "2"}),
    Tool("genai-bench", CLIENTS / "genai-bench/bin/genai-bench", _genai, _genai_figures, {}),
)  # fmt: skip


def hub(folder: Path) -> None:
    """A hub cache that holds the test tokenizer as ``null/tiny``, for tools that take no path."""
    repository = folder / "hub/models--null--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0")
    shutil.copytree(TOKENIZER, repository / "snapshots/0", ignore=shutil.ignore_patterns("*.safetensors"))


@dataclass(frozen=True)
class Ran:
    cpu_s: float
    wall_s: float
    figures: dict[str, float]


def run(tool: Tool, url: str, streams: int, requests: int, tokens: int, limit_s: float) -> Ran:
    """One run of a tool: CPU seconds of all of its processes and what it states. Raises RuntimeError saying why it gave none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hub(folder / "hf")
        (folder / "results").mkdir()
        work = Work(url, streams, requests, tokens, folder / "results")
        env = {**os.environ, **tool.env, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        process = subprocess.Popen(tool.command(work), env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            said, _ = process.communicate()
            raise RuntimeError(f"it did not end within {limit_s:.0f} s: {_last(said)}") from None
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        try:
            return Ran(cpu, time.monotonic() - began, tool.figures(work.folder))
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise RuntimeError(f"exit {process.returncode}, no result ({type(error).__name__}: {error}): {_last(said)}") from None


def _last(said: bytes) -> str:
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip()[-160:] if lines else "it said nothing"
