"""Which of the measured settings and loads are trade-offs of throughput against a latency, as far as the launches behind them tell: one
that is ahead by noise alone is shown beside the one that it ties with, and never as another choice. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.core import closing
from optimizer.core.state import State
from optimizer.core.tradeoff import FrontPoint, front, measured
from optimizer.model.verdict import Arm, Noise
from optimizer.stats.interval import half_width
from optimizer.stats.noise import pooled_noise


@dataclass(frozen=True)
class Spread:
    """What a launch of this study varies by (ln): the study's noise for the rate, the latency's own over the same launches."""

    rate: Noise
    latency: Noise
    confidence: float  # of every interval

    def intervals(self, point: FrontPoint) -> tuple[tuple[float, float], tuple[float, float]]:
        """(rate, latency): each from and to."""
        rate, latency = (math.exp(half_width(self.confidence, noise.degrees_of_freedom, noise.sd / math.sqrt(point.launches))) for noise in (self.rate, self.latency))
        return (point.rate / rate, point.rate * rate), (point.latency_ms / latency, point.latency_ms * latency)

    def faster(self, one: FrontPoint, other: FrontPoint) -> bool:
        """Is the rate of ``one`` above the other's by more than launches differ?"""
        return self._beyond(math.log(one.rate / other.rate), self.rate, one, other)

    def sooner(self, one: FrontPoint, other: FrontPoint) -> bool:
        """Is the latency of ``one`` below the other's by more than launches differ?"""
        return self._beyond(math.log(other.latency_ms / one.latency_ms), self.latency, one, other)

    def _beyond(self, difference: float, noise: Noise, one: FrontPoint, other: FrontPoint) -> bool:
        error = noise.sd * math.sqrt(1 / one.launches + 1 / other.launches)
        return difference > half_width(self.confidence, noise.degrees_of_freedom, error)

    def tie(self, one: FrontPoint, other: FrontPoint) -> bool:
        return not any(told(first, second) for told in (self.faster, self.sooner) for first, second in ((one, other), (other, one)))

    def covers(self, one: FrontPoint, other: FrontPoint) -> bool:
        """Is ``one`` better than the other in one of both for certain, and in none worse for certain?"""
        return (self.faster(one, other) or self.sooner(one, other)) and not self.faster(other, one) and not self.sooner(other, one)


@dataclass(frozen=True)
class Choice:
    """One trade-off. ``ties``: other points that these launches do not tell apart from it. ``by_noise``: points that no other beats in both
    by their numbers, but that are worse than this one in one for certain and better in the other only within the noise."""

    point: FrontPoint
    ties: tuple[FrontPoint, ...]
    by_noise: tuple[FrontPoint, ...]


def spread(state: State, latency: str) -> Spread:
    arms = [
        Arm(fingerprint=f"{arm.settings.digest}@{level}", ln_values=tuple(math.log(value) for value in values), entries=())
        for arm in closing.arms_of(state)
        for level in sorted({point.concurrency for result in arm.results for point in result.points})
        if (values := [found for result in arm.results for point in result.points if point.concurrency == level and (found := point.metrics.get(latency, 0.0)) > 0])
    ]
    judged = closing.policy(state)
    return Spread(closing.pooled(state), pooled_noise(arms, judged), 1 - judged.error)


def choices(points: Sequence[FrontPoint], by: Spread) -> list[Choice]:
    """The trade-offs, the fastest first."""
    best = front(points)
    apart = [point for point in best if not any(by.covers(other, point) for other in best)] or best[:1]
    leading: list[FrontPoint] = []
    for point in apart:
        if not any(by.tie(leader, point) for leader in leading):
            leading.append(point)
    found, placed = [], list(leading)
    for leader in leading:
        ties = [point for point in points if point not in placed and by.tie(leader, point)]
        placed += ties
        by_noise = [point for point in best if point not in placed and by.covers(leader, point)]
        placed += by_noise
        found.append(Choice(leader, tuple(ties), tuple(by_noise)))
    return found


def kept(state: State, points: Sequence[FrontPoint]) -> FrontPoint | None:
    """What the study ends with, at its target's load; None where it was not measured there."""
    assert state.spec is not None
    load, settings = state.spec.workload.concurrency, state.base_arm.settings
    return next((point for point in points if point.settings == settings and point.concurrency == load), None)


def shown(state: State, latency: str, concurrency: int | None = None) -> tuple[list[FrontPoint], list[Choice], Spread]:
    """(every measured point, the trade-offs among them, what launches differ by); with ``concurrency`` of that load alone."""
    points, by = measured(state, latency, concurrency), spread(state, latency)
    return points, choices(points, by), by
