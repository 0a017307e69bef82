"""Bytes and operations of a model, from its ``config.json``. Responsible for nothing but arithmetic on that dictionary:
it opens no file and knows no hardware. Dense, grouped-query, latent attention (MLA), mixture of experts and
gated-delta-net hybrids are covered; everything else is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTES_PER_WEIGHT = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5156, "mxfp4": 0.53125}  # with the scales of one group


@dataclass(frozen=True)
class Shape:
    """Per *whole model* unless the name says otherwise; bytes are plain bytes, not GiB."""

    architecture: str
    layers: int
    attention_layers: int  # layers that keep a KV cache; the others keep a fixed state
    hidden: int
    dense_bytes: float  # read in every step: attention, shared experts, dense MLPs, output head
    embedding_bytes: float  # held in memory, looked up instead of read
    expert_bytes: float  # all routed experts
    experts: int
    experts_per_token: int
    active_params: float  # parameters that one token multiplies with, embedding excluded
    kv_heads: int
    kv_bytes_per_token_per_head: float  # all layers, one KV head (MLA: the whole latent)
    latent: bool
    context_length: int
    draft_layers: int
    state_bytes_per_request: float  # recurrent state of hybrids
    quantization: str

    def kv_bytes_per_token(self, tp: int) -> float:
        """Bytes on one GPU. A latent cache is not divided; KV heads are, down to one per GPU."""
        heads = 1 if self.latent else max(1, self.kv_heads // tp)
        return heads * self.kv_bytes_per_token_per_head

    def weight_bytes_per_gpu(self, tp: int) -> float:
        return (self.dense_bytes + self.embedding_bytes + self.expert_bytes) / tp

    def bytes_read(self, tokens: float, tp: int) -> float:
        """Weights that one GPU reads in a step over ``tokens`` tokens, routing taken as uniform."""
        touched = 1.0 - (1.0 - self.experts_per_token / self.experts) ** tokens if self.experts else 0.0
        return (self.dense_bytes + self.expert_bytes * touched) / tp


def read_shape(config: dict[str, Any]) -> Shape:
    """Raises KeyError naming the missing field when the configuration is incomplete."""
    text = {**config, **config.get("text_config", {})}
    layers, hidden = int(text["num_hidden_layers"]), int(text["hidden_size"])
    heads = int(text["num_attention_heads"])
    head_dim = int(text.get("head_dim") or hidden // heads)
    kv_heads = int(text.get("num_key_value_heads", heads))
    dense_kind, expert_kind = _kinds(config)
    kv_bytes = 2.0
    interval = int(text.get("full_attention_interval", 1))
    attention_layers = layers // interval
    state_bytes = 0.0
    if "kv_lora_rank" in text:
        attention = _latent_params(text, hidden, heads)
        per_head = (int(text["kv_lora_rank"]) + int(text["qk_rope_head_dim"])) * layers * kv_bytes
    else:
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        per_head = 2 * head_dim * attention_layers * kv_bytes
    attention_params = attention * attention_layers
    if interval > 1:
        value_heads, value_dim = int(text["linear_num_value_heads"]), int(text["linear_value_head_dim"])
        key_heads, key_dim = int(text["linear_num_key_heads"]), int(text["linear_key_head_dim"])
        linear = hidden * (2 * key_heads * key_dim + 3 * value_heads * value_dim)
        attention_params += linear * (layers - attention_layers)
        state_bytes = (layers - attention_layers) * value_heads * value_dim * key_dim * 4.0
    experts = int(text.get("n_routed_experts") or text.get("num_experts") or 0)
    dense_layers = int(text.get("first_k_dense_replace", 0)) if experts else layers
    mlp = 3 * hidden * int(text["intermediate_size"]) * dense_layers
    routed = shared = 0.0
    if experts:
        one = 3 * hidden * int(text["moe_intermediate_size"])
        routed = float(one * experts * (layers - dense_layers))
        shared = float(one * int(text.get("n_shared_experts", 0)) * (layers - dense_layers))
    per_token = int(text.get("num_experts_per_tok", 0)) if experts else 0
    vocabulary = int(text["vocab_size"]) * hidden
    every_step = attention_params + mlp + shared
    head_bytes = vocabulary * BYTES_PER_WEIGHT["bf16"]  # checkpoints leave the output head in bf16
    return Shape(
        architecture=str(config["architectures"][0]),
        layers=layers,
        attention_layers=attention_layers,
        hidden=hidden,
        dense_bytes=every_step * BYTES_PER_WEIGHT[dense_kind] + head_bytes,
        embedding_bytes=0.0 if text.get("tie_word_embeddings") else head_bytes,
        expert_bytes=routed * BYTES_PER_WEIGHT[expert_kind],
        experts=experts,
        experts_per_token=per_token,
        active_params=every_step + vocabulary + (routed / experts * per_token if experts else 0.0),
        kv_heads=kv_heads,
        kv_bytes_per_token_per_head=per_head,
        latent="kv_lora_rank" in text,
        context_length=int(text["max_position_embeddings"]),
        draft_layers=int(text.get("num_nextn_predict_layers") or text.get("mtp_num_hidden_layers") or 0),
        state_bytes_per_request=state_bytes,
        quantization=dense_kind if expert_kind == dense_kind else f"{dense_kind}+{expert_kind}",
    )


def _latent_params(text: dict[str, Any], hidden: int, heads: int) -> int:
    rank, rope = int(text["kv_lora_rank"]), int(text["qk_rope_head_dim"])
    nope, value = int(text["qk_nope_head_dim"]), int(text["v_head_dim"])
    query = int(text["q_lora_rank"])
    return (
        hidden * query + query * heads * (nope + rope)
        + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    )  # fmt: skip


def _kinds(config: dict[str, Any]) -> tuple[str, str]:
    """(everything but the experts, the experts): how their weights are stored."""
    quantization = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config")
    if not quantization:
        return "bf16", "bf16"
    method = str(quantization["quant_method"])
    if method == "compressed-tensors":  # only the experts are packed, the rest is on the ignore list
        return "bf16", "int4"
    if method == "fp8":
        return "fp8", "mxfp4" if quantization.get("expert_dtype") == "fp4" else "fp8"
    raise KeyError(f"quant_method {method!r}")
