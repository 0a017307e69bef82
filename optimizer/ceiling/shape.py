"""A model's shape from its config.json, or, where that is missing, from the start-up facts: bytes read, bytes cached
and multiplications per token. It counts parameters by architecture family (dense, grouped-query, latent attention,
mixture of experts, hybrid with recurrent layers, multi-token prediction) and refuses sizes that no model has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.ceiling.quantisation import Storage, storage_of
from optimizer.ceiling.situation import KV_BYTES
from optimizer.errors import EvidenceError
from optimizer.model.ceiling import ModelShape, NoCeiling
from optimizer.model.evidence import Evidence

GIB = 2**30
KV_HEAD_KEYS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
LARGEST = {"layers": 2_000, "hidden": 1_000_000, "experts": 100_000, "vocab": 100_000_000}
RECURRENT = ("linear_attention", "mamba", "mamba2", "recurrent", "linear", "gdn", "kda")


def shape_from_config(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """The shape that a config.json describes. Raises EvidenceError for sizes that are missing or impossible."""
    outer = config
    for key in TEXT_KEYS:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            config = inner
            break
    reader = _Reader(config)
    sizes = _sizes(reader)
    storage = storage_of(config, outer)
    kinds = _layer_kinds(reader, sizes)
    attention_params = _latent_attention(reader, sizes) if sizes.latent else _attention(reader, sizes)
    recurrent_params, state_bytes = _recurrent(reader, sizes)
    moe = _experts(reader, sizes, kinds)
    attention_layers = kinds.count("full") + kinds.count("window")
    recurrent_layers = kinds.count("recurrent")
    dense_layers = kinds_with_mlp(kinds) - moe.layers
    dense_mlp = 3 * sizes.hidden * reader.first(("intermediate_size_mlp", "intermediate_size"), 0)
    gate_params = moe.layers * sizes.hidden * moe.experts
    mixers = attention_layers * attention_params + recurrent_layers * recurrent_params
    fixed = dense_layers * dense_mlp
    shared = moe.layers * moe.shared
    head = sizes.hidden * sizes.vocab
    tied = bool(config.get("tie_word_embeddings", outer.get("tie_word_embeddings", False)))
    layer_params = mixers + fixed + shared + gate_params + moe.layers * moe.per_token * moe.expert
    mtp_layers = reader.size("num_nextn_predict_layers", reader.size("mtp_num_hidden_layers", 0))
    mtp_params = attention_params + 2 * sizes.hidden**2 + (
        moe.shared + moe.per_token * moe.expert if moe.layers else dense_mlp
    )
    weight_bytes = (
        mixers * storage.attention + fixed * storage.dense_mlp + shared * storage.shared_experts
        + (gate_params + head) * storage.plain
    )  # fmt: skip
    total = mixers + fixed + shared + gate_params + moe.layers * moe.experts * moe.expert + head * (1 if tied else 2)
    per_layer = (sizes.kv_rank + sizes.rope) if sizes.latent else sizes.kv_heads * (sizes.head_dim + sizes.v_head_dim)
    index_dim = reader.size("index_head_dim", 0)
    return ModelShape(
        name=name or str(outer.get("model_type", "")),
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=1 if sizes.latent else sizes.kv_heads,
        head_dim=sizes.head_dim,
        v_head_dim=sizes.v_head_dim,
        attention_layers=attention_layers,
        window_layers=kinds.count("window"),
        window_tokens=reader.size("sliding_window", 0) if "window" in kinds else 0,
        sparse_tokens=reader.size("index_topk", 0),
        index_bytes_per_token=float(attention_layers * (index_dim + index_dim // 128 * 4)),
        weight_bytes_dense=weight_bytes,
        weight_bytes_per_expert=moe.expert * storage.experts,
        moe_layers=moe.layers,
        experts=moe.experts,
        experts_per_token=moe.per_token,
        embedding_bytes=0.0 if tied else head * storage.plain,
        kv_bytes_per_token=float(attention_layers * per_layer * 2),
        kv_splits_with_tp=not sizes.latent,
        state_bytes_per_request=float(recurrent_layers * state_bytes),
        active_params=float(layer_params + head),
        layer_params=float(layer_params),
        total_params=float(total),
        mtp_layers=mtp_layers,
        mtp_weight_bytes=mtp_params * (storage.experts if moe.layers else storage.dense_mlp) if mtp_layers else 0.0,
        head_bytes=head * storage.plain,
        bytes_per_weight=_mean_bytes(weight_bytes, moe, storage, total - (0 if tied else head)),
        compute=storage.compute,
    )


def shape_from_facts(evidence: Evidence, name: str = "") -> ModelShape | NoCeiling:
    """A coarse shape where config.json is missing: weights and KV bytes as the start-up log states them, per GPU.

    Needs ``memory.weights_gib``; KV bytes are ``kv.bytes_per_token``, or ``memory.kv_gib`` over ``kv.pool_tokens``. The
    shape has no layer count (kernel launches and collectives stay unknown) and reads all its weights at every step,
    which is an upper bound of the time for mixtures of experts, so for those it refuses."""
    weights_gib = evidence.number("memory.weights_gib")
    if weights_gib is None or weights_gib <= 0:
        return NoCeiling(reason="neither config.json nor the size of the loaded weights is known")
    if (evidence.number("model.moe_experts") or 0) > 0:
        return NoCeiling(reason="the model is a mixture of experts and its config.json is missing")
    tp = int(evidence.number("parallel.tp") or 1)
    quantisation = str(evidence.value("model.quantization") or "none")
    per_weight = {"fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125, "awq": 0.52, "gptq": 0.52, "int4": 0.52}
    size = per_weight.get(quantisation, 2.0)
    weight_bytes = weights_gib * GIB * tp
    pool_gib, pool_tokens = evidence.number("memory.kv_gib"), evidence.number("kv.pool_tokens")
    per_gpu = evidence.number("kv.bytes_per_token") or (pool_gib * GIB / pool_tokens if pool_gib and pool_tokens else 0)
    # Shapes count their cache in two bytes per element; the situation scales it to what is stored.
    kv_bytes = float(per_gpu) * tp * 2 / KV_BYTES.get(str(evidence.value("kv.dtype")), 2.0)
    return ModelShape(
        name=name, layers=0, hidden=0, heads=0, kv_heads=tp, head_dim=0, v_head_dim=0, attention_layers=0,
        weight_bytes_dense=weight_bytes, kv_bytes_per_token=kv_bytes, active_params=weight_bytes / size,
        layer_params=weight_bytes / size, total_params=weight_bytes / size, bytes_per_weight=size,
        compute={"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}.get(quantisation, "bf16"),
    )  # fmt: skip


@dataclass(frozen=True)
class _Sizes:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    vocab: int
    latent: bool
    kv_rank: int
    rope: int


@dataclass(frozen=True)
class _Experts:
    layers: int = 0
    experts: int = 0
    per_token: int = 0
    expert: int = 0  # parameters of one routed expert
    shared: int = 0  # parameters of the shared experts of a layer


class _Reader:
    """Typed access with a message that names the key and the value."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def size(self, key: str, default: int | None = None, *, largest: int = 1_000_000_000) -> int:
        value = self.config.get(key)
        if value is None:
            if default is None:
                raise EvidenceError(
                    f"config.json has no {key!r}, so the model's shape cannot be computed.",
                    hint="Give the checkpoint's own config.json; without one the ceiling is reported as unknown.",
                )
            return default
        whole = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
        if not whole or not 0 <= value <= largest or (default is None and value == 0):
            raise EvidenceError(
                f"config.json says {key} = {value!r}, which no model has (a whole number up to {largest} is expected).",
                hint="The ceiling would be wrong by as much; check that the file belongs to the served checkpoint.",
            )
        return int(value)

    def first(self, keys: tuple[str, ...], default: int) -> int:
        return next((self.size(key) for key in keys if self.config.get(key) is not None), default)


