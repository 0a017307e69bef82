"""Facts from vLLM's resolved configuration (``Initializing a V1 LLM engine ... with config``) and from the arguments it
names as not default. What the log says the engine then did wins over both."""

import re
from collections.abc import Mapping

from optimizer.evidence.argv import speculation_facts
from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line
from optimizer.evidence.literal import arguments, literal
from optimizer.evidence.sglang_args import kv_dtype, quantization
from optimizer.evidence.vllm_state import VllmState
from optimizer.model.base import Value

_STAGES_WITH_GROUPS = ("pool", "captured", "listening", "ready")  # the communicators exist by then


def setting_facts(log: VllmState) -> None:
    found, config, at = log.found, log.config, log.config_line or log.asked_line
    if log.asked or config:
        found.add("settings.resolved", {**log.asked, **config}, at)
    for name, key in (
        ("parallel.tp", "tensor_parallel_size"),
        ("parallel.pp", "pipeline_parallel_size"),
        ("parallel.dp", "data_parallel_size"),
        ("model.max_context_tokens", "max_seq_len"),
    ):
        value = config.get(key)
        if isinstance(value, int) and value is not True:
            found.add(name, value, at)
    for key, name in (("enable_prefix_caching", "kv.prefix_cache"), ("enforce_eager", "graphs.disable_flag")):
        value = config.get(key)
        if isinstance(value, bool):
            found.add(name, value, at)
    device = config.get("device_config")
    if isinstance(device, str):
        found.add("engine.device", device, at)
    if "quantization" in config:
        stated = config["quantization"]
        found.add("model.quantization", quantization(None if stated is None else str(stated)), at)
    dtype = config.get("kv_cache_dtype")
    if isinstance(dtype, str):
        storage = kv_dtype(dtype) or (kv_dtype(str(config.get("dtype"))) if dtype == "auto" else None)
        if not (found.get("kv.dtype") == "fp8" and dtype == "auto"):
            found.add("kv.dtype", storage, at)
    for key, name in (
        ("max_num_seqs", "scheduler.max_running"),
        ("max_num_batched_tokens", "prefill.chunk_tokens"),
        ("block_size", "kv.block_tokens"),
    ):
        value = log.asked.get(key)
        if isinstance(value, int) and value is not True and not (name == "prefill.chunk_tokens" and found.has(name)):
            found.add(name, value, log.asked_line)
    if log.asked_line is not None or log.config_line is not None:
        _speculation(log, at)
    _custom_allreduce(log, at)
    _graphs(log, at)


def _custom_allreduce(log: VllmState, at: Line | None) -> None:
    tp = log.found.get("parallel.tp")
    if not isinstance(tp, int) or tp < 2 or log.custom is not None or at is None:
        return
    disabled = log.config.get("disable_custom_all_reduce")
    if disabled is True or log.asked.get("disable_custom_all_reduce") is True:
        log.found.add("allreduce.custom", "off_flag", at)
    elif disabled is False and log.last_stage in _STAGES_WITH_GROUPS:
        log.found.add("allreduce.custom", "on", at)  # vLLM is silent when it is on


def _speculation(log: VllmState, at: Line | None) -> None:
    holder = Found(log.found.source, "log")
    stated = log.config.get("speculative_config")
    mapping: dict[str, Value] = dict(log.asked)
    if isinstance(stated, str) and stated.startswith("SpeculativeConfig("):
        given = log.asked.get("speculative_config")
        mapping["speculative_config"] = {**_stated(stated), **(given if isinstance(given, dict) else {})}
    speculation_facts(holder, mapping)
    for fact in holder.evidence().facts:
        log.found.add(fact.name, fact.value, at)


def _stated(stated: str) -> dict[str, Value]:
    """``SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)`` as the keys users write."""
    read = arguments(stated[len("SpeculativeConfig(") :])
    result: dict[str, Value] = {key: read[key] for key in ("method", "model") if read.get(key)}
    tokens = read.get("num_spec_tokens", read.get("num_speculative_tokens"))
    if tokens is None:
        match = re.search(r"num_spec(?:ulative)?_tokens=(\d{1,4})", stated)
        tokens = int(match[1]) if match else None
    if tokens is not None:
        result["num_speculative_tokens"] = tokens
    return result


def _graphs(log: VllmState, at: Line | None) -> None:
    found = log.found
    compilation = log.config.get("compilation_config")
    if isinstance(compilation, str) and compilation.startswith("{"):
        compilation = literal(compilation)
    settings: Mapping[str, Value] = compilation if isinstance(compilation, dict) else {}
    level = settings.get("mode", settings.get("level"))
    if level is not None:
        found.add("kernel.compile_mode", re.sub(r"^<?(?:CompilationMode\.)?(\w+).*$", r"\1", str(level)).lower(), at)
    mode = settings.get("cudagraph_mode")
    if log.config.get("enforce_eager") is True or log.eager is not None:
        found.add("graphs.mode", "none", log.eager or at)
    elif log.graph_mode is not None:
        found.add("graphs.mode", graph_mode(log.graph_mode[0]), log.graph_mode[1])
    elif mode is not None:
        found.add("graphs.mode", graph_mode(re.sub(r"^<?(?:CUDAGraphMode\.)?(\w+).*$", r"\1", str(mode))), at)
    elif log.graphs_done:
        found.add("graphs.mode", "piecewise" if found.get("engine.generation") == "V1" else "full", at)
    sizes = settings.get("cudagraph_capture_sizes")
    if isinstance(sizes, list):
        numbers = sorted(size for size in sizes if isinstance(size, int) and size is not True)
        if log.truncated is not None:
            numbers = [size for size in numbers if size <= log.truncated]
        found.add("graphs.capture_sizes", list(numbers), at)
        largest = settings.get("max_cudagraph_capture_size", settings.get("max_capture_size"))
        if log.truncated is None:
            known = isinstance(largest, int) and largest is not True
            found.add("graphs.capture_max", largest if known else max(numbers, default=None), at)
    length = log.config.get("max_seq_len_to_capture", log.asked.get("max_seq_len_to_capture"))
    if isinstance(length, int) and length is not True and found.get("engine.generation") == "V0":
        found.add("graphs.max_context_tokens", length, at)


def graph_mode(name: str) -> str | None:
    """Vocabulary name of a cudagraph mode."""
    low = name.lower()
    return low if low in ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise") else None
