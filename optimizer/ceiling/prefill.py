"""The roofline of prefill: multiplications of the prompt, nothing else."""

from optimizer.ceiling.hardware import matrix_rate
from optimizer.model.ceiling import HardwareSpec, ModelShape, Situation

# Share of the data-sheet matrix rate that prefill reaches; recorded on H200 for short prompts: 0.3 to 0.5.
EFFICIENCY = 0.5


def prefill_roof_ms(shape: ModelShape, hardware: HardwareSpec, situation: Situation) -> float:
    """Bound of the time that one prompt costs one replica: layer weights per token plus causal attention."""
    tokens = situation.prompt_tokens
    full = shape.attention_layers - shape.window_layers
    pairs = full * _pairs(tokens, shape.sparse_tokens) + shape.window_layers * _pairs(tokens, shape.window_tokens)
    operations = 2 * shape.layer_params * tokens + 2 * shape.heads * (shape.head_dim + shape.v_head_dim) * pairs
    return 1e3 * operations / (situation.tp * situation.pp) / matrix_rate(hardware, shape.compute)


def _pairs(tokens: float, limit: float) -> float:
    """Causal (query, key) pairs of a prompt where each query sees at most ``limit`` keys (0: all)."""
    seen = min(tokens, limit) if limit else tokens
    return tokens * seen - seen * seen / 2
