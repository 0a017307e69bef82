"""How fast one sequence is decoded: the time per accepted token, without what the prompts of others put between two tokens."""

from optimizer.ceiling.bounds import draft_round_roof_ms
from optimizer.ceiling.prefill import NO_QUEUE
from optimizer.model.ceiling import HardwareSpec, ModelShape, NoCeiling, Situation
from optimizer.model.measurement import LoadPoint

STEP_METRICS = ("tpot_p50_ms", "tpot_mean_ms", "itl_p50_ms")


def time_per_token(
    shape: ModelShape | NoCeiling, hardware: HardwareSpec | NoCeiling, situation: Situation, point: LoadPoint
) -> float | None:
    """Decode time per accepted token of one sequence, ms; None where neither tokens nor answers were timed.

    Where ``situation.interruption_ms`` is known, prompts are taken out: of a time per token those of the others, of an
    answer's time, which stands in where the server holds its text back, its own as well. Never below the roofline."""
    seen = next((point.metrics[name] for name in STEP_METRICS if point.metrics.get(name, 0) > 0), None)
    if situation.interruption_ms is None or isinstance(shape, NoCeiling) or isinstance(hardware, NoCeiling):
        return seen
    prompts = max(situation.running / situation.replicas - 1, 0.0)
    if seen is None:
        answer = point.metrics.get("e2e_p50_ms", 0.0)
        if answer <= 0 or situation.running < NO_QUEUE * situation.intended:
            return None
        seen, prompts = answer / situation.output_tokens, prompts + 1
    roof = draft_round_roof_ms(shape, hardware, situation, max(situation.running, 1.0), situation.draft_tokens)
    return max(seen - prompts * situation.interruption_ms / situation.output_tokens, min(roof / situation.accept_len, seen))
