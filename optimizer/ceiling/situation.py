"""Reads from the facts of one launch how the model runs there: parallelism, running batch, graphs, drafts, collectives.
Facts that are missing stay missing; it decides nothing and computes no times."""

from typing import Literal

from optimizer.model.ceiling import AllreducePath, Situation
from optimizer.model.evidence import Evidence

KV_BYTES = {"fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625, "bf16": 2.0, "fp16": 2.0}
EAGER_MODES = ("none", "piecewise")


def situation_of(
    evidence: Evidence, *, concurrency: int, prompt_tokens: float, output_tokens: float
) -> Situation:
    """The situation at one load level. Labelled facts of that concurrency win over unlabelled ones."""
    tp, pp, dp = (_count(evidence, f"parallel.{axis}") for axis in ("tp", "pp", "dp"))
    shared_attention = bool(evidence.value("parallel.dp_attention"))
    replicas = 1 if shared_attention else dp
    draft_tokens = _count(evidence, "spec.draft_tokens", 0)
    if str(evidence.value("spec.method") or "none") == "none" and evidence.get("spec.method") is not None:
        draft_tokens = 0
    accept_len = _at(evidence, "spec.accept_len", concurrency) if draft_tokens else None
    running, basis, why = _running(evidence, concurrency, replicas, prompt_tokens, output_tokens)
    graph_off = _graph_off(evidence, concurrency, running / replicas, draft_tokens)
    positions, overlap = evidence.value("spec.accept_by_position"), evidence.value("scheduler.overlap")
    return Situation(
        gpus=tp * pp * replicas,
        tp=tp,
        pp=pp,
        ep=_count(evidence, "parallel.ep"),
        replicas=replicas,
        attention_tp=max(tp // dp, 1) if shared_attention else tp,
        kv_bytes=KV_BYTES.get(str(evidence.value("kv.dtype")), 2.0),
        intended=concurrency,
        prompt_tokens=prompt_tokens,
        output_tokens=max(output_tokens, 1.0),
        running=running,
        running_basis=basis,
        running_why=why,
        graph_off_share=graph_off,
        draft_tokens=draft_tokens,
        accept_len=min(max(accept_len or 1.0, 1.0), draft_tokens + 1.0),
        accept_by_position=_numbers(positions) if draft_tokens else (),
        allreduce_path=_allreduce_path(evidence, graph_off),
        idle_gap_share=_at(evidence, "decode.idle_gap_share", concurrency),
        kernels_per_step=evidence.number("decode.kernels_per_step"),
        overlap=overlap if isinstance(overlap, bool) else None,
    )


def _running(
    evidence: Evidence, concurrency: int, replicas: int, prompt_tokens: float, output_tokens: float
) -> tuple[float, Literal["measured", "estimated"], str]:
    """min(concurrency, request cap, KV pool); a measured batch of this very level wins."""
    running, why = float(concurrency), "nothing known limits the batch"
    cap = evidence.number("scheduler.max_running")
    if cap is not None and 0 < cap * replicas < running:
        running, why = cap * replicas, f"at most {cap:g} requests run at once"
    pool = evidence.number("kv.pool_tokens")
    held = prompt_tokens + output_tokens
    if pool and held > 0 and pool * replicas / held < running:
        running, why = max(pool * replicas / held, 1.0), f"the KV pool holds {pool:g} tokens"
    batch = evidence.number("decode.batch_p50", concurrency=concurrency)
    if batch is not None and batch > 0:
        return min(batch * replicas, float(concurrency)), "measured", f"the running batch was {batch:g}: {why}"
    return running, "estimated", why


def _graph_off(evidence: Evidence, concurrency: int, running: float, draft_tokens: int) -> float | None:
    """Share of decode steps outside graphs at this level; captured sizes decide where no such share is known."""
    labelled = evidence.number("decode.graph_off_share", concurrency=concurrency)
    if labelled is not None:
        return min(max(labelled, 0.0), 1.0)
    mode = evidence.value("graphs.mode")
    if evidence.value("graphs.disable_flag") is True or mode in EAGER_MODES:
        return 1.0
    largest = evidence.number("graphs.capture_max")
    sizes = _numbers(evidence.value("graphs.capture_sizes"))
    largest = max(sizes) if sizes else largest
    overall = evidence.get("decode.graph_off_share")
    if largest is not None:
        # vLLM counts tokens, so a draft multiplies what the batch asks for; SGLang counts sequences.
        per_sequence = 1 + draft_tokens if evidence.value("engine.name") == "vllm" else 1
        if running * per_sequence > largest:
            return 1.0
    share = evidence.number("decode.graph_off_share") if overall is not None and not overall.labels else None
    if share is not None and (largest is None or share >= 0.9):
        return min(max(share, 0.0), 1.0)
    # A share over several levels says little about one of them; that the batch fits what was captured says more.
    return 0.0 if largest is not None else None


def _allreduce_path(evidence: Evidence, graph_off: float | None) -> AllreducePath | None:
    """None where the facts do not say which path carries small all-reduces."""
    custom = evidence.value("allreduce.custom")
    if custom == "on":
        return "custom_eager" if (graph_off or 0.0) > 0.5 else "custom_graphed"
    if not isinstance(custom, str) or not custom.startswith("off"):
        return None
    transport = evidence.value("nccl.transport")
    environment = evidence.value("nccl.env")
    disabled = "NCCL_P2P_DISABLE=1" in environment if isinstance(environment, list) else False
    if isinstance(environment, dict):
        disabled = str(environment.get("NCCL_P2P_DISABLE", "0")) not in ("0", "")
    if transport == "shm" or (transport is None and disabled) or custom == "off_no_p2p":
        return "nccl_shm"
    return "nccl_p2p"


def _at(evidence: Evidence, name: str, concurrency: int) -> float | None:
    labelled = evidence.number(name, concurrency=concurrency)
    if labelled is not None:
        return labelled
    fact = evidence.get(name)
    return evidence.number(name) if fact is not None and "concurrency" not in fact.labels else None


def _count(evidence: Evidence, name: str, default: int = 1) -> int:
    value = evidence.number(name)
    return int(value) if value is not None and value >= 1 else default


def _numbers(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(float(item) for item in value if isinstance(item, int | float) and not isinstance(item, bool))
