"""Bytes per weight from a checkpoint's quantisation section: which parts are stored how. It reads configuration only
and never guesses from a model's name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Scales included: NVFP4 keeps one FP8 scale per 16 weights, MXFP4 one byte per 32, INT4 a half-precision scale and a
# packed zero point per group of 128, block FP8 one float per 128 x 128.
NVFP4, MXFP4, INT4, INT8, FP8 = 0.5 + 1 / 16, 0.5 + 1 / 32, 0.5 + 2.5 / 128, 1.0, 1.0 + 4 / 16384
PLAIN = {"float32": 4.0, "float": 4.0, "float16": 2.0, "half": 2.0, "bfloat16": 2.0}


@dataclass(frozen=True)
class Storage:
    """Bytes per weight of each part, and the matrix rate that the experts (or, without experts, the MLPs) run at."""

    plain: float
    attention: float
    dense_mlp: float
    shared_experts: float
    experts: float
    compute: str
    name: str


def storage_of(config: Mapping[str, Any], outer: Mapping[str, Any]) -> Storage:
    """How the weights of ``config`` (the text model) are stored; ``outer`` is the whole file."""
    plain = PLAIN.get(_dtype(config) or _dtype(outer) or "bfloat16", 2.0)
    section = _section(config) or _section(outer)
    if not section:
        return Storage(plain, plain, plain, plain, plain, "bf16", "none")
    name, size, compute = _scheme(section)
    if size is None:
        return Storage(plain, plain, plain, plain, plain, "bf16", "other")
    skipped = [str(item).lower() for key in _SKIP_KEYS for item in _as_list(section.get(key))]
    experts = size
    # FP8 checkpoints whose routed experts are stored in four bits say so beside the section.
    if "4" in str(section.get("expert_dtype") or config.get("expert_dtype") or ""):
        experts, compute = MXFP4, "fp4"
    only_experts = name == "mxfp4"
    return Storage(
        plain=plain,
        attention=plain if only_experts or _skips(skipped, ("attn", "attention", "mixer")) else size,
        dense_mlp=plain if only_experts or _skips(skipped, DENSE_NAMES) else size,
        shared_experts=plain if only_experts or _skips(skipped, ("shared_expert",)) else size,
        experts=plain if _skips(skipped, ("mlp.experts", "block_sparse_moe", ".experts.")) else experts,
        compute=compute,
        name=name,
    )


DENSE_NAMES = (r"mlp\.(gate|up", "mlp.gate_proj", "mlp.up_proj")
_SKIP_KEYS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude")


def _scheme(section: Mapping[str, Any]) -> tuple[str, float | None, str]:
    """(name, bytes per weight, matrix rate); bytes None where the scheme is not known."""
    nested = section.get("quantization")
    inner = nested if isinstance(nested, Mapping) else {}
    text = f"{section.get('quant_method', '')} {section.get('quant_algo', '')} {inner.get('quant_algo', '')}".lower()
    if "nvfp4" in text or "fp4_pb" in text:
        return "nvfp4", NVFP4, "fp4"
    if "mxfp4" in text:
        return "mxfp4", MXFP4, "fp4"
    if "compressed" in text or "quark" in text:
        return _compressed(section)
    if "fp8" in text:
        return "fp8", FP8, "fp8"
    bits = section.get("bits", section.get("w_bit"))
    if any(name in text for name in ("awq", "gptq", "marlin", "auto-round", "autoround", "w4a16")) or bits in (4, 8):
        return ("int8", INT8, "bf16") if bits == 8 else ("int4", INT4, "bf16")
    if "bitsandbytes" in text:
        four = bool(section.get("load_in_4bit") or section.get("_load_in_4bit"))
        return ("int4", INT4, "bf16") if four else ("int8", INT8, "int8")
    return text.strip() or "other", None, "bf16"


def _compressed(section: Mapping[str, Any]) -> tuple[str, float | None, str]:
    groups = section.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return "other", None, "bf16"
    activations = first.get("input_activations")
    bits, floating = weights.get("num_bits"), weights.get("type") == "float"
    if bits == 4 and floating:
        return ("nvfp4", NVFP4, "fp4") if weights.get("group_size") == 16 else ("mxfp4", MXFP4, "fp4")
    if bits == 8 and floating:
        return "fp8", FP8, "fp8" if activations else "bf16"
    if bits == 8:
        return "int8", INT8, "int8" if activations else "bf16"
    return ("int4", INT4, "bf16") if bits == 4 else ("other", None, "bf16")


def _section(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for key in ("quantization_config", "compression_config"):
        value = config.get(key)
        if isinstance(value, Mapping) and value:
            return value
    return None


def _dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("torch_dtype") or config.get("dtype")
    return str(value).removeprefix("torch.") if isinstance(value, str) else None


def _skips(skipped: list[str], needles: tuple[str, ...]) -> bool:
    return any(needle in item for item in skipped for needle in needles)


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
