"""The fallback ledger: which start-up facts of a launch differ from the baseline's, which setting did it, and whether
anybody asked
for it. Engines fall back quietly; this is where it shows."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.startup import Flip

# The facts that every launch is compared on. Facts that only one side has are not compared: missing is not false.
STARTUP_FACTS = (
    "engine.version",
    "gpu.driver",
    "engine.generation",
    "engine.device",
    "engine.model_runner",
    "kernel.attention_backend",
    "kernel.attention_prefill",
    "kernel.attention_forced",
    "kernel.moe_backend",
    "kernel.moe_config",
    "kernel.linear_backend",
    "kernel.quant_flag",
    "kernel.sampler_backend",
    "kernel.compile_mode",
    "model.quantization",
    "allreduce.custom",
    "allreduce.fusion",
    "nccl.version",
    "nccl.transport",
    "nccl.protocol",
    "nccl.channels",
    "nccl.env",
    "graphs.mode",
    "graphs.capture_sizes",
    "graphs.capture_max",
    "graphs.prefill_sizes",
    "graphs.prefill_captured",
    "graphs.draft_captured",
    "graphs.capture_memory_gib",
    "prefill.graph_used_share",
    "kv.pool_tokens",
    "kv.dtype",
    "kv.block_tokens",
    "kv.prefix_cache",
    "memory.weights_gib",
    "gpu.memory_free_gib",
    "scheduler.max_running",
    "scheduler.overlap",
    "prefill.chunk_tokens",
    "model.max_context_tokens",
    "settings.resolved",
    "startup.outcome",
    "startup.phase_s",
    "startup.warnings",
)

_NOT_COMPARED = frozenset({"startup.phase_s", "startup.outcome"})
_MINOR = frozenset(
    {
        "graphs.capture_memory_gib",
        "gpu.memory_free_gib",
        "memory.weights_gib",
        "kernel.attention_forced",
        "kernel.quant_flag",
    }
)
# Relative and absolute room for noise; what is not listed must be equal.
_TOLERANCE: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "kv.pool_tokens": (0.01, 0.0),
        "graphs.capture_memory_gib": (0.05, 0.1),
        "gpu.memory_free_gib": (0.05, 0.25),
        "memory.weights_gib": (0.01, 0.05),
        "prefill.graph_used_share": (0.0, 0.1),
    }
)
# Best first. A move to a later place is a move towards a fallback.
_RANKED: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "allreduce.custom": (
            ("on",),
            ("off", "off_flag", "off_pcie_only", "off_no_p2p", "off_world_size", "off_multi_node", "off_setup_failed"),
        ),
        "allreduce.fusion": (("on",), ("off",)),
        "kernel.moe_config": (("found",), ("other_version",), ("default",)),
        "kernel.sampler_backend": (("flashinfer",), ("pytorch", "other")),
        "engine.generation": (("V1",), ("V0",)),
        "graphs.mode": (("full_and_piecewise", "full", "on"), ("full_decode_only",), ("piecewise",), ("none",)),
        "nccl.transport": (("nvls",), ("p2p",), ("shm",), ("net_ib",), ("net_socket",)),
        "kernel.attention_backend": (
            (
                "fa3",
                "fa4",
                "flash_attn",
                "flashinfer",
                "flashmla",
                "flashinfer_mla",
                "cutlass_mla",
                "trtllm_mha",
                "trtllm_mla",
                "flash_attn_mla",
            ),
            ("triton", "triton_attn", "triton_mla", "aiter"),
            ("xformers", "flex_attention", "torch_sdpa"),
            ("torch_native",),
        ),
    }
)
_LESS_IS_FALLBACK = frozenset(
    {"scheduler.max_running", "prefill.graph_used_share", "graphs.capture_max", "kv.pool_tokens", "nccl.channels"}
)
_FALSE_IS_FALLBACK = frozenset(
    {"scheduler.overlap", "kv.prefix_cache", "graphs.draft_captured", "graphs.prefill_captured"}
)
# Settings whose very meaning is this fact: such a flip was asked for, and nobody else is to blame.
_DIRECT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kv.dtype": ("kv_cache_dtype",),
        "kv.block_tokens": ("page_size", "block_size"),
        "kv.prefix_cache": ("disable_radix_cache", "enable_prefix_caching"),
        "kv.pool_tokens": ("max_total_tokens", "num_gpu_blocks_override"),
        "scheduler.max_running": ("max_running_requests", "max_num_seqs"),
        "prefill.chunk_tokens": ("chunked_prefill_size", "max_num_batched_tokens"),
        "scheduler.overlap": ("disable_overlap_schedule", "async_scheduling"),
        "model.max_context_tokens": ("context_length", "max_model_len"),
        "allreduce.custom": ("disable_custom_all_reduce",),
        "allreduce.fusion": ("enable_flashinfer_allreduce_fusion",),
        "kernel.attention_backend": ("attention_backend", "decode_attention_backend", "env.VLLM_ATTENTION_BACKEND"),
        "kernel.attention_prefill": ("attention_backend", "prefill_attention_backend"),
        "kernel.sampler_backend": ("sampling_backend",),
        "kernel.moe_backend": ("moe_runner_backend", "moe_backend"),
        "model.quantization": ("quantization",),
        "kernel.quant_flag": ("quantization",),
        "graphs.mode": (
            "disable_cuda_graph",
            "disable_decode_cuda_graph",
            "enforce_eager",
            "compilation_config",
            "cuda_graph_backend_decode",
        ),
        "graphs.capture_sizes": (
            "cuda_graph_max_bs",
            "cuda_graph_bs",
            "cuda_graph_max_bs_decode",
            "cuda_graph_bs_decode",
            "cudagraph_capture_sizes",
            "max_cudagraph_capture_size",
            "cuda_graph_sizes",
            "disable_cuda_graph",
            "enforce_eager",
        ),
        "graphs.capture_max": (
            "cuda_graph_max_bs",
            "cuda_graph_bs",
            "cuda_graph_max_bs_decode",
            "cuda_graph_bs_decode",
            "cudagraph_capture_sizes",
            "max_cudagraph_capture_size",
            "cuda_graph_sizes",
        ),
        "graphs.prefill_sizes": (
            "piecewise_cuda_graph_tokens",
            "piecewise_cuda_graph_max_tokens",
            "disable_piecewise_cuda_graph",
            "cuda_graph_max_bs_prefill",
        ),
        "graphs.prefill_captured": (
            "disable_piecewise_cuda_graph",
            "disable_prefill_cuda_graph",
            "cuda_graph_backend_prefill",
        ),
        "prefill.graph_used_share": (
            "disable_piecewise_cuda_graph",
            "disable_prefill_cuda_graph",
            "cuda_graph_backend_prefill",
        ),
        "nccl.transport": (
            "env.NCCL_P2P_DISABLE",
            "env.NCCL_SHM_DISABLE",
            "env.NCCL_NVLS_ENABLE",
            "env.NCCL_IB_DISABLE",
            "env.NCCL_P2P_LEVEL",
        ),
        "nccl.protocol": ("env.NCCL_PROTO",),
        "nccl.channels": ("env.NCCL_MIN_NCHANNELS", "env.NCCL_MAX_NCHANNELS", "env.NCCL_MIN_CTAS", "env.NCCL_MAX_CTAS"),
    }
)
# A warning that tells of a fact which flipped as well is the same event and is not listed twice.
_WARNING_OF = MappingProxyType(
    {
        "spec_max_running_reset": "scheduler.max_running",
        "max_running_capped_by_state": "scheduler.max_running",
        "max_running_capped_by_pool": "scheduler.max_running",
        "custom_allreduce_off": "allreduce.custom",
        "graphs_disabled": "graphs.mode",
        "moe_default_config": "kernel.moe_config",
        "sampler_native": "kernel.sampler_backend",
        "v0_fallback": "engine.generation",
        "attention_fallback": "kernel.attention_backend",
        "overlap_disabled": "scheduler.overlap",
        "allreduce_fusion_off": "allreduce.fusion",
        "graph_capture_truncated": "graphs.capture_max",
    }
)
# Resolved values that differ between any two launches, or that follow from facts listed above.
_QUIET_SETTINGS = frozenset(
    {
        "port",
        "host",
        "nccl_port",
        "random_seed",
        "seed",
        "model_path",
        "tokenizer_path",
        "served_model_name",
        "log_level",
        "dist_init_addr",
        "pid",
        "model",
        "tokenizer",
        "cuda_graph_bs",
        "compilation_config",
        "gated_launch_port",
        "grpc_port",
        "engine_info_bootstrap_port",
    }
)


def startup_facts(evidence: Evidence) -> tuple[Fact, ...]:
    """The start-up record of a launch, in the order of ``STARTUP_FACTS``."""
    return tuple(fact for name in STARTUP_FACTS for fact in evidence.all(name))


def flips(
    base: Evidence,
    candidate: Evidence,
    changed: Mapping[str, tuple[Value, Value]],
    declared: Mapping[str, tuple[str, ...]],
) -> tuple[Flip, ...]:
    """What differs between two launches of one box.

    ``changed``: param -> (baseline's value, candidate's value). ``declared``: param -> facts that its
    space, a constraint rule or a prediction expects to flip. Order: fallbacks first, then unexpected, expected, minor.
    Where neither launch's arguments are known, those that the servers logged stand in for ``changed``."""
    if not changed and base.get("settings.asked") is None and candidate.get("settings.asked") is None:
        changed = _logged_changes(base, candidate)
    found = []
    for name in STARTUP_FACTS:
        if name in _NOT_COMPARED or name in ("settings.resolved", "startup.warnings"):
            continue
        for now in candidate.all(name):
            before = next(
                (fact for fact in base.all(name) if fact.labels == now.labels and fact.role == now.role), None
            )
            if before is not None and not _same(name, before.value, now.value):
                found.append(_flip(now, before.value, now.value, candidate, changed, declared))
    found.extend(_warnings(base, candidate, {flip.fact for flip in found}, changed, declared))
    found.extend(_settings(base, candidate, changed))
    return tuple(sorted(found, key=lambda flip: (flip.minor, flip.expected, not flip.towards_fallback)))


