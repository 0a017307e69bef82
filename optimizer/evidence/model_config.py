"""Facts from a model's ``config.json``: kind of model, experts, quantisation, draft layers. Sizes and speeds are
computed elsewhere."""

from collections.abc import Mapping

from optimizer.evidence.found import Found
from optimizer.evidence.literal import strict_json
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


def config_facts(found: Found, config: Mapping[str, Value]) -> None:
    """States model.*; a key that is absent makes no statement."""
    text = config.get("text_config")
    inner: Mapping[str, Value] = text if isinstance(text, dict) else config
    experts = next(
        (inner[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if _whole(inner.get(key))), None
    )
    if "hidden_size" in inner or experts is not None:
        found.add("model.moe_experts", experts if isinstance(experts, int) else 0)
    kinds = inner.get("layer_types")
    linear = isinstance(kinds, list) and any("linear" in str(kind) or "mamba" in str(kind) for kind in kinds)
    hybrid = linear or any(
        key in inner
        for key in (
            "full_attention_interval",
            "mamba_d_state",
            "mamba_d_ssm",
            "hybrid_override_pattern",
            "linear_num_value_heads",
        )
    )
    if "hidden_size" in inner:
        found.add("model.hybrid_state", hybrid)
    layers = next(
        (
            inner[key]
            for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "n_predict")
            if _whole(inner.get(key))
        ),
        None,
    )
    if "hidden_size" in inner:
        found.add("model.mtp_layers", layers if isinstance(layers, int) else 0)
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        found.add("model.family", names[0][:80])
    found.add("model.quantization", _quantization(config, inner))


def _quantization(config: Mapping[str, Value], inner: Mapping[str, Value]) -> str | None:
    stated = config.get("quantization_config") or inner.get("quantization_config") or config.get("compression_config")
    if not isinstance(stated, dict):
        return "none" if "hidden_size" in inner else None
    for key in ("quant_algo", "quant_method", "quantization", "format"):
        value = stated.get(key)
        if isinstance(value, str) and value.lower() not in ("compressed-tensors", "modelopt"):
            return quantization(value)
    described = str(stated).lower()
    if "nvfp4" in described or ("float" in described and "'num_bits': 4" in described):
        return "nvfp4"
    if "float" in described and "'num_bits': 8" in described:
        return "fp8"
    if "'num_bits': 4" in described:
        return "int4"
    return "int8" if "'num_bits': 8" in described else "other"


def _whole(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DIMENSION
