"""Prompts: the roofline of one, and how long decode stands still for it. The roofline is multiplications, nothing else; a prompt
that no graph holds is launched from the host kernel by kernel, and a short one costs that time whatever the GPU can do."""

from collections.abc import Mapping

from optimizer.ceiling.decode import decode_roof
from optimizer.ceiling.hardware import matrix_rate
from optimizer.ceiling.launches import kernels_of_step
from optimizer.model.ceiling import HardwareSpec, ModelShape, Situation
from optimizer.model.evidence import Evidence

# Share of the data-sheet matrix rate that prefill reaches; recorded on H200 for short prompts: 0.3 to 0.5.
EFFICIENCY = 0.5
# Host time of a prompt's pass outside graphs, per kernel as KERNELS_PER_LAYER counts them. Recorded with SGLang 0.5.12 on two H200 hosts,
# 7B, prompts of 128 tokens: 26 to 53 us in eleven launches, median 38; a decode step outside graphs took 38 us there.
PASS_US_PER_KERNEL = 38.0
NO_QUEUE = 0.95  # share of the offered requests that runs: below, requests wait, and times of whole answers are waiting too


def prefill_roof_ms(shape: ModelShape, hardware: HardwareSpec, situation: Situation) -> float:
    """Bound of the time that one prompt costs one replica: layer weights per token plus causal attention."""
    tokens = situation.prompt_tokens
    full = shape.attention_layers - shape.window_layers
    pairs = full * _pairs(tokens, shape.sparse_tokens) + shape.window_layers * _pairs(tokens, shape.window_tokens)
    operations = 2 * shape.layer_params * tokens + 2 * shape.heads * (shape.head_dim + shape.v_head_dim) * pairs
    return 1e3 * operations / (situation.tp * situation.pp) / matrix_rate(hardware, shape.compute)


def interruption(
    shape: ModelShape, hardware: HardwareSpec, situation: Situation, evidence: Evidence, metrics: Mapping[str, float]
) -> tuple[float, bool]:
    """(ms, measured): how long decode of a replica stands still for each prompt of this load.

    Measured where a token is a chunk: the time per token (TPOT p50) holds the prompts of the others, the median gap between
    two tokens (ITL p50) none, and each of the other running requests is replaced once while a request is answered. Else
    what the prompt's multiplications take, or launching its pass from the host where the log shows prompts outside
    graphs. Never more than a first token took, which holds a prompt too: gaps that say so come in bunches."""
    gap, token, first = (metrics.get(name, 0.0) for name in ("itl_p50_ms", "tpot_p50_ms", "ttft_p50_ms"))
    others = situation.running / situation.replicas - 1
    steady = others >= 1 and situation.running >= NO_QUEUE * situation.intended and not situation.draft_tokens and situation.graph_off_share == 0
    if steady and decode_roof(shape, hardware, situation, situation.running).ms <= gap < token:
        seen = (token - gap) * situation.output_tokens / others
        if seen <= first:
            return seen, True
    expected = prefill_roof_ms(shape, hardware, situation) / EFFICIENCY
    if prompts_outside_graphs(evidence):
        expected = max(expected, kernels_of_step(shape) * PASS_US_PER_KERNEL / 1e3)
    return (min(expected, first) if first > 0 else expected), False


def prompts_outside_graphs(evidence: Evidence) -> bool:
    """Whether the log or the counters show that prompts run outside graphs, between decode steps and not within them."""
    share = evidence.number("prefill.graph_used_share")
    return share == 0 if share is not None else evidence.value("graphs.prefill_captured") is False


def _pairs(tokens: float, limit: float) -> float:
    """Causal (query, key) pairs of a prompt where each query sees at most ``limit`` keys (0: all)."""
    seen = min(tokens, limit) if limit else tokens
    return tokens * seen - seen * seen / 2
