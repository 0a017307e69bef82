"""Facts that follow from other facts by arithmetic or a table. Every one is marked ``derived`` and points at the facts
it came from."""

import math
import re
from collections.abc import Mapping

from optimizer.evidence.found import Found
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact

# Substring of the product name -> compute capability. Longer names first where one contains another.
_ARCH: tuple[tuple[str, str], ...] = (
    ("gb300", "sm_103"),
    ("b300", "sm_103"),
    ("gb200", "sm_100"),
    ("b200", "sm_100"),
    ("b100", "sm_100"),
    ("gb10", "sm_121"),
    ("dgx spark", "sm_121"),
    ("rtx pro 6000", "sm_120"),
    ("rtx pro", "sm_120"),
    ("rtx 50", "sm_120"),
    ("rtx50", "sm_120"),
    ("5090", "sm_120"),
    ("5080", "sm_120"),
    ("rtx 6000 ada", "sm_89"),
    ("rtx 5000 ada", "sm_89"),
    ("rtx 4000 ada", "sm_89"),
    ("l40", "sm_89"),
    ("rtx 40", "sm_89"),
    ("4090", "sm_89"),
    (" l4", "sm_89"),
    ("gh200", "sm_90"),
    ("h200", "sm_90"),
    ("h100", "sm_90"),
    ("h800", "sm_90"),
    ("h20", "sm_90"),
    ("rtx a6000", "sm_86"),
    ("a6000", "sm_86"),
    ("a40", "sm_86"),
    ("a10g", "sm_86"),
    ("a10", "sm_86"),
    ("rtx 30", "sm_86"),
    ("3090", "sm_86"),
    ("a100", "sm_80"),
    ("a800", "sm_80"),
    ("a30", "sm_80"),
    ("tesla t4", "sm_75"),
    (" t4", "sm_75"),
    ("rtx 20", "sm_75"),
    ("v100", "sm_70"),
    ("mi355", "gfx950"),
    ("mi350", "gfx950"),
    ("mi325", "gfx942"),
    ("mi300", "gfx942"),
    ("mi250", "gfx90a"),
)
_KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
_SAME = {("speculative_algorithm", "NEXTN", "EAGLE")}
_RENAMED = {
    "sglang": {"max_running_requests": "scheduler.max_running"},
    "vllm": {},
}


def gpu_arch(name: str) -> str | None:
    """``sm_90`` for "NVIDIA H200"; None for a GPU that the table does not know."""
    low = f" {name.lower()}"
    return next((arch for needle, arch in _ARCH if needle in low), None)


def derived_facts(evidence: Evidence, engine: str, config: Mapping[str, Value] | None) -> Evidence:
    """Everything that can be derived now; a fact that is already there is never replaced."""
    found = Found("", basis="derived")
    _gpu(found, evidence)
    _graphs(found, evidence, engine)
    _pool(found, evidence)
    _messages(found, evidence, engine, config)
    _client(found, evidence, engine)
    _requested(found, evidence, engine)
    _layout(found, evidence, engine)
    _smallest(found, evidence)
    known = {(fact.name, *sorted((key, str(value)) for key, value in fact.labels.items())) for fact in evidence.facts}
    fresh = [
        fact
        for fact in found.evidence().facts
        if (fact.name, *sorted((key, str(value)) for key, value in fact.labels.items())) not in known
    ]
    return Evidence(facts=tuple(fresh))


# Flags with which vLLM spreads one engine over several hosts.
_SEVERAL_HOSTS = ("nnodes", "node_rank", "data_parallel_address", "data_parallel_size_local", "master_addr")


def _layout(found: Found, evidence: Evidence, engine: str) -> None:
    """What vLLM does not print because it is its default. Only where the whole command line is known."""
    asked = evidence.get("settings.asked")
    if engine != "vllm" or asked is None or asked.source != "launch.json" or not isinstance(asked.value, dict):
        return
    flags = asked.value
    if flags.get("distributed_executor_backend") != "ray" and not any(flag in flags for flag in _SEVERAL_HOSTS):
        _from(found, "parallel.nodes", 1, asked)
    if "kv_transfer_config" not in flags:
        _from(found, "parallel.disaggregation", "none", asked)
        if not any("offload" in flag for flag in flags):
            _from(found, "feature.cpu_offload", False, asked)
    if not flags.get("enable_lora"):
        _from(found, "feature.lora", "off", asked)
    workers = flags.get("api_server_count", 1)
    if isinstance(workers, int) and not isinstance(workers, bool):
        _from(found, "host.frontend_workers", workers, asked, {"role": "api_server"})