def _flip(
    fact: Fact,
    before: Value,
    after: Value,
    candidate: Evidence,
    changed: Mapping[str, tuple[Value, Value]],
    declared: Mapping[str, tuple[str, ...]],
) -> Flip:
    name = fact.name
    blame, why = blamed(name, candidate, changed, declared)
    direct = _asked(name, after, changed)
    if direct:
        blame, why = direct, "the setting says so itself"
    return Flip(
        fact=name,
        labels=fact.labels,
        before=before,
        after=after,
        unit=fact.unit,
        blame=blame,
        expected=bool(direct) or (bool(blame) and any(name in declared.get(param, ()) for param in changed)),
        towards_fallback=_worse(name, before, after),
        minor=name in _MINOR,
        source=fact.source,
        line=fact.line,
        why=why,
    )


def _asked(name: str, after: Value, changed: Mapping[str, tuple[Value, Value]]) -> tuple[str, ...]:
    """Changed settings that mean this very fact; a number counts only when the server took the number that was asked
    for."""
    if name == "nccl.env":
        return tuple(sorted(param for param in changed if param.startswith("env.NCCL_")))
    result = []
    for param in _DIRECT.get(name, ()):
        if param in changed:
            wanted = changed[param][1]
            if isinstance(wanted, list) and isinstance(after, int | float):
                wanted = max((size for size in wanted if isinstance(size, int | float)), default=None)
            if (
                type(wanted) is type(after)
                and isinstance(after, int | float | list)
                and not isinstance(after, bool)
                and wanted != after
            ):
                continue
            result.append(param)
    return tuple(result)


