"""A Gaussian process over a finite list of configurations, updated one measurement at a time. Several strengths of trust in
what was expected run side by side and are weighted by how well they foresaw what was measured. Knows no names."""

from collections.abc import Sequence

import numpy as np

from optimizer.search.encode import Array, Dimension

# Trust in the expected effects x size of everything else. The largest size is a table that nobody foresaw.
_SETTINGS = ((1.0, 0.35), (1.0, 1.0), (0.35, 0.5), (0.0, 0.1), (0.0, 0.5), (0.0, 1.5))
_BIAS = 4.0  # variance of the level, which nobody knows beforehand
_LINE, _BUMP, _TOGETHER, _TRUSTED = 0.15, 0.06, 0.06, 0.25  # variances of slopes, of one parameter alone, of all together
_REACH = 0.35  # of the range of a parameter


class Prior:
    """What is believed before any measurement. ``means``: [strength, configuration]; covariances are worked out by column."""

    def __init__(self, dims: Sequence[Dimension], count: int, *, knowledge: bool) -> None:
        self.dims, self.count, self.knowledge = tuple(dims), count, knowledge
        expected = sum((dim.expected for dim in dims), np.zeros(count))
        settings = _SETTINGS if knowledge else tuple(one for one in _SETTINGS if one[0] == 0.0)
        self.means: Array = np.stack([trust * expected for trust, _ in settings])
        self.sizes: Array = np.array([size**2 for _, size in settings])
        self._lines = [dim.place - dim.place.mean() for dim in dims]
        self._slopes = [dim.expected - dim.expected.mean() for dim in dims]
        own = np.full(count, _BUMP * len(dims) + _TOGETHER)
        for dim, line, slope in zip(dims, self._lines, self._slopes, strict=True):
            own = own + (_LINE * line**2 if dim.ordered else 0.0) + (_TRUSTED * slope**2 if knowledge else 0.0)
        self.variances: Array = _BIAS + self.sizes[:, None] * own

    def column(self, index: int) -> Array:
        """Covariances of one configuration with all: [strength, configuration]."""
        shape, together = np.zeros(self.count), np.ones(self.count)
        for dim, line, slope in zip(self.dims, self._lines, self._slopes, strict=True):
            apart = dim.place - dim.place[index]
            if dim.ordered:
                shape += _LINE * line[index] * line
                near = np.exp(-0.5 * (apart / _REACH) ** 2)
            else:
                near = (apart == 0).astype(np.float64)
            if self.knowledge and slope[index] != 0.0:
                shape += _TRUSTED * slope[index] * slope
            shape += _BUMP * near
            together *= 0.5 + 0.5 * near
        found: Array = _BIAS + self.sizes[:, None] * (shape + _TOGETHER * together)
        return found


class Posterior:
    """What is believed after the measurements so far. ``observe`` changes it in place; a copy shares nothing that changes."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.means, self.variances = prior.means.copy(), prior.variances.copy()
        self.fit = np.zeros(len(prior.means))
        self._rows: tuple[Array, ...] = ()  # one for each measurement: its share of every configuration's deviation
        self._level: float | None = None

    def copy(self) -> "Posterior":
        found = Posterior.__new__(Posterior)
        found.prior, found.means, found.variances = self.prior, self.means.copy(), self.variances.copy()
        found.fit, found._rows, found._level = self.fit.copy(), self._rows, self._level
        return found

    def observe(self, index: int, value: float, noise_variance: float) -> None:
        """One measurement (in ln). The first sets the level, so that no strength is judged by it."""
        if self._level is None:
            self._level = value
            self.means -= self.means[:, index : index + 1]
        column = self.prior.column(index)
        for row in self._rows:
            column = column - row * row[:, index : index + 1]
        spread = np.maximum(column[:, index], 1e-12) + noise_variance
        wrong = value - self._level - self.means[:, index]
        self.fit += -0.5 * np.log(spread) - 0.5 * wrong**2 / spread
        self.means += column * (wrong / spread)[:, None]
        row = column / np.sqrt(spread)[:, None]
        self.variances -= row**2
        self._rows = (*self._rows, row)

    def relative(self, value: float) -> float:
        return value - (self._level or 0.0)

    def weights(self) -> Array:
        shifted: Array = np.exp(self.fit - self.fit.max())
        weights: Array = shifted / shifted.sum()
        return weights

    def expected_gain(self, best: float) -> Array:
        """Expected improvement over ``best`` (in ln) of every configuration."""
        sd = np.sqrt(np.maximum(self.variances, 1e-12))
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
