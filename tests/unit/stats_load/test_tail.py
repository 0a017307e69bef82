"""Percentile claims: the table of counts that they need, and the false-claim rate at the boundary."""

import random

import pytest

from optimizer.bench.run import add_percentiles
from optimizer.model.target import Bound, claimed, percentile_of
from optimizer.stats import tail


@pytest.mark.gate("S5")
@pytest.mark.parametrize(("percentile", "table"), [(99, (459, 662, 838, 1307, 2010)), (95, (90, 130, 165, 259, 398))])
def test_requests_needed_are_those_of_the_design(percentile: int, table: tuple[int, ...]) -> None:
    assert tuple(tail.requests_needed(percentile, misses) for misses in (0, 1, 2, 5, 10)) == table


def test_misses_allowed_is_the_inverse() -> None:
    for requests in (1, 458, 459, 661, 662, 838, 5000):
        allowed = tail.misses_allowed(99, requests)
        if allowed is None:
            assert requests < 459
        else:
            assert tail.requests_needed(99, allowed) <= requests < tail.requests_needed(99, allowed + 1)


@pytest.mark.gate("S5")
@pytest.mark.parametrize(("percentile", "requests"), [(99, 459), (99, 1000), (95, 200)])
def test_false_claims_at_the_boundary_are_at_most_one_percent(percentile: int, requests: int) -> None:
    rng = random.Random(percentile * requests)
    share, trials = 1 - percentile / 100, 3000
    claimed = bounds = 0
    for _ in range(trials):
        samples = [1.0 + rng.random() if rng.random() < share else rng.random() for _ in range(requests)]
        claimed += bool(tail.at_most(samples, percentile, 1.0))
        bound = tail.upper_bound(samples, percentile)
        assert bound is not None
        bounds += bound < 1.0
    assert claimed <= 0.01 * trials + 3 * (0.01 * trials) ** 0.5
    assert bounds == claimed  # the bound is the claim read the other way round


@pytest.mark.gate("S5")
@pytest.mark.parametrize(("metric", "requests"), [("ttft_p99_ms", 600), ("e2e_p95_ms", 150)])
def test_what_a_target_is_held_against_is_false_at_the_boundary_in_at_most_one_percent(metric: str, requests: int) -> None:
    """The figures of a load and the rule for targets that bench and the studies use. The percentile as measured would be below the
    limit in about half of the trials."""
    rng, percentile = random.Random(requests), percentile_of(metric)
    assert percentile is not None
    trials, shown, measured = 1500, 0, 0
    bound = Bound(metric=metric, direction="at_most", value=1.0)
    for _ in range(trials):
        metrics: dict[str, float] = {}
        samples = [1.0 + rng.random() if rng.random() < 1 - percentile / 100 else rng.random() for _ in range(requests)]
        add_percentiles(metrics, metric.split("_")[0], samples, (50, percentile))
        value = claimed(metric, metrics)
        shown += value is not None and bound.holds(value)
        measured += bound.holds(metrics[metric])
    assert shown <= 0.01 * trials + 3 * (0.01 * trials) ** 0.5 and measured > 0.3 * trials


def test_a_median_and_a_figure_without_a_bound_are_held_as_they_are() -> None:
    assert claimed("ttft_p50_ms", {"ttft_p50_ms": 7.0, "ttft_p99_upper_ms": 9.0}) == 7.0
    assert claimed("ttft_p99_ms", {"ttft_p99_ms": 7.0}) == 7.0  # another tool's, which states no bound
    assert claimed("ttft_p99_ms", {"ttft_p50_ms": 7.0}) is None
    assert claimed("itl_p99.9_ms", {"itl_p99.9_ms": 1.0, "itl_p99.9_upper_ms": 2.0}) == 2.0


def test_too_few_requests_claim_nothing() -> None:
    assert tail.at_most([0.1] * 458, 99, 1.0) is None
    assert tail.at_most([0.1] * 459, 99, 1.0) is True
    assert tail.at_most([0.1] * 458 + [2.0], 99, 1.0) is False
    assert tail.upper_bound([0.1] * 100, 99) is None


def test_only_supported_percentiles_are_shown() -> None:
    assert tail.percentiles([1.0, 2.0]) == {}
    assert tail.percentiles([3.0, 1.0, 2.0]) == {50: 2.0}
    assert set(tail.percentiles([1.0] * 90)) == {50, 90, 95}
    assert set(tail.percentiles([1.0] * 459)) == {50, 90, 95, 99}
    assert tail.quantile([0.0, 10.0], 25) == 2.5
