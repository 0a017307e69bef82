"""Arms, noise and judgements: how a prediction fared against its comparator. Everything recomputable from entries."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen

Verdict = Literal[
    "supported", "partial", "harmful", "no_useful_effect", "below_prediction", "unresolved", "deferred", "infeasible",
    "invalid", "lossy",
]  # fmt: skip
ENDING_STAYS = "more launches could not change the ending"


class Arm(Frozen):
    """The valid launches of one fingerprint: ln(metric) per launch, and the entries they come from."""

    fingerprint: str
    ln_values: tuple[FiniteFloat, ...]
    entries: tuple[int, ...] = ()


class JudgePolicy(Frozen):
    """How much evidence a verdict needs. Every sd is a launch-to-launch sd of ln(metric), so 0.03 is about 3 %."""

    rope: FiniteFloat = Field(default=0.01, gt=0)  # region of practical equivalence, ratio - 1; never widened by noise
    prior_sd: FiniteFloat = Field(default=0.03, gt=0)
    prior_weight: FiniteFloat = Field(default=2.0, gt=0)  # launches that the prior is worth
    noise_floor: FiniteFloat = Field(default=0.0, ge=0)  # the pooled sd is never taken to be below this
    thorough: bool = False  # a fifth look at 12 launches, no deferral
    error: FiniteFloat = Field(default=0.05, gt=0, lt=0.5)
    quick_exit_sd: FiniteFloat = Field(default=6.0, gt=0)
    top_up_within_sd: FiniteFloat = Field(default=3.0, ge=0)
    defer_below: FiniteFloat = Field(default=0.10, ge=0, lt=1)
    drift_sd: FiniteFloat = Field(default=3.0, gt=0)
    bayes_clip_db: FiniteFloat = Field(default=20.0, gt=0)
    noise_known: bool = False  # beliefs move as if the noise were known exactly: studies of policy versions before 5


class Noise(Frozen):
    """Pooled launch-to-launch sd of ln(metric): prior 3 % worth two launches, updated by every repeated setting."""

    sd: FiniteFloat
    degrees_of_freedom: FiniteFloat
    arms: tuple[str, ...] = ()


class Judgement(Frozen):
    """Ratio candidate / comparator (> 1 is better, latencies inverted before), with its interval at ``confidence``."""

    verdict: Verdict
    final: bool  # false: another look is worth its launch
    ratio: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    confidence: FiniteFloat
    n_candidate: int
    n_baseline: int
    look: int
    sd: FiniteFloat
    bayes_db: FiniteFloat
    reason: str = ""
    next_arm: Literal["candidate", "baseline"] | None = None  # which launch the next look needs
    expected_launches: FiniteFloat | None = Field(default=None)
    degrees_of_freedom: FiniteFloat | None = None  # of ``sd``; None: of a policy version before 5, or nothing that moves a belief

    def plain(self) -> dict[str, Any]:
        """As the journal has it: policy versions before 5 wrote no degrees of freedom."""
        body = super().plain()
        if self.degrees_of_freedom is None:
            del body["degrees_of_freedom"]
        return body


def given_up(settled: Mapping[str, Any]) -> bool:
    """Whether what pruned an idea says only that it cannot bring the target about: its effect stayed undecided, and may be real.
    ``settled``: the body of that entry."""
    return str(settled.get("why", "")).endswith(ENDING_STAYS)
