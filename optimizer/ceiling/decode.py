"""The roofline of one decode step: bytes that must be read and multiplications that must be done, per GPU. A lower
bound of the time: nothing here models kernels, launches or collectives."""

import math
from dataclasses import dataclass
from typing import Literal

from optimizer.ceiling.hardware import matrix_rate
from optimizer.model.ceiling import HardwareSpec, ModelShape, Situation


@dataclass(frozen=True)
class StepRoof:
    """``ms`` = max(read, compute)."""

    read_ms: float
    compute_ms: float
    weights_bytes_per_gpu: float
    kv_bytes_per_gpu: float

    @property
    def ms(self) -> float:
        return max(self.read_ms, self.compute_ms)

    @property
    def bound(self) -> Literal["hbm", "compute"]:
        return "hbm" if self.read_ms >= self.compute_ms else "compute"


def weights_read(shape: ModelShape, tokens: float) -> float:
    """Bytes of weights that a step of ``tokens`` tokens reads, over all GPUs.

    Of E experts a step touches E·(1 − (1 − top_k/E)^tokens) if routing is uniform. Skewed routing touches fewer, which
    is why ``ceiling`` names uniform routing among its assumptions."""
    if not shape.experts:
        return shape.weight_bytes_dense
    share = shape.experts_per_token / shape.experts
    touched = shape.experts * (1.0 - math.pow(1.0 - share, max(tokens, 0.0)))
    return shape.weight_bytes_dense + touched * shape.moe_layers * shape.weight_bytes_per_expert


def kv_bytes_per_token_per_gpu(shape: ModelShape, situation: Situation) -> float:
    """Cache bytes that one token of context occupies on one GPU."""
    scaled = (shape.kv_bytes_per_token + shape.index_bytes_per_token) * situation.kv_bytes / 2 / situation.pp
    if not shape.kv_splits_with_tp:
        return scaled
    heads_per_gpu = max(1.0, shape.kv_heads / situation.attention_tp)
    return scaled * heads_per_gpu / shape.kv_heads


def kv_read_per_sequence(shape: ModelShape, situation: Situation, context_tokens: float) -> float:
    """Cache bytes that one GPU reads for one sequence in one step: windows, sparse selection and states respected."""
    total = shape.kv_bytes_per_token + shape.index_bytes_per_token
    keys = shape.kv_bytes_per_token * attended_tokens(shape, context_tokens)
    share = keys + shape.index_bytes_per_token * context_tokens
    per_token = kv_bytes_per_token_per_gpu(shape, situation)
    state = 2 * shape.state_bytes_per_request / situation.attention_tp / situation.pp
    return (per_token * share / total if total else 0.0) + state


def attended_tokens(shape: ModelShape, context_tokens: float) -> float:
    """Tokens that one query attends to, averaged over the attention layers."""
    attended = min(context_tokens, shape.sparse_tokens) if shape.sparse_tokens else context_tokens
    windowed = min(context_tokens, shape.window_tokens) if shape.window_tokens else context_tokens
    window = shape.window_layers / max(shape.attention_layers, 1)
    return attended * (1 - window) + windowed * window


def decode_roof(
    shape: ModelShape,
    hardware: HardwareSpec,
    situation: Situation,
    batch: float,
    tokens_per_sequence: float = 1.0,
    context_tokens: float | None = None,
) -> StepRoof:
    """Bound of one step of ``batch`` sequences over all replicas; ``tokens_per_sequence`` > 1 verifies drafts."""
    gpus = situation.tp * situation.pp
    local = batch / situation.replicas
    tokens = local * tokens_per_sequence
    context = situation.context_tokens if context_tokens is None else context_tokens
    weights = weights_read(shape, tokens) / gpus
    sequences = local * situation.attention_tp / situation.tp
    kv = sequences * kv_read_per_sequence(shape, situation, context)
    # Each query meets each attended token twice per head: once for the scores, once for the values.
    per_pair = 2 * shape.attention_layers * shape.heads * (shape.head_dim + shape.v_head_dim)
    attention = per_pair * attended_tokens(shape, context) * tokens
    operations = 2 * shape.active_params * tokens + attention
    return StepRoof(
        read_ms=1e3 * (weights + kv) / hardware.hbm_bytes_per_s,
        compute_ms=1e3 * operations / gpus / matrix_rate(hardware, shape.compute),
        weights_bytes_per_gpu=shape.weight_bytes_total / gpus,
        kv_bytes_per_gpu=kv,
    )
