"""Launches of SGLang 0.5.12 on H200 as plain numbers: concurrency, tokens/s, TPOT (ms) per run, and what is known of
each run. They are short single runs; two launches of the same setting differ by 10 % in tokens/s at concurrency 16."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from optimizer.ceiling.predict import Inputs
from optimizer.ceiling.shape import shape_from_config
from optimizer.ceiling.waterfall import waterfall
from optimizer.knowledge.library import library_from_files
from optimizer.model.ceiling import HardwareSpec, ModelShape, Situation
from optimizer.model.measurement import LoadPoint

ROOT = Path(__file__).parents[3]
MODEL_7B: dict[str, Any] = {
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": None,
    "max_window_layers": 999, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151680,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
MODEL_27B = MODEL_7B | {
    "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 40,
}  # fmt: skip
SHAPES = {"7b": shape_from_config(MODEL_7B, "7b"), "27b": shape_from_config(MODEL_27B, "27b")}


@cache
def gpus() -> tuple[HardwareSpec, ...]:
    text = (ROOT / "playbooks" / "hardware.yaml").read_text()
    return library_from_files({"playbooks/hardware.yaml": text}).hardware


def gpu(name: str) -> HardwareSpec:
    return next(spec for spec in gpus() if spec.gpu == name)


@dataclass(frozen=True)
class Run:
    model: str
    points: dict[int, tuple[float, float]]  # concurrency -> tokens/s, TPOT ms
    captured: int = 32
    facts: dict[str, Any] = field(default_factory=dict)
    prompt: int = 156
    output: int = 128
    pool_tokens: int | None = None

    @property
    def shape(self) -> ModelShape:
        return SHAPES[self.model]

    def situation(self, concurrency: int) -> Situation:
        running = float(concurrency)
        if self.pool_tokens:
            running = min(running, self.pool_tokens / (self.prompt + self.output))
        gpus = self.facts.get("tp", 1)
        return Situation(
            intended=concurrency, running=running, prompt_tokens=self.prompt, output_tokens=self.output, gpus=gpus,
            attention_tp=gpus, graph_off_share=float(running > self.captured), **self.facts,
        )  # fmt: skip

    def point(self, concurrency: int) -> LoadPoint:
        rate, tpot = self.points[concurrency]
        return LoadPoint(
            concurrency=concurrency, requests_ok=2 * concurrency, requests_failed=0, prompt_tokens=self.prompt,
            output_tokens=self.output, window_s=2.0, metrics={"output_tokens_per_s": rate, "tpot_p50_ms": tpot},
        )  # fmt: skip

    def inputs(self, concurrency: int, efficiency: float | None = None) -> Inputs:
        situation, point, hardware = self.situation(concurrency), self.point(concurrency), gpu("NVIDIA H200")
        found = waterfall(self.shape, hardware, situation, point, efficiency=efficiency)
        return Inputs(situation, point, self.shape, hardware, found, efficiency)


TWO = {"tp": 2}
RUNS = {
    "tp1-7b-nograph": Run("7b", {1: (38.01, 25.803), 16: (704.37, 21.508)}, captured=0),
    "tp1-7b-graph4": Run("7b", {1: (207.17, 4.706), 16: (839.19, 18.605)}, captured=4),
    "tp1-7b-graph32": Run("7b", {1: (203.87, 4.709), 16: (2592.92, 5.1), 64: (3017.82, 19.918)}),
    "tp1-7b-graph32-b": Run("7b", {1: (197.28, 4.755), 16: (2344.38, 5.134), 32: (4714.33, 5.567)}),
    "tp1-7b-contdecode8": Run("7b", {1: (202.48, 4.756), 16: (2728.66, 5.142), 32: (4687.23, 5.537)}),
    "tp1-7b-nooverlap": Run("7b", {1: (164.93, 5.804), 16: (2171.71, 6.571), 32: (3910.36, 7.011)}),
    "tp1-7b-nextn3-acc2.8": Run(
        "7b", {1: (297.01, 2.927), 16: (2046.91, 4.076), 32: (3503.53, 5.637)},
        facts={"draft_tokens": 3, "accept_len": 2.8},
    ),
    "tp1-7b-kvlimited": Run("7b", {64: (3721.73, 6.388)}, prompt=628, output=400, pool_tokens=27743),
    "tp2-27b-graph32": Run(
        "27b", {1: (119.47, 7.758), 16: (1620.18, 8.335)}, facts=TWO | {"allreduce_path": "custom_graphed"}
    ),
    "tp2-27b-nccl-shm": Run(
        "27b", {1: (104.22, 9.343), 16: (1142.56, 11.717)}, facts=TWO | {"allreduce_path": "nccl_shm"}
    ),
    "tp2-27b-nextn3": Run(
        "27b", {1: (214.54, 3.735), 16: (1704.74, 5.056)},
        facts=TWO | {"allreduce_path": "custom_graphed", "draft_tokens": 3, "accept_len": 3.3},
    ),
}  # fmt: skip
HEALTHY = ("tp1-7b-graph32", "tp1-7b-graph32-b", "tp1-7b-contdecode8", "tp2-27b-graph32")
EVERY = [(name, concurrency) for name, run in RUNS.items() for concurrency in run.points]
