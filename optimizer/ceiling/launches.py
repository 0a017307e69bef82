"""Host-side launches: the floor of an eager step, and what running the same step from a captured graph should give."""

from optimizer.model.ceiling import HardwareSpec, ModelShape

KERNELS_PER_LAYER = 12

# η = t_roof / t_measured of graphed decode. Recorded on H200: 0.56-0.62 for dense models on one and two GPUs. This is
# a prior, replaced by the best η that a box class has shown; the interval bounds predictions that rest on it.
PRIOR_EFFICIENCY = 0.6
PRIOR_EFFICIENCY_RANGE = (0.45, 0.75)


def eager_floor_ms(shape: ModelShape, hardware: HardwareSpec, kernels_per_step: float | None = None) -> float:
    """Kernels per step times the time of one launch: an eager step is no faster, and may be far slower."""
    kernels = kernels_per_step if kernels_per_step is not None else KERNELS_PER_LAYER * shape.layers
    return kernels * hardware.eager_us_per_kernel / 1e3


def graphed_step_ms(roof_ms: float, efficiency: float, collectives_ms: float = 0.0) -> float:
    """Expected time of a step from a graph.

    The recorded η of two GPUs holds their best collectives already; these count where they exceed what it leaves."""
    return max(roof_ms / efficiency, roof_ms + collectives_ms)


def graphs_gain(
    round_ms: float, eager_step_ms: float, roof_ms: float, efficiency: float, collectives_ms: float = 0.0
) -> float:
    """Throughput ratio of capturing the running batch: the step shrinks, the rest of the round stays."""
    graphed_ms = graphed_step_ms(roof_ms, efficiency, collectives_ms)
    saved_ms = max(eager_step_ms - graphed_ms, 0.0)
    # A median step may exceed the mean round; what is left of the round is never shorter than the graphed step itself.
    return round_ms / max(round_ms - saved_ms, min(graphed_ms, round_ms), 1e-9)


def graphs_gain_range(
    round_ms: float, eager_step_ms: float, roof_ms: float, efficiency: float | None = None, collectives_ms: float = 0.0
) -> tuple[float, float]:
    """The same as an interval: over the prior range of η, or ± 15 % around an η that this box class has shown."""
    low, high = PRIOR_EFFICIENCY_RANGE if efficiency is None else (0.85 * efficiency, min(1.15 * efficiency, 1.0))
    return (
        graphs_gain(round_ms, eager_step_ms, roof_ms, low, collectives_ms),
        graphs_gain(round_ms, eager_step_ms, roof_ms, high, collectives_ms),
    )
