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
VISIBLE = "gpu.visible"  # of a box: GPUs that the environment of the (leading) server shows it; with a role behind it, another worker's
# Of the weights, at least this part is split between the GPUs; norms and embeddings may be copies.
_SPLIT = 0.85
_CERTAIN_GROWTH = 0.25
_TP = ("tp_size", "tensor_parallel_size")
_PP = ("pp_size", "pipeline_parallel_size")
_DP = ("dp_size", "data_parallel_size")
_STEP_TOKENS = ("chunked_prefill_size", "max_num_batched_tokens")


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
    layout = _layout(after, evidence, box)
    if layout.fits is False:
        return layout
    total = _number(box.get("gpu.memory_mib"))
    total_gib = total / 1024 if total is not None else evidence.number("gpu.memory_total_gib")
    if total_gib is None or total_gib <= 0:
        return Verdict(None)
    for check in (_weights, _moved_weights, _activations, _leftover, _reserved_tokens):
        verdict = check(before, after, evidence, total_gib)
        if verdict.fits is False:
            return verdict
    return Verdict(None)


def _weights(before: Mapping[str, Value], after: Mapping[str, Value], evidence: Evidence, total_gib: float) -> Verdict:
    """The static share must hold the weights and the KV of at least one full-length request."""
    share, param = _share(after)
    weights = evidence.number("memory.weights_gib")
    if share is None or weights is None:
        return Verdict(None)
    same = _same_layout(before, after)
    if not same and not _same_split(before, after):
        return Verdict(None)
    at_least = weights * (1.0 if same else _SPLIT)
    room = share * total_gib - at_least
    if room <= 0:
        return Verdict(
            False,
            f"{param} {share:g} of {total_gib:.1f} GiB is less than the weights ({'' if same else 'at least '}{at_least:.1f} GiB): "
            "no room for a KV cache.",
        )
    if not same:
        return Verdict(None)
    need = _one_request_gib(evidence)
    if need is not None and room < need and param == "gpu_memory_utilization":
        return Verdict(
            False,
            f"{param} {share:g} leaves {room:.1f} GiB beside the weights, less than the {need:.1f} GiB of one request "
            "of full length: the engine refuses to start.",
        )
    return Verdict(None)


def _layout(after: Mapping[str, Value], evidence: Evidence, box: Mapping[str, Value]) -> Verdict:
    """Tensor, pipeline and data parallelism need one GPU for each of their ranks; data-parallel attention shares them."""
    if (evidence.number("parallel.nodes") or 1) > 1:
        return Verdict(None)
    gpus = _number(box.get("gpu.count"))  # of the box; the fact of that name counts those that the server uses
    visible = _number(box.get(VISIBLE))
    if visible is not None and (gpus is None or visible < gpus):
        ranks = _ranks(after)
        if ranks > visible:
            return Verdict(False, f"The layout needs {ranks:.0f} GPUs, and CUDA_VISIBLE_DEVICES shows the server {visible:.0f}.")
    elif gpus is not None and gpus >= 1 and (ranks := _ranks(after)) > gpus:
        return Verdict(False, f"The layout needs {ranks:.0f} GPUs, the box has {gpus:.0f}.")
    for name in sorted(box):  # the other workers of a deployment
        role, seen = name.removeprefix(VISIBLE + "."), _number(box[name])
        if role == name or seen is None:
            continue
        own = {param.removeprefix(role + "."): value for param, value in after.items() if param.startswith(role + ".")}
        if (ranks := _ranks(own)) > seen:
            return Verdict(False, f"The layout of {role} needs {ranks:.0f} GPUs, and its CUDA_VISIBLE_DEVICES shows it {seen:.0f}.")
    return Verdict(None)


def _ranks(after: Mapping[str, Value]) -> float:
    ranks = 1.0
    for names in (_TP, _PP):
        ranks *= _first(after, names) or 1.0
    shared = after.get("enable_dp_attention") is True or (_number(after.get("attn_dp_size")) or 1) > 1
    return ranks * (1.0 if shared else _first(after, _DP) or 1.0)


def _moved_weights(before: Mapping[str, Value], after: Mapping[str, Value], evidence: Evidence, total_gib: float) -> Verdict:
    """Weights per GPU under another tensor or pipeline layout: never less than their share of what is split."""
    weights = evidence.number("memory.weights_gib")
    now = (_first(before, _TP) or 1.0) * (_first(before, _PP) or 1.0)
    then = (_first(after, _TP) or 1.0) * (_first(after, _PP) or 1.0)
    if weights is None or now == then or any(before.get(name) != after.get(name) for name in ("quantization", "dtype", "cpu_offload_gb")):
        return Verdict(None)
    need = weights * now / then * (_SPLIT if then < now else 1.0)
    share, param = _share(after)
    room = total_gib * (share if share is not None and param == "gpu_memory_utilization" else 1.0)
    if need > room:
        return Verdict(False, f"On {then:.0f} instead of {now:.0f} GPUs at least {need:.1f} GiB of weights fall to each, and it gives them {room:.1f} GiB.")
    return Verdict(None)


def _activations(before: Mapping[str, Value], after: Mapping[str, Value], evidence: Evidence, total_gib: float) -> Verdict:
    """vLLM profiles one step of the largest size and gives the KV cache what is left. What the last start kept for that step
    (its share less weights and KV) grows with the step's tokens; a quarter of that growth is taken as certain."""
    now, then = _first(before, _STEP_TOKENS), _first(after, _STEP_TOKENS)
    share_now, param = _share(before)
    share, param_then = _share(after)
    weights, kv, need = evidence.number("memory.weights_gib"), evidence.number("memory.kv_gib"), _one_request_gib(evidence)
    if now is None or then is None or then <= now or now <= 0 or not _same_layout(before, after):
        return Verdict(None)
    if share_now is None or share is None or weights is None or kv is None or need is None or {param, param_then} != {"gpu_memory_utilization"}:
        return Verdict(None)
    step = max(share_now * total_gib - weights - kv, 0.0)
    growth = step * (then / now - 1) * _CERTAIN_GROWTH
    left = kv + (share - share_now) * total_gib - growth
    if left < need:
        return Verdict(
            False,
            f"Steps of {then:.0f} tokens need at least {growth:.1f} GiB more for activations, which leaves {left:.1f} GiB of KV cache, "
            f"less than the {need:.1f} GiB of one request of full length.",
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
            "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "cpu_offload_gb",
        )
    )  # fmt: skip


def _same_split(before: Mapping[str, Value], after: Mapping[str, Value]) -> bool:
    """Whether as many GPUs share the weights as before: experts and attention laid out otherwise over the same tensor-parallel group leave
    each GPU its part. vLLM spreads experts over its data-parallel ranks too, so those count there."""
    kept = (*_TP, *_PP, "quantization", "dtype", "cpu_offload_gb", "enable_expert_parallel", "data_parallel_size")
    return all(before.get(param) == after.get(param) for param in kept)


def _gib_per_token(evidence: Evidence) -> float | None:
    pool, tokens = evidence.number("memory.kv_gib"), evidence.number("kv.pool_tokens")
    return pool / tokens if pool and tokens else None


def _one_request_gib(evidence: Evidence) -> float | None:
    per_token, length = _gib_per_token(evidence), evidence.number("model.max_context_tokens")
    return per_token * length if per_token is not None and length is not None else None


def _first(settings: Mapping[str, Value], names: tuple[str, ...]) -> float | None:
    return next((number for name in names if (number := _number(settings.get(name))) is not None), None)


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
