"""Shapes, hardware, bounds and the waterfall: what this box could do, and where the gap is lost. Data only."""

import math
from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.playbook import Bucket

AllreducePath = Literal["custom_graphed", "custom_eager", "nccl_p2p", "nccl_shm"]


class HardwareSpec(Frozen):
    """One GPU model. Rates are data-sheet values; ``allreduce_us`` are small-message times by path and GPU count."""

    gpu: str
    match: tuple[str, ...] = ()  # lower-case substrings of what nvidia-smi prints; the longest match wins
    arch: str = ""
    memory_mib: FiniteFloat
    hbm_bytes_per_s: FiniteFloat
    flops: dict[str, FiniteFloat]  # dense matrix rates by dtype: bf16, fp8, fp4, int8
    link: dict[str, FiniteFloat] = Field(default_factory=dict)  # kind -> bytes/s per direction
    allreduce_us: dict[str, dict[str, FiniteFloat]] = Field(default_factory=dict)
    allreduce_bytes_per_s: dict[str, dict[str, FiniteFloat]] = Field(default_factory=dict)  # bus rate of large messages
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
    window_layers: int = 0  # of these, how many keep only ``window_tokens``
    window_tokens: int = 0
    sparse_tokens: int = 0  # > 0: attention reads at most so many tokens of the context (selected by an indexer)
    index_bytes_per_token: FiniteFloat = 0.0  # keys of that indexer, all of which are read
    weight_bytes_dense: FiniteFloat  # read at every step: attention, dense MLP, shared experts, output head
    weight_bytes_per_expert: FiniteFloat = 0.0
    moe_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    embedding_bytes: FiniteFloat = 0.0  # looked up, not read; 0 where the table is shared with the output head
    kv_bytes_per_token: FiniteFloat  # all layers, two bytes per element, without the window's limit
    kv_splits_with_tp: bool = True  # MLA's latent is not divided
    state_bytes_per_request: FiniteFloat = 0.0  # recurrent layers: read and written at every step
    active_params: FiniteFloat  # multiplied per token: layers and output head
    layer_params: FiniteFloat = 0.0  # the same without the output head: what a prompt token costs
    total_params: FiniteFloat
    mtp_layers: int = 0
    mtp_weight_bytes: FiniteFloat = 0.0  # one draft step: the MTP layers, without the shared output head
    head_bytes: FiniteFloat = 0.0
    bytes_per_weight: FiniteFloat = 2.0
    compute: str = "bf16"  # the matrix rate that the quantisation allows: bf16, fp8 or fp4

    @property
    def weight_bytes_total(self) -> float:
        """Everything that is loaded, MTP layers excluded."""
        experts = self.weight_bytes_per_expert * self.experts * self.moe_layers
        return self.weight_bytes_dense + self.embedding_bytes + experts


class NoCeiling(Frozen):
    """No bound can be stated, and why. Never a number in disguise."""

    reason: str
    contradiction: bool = False  # what was measured is more than the hardware can give


class Situation(Frozen):
    """What the facts of one launch say about how the model runs there, for one load level. None: not known."""

    gpus: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    replicas: int = 1  # independent copies that share the load
    attention_tp: int = 1  # GPUs that share the KV heads (fewer than ``tp`` with data-parallel attention)
    kv_bytes: FiniteFloat = 2.0
    intended: int = 1
    prompt_tokens: FiniteFloat = 0.0
    output_tokens: FiniteFloat = 1.0
    running: FiniteFloat = 1.0
    running_basis: Literal["measured", "estimated"] = "estimated"
    running_why: str = ""
    graph_off_share: FiniteFloat | None = None
    draft_tokens: int = 0
    accept_len: FiniteFloat = 1.0
    accept_by_position: tuple[FiniteFloat, ...] = ()
    allreduce_path: AllreducePath | None = None
    allreduce_us: FiniteFloat | None = None
    idle_gap_share: FiniteFloat | None = None
    kernels_per_step: FiniteFloat | None = None
    interruption_ms: FiniteFloat | None = None  # decode of a replica stands still so long for each prompt; None: not considered
    interruption_measured: bool = False
    overlap: bool | None = None  # whether the host prepares a step while the GPU computes the one before

    @property
    def context_tokens(self) -> float:
        """Mean context of a running sequence: the prompt and half the output."""
        return self.prompt_tokens + self.output_tokens / 2


class Ceiling(Frozen):
    """Bounds of one load point. Rates are output tokens/s of the whole deployment, one token per step unless said."""

    concurrency: int
    running: FiniteFloat  # sequences that can really run: min(concurrency, caps, KV pool)
    step_roof_ms: FiniteFloat  # one decode step at ``concurrency``, one token per sequence
    tokens_per_s: FiniteFloat  # concurrency / step_roof; a launch with drafts: no less than a round's accepted tokens
    bound: Literal["hbm", "compute", "link"]
    weights_bytes_per_gpu: FiniteFloat
    kv_bytes_per_token_per_gpu: FiniteFloat
    prefill_ms_per_request: FiniteFloat = 0.0
    expected_tokens_per_s: FiniteFloat = 0.0  # at the ``efficiency`` that graphed decode reaches, prefill included
    efficiency: FiniteFloat = 1.0
    best_acceptance: FiniteFloat = 1.0
    best_tokens_per_s: FiniteFloat = 0.0  # with the best draft that is allowed, all of it accepted
    assumptions: tuple[str, ...] = ()


class Slice(Frozen):
    """One bucket of the waterfall: milliseconds per round of the whole deployment and what they cost in tokens/s."""

    bucket: Bucket | Literal["ceiling"]
    ms: FiniteFloat
    tokens_per_s_after: FiniteFloat  # what would be reached if every later bucket were won back
    basis: Literal["measured", "estimated"]
    why: str


class Waterfall(Frozen):
    """From the ceiling down to the measurement. A round delivers one token to each of ``concurrency`` sequences.

    ``slices`` are ordered; their ms add up to the measured time per round."""

    concurrency: int
    measured_tokens_per_s: FiniteFloat
    ceiling: Ceiling
    slices: tuple[Slice, ...]
    efficiency: FiniteFloat  # η = t_roof / t_measured of graphed decode that was used
    reachable_tokens_per_s: FiniteFloat  # everything configuration could win back, at η
    speculating: bool = False
    host_measured: bool = False
    collectives_measured: bool = False
    prompts_measured: bool = True  # False: how much of *prefill* stopped decode is an estimate
    notes: tuple[str, ...] = ()

    def share(self, bucket: str) -> float:
        """Share of the measured time that sits in ``bucket`` (0 when the bucket is absent)."""
        total = math.fsum(part.ms for part in self.slices)
        return math.fsum(part.ms for part in self.slices if part.bucket == bucket) / total if total > 0 else 0.0


class OutOfReach(Frozen):
    """Whether a throughput target can be reached at all. ``sentence`` is for people."""

    kind: Literal["none", "hard", "configuration"]
    sentence: str
    reachable_tokens_per_s: FiniteFloat