def _smallest(found: Found, evidence: Evidence) -> None:
    """Fewest GPUs, a power of two, that hold the weights and the cache of the measured load. A tenth of a GPU's memory is for the
    engine itself."""
    memory, weights = evidence.number("gpu.memory_total_gib"), evidence.get("model.weights_gib")
    per_token = evidence.number("model.kv_bytes_per_token")
    if memory is None or weights is None or not isinstance(weights.value, int | float) or per_token is None or memory <= 0:
        return
    level = evidence.number("client.concurrency") or 1.0
    tokens = (evidence.number("client.input_tokens") or 0.0) + (evidence.number("client.output_tokens") or 0.0)
    context = tokens or min(8192.0, evidence.number("model.max_context_tokens") or 8192.0)
    needed = float(weights.value) + level * context * per_token / 2**30
    for gpus in (1, 2, 4, 8, 16, 32, 64, 128):
        if needed <= 0.9 * memory * gpus:
            _from(found, "model.min_gpus", gpus, weights)
            return


def _from(
    found: Found,
    name: str,
    value: Value,
    parent: Fact | None,
    labels: Mapping[str, str | int | float | bool | None] | None = None,
) -> None:
    """A derived fact inherits the position of the fact that decides it."""
    found.add(name, value, labels=labels, source="" if parent is None else parent.source)
    made = found.evidence().get(name, **(labels or {}))
    if made is not None and parent is not None and parent.line is not None:
        found.keep(made.model_copy(update={"line": parent.line, "span": parent.span}))


def _gpu(found: Found, evidence: Evidence) -> None:
    name = evidence.get("gpu.name")
    if name is not None and isinstance(name.value, str):
        _from(found, "gpu.arch", gpu_arch(name.value), name)
    count = evidence.get("gpu.count")
    if count is not None and count.value == 1:
        _from(found, "topology.gpu_link", "single", count)


def _graphs(found: Found, evidence: Evidence, engine: str) -> None:
    batch = evidence.get("decode.batch_p90")
    drafts = evidence.number("spec.draft_tokens") or 0.0
    required: int | None = None
    if batch is not None and isinstance(batch.value, int | float):
        per_request = 1 + drafts if engine == "vllm" and evidence.value("spec.method") not in (None, "none") else 1
        required = math.ceil(float(batch.value) * per_request)
        _from(found, "graphs.required_size", required, batch)
    largest = evidence.get("graphs.capture_max")
    mode = evidence.get("graphs.mode")
    if (
        mode is not None
        and mode.value == "none"
        and evidence.get("decode.graph_off_share") is None
        and batch is not None
    ):
        _from(found, "decode.graph_off_share", 1.0, mode)
    if required is not None and mode is not None and mode.value == "none":
        _from(found, "graphs.covers_batch", False, mode)
    elif required is not None and largest is not None and isinstance(largest.value, int | float):
        _from(found, "graphs.covers_batch", required <= float(largest.value), largest)
    sizes = evidence.get("graphs.prefill_sizes")
    chunk = evidence.number("prefill.chunk_tokens")
    captured = evidence.value("graphs.prefill_captured")
    if captured is False:
        _from(found, "graphs.covers_prefill", False, evidence.get("graphs.prefill_captured"))
    elif (
        engine == "sglang" and sizes is not None and isinstance(sizes.value, list) and sizes.value and chunk is not None
    ):
        _from(found, "graphs.covers_prefill", max(sizes.value) >= chunk, sizes)
    elif engine == "vllm" and largest is not None and isinstance(largest.value, int | float) and chunk is not None:
        _from(found, "graphs.covers_prefill", float(largest.value) >= chunk, largest)


def _pool(found: Found, evidence: Evidence) -> None:
    whole, width = evidence.get("model.kv_bytes_per_token"), _KV_BYTES.get(str(evidence.value("kv.dtype")))
    if whole is not None and isinstance(whole.value, int) and width and evidence.number("parallel.tp") == 1.0:
        _from(found, "kv.bytes_per_token", int(whole.value * width / 2), whole)
    pool, context = evidence.get("kv.pool_tokens"), evidence.number("model.max_context_tokens")
    if pool is not None and isinstance(pool.value, int | float) and context:
        _from(found, "kv.max_full_length_requests", float(pool.value) / context, pool)


