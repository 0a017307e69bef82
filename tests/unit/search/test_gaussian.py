"""The model of a table against the plain computation: conditioning a normal distribution by linear algebra."""

import numpy as np
import pytest

from optimizer.search.encode import dimensions
from optimizer.search.gaussian import Posterior, Prior, Step

NOISE = 0.02**2


def table(count: int) -> Prior:
    source = np.random.default_rng(3)
    points = [{"a": int(source.integers(1, 9)), "b": ["x", "y", "z"][source.integers(3)], "c": float(source.random())} for _ in range(count)]
    return Prior(dimensions(points, ["a", "b", "c"], (), "throughput"), count, knowledge=True)


def plain(prior: Prior, indexes: list[int], values: list[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means and variances of every strength, in ln above the first value, and the logarithm of what each foresaw, by conditioning."""
    covariances = 4.0 + prior.sizes[:, None, None] * np.array([prior.shape(index) for index in range(prior.count)])
    means, variances, fits = [], [], []
    for covariance, expected in zip(covariances, prior.means, strict=True):
        expected = expected - expected[indexes[0]]
        known = covariance[np.ix_(indexes, indexes)] + NOISE * np.eye(len(indexes))
        wrong = np.array(values) - values[0] - expected[indexes]
        pull = covariance[:, indexes]
        means.append(expected + pull @ np.linalg.solve(known, wrong))
        variances.append(np.diag(covariance) - np.einsum("ik,ki->i", pull, np.linalg.solve(known, pull.T)))
        fits.append(-0.5 * np.linalg.slogdet(known)[1] - 0.5 * wrong @ np.linalg.solve(known, wrong))
    return np.array(means), np.array(variances), np.array(fits)


@pytest.mark.parametrize("count", [60, 300])
def test_it_is_the_conditioned_distribution_and_another_run_may_follow(count: int) -> None:
    prior = table(count)
    source = np.random.default_rng(7)
    indexes = [int(index) for index in source.choice(count, 12, replace=False)]
    values = [float(value) for value in source.normal(0.0, 0.3, 12)]
    mine, other, steps = Posterior(prior), Posterior(prior), list[Step]()
    for index, value in zip(indexes, values, strict=True):
        steps.append(mine.observe(index, value, NOISE))
    for step in steps:
        other.follow(step)
    means, variances, fits = plain(prior, indexes, values)
    weights = np.exp(fits - fits.max())
    weights /= weights.sum()
    assert np.allclose(mine.weights(), weights, atol=1e-9) and np.allclose(mine.mean(), weights @ means, atol=1e-8)
    best = max(values)
    above, sd = means - (best - values[0]), np.sqrt(variances)
    z = above / sd
    below = 1.0 / (1.0 + np.exp(-np.clip(1.5957691216057308 * z + 0.07056 * z**3, -40.0, 40.0)))
    gain = weights @ (above * below + sd * np.exp(-0.5 * z**2) * 0.3989422804014327)
    assert np.allclose(mine.expected_gain(best), gain, atol=1e-8) and np.array_equal(mine.expected_gain(best), other.expected_gain(best))
    gain[indexes] = -np.inf
    assert mine.promising(best, 1e-9) == other.promising(best, 1e-9) == [int(np.argmax(gain))]


def test_what_was_measured_is_not_asked_for_again() -> None:
    prior = table(5)
    posterior = Posterior(prior)
    for index in range(4):
        posterior.observe(index, float(index), NOISE)
    assert posterior.promising(3.0, 1e-9) == [4]
    posterior.observe(4, 0.0, NOISE)
    assert posterior.promising(3.0, 1e-9) == []
