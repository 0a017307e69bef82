"""Reads SGLang's /get_server_info or /server_info answer (all versions) and vLLM's /version, /v1/models and developer
server_info."""

from collections.abc import Mapping

from optimizer.evidence.found import Found
from optimizer.evidence.sglang_args import setting_facts
from optimizer.model.base import Value

_NOT_SETTINGS = ("internal_states", "kv_events", "status", "launch_command", "startup_time", "frontend", "version")


def sglang_info_facts(found: Found, info: Mapping[str, Value]) -> None:
    """Resolved settings and the scheduler's own figures. Wrong types are ignored, never guessed at."""
    version = info.get("version")
    if isinstance(version, str):
        found.add("engine.version", version[:80])
        found.add("engine.name", "sglang")
    settings = {
        key: value
        for key, value in info.items()
        if key not in _NOT_SETTINGS and "api_key" not in key and "password" not in key
    }
    if "model_path" in settings or "tp_size" in settings:
        found.add("settings.resolved", settings)
        setting_facts(found, settings)
    pool = info.get("max_total_num_tokens")
    if isinstance(pool, int) and pool is not True and pool > 0:
        found.add("kv.pool_tokens", pool)
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    running = state.get("effective_max_running_requests_per_dp")
    if isinstance(running, int) and running is not True:
        found.add("scheduler.max_running", running)
    accept = state.get("avg_spec_accept_length")
    if isinstance(accept, int | float) and accept is not True and accept >= 1:
        found.add("spec.accept_len", float(accept))
        drafts = found.get("spec.draft_tokens")
        if isinstance(drafts, int) and drafts > 0:
            found.add("spec.accept_share", min(1.0, (float(accept) - 1) / drafts), basis="derived")
    memory = state.get("memory_usage")
    if isinstance(memory, dict):
        for key, name in (("weight", "memory.weights_gib"), ("kvcache", "memory.kv_gib")):
            value = memory.get(key)
            if isinstance(value, int | float) and value is not True and value >= 0:
                found.add(name, float(value))
    sizes = state.get("decode_cuda_graph_bs")
    if isinstance(sizes, list):
        numbers = [size for size in sizes if isinstance(size, int) and size is not True]
        found.add("graphs.capture_sizes", sorted(numbers))
        found.add("graphs.mode", "full" if numbers else "none")
        if numbers:
            found.add("graphs.capture_max", max(numbers))
    times = info.get("startup_time")
    if isinstance(times, dict):
        for key, stage in (("load_weight", "weights"), ("kv_cache_allocation", "pool"), ("tokenizer_e2e", "total")):
            value = times.get(key)
            if isinstance(value, int | float) and value is not True:
                found.add("startup.phase_s", float(value), labels={"stage": stage})


def vllm_info_facts(found: Found, info: Mapping[str, Value]) -> None:
    """``{"version": ...}``, the model list, or the developer endpoint's configuration."""
    version = info.get("version")
    if isinstance(version, str):
        found.add("engine.version", version[:80])
    data = info.get("data")
    if isinstance(data, list) and data and isinstance(data[0], dict):
        length = data[0].get("max_model_len")
        if isinstance(length, int) and length is not True:
            found.add("model.max_context_tokens", length)
