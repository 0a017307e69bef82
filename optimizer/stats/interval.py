"""Student's t (density tail and quantile), confidence intervals on log ratios and the schedule of looks. It knows no
servers and no verdicts; it never estimates a standard deviation (that is ``stats.noise``).

The distribution function is the regularised incomplete beta function by its continued fraction (Lentz' method, as in
Numerical Recipes 3rd ed. section 6.4); quantiles come from it by bracketing and are exact to about 1e-12."""

import math
from functools import lru_cache

from optimizer.errors import OptimizerError

LOOKS = (2, 3, 5, 8)
THOROUGH_LOOKS = (2, 3, 5, 8, 12)
ERROR = 0.05


def t_cdf(t: float, degrees_of_freedom: float) -> float:
    """P(T ≤ t) of Student's t; ``degrees_of_freedom`` > 0 need not be whole."""
    _require(degrees_of_freedom)
    if t == 0:
        return 0.5
    tail = 0.5 * _incomplete_beta(degrees_of_freedom / (degrees_of_freedom + t * t), degrees_of_freedom / 2, 0.5)
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """The t with P(T ≤ t) = ``probability``, 0 < probability < 1."""
    _require(degrees_of_freedom)
    if not 0 < probability < 1:
        raise OptimizerError(
            f"A quantile at probability {probability} does not exist: it must lie strictly between 0 and 1.",
            hint="This is a bug of the caller: confidence levels are fractions such as 0.95.",
        )
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees_of_freedom)
    # The bracket works on the tail, which keeps its relative precision far out, where 1 - tail would not.
    tail, low, high = 1 - probability, 0.0, 1.0
    while t_cdf(-high, degrees_of_freedom) > tail:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(-middle, degrees_of_freedom) > tail else (low, middle)
    return (low + high) / 2


def half_width(confidence: float, degrees_of_freedom: float, standard_error: float) -> float:
    """Half the two-sided interval, in the unit of ``standard_error``."""
    return t_quantile(0.5 + confidence / 2, degrees_of_freedom) * standard_error


def standard_error(sd: float, n_candidate: int, n_baseline: int) -> float:
    """Of the difference of two means of independent launches with the same ``sd``."""
    return sd * math.sqrt(1 / n_candidate + 1 / n_baseline)


def looks(thorough: bool = False) -> tuple[int, ...]:
    """Numbers of candidate launches at which a verdict may be given."""
    return THOROUGH_LOOKS if thorough else LOOKS


def look_confidence(thorough: bool = False, error: float = ERROR) -> float:
    """The error is split equally over the looks: 98.75 % for four, 99 % for five."""
    return 1 - error / len(looks(thorough))


def _require(degrees_of_freedom: float) -> None:
    if not degrees_of_freedom > 0 or not math.isfinite(degrees_of_freedom):
        raise OptimizerError(
            f"Student's t with {degrees_of_freedom} degrees of freedom does not exist.",
            hint="This is a bug of the caller: a noise estimate carries the prior's weight, which is above zero.",
        )


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised I_x(a, b) for 0 ≤ x ≤ 1."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(x, a, b) / a
    return 1 - front * _beta_fraction(1 - x, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result
