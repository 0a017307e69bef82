"""Will a proposed launch fit into device memory? A small model that starts from what the last launch measured (free
memory after start, weights, KV pool, graphs) and moves only what the proposal moves. Responsible for refusing launches
that must fail; where a number is missing, or the answer is close, it allows."""

from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.model.base import Value
from optimizer.model.evidence import Evidence

# Kernels and libraries allocate this much at the least after the pools: a launch with 0.07 GiB left died in cuBLAS's
# first call, one with 10.9 GiB left ran (recordings). Between the two is unknown ground, so only the clear case is
# refused.
_WORKSPACE_GIB = 0.25


@dataclass(frozen=True)
class Verdict:
    """``fits`` is None when nothing can be said."""

    fits: bool | None
    why: str = ""


def fits(
    before: Mapping[str, Value], after: Mapping[str, Value], evidence: Evidence, box: Mapping[str, Value]
) -> Verdict:
    """``before``: effective settings of the launch that ``evidence`` comes from; ``after``: those of the proposal.
    GiB."""
    total = _number(box.get("gpu.memory_mib"))
    total_gib = total / 1024 if total is not None else evidence.number("gpu.memory_total_gib")
    if total_gib is None or total_gib <= 0:
        return Verdict(None)
    for check in (_weights, _leftover, _reserved_tokens):
        verdict = check(before, after, evidence, total_gib)
        if verdict.fits is False:
            return verdict
    return Verdict(None)


def _weights(before: Mapping[str, Value], after: Mapping[str, Value], evidence: Evidence, total_gib: float) -> Verdict:
    """The static share must hold the weights and the KV of at least one full-length request."""
    share, param = _share(after)
    weights = evidence.number("memory.weights_gib")
    if share is None or weights is None or not _same_layout(before, after):
        return Verdict(None)
    room = share * total_gib - weights
    if room <= 0:
        return Verdict(
            False,
            f"{param} {share:g} of {total_gib:.1f} GiB is less than the weights ({weights:.1f} GiB): "
            "no room for a KV cache.",
        )
    need = _one_request_gib(evidence)
    if need is not None and room < need and param == "gpu_memory_utilization":
        return Verdict(
            False,
            f"{param} {share:g} leaves {room:.1f} GiB beside the weights, less than the {need:.1f} GiB of one request "
            "of full length: the engine refuses to start.",
        )
    return Verdict(None)


def _leftover(before: Mapping[str, Value], after: Mapping[str, Value], evidence: Evidence, total_gib: float) -> Verdict:
    """What stays free outside the static share must hold graphs and workspace."""
    free = evidence.number("gpu.memory_free_gib")
    share_now, _ = _share(before)
    share, param = _share(after)
    if free is None or share_now is None or share is None or param != "mem_fraction_static":
        return Verdict(None)
    if before.get("max_total_tokens") is not None or after.get("max_total_tokens") is not None:
        return Verdict(None)  # the pool is capped by tokens, not by the share
    graphs = evidence.number("graphs.capture_memory_gib") or 0.0
    growth = _graph_growth_gib(before, after, graphs)
    left = free - (share - share_now) * total_gib - growth
    if left < _WORKSPACE_GIB and share > share_now:
        return Verdict(
            False,
            f"{param} {share_now:g} -> {share:g} leaves {left:.1f} GiB outside the pool ({free:.1f} GiB were free; "
            "graphs and workspace come out of it): the launch would run out of memory.",
        )
    return Verdict(None)


def _reserved_tokens(
    before: Mapping[str, Value], after: Mapping[str, Value], evidence: Evidence, total_gib: float
) -> Verdict:
    """A KV pool asked for in tokens must fit beside the weights."""
    asked = _number(after.get("max_total_tokens")) or _number(after.get("kv_pool_tokens"))
    per_token = _gib_per_token(evidence)
    weights = evidence.number("memory.weights_gib")
    if asked is None or per_token is None or weights is None or not _same_layout(before, after):
        return Verdict(None)
    share, _ = _share(after)
    need = asked * per_token + weights
    # SGLang caps max_total_tokens by what the static share holds, so only a share given together with it can fail.
    if share is None and need > total_gib:
        return Verdict(False, f"{asked:.0f} KV tokens and the weights need {need:.1f} GiB of {total_gib:.1f} GiB.")
    return Verdict(None)


def _graph_growth_gib(before: Mapping[str, Value], after: Mapping[str, Value], graphs_gib: float) -> float:
    """Lower bound of what larger graphs add: half of proportional growth (0.06 -> 0.14 GiB from 4 to 64, recorded)."""
    now, then = _number(before.get("cuda_graph_max_bs")), _number(after.get("cuda_graph_max_bs"))
    if now is None or then is None or now <= 0 or then <= now:
        return 0.0
    return 0.0 if graphs_gib <= 0 else graphs_gib * 0.05 * (then / now - 1)


def _share(settings: Mapping[str, Value]) -> tuple[float | None, str]:
    for param in ("mem_fraction_static", "gpu_memory_utilization"):
        number = _number(settings.get(param))
        if number is not None:
            return number, param
    return None, ""


def _same_layout(before: Mapping[str, Value], after: Mapping[str, Value]) -> bool:
    """Weights per device are only comparable under the same parallel layout, type and quantisation."""
    return all(
        before.get(param) == after.get(param)
        for param in (
            "tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "enable_dp_attention", "quantization", "dtype",
            "tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel", "cpu_offload_gb",
        )
    )  # fmt: skip


def _gib_per_token(evidence: Evidence) -> float | None:
    pool, tokens = evidence.number("memory.kv_gib"), evidence.number("kv.pool_tokens")
    return pool / tokens if pool and tokens else None


def _one_request_gib(evidence: Evidence) -> float | None:
    per_token, length = _gib_per_token(evidence), evidence.number("model.max_context_tokens")
    return per_token * length if per_token is not None and length is not None else None


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