def blamed(
    name: str, candidate: Evidence, changed: Mapping[str, tuple[Value, Value]], declared: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], str]:
    """Settings that may have flipped ``name``, and why: the server named it, only one changed, it was declared, or one
    of all."""
    if name == "engine.version":
        return (), "no setting changes the build of an engine"
    said = candidate.get("startup.fallback", fact=name)
    if not changed:
        if said is not None and isinstance(said.value, str):
            return (said.value,), "the server's own log names it"
        return (), "nothing was changed"
    if len(changed) == 1:
        return tuple(changed), "the only setting that changed"
    if said is not None and isinstance(said.value, str) and said.value in changed:
        return (said.value,), "the server's own log names it"
    stated = tuple(sorted(param for param in changed if name in declared.get(param, ())))
    if stated:
        return stated, "declared by its search space or a rule"
    return tuple(sorted(changed)), "several settings changed"


def _logged_changes(base: Evidence, candidate: Evidence) -> dict[str, tuple[Value, Value]]:
    """Settings that the two servers logged differently. What only one of them logs was given to that one alone: servers
    log arguments that are not default."""
    before, after = base.value("settings.resolved"), candidate.value("settings.resolved")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return {}
    names = sorted((set(before) | set(after)) - _QUIET_SETTINGS)
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def narrowed(earlier: Flip, later: Flip) -> Flip:
    """The same flip seen again under other changes: only settings that both blame can be guilty."""
    common = tuple(param for param in later.blame if param in earlier.blame)
    return later.model_copy(
        update={"blame": common or later.blame, "why": "seen in several launches" if common else later.why}
    )


