"""Student's t against published tables, and the schedule of looks."""

import math

import pytest

from optimizer.errors import OptimizerError
from optimizer.stats.interval import half_width, look_confidence, looks, standard_error, t_cdf, t_quantile

# Abramowitz & Stegun, table 26.10: probability of the upper tail -> degrees of freedom -> t.
TABLE = [
    (0.10, 1, 3.078), (0.05, 1, 6.314), (0.025, 1, 12.706), (0.005, 1, 63.657),
    (0.025, 2, 4.303), (0.005, 2, 9.925), (0.025, 3, 3.182), (0.005, 3, 5.841), (0.0005, 3, 12.924),
    (0.10, 4, 1.533), (0.025, 5, 2.571), (0.005, 5, 4.032), (0.05, 8, 1.860), (0.025, 10, 2.228),
    (0.005, 10, 3.169), (0.025, 14, 2.145), (0.025, 30, 2.042), (0.025, 60, 2.000), (0.025, 120, 1.980),
]  # fmt: skip


@pytest.mark.parametrize(("tail", "freedom", "expected"), TABLE)
def test_quantile_matches_the_table(tail: float, freedom: int, expected: float) -> None:
    assert t_quantile(1 - tail, freedom) == pytest.approx(expected, abs=6e-4)
    assert t_quantile(tail, freedom) == pytest.approx(-expected, abs=6e-4)


@pytest.mark.parametrize("freedom", [1, 2, 2.5, 3, 7, 14, 40, 1000])
@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.975, 0.99375, 0.9999])
def test_quantile_inverts_the_distribution(freedom: float, probability: float) -> None:
    assert t_cdf(t_quantile(probability, freedom), freedom) == pytest.approx(probability, abs=1e-10)


@pytest.mark.parametrize("t", [-8.0, -1.3, 0.0, 0.7, 4.0])
def test_closed_forms(t: float) -> None:
    """One degree of freedom is Cauchy, two have an algebraic distribution, very many are normal."""
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-12)
    assert t_cdf(t, 1e7) == pytest.approx(0.5 * math.erfc(-t / math.sqrt(2)), abs=1e-6)


def test_looks_share_the_error() -> None:
    assert looks() == (2, 3, 5, 8) and look_confidence() == pytest.approx(0.9875)
    assert looks(True) == (2, 3, 5, 8, 12) and look_confidence(True) == pytest.approx(0.99)


def test_half_width_shrinks_with_launches() -> None:
    assert standard_error(0.03, 1, 2) == pytest.approx(0.03 * math.sqrt(1.5))
    assert half_width(0.95, 10, 0.03) == pytest.approx(2.228 * 0.03, abs=1e-4)
    assert half_width(0.99, 10, 0.03) > half_width(0.95, 10, 0.03) > half_width(0.95, 40, 0.03)


@pytest.mark.parametrize("call", [lambda: t_cdf(1, 0), lambda: t_quantile(1.0, 3), lambda: t_quantile(0.0, 3)])
def test_nonsense_is_refused(call) -> None:
    with pytest.raises(OptimizerError):
        call()
