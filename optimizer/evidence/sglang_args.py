"""Facts from SGLang's resolved arguments (the ``server_args=`` line or server_info). A resolved value is what the
server made of
the request; what it really did is in the log and wins where both speak."""

from collections.abc import Callable, Mapping

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line
from optimizer.model.base import Value

Adder = Callable[[str, Value], None]

_DTYPES = {
    "auto": None,
    "bfloat16": "bf16",
    "bf16": "bf16",
    "half": "fp16",
    "float16": "fp16",
    "fp16": "fp16",
    "float": None,
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "fp8_ds_mla": "fp8",
    "fp8_inc": "fp8",
    "int8": "int8",
    "nvfp4": "nvfp4",
    "fp4_e2m1": "nvfp4",
    "uint8": None,
}
_QUANT = ("nvfp4", "mxfp4", "awq", "gptq", "fp8", "int8", "int4")


def kv_dtype(value: str | None) -> str | None:
    """Vocabulary name of a KV storage type, None when it is left to the engine or unknown."""
    return _DTYPES.get(str(value or "").lower().removeprefix("torch."))


def quantization(value: str | None) -> str | None:
    """Vocabulary name of a quantisation method; ``none`` for an explicit None, ``other`` for a name nobody listed."""
    name = str(value or "").lower().replace("-", "_")
    if name in ("", "none", "null"):
        return "none"
    if name in ("modelopt_fp4", "fp4", "nvfp4", "modelopt_fp4_moe") or "nvfp4" in name:
        return "nvfp4"
    if name in ("w8a8_int8", "bitsandbytes_8bit"):
        return "int8"
    if name in ("w4afp8", "bitsandbytes", "moe_wna16", "auto_round", "quark_int4fp8_moe"):
        return "int4"
    return next((known for known in _QUANT if known in name), "other")


def setting_facts(found: Found, args: Mapping[str, Value], at: Line | None = None) -> None:
    """States parallel.*, graphs.disable_flag, spec.*, kernel.*, scheduler.*, prefill.*, kv.* facts that the arguments
    decide."""

    def add(name: str, value: Value) -> None:
        found.add(name, value, at)

    for name, keys in (
        ("parallel.tp", ("tp_size",)),
        ("parallel.pp", ("pp_size",)),
        ("parallel.dp", ("dp_size",)),
        ("parallel.ep", ("ep_size",)),
        ("parallel.nodes", ("nnodes",)),
        ("scheduler.max_prefill_tokens", ("max_prefill_tokens",)),
        ("kv.block_tokens", ("page_size",)),
        ("scheduler.max_running_asked", ("max_running_requests",)),
        ("spec.steps", ("speculative_num_steps",)),
        ("spec.topk", ("speculative_eagle_topk",)),
    ):
        value = _int(args, *keys)
        if value is not None:
            add(name, value)
    _flag(add, "parallel.dp_attention", args.get("enable_dp_attention"))
    mode = args.get("disaggregation_mode")
    if isinstance(mode, str):
        add("parallel.disaggregation", {"null": "none", "prefill": "prefill", "decode": "decode"}.get(mode))
    chunk = _int(args, "chunked_prefill_size")
    if chunk is not None and chunk > 0:
        add("prefill.chunk_tokens", chunk)
    context = _int(args, "context_length")
    if context:
        add("model.max_context_tokens", context)
    overlap = args.get("disable_overlap_schedule")
    if isinstance(overlap, bool):
        add("scheduler.overlap", not overlap)
    policy = args.get("schedule_policy")
    if isinstance(policy, str) and policy != "fcfs":
        add("scheduler.policy", policy)
    radix = args.get("disable_radix_cache")
    if isinstance(radix, bool):
        add("kv.prefix_cache", not radix)
    add("kv.dtype", kv_dtype(_str(args, "kv_cache_dtype")))
    if "quantization" in args and args["quantization"] is not None:
        add("model.quantization", quantization(str(args["quantization"])))
    _graphs(add, args)
    _kernels(add, args)
    _speculation(add, args)
    if isinstance(args.get("enable_flashinfer_allreduce_fusion"), bool):
        add(
            "allreduce.fusion",
            "on"
            if args["enable_flashinfer_allreduce_fusion"] or args.get("enable_aiter_allreduce_fusion") is True
            else "off",
        )
    if args.get("disable_custom_all_reduce") is True and (_int(args, "tp_size") or 1) > 1:
        add("allreduce.custom", "off_flag")
    offload = args.get("cpu_offload_gb")
    if isinstance(offload, int | float) and not isinstance(offload, bool):
        add("feature.cpu_offload", offload > 0 or args.get("enable_hierarchical_cache") is True)
    if "enable_lora" in args:
        add("feature.lora", "loaded" if args.get("enable_lora") or args.get("lora_paths") else "off")
    for key, role in (("tokenizer_worker_num", "tokenizer"), ("detokenizer_worker_num", "detokenizer")):
        workers = _int(args, key)
        if workers is not None:
            found.add("host.frontend_workers", workers, at, labels={"role": role})
    device = args.get("device")
    if isinstance(device, str):
        add("engine.device", device)
    fraction = args.get("mem_fraction_static")
    if isinstance(fraction, int | float) and not isinstance(fraction, bool):
        add("memory.fraction_static", float(fraction))


