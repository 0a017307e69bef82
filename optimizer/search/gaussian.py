"""A Gaussian process over a finite list of configurations, updated one measurement at a time. Several strengths of trust in
what was expected run side by side and are weighted by how well they foresaw what was measured. Knows no names.

All strengths share the shape of the covariances, and what the measurements so far take off a covariance is a sum of the same shapes. So
a column of covariances is the product of a few coefficients with the shapes of what was measured, and a measurement in itself touches
the coefficients alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.search.encode import Array, Dimension

# Trust in the expected effects x size of everything else. The largest size is a table that nobody foresaw.
_SETTINGS = ((1.0, 0.35), (1.0, 1.0), (0.35, 0.5), (0.0, 0.1), (0.0, 0.5), (0.0, 1.5))
_BIAS = 4.0  # variance of the level, which nobody knows beforehand
_LINE, _BUMP, _TOGETHER, _TRUSTED = 0.15, 0.06, 0.06, 0.25  # variances of slopes, of one parameter alone, of all together
_REACH = 0.35  # of the range of a parameter
_LEAST = 1e-12  # of a variance
_KEPT_FLOATS = 10_000_000  # shapes that are remembered for all runs over one table
_NO_SAY = 1e-12  # weight of a strength that is left out: a few measurements leave one or two with more
_ALONE = 250_000  # multiplications of two matrices that one thread does
_MOST_LEVELS = 64  # of parameters that are taken together
# Up to so many configurations the expected gain of each is worked out exactly; of more, of those that a rough one leaves.
_FEW = 200
_ROUGH = 2e-6  # error of single precision in a gain, in standard deviations: four times what rounding can come to

_Floats = NDArray[Any]  # of single or double precision


class Prior:
    """What is believed before any measurement. ``means``: [strength, configuration]; covariances are worked out by column."""

    def __init__(self, dims: Sequence[Dimension], count: int, *, knowledge: bool) -> None:
        self.count = count
        expected = sum((dim.expected for dim in dims), np.zeros(count))
        settings = _SETTINGS if knowledge else tuple(one for one in _SETTINGS if one[0] == 0.0)
        self.means: Array = np.stack([trust * expected for trust, _ in settings])
        self.sizes: Array = np.array([size**2 for _, size in settings])
        lines = [np.sqrt(_LINE) * (dim.place - dim.place.mean()) for dim in dims if dim.ordered]
        slopes = [np.sqrt(_TRUSTED) * (dim.expected - dim.expected.mean()) for dim in dims if knowledge]
        self._straight: Array = np.array([*lines, *slopes]).reshape(-1, count)
        self._levels = _joined([_levels_of(dim) for dim in dims])
        own = _BUMP * len(dims) + _TOGETHER + (self._straight**2).sum(axis=0)
        self.variances: Array = _BIAS + self.sizes[:, None] * own
        self._shapes: dict[int, Array] = {}

    def shape(self, index: int) -> Array:
        """How alike one configuration is to each: its covariances are ``_BIAS`` + size x shape."""
        known = self._shapes.get(index)
        if known is not None:
            return known
        found: Array = _product(self._straight[None, :, index], self._straight)[0]
        together = np.full(self.count, _TOGETHER)
        for levels in self._levels:
            own = levels.of[index]
            found += levels.alone[own][levels.of]
            together *= levels.together[own][levels.of]
        found += together
        if len(self._shapes) < _KEPT_FLOATS // self.count:
            self._shapes[index] = found
        return found


@dataclass(frozen=True)
class _Levels:
    """The different values of one parameter, or of several together: ``of`` each configuration, and for every two of them what they
    add to a shape by themselves (``alone``) and the factor of what all parameters add together."""

    of: NDArray[np.intp]
    alone: Array
    together: Array


def _levels_of(dim: Dimension) -> _Levels:
    places, of = np.unique(dim.place, return_inverse=True)
    apart = places[:, None] - places
    near = np.exp(-0.5 * (apart / _REACH) ** 2) if dim.ordered else (apart == 0).astype(np.float64)
    return _Levels(of.astype(np.intp), _BUMP * near, 0.5 + 0.5 * near)


def _joined(every: Sequence[_Levels]) -> list[_Levels]:
    """Parameters of few values taken together, which saves passes over the configurations."""
    found: list[_Levels] = []
    for levels in sorted(every, key=lambda one: len(one.alone)):
        if found and len(found[-1].alone) * len(levels.alone) <= _MOST_LEVELS:
            last, count = found.pop(), len(levels.alone)
            both = np.arange(len(last.alone) * count)
            one, other = np.ix_(both // count, both // count), np.ix_(both % count, both % count)
            levels = _Levels(last.of * count + levels.of, last.alone[one] + levels.alone[other], last.together[one] * levels.together[other])
        found.append(levels)
    return found


@dataclass(frozen=True)
class Step:
    """What one measurement changes, for whoever has the same measurements before it. ``coefficients``: [strength, 2 + measurements
    before], of its column of covariances over its spread; ``push``: of the means along that column; ``fit``: of every strength, after it."""

    index: int
    value: float
    coefficients: Array
    push: Array
    fit: Array


class Posterior:
    """What is believed after the measurements of one run, in ln above the first one. Changes in place. A measurement is small work; the
    [strength, configuration] arrays follow when they are asked for, and of those strengths only that still have a say."""

    def __init__(self, prior: Prior) -> None:
        self.prior, self.count = prior, 0  # measurements so far
        self.fit = np.zeros(len(prior.means))
        self._level, self._at_level = 0.0, np.zeros(len(prior.means))  # the first measurement, and what was expected of it
        self._means, self._variances = prior.means.copy(), prior.variances.copy()
        self._applied = np.zeros(len(prior.means), dtype=np.intp)  # measurements that are in them, of each strength
        self._measured: list[int] = []
        self._shapes: Array = np.ones((4, prior.count))  # the first is the level's
        self._coefficients: Array = np.zeros((len(prior.sizes), 4, 4))
        self._pushes: Array = np.zeros((len(prior.sizes), 4))

    def observe(self, index: int, value: float, noise_variance: float) -> Step:
        """One measurement (in ln)."""
        row = self._began(index, value)
        known = self._coefficients[:, : self.count, :row]
        shared = known @ self._shapes[:row, index]  # of this configuration with each measurement, by strength
        coefficients = np.empty((len(known), row + 1))
        np.matmul(-shared[:, None, :], known, out=coefficients[:, None, :row])
        coefficients[:, 0] += _BIAS
        coefficients[:, row] = self.prior.sizes
        spread = np.maximum(coefficients @ self._shapes[: row + 1, index], _LEAST) + noise_variance
        mean = self.prior.means[:, index] - self._at_level + (self._pushes[:, : self.count] * shared).sum(axis=1)
        wrong = self.relative(value) - mean
        scale = 1.0 / np.sqrt(spread)
        coefficients *= scale[:, None]
        step = Step(index, value, coefficients, wrong * scale, self.fit - 0.5 * np.log(spread) - 0.5 * wrong**2 / spread)
        self._add(row, step)
        return step

    def follow(self, step: Step) -> None:
        """A measurement that another run made after the same ones."""
        self._add(self._began(step.index, step.value), step)

    def _began(self, index: int, value: float) -> int:
        """The row that holds the shape of one more measurement. The first sets the level, so that no strength is judged by it."""
        if self.count == 0:
            self._level, self._at_level = value, self.prior.means[:, index].copy()
            self._means -= self._at_level[:, None]
        row = self.count + 1
        if row == len(self._shapes):
            self._shapes = np.concatenate([self._shapes, np.empty_like(self._shapes)])
            strengths = len(self._coefficients)
            coefficients, pushes = np.zeros((strengths, 2 * row, 2 * row)), np.zeros((strengths, 2 * row))
            coefficients[:, :row, :row], pushes[:, :row] = self._coefficients, self._pushes
            self._coefficients, self._pushes = coefficients, pushes
        self._shapes[row] = self.prior.shape(index)
        return row

    def _add(self, row: int, step: Step) -> None:
        self._coefficients[:, self.count, : row + 1] = step.coefficients
        self._pushes[:, self.count] = step.push
        self.fit = step.fit
        self._measured.append(step.index)
        self.count += 1

    def relative(self, value: float) -> float:
        return value - self._level

    def weights(self) -> Array:
        shifted: Array = np.exp(self.fit - self.fit.max())
        weights: Array = shifted / shifted.sum()
        return weights

    def _followed(self) -> tuple[NDArray[np.intp], Array]:
        """The strengths that have a say, brought up to date, and their weights."""
        weights = self.weights()
        live = np.flatnonzero(weights > _NO_SAY)
        for at in range(int(self._applied[live].min()), self.count):
            late = live[self._applied[live] <= at]
            column = _product(self._coefficients[late, at, : at + 2], self._shapes[: at + 2])
            self._means[late] += column * self._pushes[late, at][:, None]
            column *= column
            self._variances[late] -= column
        self._applied[live] = self.count
        return live, weights[live]

    def mean(self) -> Array:
        live, weights = self._followed()
        return _weighed(weights, self._means[live])

    def expected_gain(self, best: float) -> Array:
        """Expected improvement over ``best`` (in ln) of every configuration."""
        live, weights = self._followed()
        return _weighed(weights, _gain(self._means[live] - self.relative(best), np.sqrt(np.maximum(self._variances[live], _LEAST))))

    def promising(self, best: float, tie: float) -> list[int]:
        """The configurations with the largest expected gain that were not measured; those within ``tie`` of it count as equal."""
        if self.count == self.prior.count:
            return []
        live, weights = self._followed()
        above, variances = self._means[live] - self.relative(best), np.maximum(self._variances[live], _LEAST)
        places: NDArray[np.intp] = np.arange(self.prior.count)
        if len(places) > _FEW:
            # Single precision takes less than half of the time, and its error is bounded: what cannot be the largest is left out.
            sd = np.sqrt(variances.astype(np.float32))
            rough = _weighed(weights.astype(np.float32), _gain(above.astype(np.float32), sd))
            rough[self._measured] = -np.inf
            places = _top(rough, tie + _ROUGH * (float(sd.max()) + abs(float(rough.max()))))  # the gain bounds what is above the best
            above, variances = above[:, places], variances[:, places]
        if len(places) > 1:
            gain = _weighed(weights, _gain(above, np.sqrt(variances)))
            if len(places) == self.prior.count:
                gain[self._measured] = -np.inf
            places = places[_top(gain, tie)]
        return [int(place) for place in places]


def _product(coefficients: Array, rows: Array) -> Array:
    """The matrix product in pieces too small for the library of matrices to start threads, whose waiting costs more than they save."""
    if len(coefficients) == 1:  # a product with a vector starts threads far sooner
        return _product(np.concatenate([coefficients, coefficients]), rows)[:1]
    found = np.empty((len(coefficients), rows.shape[1]))
    width = max(1, _ALONE // max(1, coefficients.size))
    for start in range(0, rows.shape[1], width):
        np.matmul(coefficients, rows[:, start : start + width], out=found[:, start : start + width])
    return found


def _weighed(weights: _Floats, rows: _Floats) -> _Floats:
    found: _Floats = weights[0] * rows[0]
    for weight, row in zip(weights[1:], rows[1:], strict=True):
        found += weight * row
    return found


def _top(gain: NDArray[np.floating], tie: float) -> NDArray[np.intp]:
    top = float(gain.max())
    found: NDArray[np.intp] = np.flatnonzero(gain >= top - tie * max(1.0, abs(top)))
    return found


def _gain(above: _Floats, sd: _Floats) -> _Floats:
    """Expected improvement where the mean is ``above`` the best by so much. Keeps the precision that it is given."""
    z: _Floats = above / sd
    square: _Floats = z * z
    # The normal distribution function (logistic-type approximation, error below 2e-4).
    gain: _Floats = square * -0.07056
    gain -= 1.5957691216057308
    gain *= z
    np.minimum(gain, 40.0, out=gain)
    np.exp(gain, out=gain)
    gain += 1.0
    np.divide(above, gain, out=gain)
    square *= -0.5
    np.exp(square, out=square)
    square *= 0.3989422804014327
    square *= sd
    gain += square
    return gain
