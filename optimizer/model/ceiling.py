"""Shapes, hardware, bounds and the waterfall: what this box could do, and where the gap is lost."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.playbook import Bucket


class HardwareSpec(Frozen):
    """One GPU model. Rates are data-sheet values per GPU; ``allreduce_us`` are small-message times by path and GPU count."""

    gpu: str
    match: tuple[str, ...] = ()  # lower-case substrings of what nvidia-smi prints
    arch: str = ""
    memory_mib: FiniteFloat
    hbm_bytes_per_s: FiniteFloat
    flops: dict[str, FiniteFloat]
    link: dict[str, FiniteFloat] = Field(default_factory=dict)  # kind -> bytes/s per direction
    allreduce_us: dict[str, dict[str, FiniteFloat]] = Field(default_factory=dict)
    eager_us_per_kernel: FiniteFloat = 6.0
    source: str


class ModelShape(Frozen):
    """What one token costs, before tensor parallelism. Sizes in bytes, counts in parameters."""

    name: str = ""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention_layers: int  # layers with a growing KV cache (hybrid models have fewer than ``layers``)
    weight_bytes_dense: FiniteFloat  # read at every step: attention, dense MLP, shared experts, output head
    weight_bytes_per_expert: FiniteFloat = 0.0
    moe_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    embedding_bytes: FiniteFloat = 0.0
    kv_bytes_per_token: FiniteFloat
    kv_splits_with_tp: bool = True  # MLA's latent is not divided
    active_params: FiniteFloat
    total_params: FiniteFloat
    mtp_layers: int = 0
    bytes_per_weight: FiniteFloat = 2.0


class Ceiling(Frozen):
    """Bounds of one load point. All rates are output tokens/s of the whole deployment, without acceptance unless said."""

    concurrency: int
    running: FiniteFloat  # sequences that can really run: min(concurrency, caps, KV pool)
    step_roof_ms: FiniteFloat
    tokens_per_s: FiniteFloat
    bound: Literal["hbm", "compute", "link"]
    weights_bytes_per_gpu: FiniteFloat
    kv_bytes_per_token_per_gpu: FiniteFloat
    best_acceptance: FiniteFloat = 1.0
    assumptions: tuple[str, ...] = ()


class Slice(Frozen):
    """One bucket of the waterfall: milliseconds per round of the whole deployment and what they cost in tokens/s."""

    bucket: Bucket | Literal["ceiling"]
    ms: FiniteFloat
    tokens_per_s_after: FiniteFloat  # what would be reached if every later bucket were won back
    basis: Literal["measured", "estimated"]
    why: str


class Waterfall(Frozen):
    """From the ceiling down to the measurement. ``slices`` are ordered; their ms add up to the measured time per round."""

    concurrency: int
    measured_tokens_per_s: FiniteFloat
    ceiling: Ceiling
    slices: tuple[Slice, ...]
    efficiency: FiniteFloat  # η = t_roof / t_measured of graphed decode that was used
    reachable_tokens_per_s: FiniteFloat  # everything configuration could win back, at η
    notes: tuple[str, ...] = ()

    def share(self, bucket: str) -> float:
        """Share of the measured time that sits in ``bucket`` (0 when the bucket is absent)."""
        total = sum(part.ms for part in self.slices)
        return sum(part.ms for part in self.slices if part.bucket == bucket) / total if total > 0 else 0.0
