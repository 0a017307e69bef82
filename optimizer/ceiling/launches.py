"""Host-side launches: the floor of an eager step, and what running the same step from a captured graph should give."""

import math

from optimizer.model.ceiling import HardwareSpec, ModelShape

KERNELS_PER_LAYER = 12
# How many more a layer with experts launches than a dense one, counted in vLLM 0.32 (model_executor/layers/fused_moe, Triton path;
# SGLang's is derived from it). Always 5: router, top-k, two to sort the tokens, one to sum the experts; the two grouped matrices and
# the activation stand in for the dense ones. A shared expert is 6 more (two matrices, activation, its gate, product, sum), activations
# that are quantised on the way 4 more. Not measured: a trace of a few steps (decode.kernels_per_step) replaces it.
KERNELS_PER_MIXTURE = 12
KERNELS_PER_MIXTURE_RANGE = (5, 15)

# Upper bound of the time per launch, Python between the launches included: the slowest recording (eager, H200, batch 1)
# loses 0.59 ms per layer, 49 us per launch; this allows a host of half that speed.
LAUNCH_US_MOST = 100.0

# η = t_roof / t_measured of graphed decode. Recorded on H200: 0.56-0.62 for dense models on one and two GPUs. This is
# a prior, replaced by the best η that a box class has shown; the interval bounds predictions that rest on it.
PRIOR_EFFICIENCY = 0.6
PRIOR_EFFICIENCY_RANGE = (0.45, 0.75)


def eager_floor_ms(shape: ModelShape, hardware: HardwareSpec, kernels_per_step: float | None = None) -> float:
    """Kernels per step times the time of one launch: an eager step is no faster, and may be far slower."""
    kernels = kernels_per_step if kernels_per_step is not None else KERNELS_PER_LAYER * shape.layers
    return kernels * hardware.eager_us_per_kernel / 1e3


def launches_most_ms(shape: ModelShape, kernels_per_step: float | None = None, draft_tokens: int = 0) -> float:
    """The most that launching one step, or one round of drafts, from the host can cost: no graph saves more than this.
    Infinite where the count of launches is unknown."""
    if not shape.layers and kernels_per_step is None:
        return math.inf
    kernels = kernels_per_step if kernels_per_step is not None else kernels_of_step(shape)
    passes = 1 + draft_tokens * max(shape.mtp_layers, 1) / max(shape.layers, 1)
    return kernels * passes * LAUNCH_US_MOST / 1e3


def kernels_of_step(shape: ModelShape) -> float:
    """Launches of one pass over all layers; 0 where the layers are not known."""
    return float(KERNELS_PER_LAYER * shape.layers + KERNELS_PER_MIXTURE * shape.moe_layers)


def launches_note(shape: ModelShape, kernels_per_step: float | None = None) -> str | None:
    """How sure the bound of ``launches_most_ms`` is, for people; None where it rests on a trace or on dense layers alone."""
    if kernels_per_step is not None or not shape.moe_layers or not shape.layers:
        return None
    least, most = (KERNELS_PER_LAYER * shape.layers + more * shape.moe_layers for more in KERNELS_PER_MIXTURE_RANGE)
    return (
        f"launches of a step are counted from an engine's source, not measured: {kernels_of_step(shape):.0f} ({least:.0f} to {most:.0f}); a trace "
        "of ten decode steps would tell"
    )


def graphed_step_ms(roof_ms: float, efficiency: float, collectives_ms: float = 0.0) -> float:
    """Expected time of a step from a graph.

    The recorded η of two GPUs holds their best collectives already; these count where they exceed what it leaves."""
    return max(roof_ms / efficiency, roof_ms + collectives_ms)


def graphs_gain(
    round_ms: float,
    eager_step_ms: float,
    roof_ms: float,
    efficiency: float,
    collectives_ms: float = 0.0,
    launches_ms: float = math.inf,
) -> float:
    """Throughput ratio of capturing the running batch: the step shrinks, the rest of the round stays.

    ``launches_ms``: the most that the launches can cost; whatever else makes the step slow, a graph keeps."""
    graphed_ms = graphed_step_ms(roof_ms, efficiency, collectives_ms)
    saved_ms = min(max(eager_step_ms - graphed_ms, 0.0), launches_ms)
    # A median step may exceed the mean round; what is left of the round is never shorter than the graphed step itself.
    left_ms = max(round_ms - saved_ms, min(graphed_ms, round_ms))
    return round_ms / left_ms if left_ms > 0 else 1.0


def graphs_gain_range(
    round_ms: float,
    eager_step_ms: float,
    roof_ms: float,
    efficiency: float | None = None,
    collectives_ms: float = 0.0,
    launches_ms: float = math.inf,
) -> tuple[float, float]:
    """The same as an interval: over the prior range of η, or around an η that this box class has shown: from a
    fifth below, as larger batches reach less of their roofline (recorded 0.62 at 1, 0.56 at 32), to 15 % above."""
    low, high = PRIOR_EFFICIENCY_RANGE if efficiency is None else (0.8 * efficiency, min(1.15 * efficiency, 1.0))
    return (
        graphs_gain(round_ms, eager_step_ms, roof_ms, low, collectives_ms, launches_ms),
        graphs_gain(round_ms, eager_step_ms, roof_ms, high, collectives_ms, launches_ms),
    )
