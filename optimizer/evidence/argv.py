"""Facts from a command line and an environment: what was asked. Weaker than anything the server says about itself."""

import re
from collections.abc import Mapping, Sequence

from optimizer.evidence.found import Found
from optimizer.evidence.literal import literal
from optimizer.evidence.llamacpp_props import kv_type, method
from optimizer.evidence.sglang_args import kv_dtype, quantization
from optimizer.model.base import Value
from optimizer.redact import may_hold_secret

_ALIASES = {
    "sglang": {
        "tp": "tp_size",
        "tensor_parallel_size": "tp_size",
        "pp": "pp_size",
        "pipeline_parallel_size": "pp_size",
        "dp": "dp_size",
        "data_parallel_size": "dp_size",
        "ep": "ep_size",
        "expert_parallel_size": "ep_size",
        "model": "model_path",
    },
    "vllm": {
        "tp": "tensor_parallel_size",
        "pp": "pipeline_parallel_size",
        "dp": "data_parallel_size",
        "q": "quantization",
        "O": "optimization_level",
        "sc": "speculative_config",
        "cc": "compilation_config",
        "spec_tokens": "num_speculative_tokens",
    },
    "llamacpp": {
        "m": "model",
        "hf": "hf_repo",
        "a": "alias",
        "np": "parallel",
        "c": "ctx_size",
        "b": "batch_size",
        "ub": "ubatch_size",
        "t": "threads",
        "tb": "threads_batch",
        "fa": "flash_attn",
        "ctk": "cache_type_k",
        "ctv": "cache_type_v",
        "ngl": "gpu_layers",
        "n_gpu_layers": "gpu_layers",
        "kvu": "kv_unified",
        "md": "model_draft",
        "spec_draft_model": "model_draft",
        "spec_draft_n_max": "draft_max",
        "draft": "draft_max",
        "draft_n": "draft_max",
    },
}


def asked(argv: Sequence[str], engine: str) -> dict[str, Value]:
    """Flag in snake case -> value as typed (True for a bare flag, a list when several values follow). Short names
    become long ones."""
    aliases = _ALIASES.get(engine, {})
    result: dict[str, Value] = {}
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        module = word == "-m" and engine != "llamacpp"  # python's; llama.cpp means its model
        if not word.startswith("-") or word in ("-", "--") or module or _numeric(word):
            if module:
                index += 1
            continue
        name, sign, inline = word.partition("=")
        key = name.lstrip("-").replace("-", "_")
        key = aliases.get(key, key)
        if sign:
            result[key] = _value(inline)
            continue
        values: list[Value] = []
        while index < len(argv) and (not argv[index].startswith("-") or _numeric(argv[index])):
            values.append(_value(argv[index]))
            index += 1
        if not values and key.startswith("no_"):
            result[key[3:]] = False
        else:
            result[key] = True if not values else values[0] if len(values) == 1 else values
    return {key: "***" if isinstance(value, str) and may_hold_secret(key) else value for key, value in result.items()}


def _numeric(word: str) -> bool:
    return bool(re.fullmatch(r"-\d+(\.\d+)?", word))


def _value(word: str) -> Value:
    if re.fullmatch(r"-?\d{1,18}", word):
        return int(word)
    if re.fullmatch(r"-?\d{1,18}\.\d{1,18}", word):
        return float(word)
    return literal(word) if word.startswith(("{", "[")) and len(word) < 20_000 else word


def argv_facts(found: Found, argv: Sequence[str], engine: str) -> dict[str, Value]:
    """States what the command line asks for and returns the flags. ``found`` should carry source launch.json and basis
    argv."""
    flags = asked(argv, engine)
    found.add("settings.asked", dict(flags))
    if engine == "sglang":
        _sglang(found, flags)
    elif engine == "vllm":
        _vllm(found, flags)
    elif engine == "llamacpp":
        _llamacpp(found, flags)
    _common(found, flags)
    return flags


def _common(found: Found, flags: Mapping[str, Value]) -> None:
    attention = flags.get("attention_backend") or flags.get("decode_attention_backend")
    found.add("kernel.attention_forced", bool(attention))
    if isinstance(attention, str):
        found.add("kernel.attention_backend", attention.lower())
    quant = flags.get("quantization")
    found.add("kernel.quant_flag", str(quant).lower() if quant else "none")
    if quant:
        found.add("model.quantization", quantization(str(quant)))
    dtype = flags.get("kv_cache_dtype")
    if isinstance(dtype, str):
        found.add("kv.dtype", kv_dtype(dtype))
    if flags.get("enable_lora") is True:
        found.add("feature.lora", "loaded")


def _sglang(found: Found, flags: Mapping[str, Value]) -> None:
    for name, key in (
        ("parallel.tp", "tp_size"),
        ("parallel.pp", "pp_size"),
        ("parallel.dp", "dp_size"),
        ("parallel.ep", "ep_size"),
        ("parallel.nodes", "nnodes"),
    ):
        value = flags.get(key)
        found.add(name, value if isinstance(value, int) and value is not True else 1)
    found.add("parallel.dp_attention", flags.get("enable_dp_attention") is True)
    found.add(
        "graphs.disable_flag",
        bool(flags.get("disable_cuda_graph") or flags.get("disable_decode_cuda_graph"))
        or flags.get("cuda_graph_backend_decode") == "disabled",
    )
    found.add("kv.prefix_cache", not flags.get("disable_radix_cache"))
    mode = flags.get("disaggregation_mode")
    if mode in ("prefill", "decode"):
        found.add("parallel.disaggregation", mode)
    if flags.get("disable_overlap_schedule") is True:
        found.add("scheduler.overlap", False)
    if flags.get("disable_custom_all_reduce") is True and found.get("parallel.tp") != 1:
        found.add("allreduce.custom", "off_flag")
    running = flags.get("max_running_requests")
    if isinstance(running, int):
        found.add("scheduler.max_running_asked", running)
        found.add("scheduler.max_running", running)
    method = flags.get("speculative_algorithm")
    if isinstance(method, str):
        name = method.lower()
        own = flags.get("speculative_draft_model_path") in (None, flags.get("model_path"))
        found.add(
            "spec.method",
            "mtp" if name == "nextn" or (name == "eagle" and own) else {"standalone": "draft_model"}.get(name, name),
        )
        drafts, steps = flags.get("speculative_num_draft_tokens"), flags.get("speculative_num_steps")
        if isinstance(drafts, int) and drafts > 0:
            found.add("spec.draft_tokens", drafts - 1)
        elif isinstance(steps, int):
            found.add("spec.draft_tokens", steps)
    else:
        found.add("spec.method", "none")


