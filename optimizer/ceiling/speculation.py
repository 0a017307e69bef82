"""What a draft is worth: acceptance by depth from one run's acceptance, the cost of a round, and from both the speed at
every depth and concurrency, the best depth and the break-even concurrency. It assumes a chain (one draft per position)
and never extrapolates acceptance upwards: unseen positions decay as the seen ones do."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.ceiling.hardware import matrix_rate
from optimizer.model.ceiling import HardwareSpec, ModelShape, Situation

# Cost of one draft token on top of a plain step, as a share of that step: a fixed part (the draft layer's own pass and
# its launches) and a part per running sequence (verification and attention of B·(k+1) tokens). Recorded on H200 with
# k = 3: rounds of 1.7, 2.2 and 2.8 plain steps at B = 1, 16 and 32 (7B), 1.6 and 2.0 at B = 1 and 16 (27B on two GPUs).
PRIOR_FIXED = 0.20
VERIFY_EFFICIENCY = 0.25  # of the matrix rate that verification reaches in those rounds
MAX_DEPTH = 8


@dataclass(frozen=True)
class RoundCost:
    """R(k, B) = 1 + k·(fixed + per_sequence·B): the time of a round over the time of a plain step."""

    fixed: float
    per_sequence: float

    def ratio(self, draft_tokens: float, running: float) -> float:
        return 1 + draft_tokens * (self.fixed + self.per_sequence * running)


@dataclass(frozen=True)
class Acceptance:
    """``reached[i]``: observed share of rounds that accept at least i + 1 drafts; ``decay``: beyond what was seen."""

    reached: tuple[float, ...]
    decay: float

    def length(self, draft_tokens: int) -> float:
        """Expected tokens per round at this depth, the bonus token included."""
        total, last = 1.0, 1.0
        for index in range(draft_tokens):
            last = self.reached[index] if index < len(self.reached) else last * self.decay
            total += last
        return total


@dataclass(frozen=True)
class Speculation:
    """Acceptance and cost together. Speeds are ratios against the plain step at the same concurrency."""

    acceptance: Acceptance
    cost: RoundCost

    def speedup(self, draft_tokens: int, running: float) -> float:
        return self.acceptance.length(draft_tokens) / self.cost.ratio(draft_tokens, running)

    def best_depth(self, running: float, deepest: int = MAX_DEPTH) -> int:
        """0 where no draft pays."""
        return max(range(deepest + 1), key=lambda depth: (round(self.speedup(depth, running), 9), -depth))

    def break_even(self, draft_tokens: int) -> float | None:
        """Concurrency at which A = R; 0 where it never pays, None where it always does."""
        if draft_tokens <= 0:
            return None
        room = (self.acceptance.length(draft_tokens) - 1) / draft_tokens - self.cost.fixed
        if room <= 0:
            return 0.0
        return room / self.cost.per_sequence if self.cost.per_sequence > 0 else None


def acceptance_of(draft_tokens: int, accept_len: float, by_position: Sequence[float] = ()) -> Acceptance:
    """From shares per position where the engine reports them, else a geometric chain with the observed mean length."""
    if by_position:
        reached = tuple(min(max(share, 0.0), 1.0) for share in by_position)
        # A later position cannot be reached more often than the one before it.
        reached = tuple(min(reached[: index + 1]) for index in range(len(reached)))
        first, last = reached[0], reached[-1]
        decay = (last / first) ** (1 / (len(reached) - 1)) if len(reached) > 1 and first > 0 else first
        return Acceptance(reached, min(decay, 1.0))
    rate = _geometric_rate(draft_tokens, accept_len)
    return Acceptance(tuple(rate ** (index + 1) for index in range(draft_tokens)), rate)


def prior_cost(shape: ModelShape, hardware: HardwareSpec, situation: Situation, plain_step_ms: float) -> RoundCost:
    """Round cost before any speculative run: the recorded fixed part, verification at a quarter of the matrix rate."""
    gpus = situation.tp * situation.pp
    token_ms = 2e3 * shape.active_params / gpus / matrix_rate(hardware, shape.compute) / VERIFY_EFFICIENCY
    return RoundCost(PRIOR_FIXED, token_ms / plain_step_ms / situation.replicas)


def fitted_cost(draft_tokens: int, ratios: Mapping[float, float], prior: RoundCost) -> RoundCost:
    """Least squares through observed R at several running batches; one observation rescales the prior.

    ``ratios``: running batch -> R of rounds with ``draft_tokens`` drafts."""
    points = [(running, (ratio - 1) / draft_tokens) for running, ratio in sorted(ratios.items())]
    if not points or draft_tokens <= 0:
        return prior
    if len(points) == 1:
        running, seen = points[0]
        scale = max(seen, 0.0) / max(prior.fixed + prior.per_sequence * running, 1e-9)
        return RoundCost(prior.fixed * scale, prior.per_sequence * scale)
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    slope = max(math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread, 0.0)
    return RoundCost(max(mean_y - slope * mean_x, 0.0), slope)


def _geometric_rate(draft_tokens: int, accept_len: float) -> float:
    """p with 1 + p + … + p^k = accept_len, 0 ≤ p ≤ 1."""
    if draft_tokens <= 0 or accept_len <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        length = math.fsum(middle**index for index in range(draft_tokens + 1))
        low, high = (middle, high) if length < accept_len else (low, middle)
    return (low + high) / 2