def _sizes(reader: _Reader) -> _Sizes:
    config = reader.config
    hidden = reader.size("hidden_size", largest=LARGEST["hidden"])
    heads = reader.size("num_attention_heads", largest=LARGEST["hidden"])
    latent = config.get("kv_lora_rank") is not None
    head_dim = reader.size("head_dim", hidden // heads)
    if latent:
        head_dim = reader.size("qk_nope_head_dim", 0) + reader.size("qk_rope_head_dim", 0) or head_dim
    kv_heads = reader.first(KV_HEAD_KEYS, heads)
    if head_dim == 0 or (not latent and (kv_heads > heads or heads % kv_heads)):
        raise EvidenceError(
            f"config.json has {heads} attention heads over {kv_heads} KV heads of size {head_dim}, which cannot be.",
            hint="Check that the file belongs to the served checkpoint.",
        )
    return _Sizes(
        layers=reader.size("num_hidden_layers", largest=LARGEST["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=reader.size("v_head_dim", head_dim) or head_dim,
        vocab=reader.size("vocab_size", largest=LARGEST["vocab"]),
        latent=latent,
        kv_rank=reader.size("kv_lora_rank", 0),
        rope=reader.size("qk_rope_head_dim", 0),
    )


def _layer_kinds(reader: _Reader, sizes: _Sizes) -> list[str]:
    """For each layer: full, window, recurrent, or mlp (a layer without a mixer)."""
    config = reader.config
    types = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(types, list) and len(types) == sizes.layers:
        return [_kind(str(item)) for item in types]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [{"M": "recurrent", "*": "full"}.get(letter, "mlp") for letter in pattern]
    every = reader.size("full_attention_interval", 0) or reader.size("attn_layer_period", 0)
    if every > 1:
        offset = reader.size("attn_layer_offset", every - 1)
        return ["full" if index % every == offset % every else "recurrent" for index in range(sizes.layers)]
    window_pattern = reader.size("sliding_window_pattern", 0)
    if window_pattern > 1 and reader.size("sliding_window", 0):
        return ["full" if (index + 1) % window_pattern == 0 else "window" for index in range(sizes.layers)]
    windowed = config.get("use_sliding_window", True) and "max_window_layers" not in config
    if windowed and reader.size("sliding_window", 0):
        return ["window"] * sizes.layers
    return ["full"] * sizes.layers


def _kind(text: str) -> str:
    if text in ("sliding_attention", "chunked_attention"):
        return "window"
    if text in RECURRENT:
        return "recurrent"
    return "mlp" if text in ("mlp", "moe", "-") else "full"


def kinds_with_mlp(kinds: list[str]) -> int:
    """Layers that carry an MLP: all, except where the pattern lists MLPs as layers of their own."""
    return kinds.count("mlp") or len(kinds)


def _attention(reader: _Reader, sizes: _Sizes) -> int:
    gated = 2 if reader.config.get("attn_output_gate") else 1
    queries = sizes.heads * sizes.head_dim * gated
    keys_values = sizes.kv_heads * (sizes.head_dim + sizes.v_head_dim)
    return sizes.hidden * (queries + keys_values) + sizes.heads * sizes.v_head_dim * sizes.hidden


def _latent_attention(reader: _Reader, sizes: _Sizes) -> int:
    q_rank, nope = reader.size("q_lora_rank", 0), reader.size("qk_nope_head_dim", 0)
    q_out = sizes.heads * sizes.head_dim
    queries = sizes.hidden * q_rank + q_rank * q_out if q_rank else sizes.hidden * q_out
    down = sizes.hidden * (sizes.kv_rank + sizes.rope)
    up = sizes.kv_rank * sizes.heads * (nope + sizes.v_head_dim)
    index_heads, index_dim = reader.size("index_n_heads", 0), reader.size("index_head_dim", 0)
    indexer = q_rank * index_heads * index_dim + sizes.hidden * (index_dim + index_heads) if index_heads else 0
    return queries + down + up + sizes.heads * sizes.v_head_dim * sizes.hidden + indexer


def _recurrent(reader: _Reader, sizes: _Sizes) -> tuple[int, float]:
    """(parameters, state bytes per sequence) of one recurrent layer: gated delta net or Mamba-2."""
    key_heads, value_heads = reader.size("linear_num_key_heads", 0), reader.size("linear_num_value_heads", 0)
    if value_heads:
        key_dim, value_dim = reader.size("linear_key_head_dim", 128), reader.size("linear_value_head_dim", 128)
        keys, values = key_heads * key_dim, value_heads * value_dim
        params = sizes.hidden * (2 * keys + 2 * values + 2 * value_heads) + values * sizes.hidden
        size = 2 if reader.config.get("mamba_ssm_dtype") in ("bfloat16", "float16") else 4
        conv = (2 * keys + values) * reader.size("linear_conv_kernel_dim", 4) * 2
        return params, float(value_heads * key_dim * value_dim * size + conv)
    heads, state = reader.size("mamba_num_heads", 0), reader.size("ssm_state_size", reader.size("mamba_d_state", 0))
    if heads and state:
        inner = heads * reader.size("mamba_head_dim", 64)
        groups = reader.size("n_groups", 1) * state
        params = sizes.hidden * (2 * inner + 2 * groups + heads) + inner * sizes.hidden
        return params, float(inner * state * 4 + (inner + 2 * groups) * reader.size("conv_kernel", 4) * 2)
    return 0, 0.0


def _experts(reader: _Reader, sizes: _Sizes, kinds: list[str]) -> _Experts:
    experts = reader.first(("n_routed_experts", "num_experts", "num_local_experts"), 0)
    if experts <= 1:
        return _Experts()
    if experts > LARGEST["experts"]:
        raise EvidenceError(
            f"config.json describes {experts} experts per layer, which no model has.",
            hint="Check that the file belongs to the served checkpoint.",
        )
    per_token = reader.first(("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk"), 0)
    if not 1 <= per_token <= experts:
        raise EvidenceError(
            f"config.json activates {per_token} of {experts} experts per token, which cannot be.",
            hint="Check num_experts_per_tok in config.json.",
        )
    inner = reader.first(("moe_intermediate_size", "intermediate_size"), 0)
    expert = 3 * sizes.hidden * inner
    shared_size = reader.first(("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"), 0)
    shared = 3 * sizes.hidden * shared_size if shared_size else reader.size("n_shared_experts", 0) * expert
    total = kinds_with_mlp(kinds)
    if reader.config.get("interleave_moe_layer_step") is not None:
        # Llama 4: one shared expert as large as a routed one in every MoE layer, and every so many layers is one.
        return _Experts(total // max(reader.size("interleave_moe_layer_step"), 1), experts, per_token, expert, expert)
    dense = reader.size("first_k_dense_replace", 0)
    only = reader.config.get("mlp_only_layers")
    dense += len(only) if isinstance(only, list) else 0
    listed = isinstance(reader.config.get("moe_layer_freq"), list)
    step = max(reader.size("decoder_sparse_step", 1), 1 if listed else reader.size("moe_layer_freq", 1), 1)
    return _Experts(max((total - dense) // step, 0), experts, per_token, expert, shared)


def _mean_bytes(weight_bytes: float, moe: _Experts, storage: Storage, params: float) -> float:
    stored = weight_bytes + moe.layers * moe.experts * moe.expert * storage.experts
    return stored / params if params else 2.0