def _messages(found: Found, evidence: Evidence, engine: str, config: Mapping[str, Value] | None) -> None:
    tp = evidence.number("parallel.tp")
    if not tp or tp <= 1:
        return
    inner = config.get("text_config") if config else None
    shape = inner if isinstance(inner, dict) else (config or {})
    hidden = shape.get("hidden_size")
    batch = evidence.get("decode.batch_p90")
    if isinstance(hidden, int) and batch is not None and isinstance(batch.value, int | float):
        tokens = float(batch.value) * (1 + (evidence.number("spec.draft_tokens") or 0.0))
        _from(found, "allreduce.decode_message_bytes", int(tokens * hidden * 2), batch)
    if engine == "sglang":
        version = version_key(str(evidence.value("engine.version") or ""))
        if version:
            # 8 MiB for the first kernel, 16 MiB for the second (default of its size variable), from 0.5.10 on.
            found.add("allreduce.custom_limit_bytes", (16 if version >= (0, 5, 10) else 8) * 2**20)


def _client(found: Found, evidence: Evidence, engine: str) -> None:
    # vLLM's statistics average over ten seconds, idle ones too; only SGLang's lines time the steps themselves.
    for itl in evidence.all("client.itl_ms_p50") if engine == "sglang" else ():
        level = itl.labels.get("concurrency")
        if set(itl.labels) - {"concurrency"}:
            continue
        labels = {"concurrency": level} if level is not None else {}
        step = next((fact for fact in evidence.all("decode.step_ms_p50") if fact.labels == labels), None)
        if (
            step is None
            or step.bound is not None
            or not isinstance(step.value, int | float)
            or not isinstance(itl.value, int | float)
        ):
            continue
        per_token = float(step.value) / max(1.0, evidence.number("spec.accept_len") or 1.0)
        if per_token > 0:
            _from(found, "client.engine_itl_ratio", float(itl.value) / per_token, itl, labels)
    asked, peak = evidence.get("client.concurrency"), evidence.number("decode.batch_p90")
    waiting = evidence.number("queue.depth_p90")
    if (
        asked is not None
        and isinstance(asked.value, int | float)
        and asked.value > 0
        and peak is not None
        and waiting is not None
    ):
        _from(found, "client.running_share", min(1.0, (peak + waiting) / float(asked.value)), asked)


def _requested(found: Found, evidence: Evidence, engine: str) -> None:
    asked, resolved = evidence.value("settings.asked"), evidence.get("settings.resolved")
    if not isinstance(asked, dict) or resolved is None or not isinstance(resolved.value, dict):
        return
    changed: dict[str, Value] = {}
    for key, value in asked.items():
        now = resolved.value.get(key)
        if (
            key not in resolved.value
            or now is None
            or _equal(value, now)
            or (key, str(value), str(now)) in _SAME
            or key in ("port", "host")
            or "path" in key
            or "model" in key
            or value == "***"
        ):
            continue
        changed[key] = {"asked": value, "resolved": now}
    effective = evidence.number("scheduler.max_running")
    for key, name in _RENAMED.get(engine, {}).items():
        value = asked.get(key)
        if isinstance(value, int) and value is not True and effective is not None and effective != value:
            changed[key] = {"asked": value, "resolved": evidence.value(name)}
    if changed:
        _from(found, "settings.overridden", changed, resolved)
    _from(found, "validity.config_as_requested", not changed, resolved)


def _equal(asked: Value, now: Value) -> bool:
    if isinstance(now, str) and "(" in now:
        return True  # the printed form of an object, not comparable with what was typed
    if isinstance(now, list | dict) or isinstance(asked, list | dict):
        return asked == now or [asked] == now or isinstance(now, dict)
    if isinstance(asked, bool) or isinstance(now, bool):
        return asked == now
    if isinstance(asked, int | float) and isinstance(now, int | float):
        return math.isclose(float(asked), float(now), rel_tol=1e-9)
    return str(asked).lower() == str(now).lower().removeprefix("torch.")


def version_key(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: ``0.5.10.post1`` -> (0, 5, 10). Empty when there are none."""
    match = re.match(r"v?(\d{1,6}(?:\.\d{1,6}){0,4})", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()