def _graphs(add: Adder, args: Mapping[str, Value]) -> None:
    flags = [args.get("disable_cuda_graph"), args.get("disable_decode_cuda_graph")]
    backend = args.get("cuda_graph_backend_decode")
    known = [flag for flag in flags if isinstance(flag, bool)]
    if known:
        add("graphs.disable_flag", any(known) or backend == "disabled")
    prefill = args.get("piecewise_cuda_graph_tokens")
    if isinstance(prefill, list) and prefill and args.get("disable_piecewise_cuda_graph") is not True:
        add("graphs.prefill_sizes", prefill)
    context = _int(args, "cuda_graph_max_seq_len_prefill")
    if context:
        add("graphs.max_context_tokens", context)


def _kernels(add: Adder, args: Mapping[str, Value]) -> None:
    attention = _str(args, "decode_attention_backend") or _str(args, "attention_backend")
    if attention:
        add("kernel.attention_backend", attention.lower())
    prefill = _str(args, "prefill_attention_backend") or _str(args, "attention_backend")
    if prefill:
        add("kernel.attention_prefill", prefill.lower())
    moe = _str(args, "moe_runner_backend")
    if moe and moe != "auto":
        add("kernel.moe_backend", moe.lower())
    a2a = _str(args, "moe_a2a_backend")
    if a2a and a2a != "none":
        add("kernel.moe_a2a", a2a.lower())
    sampler = _str(args, "sampling_backend")
    if sampler:
        add("kernel.sampler_backend", sampler if sampler in ("flashinfer", "pytorch") else "other")
    quantised = quantization(str(args.get("quantization"))) if args.get("quantization") else None
    if quantised in ("fp8", "nvfp4", "mxfp4"):
        linear = _str(args, "fp8_gemm_runner_backend" if quantised == "fp8" else "fp4_gemm_runner_backend")
        if linear and linear != "auto":
            add("kernel.linear_backend", linear.lower())


def _speculation(add: Adder, args: Mapping[str, Value]) -> None:
    if "speculative_algorithm" not in args:
        return
    method = args["speculative_algorithm"]
    if not isinstance(method, str) or not method or method.lower() == "none":
        add("spec.method", "none")
        return
    name = method.lower()
    # NEXTN is stored as EAGLE: an EAGLE draft without a draft checkpoint of its own is the model's MTP layer.
    draft = _str(args, "speculative_draft_model_path")
    if name == "nextn" or (name == "eagle" and draft in (None, _str(args, "model_path"))):
        name = "mtp"
    add("spec.method", {"standalone": "draft_model"}.get(name, name))
    drafts = _int(args, "speculative_num_draft_tokens")
    if drafts is not None:
        add("spec.draft_tokens", max(0, drafts - 1))


def _int(args: Mapping[str, Value], *keys: str) -> int | None:
    for key in keys:
        value = args.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _str(args: Mapping[str, Value], key: str) -> str | None:
    value = args.get(key)
    return value if isinstance(value, str) and value else None


def _flag(add: Adder, name: str, value: Value) -> None:
    if isinstance(value, bool):
        add(name, value)
