"""When a candidate's measurement may end with its first windows: the rate that tells it is hopeless, fixed before it is launched. Pure;
the load generator only compares with it, and what was measured until then is judged as any launch."""

import math

from optimizer.core import closing, since
from optimizer.core.state import State, mean_ln

FIRST_SHARE = 1 / 3  # of the window that is measured in any case
WINDOW_SE = 3.0  # standard errors of the first windows that have to lie between the rate and the quick exit


def stop_below(state: State) -> float | None:
    """Output tokens/s below which the first windows of the candidate that is measured next show harm: the baseline's mean, less the
    judge's quick exit and what so short a window can miss by. None where nothing may be stopped early."""
    spec, test = state.spec, state.test
    # Version 1 measured every candidate to its end; journals of it are recomputed as they were.
    if spec is None or not since.decides_by(spec, since.EARLY_STOP) or spec.thorough or test is None or test.settings is None:
        return None
    if spec.tradeoff or spec.policy != "evidence":  # a slow launch may be the one with the best latency; a sampler learns from every rate
        return None
    primary = spec.target.primary
    if primary is not None and (primary.metric != "output_tokens_per_s" or primary.direction != "at_least"):
        return None
    results = state.base_arm.results
    if spec.workload.arrival != "closed" or not results or state.arm(test.settings).results:
        return None
    uneven = max(result.points[0].metrics.get("output_tokens_per_s_rel_se", 0.0) for result in results)
    miss = closing.policy(state).quick_exit_sd * closing.pooled(state).sd + WINDOW_SE * uneven / math.sqrt(FIRST_SHARE)
    mean = mean_ln(results)
    return float(f"{math.exp(mean - miss):.6g}")
