"""Arms, noise and judgements: how a prediction fared against its comparator. Everything recomputable from entries."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen

Verdict = Literal[
    "supported", "partial", "harmful", "no_useful_effect", "below_prediction", "unresolved", "deferred", "infeasible", "invalid"
]


class Arm(Frozen):
    """The valid launches of one fingerprint: ln(metric) per launch, and the entries they come from."""

    fingerprint: str
    ln_values: tuple[FiniteFloat, ...]
    entries: tuple[int, ...] = ()


class Noise(Frozen):
    """Pooled launch-to-launch sd of ln(metric): prior 3 % worth two launches, updated by every repeated setting."""

    sd: FiniteFloat
    degrees_of_freedom: FiniteFloat
    arms: tuple[str, ...] = ()


class Judgement(Frozen):
    """Ratio candidate / comparator (> 1 is better, latencies are inverted before), with its interval at the look's confidence."""

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
