"""Facts from a model's ``config.json``: kind of model, experts, quantisation, draft layers, and what a token costs (weights,
KV cache, collectives). The counting itself is done by ``ceiling/shape.py``; speeds are computed elsewhere."""

from collections.abc import Callable, Mapping

from optimizer.ceiling.quantisation import storage_of
from optimizer.ceiling.shape import shape_from_config
from optimizer.errors import EvidenceError
from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line
from optimizer.evidence.literal import strict_json
from optimizer.evidence.positions import Positions
from optimizer.evidence.sglang_args import quantization
from optimizer.model.base import Value

MAX_DIMENSION = 10**8
_DIMENSIONS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "intermediate_size",
    "head_dim",
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "n_predict")
_STATE = ("full_attention_interval", "mamba_d_state", "mamba_d_ssm", "hybrid_override_pattern", "linear_num_value_heads")
# Two all-reduces a layer (after attention and after the MLP) of the hidden state in half precision.
ALLREDUCES_PER_LAYER, ACTIVATION_BYTES = 2, 2
_SIZED = (
    "model.params_total_b",
    "model.params_active_b",
    "model.weights_gib",
    "model.kv_bytes_per_token",
    "model.allreduce_bytes_per_layer",
)


def read_config(data: bytes) -> dict[str, Value]:
    """The JSON object. Raises ValueError when it is none, or when a dimension is zero, negative or absurd."""
    config = strict_json(data, 4 * 1024 * 1024)
    if not isinstance(config, dict):
        raise ValueError("it must be a JSON object")
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            for key in _DIMENSIONS:
                value = part.get(key)
                if value is not None and (
                    isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_DIMENSION
                ):
                    raise ValueError(f"{key} is {str(value)[:40]}, which no model has")
    return config


def config_facts(found: Found, config: Mapping[str, Value], data: bytes = b"") -> None:
    """States model.*; a key that is absent makes no statement. ``data``: the file's text, for the lines."""
    at = Positions(data).at
    text = config.get("text_config")
    inner: Mapping[str, Value] = text if isinstance(text, dict) else config
    described = "hidden_size" in inner
    key = next((key for key in _EXPERTS if _whole(inner.get(key))), None)
    if described or key is not None:
        experts = inner[key] if key is not None else 0
        found.add("model.moe_experts", experts if isinstance(experts, int) else 0, at(key or "hidden_size"))
    kinds = inner.get("layer_types")
    linear = isinstance(kinds, list) and any("linear" in str(kind) or "mamba" in str(kind) for kind in kinds)
    state = next((key for key in _STATE if key in inner), None)
    if described:
        found.add("model.hybrid_state", linear or state is not None, at(state or ("layer_types" if linear else "hidden_size")))
    key = next((key for key in _MTP if _whole(inner.get(key))), None)
    if described:
        layers = inner[key] if key is not None else 0
        found.add("model.mtp_layers", layers if isinstance(layers, int) else 0, at(key or "num_hidden_layers"))
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        found.add("model.family", names[0][:80], at("architectures"))
    stated = _section(config, inner)
    place = next((at(name) for name in ("quantization_config", "compression_config") if at(name) is not None), at("hidden_size"))
    if stated is not None or described:
        found.add("model.quantization", "none" if stated is None else _quantization(stated, config, inner), place)
    _sizes(found, config, at)


def _sizes(found: Found, config: Mapping[str, Value], at: Callable[[str], Line | None]) -> None:
    """What the roofline needs: bytes of all weights as stored, KV bytes of a token in half precision, parameters in use."""
    line = at("hidden_size")
    try:
        shape = shape_from_config(config)
    except EvidenceError as error:
        for name in _SIZED:
            found.missing(name, f"config.json does not describe the model's size: {error.message[:160]}")
        return
    found.add("model.layers", shape.layers, at("num_hidden_layers"))
    found.add("model.params_total_b", shape.total_params / 1e9, line, basis="derived")
    # What is multiplied: without the embedding, of which a token only looks up one row.
    found.add("model.params_active_b", shape.active_params / 1e9, line, basis="derived")
    found.add("model.weights_gib", shape.weight_bytes_total / 2**30, line, basis="derived")
    found.add("model.kv_bytes_per_token", int(shape.kv_bytes_per_token), line, basis="derived")
    if shape.state_bytes_per_request:
        found.add("model.state_bytes_per_request", int(shape.state_bytes_per_request), line, basis="derived")
    found.add("model.attention_layers", shape.attention_layers, line, basis="derived")
    found.add("model.mla", not shape.kv_splits_with_tp, line, basis="derived")
    if shape.experts:
        found.add("model.experts_per_token", shape.experts_per_token, line)
    found.add("model.allreduce_bytes_per_layer", ALLREDUCES_PER_LAYER * ACTIVATION_BYTES * shape.hidden, line, basis="derived")


def _section(config: Mapping[str, Value], inner: Mapping[str, Value]) -> Mapping[str, Value] | None:
    stated = config.get("quantization_config") or inner.get("quantization_config") or config.get("compression_config")
    return stated if isinstance(stated, dict) else None


def _quantization(stated: Mapping[str, Value], config: Mapping[str, Value], inner: Mapping[str, Value]) -> str:
    """Vocabulary name of the stored format: packing methods by their name, everything else by what the bits are."""
    method = str(stated.get("quant_method") or "").lower()
    for known in ("awq", "gptq"):
        if known in method:
            return known
    stored = storage_of(inner, config).name
    if stored in ("fp8", "nvfp4", "mxfp4", "int8", "int4"):
        return stored
    nested = stated.get("quantization")
    algo = stated.get("quant_algo") or (nested.get("quant_algo") if isinstance(nested, dict) else None)
    return quantization(str(algo or method or "other")) or "other"


def _whole(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DIMENSION