def fallbacks(evidence: Evidence) -> tuple[Flip, ...]:
    """Fallbacks that one log tells by itself, without a baseline: the server named the setting that caused each."""
    result = []
    for said in evidence.all("startup.fallback"):
        name = str(said.labels.get("fact", ""))
        now = evidence.get(name)
        if now is not None and isinstance(said.value, str):
            result.append(
                Flip(
                    fact=name,
                    before=None,
                    after=now.value,
                    unit=now.unit,
                    blame=(said.value,),
                    towards_fallback=True,
                    source=said.source,
                    line=said.line,
                    why="the server's own log names it",
                )
            )
    return tuple(result)


def _same(name: str, before: Value, after: Value) -> bool:
    if _number(before) and _number(after) and not isinstance(before, bool) and not isinstance(after, bool):
        relative, absolute = _TOLERANCE.get(name, (0.0, 0.0))
        return math.isclose(float(before), float(after), rel_tol=relative, abs_tol=absolute)  # type: ignore[arg-type]
    return before == after


def _number(value: Value) -> bool:
    return isinstance(value, int | float)


def _worse(name: str, before: Value, after: Value) -> bool:
    if name in _LESS_IS_FALLBACK and _number(before) and _number(after):
        return float(after) < float(before)  # type: ignore[arg-type]
    if name in _FALSE_IS_FALLBACK:
        return before is True and after is False
    ranks = _RANKED.get(name)
    if ranks is None:
        return False
    places = [
        next((place for place, group in enumerate(ranks) if str(value) in group), None) for value in (before, after)
    ]
    return places[0] is not None and places[1] is not None and places[1] > places[0]


def _warnings(
    base: Evidence,
    candidate: Evidence,
    flipped: set[str],
    changed: Mapping[str, tuple[Value, Value]],
    declared: Mapping[str, tuple[str, ...]],
) -> list[Flip]:
    before, now = base.get("startup.warnings"), candidate.get("startup.warnings")
    if before is None or now is None or not isinstance(before.value, list) or not isinstance(now.value, list):
        return []
    new = sorted(
        str(code) for code in now.value if code not in before.value and _WARNING_OF.get(str(code)) not in flipped
    )
    gone = sorted(
        str(code) for code in before.value if code not in now.value and _WARNING_OF.get(str(code)) not in flipped
    )
    if not new and not gone:
        return []
    flip = _flip(now, before.value, now.value, candidate, changed, declared)
    return [
        flip.model_copy(
            update={"minor": not new, "why": f"new: {', '.join(new) or 'none'}; gone: {', '.join(gone) or 'none'}"}
        )
    ]


def _settings(base: Evidence, candidate: Evidence, changed: Mapping[str, tuple[Value, Value]]) -> list[Flip]:
    before, now = base.value("settings.resolved"), candidate.get("settings.resolved")
    if not isinstance(before, dict) or now is None or not isinstance(now.value, dict):
        return []
    result = []
    differing = [key for key, value in now.value.items() if key in before and before[key] != value]
    for key in sorted(differing):
        if key in changed or key in _QUIET_SETTINGS:
            continue
        result.append(
            Flip(
                fact="settings.resolved",
                labels={"param": key},
                before=before[key],
                after=now.value[key],
                blame=tuple(sorted(changed)),
                minor=True,
                source=now.source,
                line=now.line,
                why="resolved by the server",
            )
        )
    return result
