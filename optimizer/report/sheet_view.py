"""The evidence sheet for people: what was found, with unit and place; what is odd; what is missing and why. Grouped by subject.
Text from a document; it computes nothing."""

from __future__ import annotations

from typing import Any

# Subject as the vocabulary calls it -> heading, in reading order.
_SUBJECTS = (
    ("The server", ("engine", "startup", "settings", "server")),
    ("The model", ("model",)),
    ("How it is laid out", ("parallel", "feature", "scheduler", "spec")),
    ("Memory and KV cache", ("memory", "kv")),
    ("Graphs and kernels", ("graphs", "kernel")),
    ("What it does", ("decode", "prefill", "queue", "client", "roofline", "waterfall", "reference", "probe")),
    ("GPUs and links", ("gpu", "pcie", "topology", "nccl", "allreduce", "network")),
    ("The host", ("host",)),
    ("May it be believed", ("validity", "log", "evidence")),
)
# Shown without --all where nothing is odd: what a reader wants to see first of each subject.
_FIRST = frozenset({
    "engine.name", "engine.version", "engine.device", "startup.outcome", "startup.cause", "startup.message",
    "model.family", "model.params_total_b", "model.params_active_b",
    "model.weights_gib", "model.kv_bytes_per_token", "model.quantization", "model.moe_experts", "model.max_context_tokens",
    "parallel.tp", "parallel.pp", "parallel.dp", "parallel.ep", "scheduler.max_running", "scheduler.overlap", "spec.method",
    "spec.draft_tokens", "spec.accept_len", "kv.pool_tokens", "kv.dtype", "kv.usage_p95", "kv.prefix_cache", "kv.preemptions",
    "memory.weights_gib", "graphs.mode", "graphs.capture_max", "graphs.required_size", "graphs.covers_batch", "decode.graph_off_share",
    "kernel.attention_backend", "kernel.moe_backend", "decode.batch_p90", "decode.batch_max", "decode.step_ms_p50", "decode.throughput_tps",
    "queue.depth_p95", "client.concurrency", "client.output_tps", "client.ttft_ms_p50", "client.itl_ms_p50", "roofline.decode_ratio",
    "gpu.name", "gpu.count", "gpu.memory_total_gib", "gpu.memory_free_gib", "gpu.sm_util_p50", "gpu.power_limit_w", "gpu.driver", "gpu.cuda",
    "topology.gpu_link", "topology.p2p", "nccl.version", "nccl.transport", "nccl.channels", "nccl.protocol", "allreduce.custom",
    "host.cpu_count", "host.cpu_quota_cores", "host.cpu_steal_pct", "host.cpu_pressure_pct", "host.proc_cpu_pct", "host.memory_available_gib",
    "validity.foreign_gpu_processes", "validity.server_count", "log.unrecognised_lines", "prefill.chunk_tokens", "prefill.throughput_tps",
})  # fmt: skip
_BY_LABEL = frozenset({"host.proc_cpu_pct"})
_MARKS = {"impossible": "!! impossible", "contradicts": "!! not as asked", "at_limit": " ! ", "notable": " ! "}
_NAME_WIDTH, _VALUE_WIDTH = 46, 42


def sheet_text(found: Any, *, everything: bool = False) -> str:
    """The sheet of a Diagnosis. ``everything``: all facts and every missing one; else the first of each subject, all odd ones,
    and the missing ones counted by reason."""
    lines = ["Evidence"]
    by_subject: dict[str, list[Any]] = {}
    for fact in found.facts:
        by_subject.setdefault(fact.resource or fact.fact.split(".", 1)[0], []).append(fact)
    hidden = 0
    listed = {subject for _, subjects in _SUBJECTS for subject in subjects}
    groups = (*_SUBJECTS, ("Other", tuple(sorted(set(by_subject) - listed))))
    for title, subjects in groups:
        facts = [fact for subject in subjects for fact in by_subject.get(subject, ())]
        shown = [fact for fact in facts if everything or fact.odd or (fact.fact in _FIRST and (not fact.labels or fact.fact in _BY_LABEL))]
        hidden += len(facts) - len(shown)
        if shown:
            lines.append(f"\n{title}")
            lines += [_row(fact) for fact in shown]
    lines += _flips(found, everything)
    lines += _missing(found, everything)
    odd = sum(1 for fact in found.facts if fact.odd)
    total = f"{len(found.facts)} facts found, {odd} of them marked, {len(found.missing)} missing"
    lines.append(f"\n{total}" + (f"; {hidden} found ones are not shown here (--all)." if hidden else "."))
    return "\n".join(lines)


def _row(fact: Any) -> str:
    labels = ",".join(f"{key}={value}" for key, value in fact.labels.items())
    name = fact.fact + (f"{{{labels}}}" if labels else "")
    sign = {"at_least": "≥ ", "at_most": "≤ "}.get(fact.bound or "", "")
    unit = "" if fact.unit in ("", "none") else f" {fact.unit}"
    place = fact.source + (f":{fact.line}" if fact.line else f" (all {_size(fact.span[1])})" if fact.span and fact.span[0] == 0 else "")
    mark = f"  {_MARKS[fact.odd].rstrip()}: {fact.why_odd}" if fact.odd in ("impossible", "contradicts") else f"  ! {fact.why_odd}" if fact.odd else ""
    return f"  {name:<{_NAME_WIDTH}} {sign + value_text(fact.value) + unit:<{_VALUE_WIDTH}} {place}{mark}"


def value_text(value: Any) -> str:
    """Short text of a value: numbers as they are, lists by their length and ends, maps by their keys."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 100_000 else str(value)
    if isinstance(value, list):
        text = ", ".join(map(str, value))
        return text if len(text) <= 34 else f"{len(value)} values, {value[0]} to {value[-1]}"[:40]
    if isinstance(value, dict):
        return "{}" if not value else f"{len(value)}: {', '.join(sorted(value))}"[:40]
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


def _flips(found: Any, everything: bool) -> list[str]:
    flips = [flip for flip in found.flips if everything or not flip.minor]
    if not flips:
        return []
    lines = ["\nWhat the start did differently"]
    for flip in flips:
        place = f"  {flip.source}{f':{flip.line}' if flip.line else ''}" if flip.source else ""
        lines.append(f"  {flip.text}{place}")
    return lines


def _missing(found: Any, everything: bool) -> list[str]:
    if not found.missing:
        return []
    by_reason: dict[str, list[str]] = {}
    for item in found.missing:
        by_reason.setdefault(item.reason, []).append(item.fact)
    lines = ["\nMissing, and why"]
    ordered = sorted(by_reason.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    for reason, names in ordered if everything else ordered[:8]:
        shown = ", ".join(names) if everything else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(f"  {reason} ({len(names)}):\n      {shown}")
    rest = ordered[8:] if not everything else []
    if rest:
        lines.append(f"  … and {sum(len(names) for _, names in rest)} more for {len(rest)} other reasons (--all)")
    return lines


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count // 1024} KiB" if count < 10 << 20 else f"{count >> 20} MiB"