def _vllm(found: Found, flags: Mapping[str, Value]) -> None:
    for name, key in (
        ("parallel.tp", "tensor_parallel_size"),
        ("parallel.pp", "pipeline_parallel_size"),
        ("parallel.dp", "data_parallel_size"),
    ):
        value = flags.get(key)
        found.add(name, value if isinstance(value, int) and value is not True else 1)
    tp, dp = found.get("parallel.tp"), found.get("parallel.dp")
    expert = flags.get("enable_expert_parallel") is True
    if isinstance(tp, int) and isinstance(dp, int):
        found.add("parallel.ep", tp * dp if expert else 1)
        found.add("parallel.dp_attention", dp > 1 and expert)
    found.add("graphs.disable_flag", flags.get("enforce_eager") is True)
    if isinstance(flags.get("enable_prefix_caching"), bool):
        found.add("kv.prefix_cache", flags.get("enable_prefix_caching"))
    running = flags.get("max_num_seqs")
    if isinstance(running, int):
        found.add("scheduler.max_running_asked", running)
        found.add("scheduler.max_running", running)
    tokens = flags.get("max_num_batched_tokens")
    if isinstance(tokens, int):
        found.add("prefill.chunk_tokens", tokens)
    if flags.get("disable_custom_all_reduce") is True and tp != 1:
        found.add("allreduce.custom", "off_flag")
    transfer = flags.get("kv_transfer_config")
    role = transfer.get("kv_role") if isinstance(transfer, dict) else flags.get("kv_transfer_config.kv_role")
    if role in ("kv_producer", "kv_consumer"):
        found.add("parallel.disaggregation", "prefill" if role == "kv_producer" else "decode")
    if isinstance(flags.get("async_scheduling"), bool):
        found.add("scheduler.overlap", flags.get("async_scheduling"))
    offload = flags.get("cpu_offload_gb")
    if isinstance(offload, int | float) and not isinstance(offload, bool):
        found.add("feature.cpu_offload", offload > 0)
    speculation_facts(found, flags)


def _llamacpp(found: Found, flags: Mapping[str, Value]) -> None:
    slots = flags.get("parallel")
    if isinstance(slots, int) and slots is not True and slots > 0:
        found.add("scheduler.max_running_asked", slots)
        found.add("scheduler.max_running", slots)
    chunk = flags.get("ubatch_size")
    if isinstance(chunk, int) and chunk is not True:
        found.add("prefill.chunk_tokens", chunk)
    if isinstance(flags.get("cache_prompt"), bool):
        found.add("kv.prefix_cache", flags.get("cache_prompt"))
    kind = flags.get("spec_type")
    if isinstance(kind, str):
        found.add("spec.method", method(kind))
    else:
        found.add("spec.method", "draft_model" if flags.get("model_draft") else "none")
    drafts = flags.get("draft_max")
    if isinstance(drafts, int) and drafts is not True:
        found.add("spec.draft_tokens", drafts)
    dtype = flags.get("cache_type_k")
    if isinstance(dtype, str) and dtype == flags.get("cache_type_v"):
        found.add("kv.dtype", kv_type(dtype))


def speculation_facts(found: Found, flags: Mapping[str, Value]) -> None:
    """spec.method and spec.draft_tokens from vLLM's speculative settings (``speculative_config`` and its short
    forms)."""
    config = flags.get("speculative_config")
    if isinstance(config, str) and config.startswith("{"):
        config = literal(config)
    if not isinstance(config, Mapping):
        config = {}
    method = config.get("method") or flags.get("spec_method")
    tokens = config.get("num_speculative_tokens") or flags.get("num_speculative_tokens")
    if not method and (config.get("model") or flags.get("spec_model")):
        method = "draft_model"
    name = str(method).lower() if method else "none"
    found.add("spec.method", "mtp" if name.endswith("_mtp") else name)
    if isinstance(tokens, int) and tokens is not True:
        found.add("spec.draft_tokens", tokens)


def env_facts(found: Found, env: Mapping[str, str]) -> None:
    """States what an environment decides: NCCL variables, peer access, a forced acceptance length, a forced attention
    kernel."""
    variables = sorted(
        f"{key}={value}"
        for key, value in env.items()
        if key.startswith("NCCL_") and key not in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
    )
    found.add("nccl.env", variables)
    if str(env.get("NCCL_P2P_DISABLE", "")).strip() not in ("", "0"):
        found.add("topology.p2p", "disabled_by_env")
    simulated = str(env.get("SGLANG_SIMULATE_ACC_LEN", env.get("SIMULATE_ACC_LEN", ""))).strip()
    found.add("spec.simulated", simulated not in ("", "-1", "0"))
    if env.get("VLLM_ATTENTION_BACKEND"):
        found.add("kernel.attention_forced", True)
