"""The ceiling of one load point: the roofline, what efficiency graphed decode reaches of it, and the best that an
allowed draft could add. A ceiling that a measurement beats is a bug."""

from typing import Literal

from optimizer.ceiling.collectives import Collectives, collectives_of_step
from optimizer.ceiling.decode import decode_roof, kv_bytes_per_token_per_gpu, weights_read
from optimizer.ceiling.launches import PRIOR_EFFICIENCY, graphed_step_ms
from optimizer.ceiling.prefill import EFFICIENCY, prefill_roof_ms
from optimizer.model.ceiling import Ceiling, HardwareSpec, ModelShape, NoCeiling, Situation

BEYOND_DOUBT = 1.1
BEYOND_DOUBT_WITHOUT_CONFIG = 1.5


def ceiling(
    shape: ModelShape | NoCeiling,
    hardware: HardwareSpec | NoCeiling,
    situation: Situation,
    *,
    efficiency: float | None = None,
    draft_tokens_allowed: int = 0,
) -> Ceiling | NoCeiling:
    """Bounds at ``situation.intended`` concurrency.

    Args:
        efficiency: best η seen on this box class; None takes the prior.
        draft_tokens_allowed: deepest draft that settings may use; at least what the launch uses counts.
    """
    if isinstance(shape, NoCeiling):
        return shape
    if isinstance(hardware, NoCeiling):
        return hardware
    batch = float(situation.intended)
    roof = decode_roof(shape, hardware, situation, batch)
    used = efficiency or PRIOR_EFFICIENCY
    collectives = collectives_of_step(shape, hardware, situation, batch)
    prefill = prefill_roof_ms(shape, hardware, situation)
    step = graphed_step_ms(roof.ms, used, collectives.best_ms if collectives else 0.0)
    depth, best = best_draft(shape, hardware, situation, batch, max(draft_tokens_allowed, situation.draft_tokens))
    stands_still = situation.interruption_ms
    prefill_round = prefill_per_round_ms(prefill / EFFICIENCY if stands_still is None else stands_still, situation)
    return Ceiling(
        concurrency=situation.intended,
        running=situation.running,
        step_roof_ms=roof.ms,
        tokens_per_s=max(1e3 * batch / roof.ms, drafted_tokens_per_s(shape, hardware, situation, batch)),
        bound=_bound(roof.bound, roof.ms, collectives),
        weights_bytes_per_gpu=roof.weights_bytes_per_gpu,
        kv_bytes_per_token_per_gpu=kv_bytes_per_token_per_gpu(shape, situation),
        prefill_ms_per_request=prefill,
        expected_tokens_per_s=1e3 * batch / (step + prefill_round),
        efficiency=used,
        best_acceptance=depth + 1.0,
        best_tokens_per_s=best,
        assumptions=_assumptions(shape, situation, efficiency),
    )


def best_draft(
    shape: ModelShape, hardware: HardwareSpec, situation: Situation, batch: float, deepest: int
) -> tuple[int, float]:
    """(depth, tokens/s) of the fastest draft at the roofline with every draft accepted; depth 0 is none."""
    options = [
        (1e3 * batch * (depth + 1) / draft_round_roof_ms(shape, hardware, situation, batch, depth), -depth)
        for depth in range(deepest + 1)
    ]
    rate, depth = max(options)
    return -depth, rate


def drafted_tokens_per_s(shape: ModelShape, hardware: HardwareSpec, situation: Situation, batch: float) -> float:
    """The roofline of the drafts in use at the length that they were accepted; at their full length where that is
    unknown. 0 without drafts."""
    depth, accepted = situation.draft_tokens, situation.accept_len
    if not depth:
        return 0.0
    tokens = accepted if accepted > 1 else depth + 1.0
    return 1e3 * batch * tokens / draft_round_roof_ms(shape, hardware, situation, batch, depth)


def impossible(shape: ModelShape, hardware: HardwareSpec, situation: Situation, rate: float) -> str | None:
    """Why ``rate`` output tokens/s cannot have been measured on this GPU with this model; None where it can.

    Judged by what no launch can beat: every draft accepted, all tokens routed to the same experts. Without config.json
    the loaded weights include tables that are not read, so the bound is wider there."""
    batch, depth = float(situation.intended), situation.draft_tokens
    skewed = shape.model_copy(
        update={
            "experts": 0,
            "experts_per_token": 0,
            "weight_bytes_dense": weights_read(shape, 1.0),
        }
    )
    top = max(
        1e3 * batch * (tried + 1) / draft_round_roof_ms(skewed, hardware, situation, batch, tried)
        for tried in {0, depth}
    )
    if rate <= top * (BEYOND_DOUBT if shape.layers else BEYOND_DOUBT_WITHOUT_CONFIG):
        return None
    return (
        f"contradiction: {rate:,.0f} tok/s were measured at concurrency {situation.intended}, and {hardware.gpu} cannot "
        f"decode more than {top:,.0f} of this model there (the roofline); the GPU's name, the model, the number of GPUs or "
        "the count of tokens is wrong, or there are drafts that the evidence does not show; so no waterfall is given"
    )


def draft_round_roof_ms(
    shape: ModelShape, hardware: HardwareSpec, situation: Situation, batch: float, draft_tokens: int
) -> float:
    """Bound of a round: verification of batch · (k + 1) tokens, and k passes of the draft layer where there is one."""
    verify = decode_roof(shape, hardware, situation, batch, tokens_per_sequence=draft_tokens + 1).ms
    if not shape.mtp_weight_bytes:
        return verify
    gpus = situation.tp * situation.pp
    return verify + draft_tokens * 1e3 * shape.mtp_weight_bytes / gpus / hardware.hbm_bytes_per_s


def prefill_per_round_ms(prefill_ms_per_request: float, situation: Situation) -> float:
    """A round delivers one token to each sequence, so ``concurrency / output`` prompts are due in it."""
    return prefill_ms_per_request * situation.intended / situation.output_tokens / situation.replicas


def _bound(
    bound: Literal["hbm", "compute"], roof_ms: float, collectives: Collectives | None
) -> Literal["hbm", "compute", "link"]:
    return "link" if collectives is not None and collectives.best_ms > roof_ms else bound


def _assumptions(shape: ModelShape, situation: Situation, efficiency: float | None) -> tuple[str, ...]:
    texts = ["efficiency of graphed decode is a prior (recorded 0.56-0.62)"]
    if efficiency:
        texts = [f"efficiency {efficiency:.2f} was seen on this box class"]
    if shape.experts:
        texts.append("experts are chosen uniformly")
    if situation.pp > 1:
        texts.append("pipeline stages are always full")
    if not shape.layers:
        texts.append("shape from start-up facts: weights and KV sizes only")
    return tuple(texts)
