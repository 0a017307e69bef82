"""Marks facts that a reader should look at first: impossible values, what happened against what was asked for, and what runs at
its limit. Marks only; what limits a server is said by playbooks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from optimizer.model.evidence import Evidence, Fact

Kind = Literal["impossible", "contradicts", "at_limit", "notable"]


class Odd(NamedTuple):
    kind: Kind
    why: str


def odd(fact: Fact, evidence: Evidence) -> Odd | None:
    """What is odd about this observation, None for most."""
    return _impossible(fact, evidence) or _contradicts(fact, evidence) or _at_limit(fact, evidence)


def without_impossible(evidence: Evidence) -> tuple[Evidence, tuple[Fact, ...], tuple[str, ...]]:
    """(what can be, what cannot, what to say about it): a value that cannot be supports nothing."""
    dropped: list[Fact] = []
    notes: list[str] = []
    for fact in evidence.facts:
        why = _impossible(fact, evidence)
        if why is not None:
            dropped.append(fact)
            notes.append(f"{fact.name} = {fact.value}: not used, because {why.why}")
    if not dropped:
        return evidence, (), ()
    gone = {id(fact) for fact in dropped}
    kept = tuple(fact for fact in evidence.facts if id(fact) not in gone)
    return evidence.model_copy(update={"facts": kept}), tuple(dropped), tuple(notes)


def contradicted(facts: Iterable[Fact]) -> dict[tuple[object, ...], tuple[Fact, Fact]]:
    """Observations of the same thing that state different values, by identity: nobody knows which of them holds."""
    seen: dict[tuple[object, ...], Fact] = {}
    found: dict[tuple[object, ...], tuple[Fact, Fact]] = {}
    for fact in facts:
        before = seen.setdefault(fact.identity, fact)
        if before.value != fact.value and before.bound is None and fact.bound is None:
            found.setdefault(fact.identity, (before, fact))
    return found


def _value(fact: Fact) -> float | None:
    value = fact.value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# Measured larger than a bound that cannot be passed: name -> (name of the bound, room for rounding and sampling).
_BOUNDED: Mapping[str, tuple[str, float]] = {
    "gpu.memory_used_gib": ("gpu.memory_total_gib", 1.01),
    "gpu.memory_free_gib": ("gpu.memory_total_gib", 1.01),
    "gpu.power_w_p50": ("gpu.power_limit_w", 1.10),
    "host.cpu_quota_cores": ("host.cpu_count", 1.0),
    "host.memory_available_gib": ("host.memory_total_gib", 1.0),
    "client.output_tps": ("client.total_tps", 1.001),
    "model.params_active_b": ("model.params_total_b", 1.001),
    "client.itl_ms_p50": ("client.itl_ms_p99", 1.0001),
    "client.ttft_ms_p50": ("client.ttft_ms_p99", 1.0001),
    "decode.batch_p50": ("decode.batch_p90", 1.0001),
    "queue.depth_p50": ("queue.depth_p95", 1.0001),
    "kv.usage_p50": ("kv.usage_p95", 1.0001),
    "spec.accepted_tokens": ("spec.drafted_tokens", 1.0),
}
# Signed by nature; everything else that is measured cannot be below zero.
_SIGNED = frozenset({"gpu.temperature_c_max"})
# More than 1 by the rounding of the log alone.
_SHARE_ROOM = 1.005


def _impossible(fact: Fact, evidence: Evidence) -> Odd | None:
    value = _value(fact)
    if value is None:
        return None
    if value < 0 and fact.name not in _SIGNED:
        return Odd("impossible", "a measured quantity cannot be negative")
    if (fact.name.endswith("_share") or "usage_p" in fact.name) and value > _SHARE_ROOM:
        return Odd("impossible", "a share cannot exceed 1")
    if fact.name.startswith("gpu.") and "_util_" in fact.name and value > 100.5:
        return Odd("impossible", "utilisation cannot exceed 100 percent")
    limit = _BOUNDED.get(fact.name)
    if limit is not None:
        bound = next((other for other in evidence.all(limit[0]) if other.labels == fact.labels), None)
        top = _value(bound) if bound is not None else None
        if top is not None and value > top * limit[1]:
            return Odd("impossible", f"it exceeds {limit[0]}, which is {top:g}")
    drafts = evidence.number("spec.draft_tokens")
    if fact.name == "spec.accept_len" and drafts is not None and "draft_tokens" not in fact.labels and value > drafts + 1 + 0.05:
        return Odd("impossible", f"a step emits at most {drafts:g} accepted drafts and one token of its own")
    return None


def _contradicts(fact: Fact, evidence: Evidence) -> Odd | None:
    name, value = fact.name, fact.value
    if name == "settings.overridden" and isinstance(value, dict) and value:
        return Odd("contradicts", f"asked for and not in force: {', '.join(sorted(value)[:6])}")
    if name == "settings.env_differs" and isinstance(value, dict) and value:
        return Odd("contradicts", f"asked for, and the process or a rank has another value: {', '.join(sorted(value)[:6])}")
    if name == "scheduler.max_running":
        asked, now = evidence.number("scheduler.max_running_asked"), _value(fact)
        if asked is not None and now is not None and now != asked:
            return Odd("contradicts", f"{asked:g} was asked for")
    if name == "graphs.mode" and value == "none" and evidence.value("graphs.disable_flag") is False and evidence.value("engine.device") != "cpu":
        return Odd("contradicts", "nobody switched graphs off")
    if name == "startup.fallback":
        return Odd("contradicts", "the log names this setting as the reason of a fall-back")
    if name in ("validity.version_conflict", "gpu.models_differ") and value:
        return Odd("contradicts", "files of one bundle, or GPUs of one box, are not alike")
    if name == "startup.outcome" and value not in ("ok", None):
        return Odd("contradicts", "the start failed")
    if name == "spec.simulated" and value is True:
        return Odd("contradicts", "acceptance is forced by a test switch: the speed is not real")
    return None


def _over(limit: float, why: str) -> Callable[[float], str | None]:
    return lambda value: why if value >= limit else None


def _under(limit: float, why: str) -> Callable[[float], str | None]:
    return lambda value: why if value < limit else None


_LIMITS: Mapping[str, Callable[[float], str | None]] = {
    "kv.usage_p95": _over(0.95, "the KV pool is full"),
    "gpu.power_share": _over(0.97, "at the power limit"),
    "gpu.sm_util_p50": _over(99.5, "a kernel runs all the time"),
    "gpu.power_limit_share": _under(0.995, "the power limit is below the board's own"),
    "gpu.throttle_share": _over(0.01, "the clock is held back"),
    "gpu.mem_clock_share": _under(0.97, "the memory does not run at its full clock"),
    "gpu.error_count": _over(1, "the driver counts errors since it was loaded"),
    "pcie.link_share": _under(0.95, "the link is below what card and slot can do"),
    "pcie.usage_share": _over(0.9, "the PCIe link is full"),
    "host.cpu_sat": _over(0.5, "a serving thread needs a whole core"),
    "host.cpu_steal_pct": _over(2.0, "other guests take time of these cores"),
    "host.cpu_throttled_periods": _over(1, "the CPU limit of the container stops the server"),
    "host.cpu_pressure_pct": _over(25.0, "threads wait for a core"),
    "host.memory_pressure_pct": _over(5.0, "threads wait for memory"),
    "host.swap_used_gib": _over(1.0, "memory is swapped out"),
    "host.numa_remote_share": _over(0.5, "most of a worker's memory lies on another node than its GPU"),
    "host.shm_free_gib": _under(1.0, "little room in /dev/shm"),
    "kv.preemptions": _over(1, "running requests were thrown out of the pool"),
    "queue.depth_p95": _over(1, "requests wait"),
    "validity.foreign_gpu_processes": _over(1, "somebody else's processes use the GPUs"),
    "validity.server_count": _over(2, "more than one server runs on the box"),
    "validity.servers_in_log": _over(2, "more than one server wrote this log"),
    "client.failed_requests": _over(1, "requests failed"),
    "client.served_share": _under(0.999, "not every request was served"),
    "log.unrecognised_lines": _over(1, "lines that look like statistics were not understood"),
    "kernel.jit_in_serving": _over(1, "kernels were compiled while requests waited"),
    "decode.graph_off_share": _over(0.05, "decode steps ran outside graphs"),
    "server.aborted_requests": _over(1, "requests were aborted"),
}


def _at_limit(fact: Fact, evidence: Evidence) -> Odd | None:
    value = _value(fact)
    if value is None or fact.labels.get("test") is not None:
        return None
    if fact.name == "decode.batch_max" and (cap := evidence.number("scheduler.max_running")) is not None and value >= cap:
        return Odd("at_limit", f"as many requests ran as may run ({cap:g})")
    if fact.name == "gpu.memory_free_gib" and (total := evidence.number("gpu.memory_total_gib")) and value < 0.01 * total:
        return Odd("at_limit", "the GPU's memory is full")
    if fact.labels.get("kind") == "pcie_replay" and value < 100:
        return None  # a handful since the driver was loaded is what healthy links show
    if fact.name == "decode.graph_off_share" and evidence.value("engine.device") == "cpu":
        return None
    rule = _LIMITS.get(fact.name)
    why = rule(value) if rule is not None else None
    return None if why is None else Odd("at_limit", why)
