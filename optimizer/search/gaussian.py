"""A Gaussian process over a finite list of configurations, updated one measurement at a time. Several strengths of trust in
what was expected run side by side and are weighted by how well they foresaw what was measured. Knows no names."""

from collections.abc import Sequence

import numpy as np

from optimizer.search.encode import Array, Dimension

# Trust in the expected effects x size of everything else. The largest size is a table that nobody foresaw.
_SETTINGS = ((1.0, 0.35), (1.0, 1.0), (0.35, 0.5), (0.0, 0.1), (0.0, 0.5), (0.0, 1.5))
_BIAS = 4.0  # variance of the level, which nobody knows beforehand


def prior(dims: Sequence[Dimension], count: int, *, knowledge: bool) -> tuple[Array, Array]:
    """(means, covariances) of all strengths: [strength, configuration] and [strength, configuration, configuration]."""
    expected = sum((dim.expected for dim in dims), np.zeros(count))
    lines, bumps, together = np.zeros((count, count)), np.zeros((count, count)), np.ones((count, count))
    for dim in dims:
        apart = dim.place[:, None] - dim.place[None, :]
        if dim.ordered:
            line = dim.place - dim.place.mean()
            lines += 0.15 * np.outer(line, line)
            near = np.exp(-0.5 * (apart / 0.35) ** 2)
        else:
            near = np.where(apart == 0, 1.0, 0.0)
        if knowledge:
            slope = dim.expected - dim.expected.mean()
            lines += 0.25 * np.outer(slope, slope)
        bumps += 0.06 * near
        together *= 0.5 + 0.5 * near
    shape = lines + bumps + 0.06 * together
    settings = _SETTINGS if knowledge else [one for one in _SETTINGS if one[0] == 0.0]
    means = np.stack([trust * expected for trust, _ in settings])
    return means, np.stack([_BIAS + size**2 * shape for _, size in settings])


class Posterior:
    """What is believed after the measurements so far. ``observe`` changes it in place; a copy shares nothing with it."""

    def __init__(self, means: Array, covariances: Array) -> None:
        self.means = means.copy()
        self.covariances = covariances.copy()
        self.fit = np.zeros(len(means))
        self._level: float | None = None

    def copy(self) -> "Posterior":
        found = Posterior(self.means, self.covariances)
        found.fit, found._level = self.fit.copy(), self._level
        return found

    def observe(self, index: int, value: float, noise_variance: float) -> None:
        """One measurement (in ln). The first sets the level, so that no strength is judged by it."""
        if self._level is None:
            self._level = value
            self.means -= self.means[:, index : index + 1]
        value -= self._level
        column = self.covariances[:, :, index].copy()
        spread = column[:, index] + noise_variance
        wrong = value - self.means[:, index]
        self.fit += -0.5 * np.log(spread) - 0.5 * wrong**2 / spread
        self.means += column * (wrong / spread)[:, None]
        self.covariances -= column[:, :, None] * (column / spread[:, None])[:, None, :]

    def relative(self, value: float) -> float:
        return value - (self._level or 0.0)

    def weights(self) -> Array:
        shifted: Array = np.exp(self.fit - self.fit.max())
        weights: Array = shifted / shifted.sum()
        return weights

    def expected_gain(self, best: float) -> Array:
        """Expected improvement over ``best`` (in ln) of every configuration."""
        sd = np.sqrt(np.maximum(np.diagonal(self.covariances, axis1=1, axis2=2), 1e-12))
        above = (self.means - self.relative(best)) / sd
        gain = sd * (above * _below(above) + np.exp(-0.5 * above**2) * 0.3989422804014327)
        total: Array = self.weights() @ gain
        return total

    def mean(self) -> Array:
        total: Array = self.weights() @ self.means
        return total


def _below(x: Array) -> Array:
    """The normal distribution function (logistic-type approximation, error below 2e-4)."""
    result: Array = 1.0 / (1.0 + np.exp(-np.clip(1.5957691216057308 * x + 0.07056 * x**3, -40.0, 40.0)))
    return result
