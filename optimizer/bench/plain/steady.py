"""When a warm-up is over. Runs on the box."""

import math

# Two-sided 95 % quantiles of Student's t for the degrees of freedom that the detector uses (8 = 10 windows, 18 = 20).
T_95 = {8: 2.306, 18: 2.101}
STEADY_WINDOWS, LEVEL_WINDOWS = 10, 20
STEADY_COV, STEADY_CHANGE, LEVEL_CHANGE = 0.02, 0.01, 0.10


def trend(series):
    """(relative change by least squares, its standard error, coefficient of variation); the mean must be positive."""
    n = len(series)
    mean = math.fsum(series) / n
    middle = (n - 1) / 2.0
    sxx = n * (n * n - 1) / 12.0
    slope = math.fsum((i - middle) * y for i, y in enumerate(series)) / sxx
    spread = math.fsum((y - mean) ** 2 for y in series)
    left = max(0.0, spread - slope * slope * sxx)
    error = math.sqrt(left / (n - 2) / sxx)
    return slope * (n - 1) / mean, error * (n - 1) / mean, math.sqrt(spread / (n - 1)) / mean


def steadiness(series):
    """'steady', 'level' or '' for a series of rates in equal windows. A copy of the rule in ``optimizer.stats.steady``
    (what runs on the box must stand alone); a test compares them.

    steady: the last 10 windows vary by less than 2 % and have no slope. level: they vary more, but the last 20 windows
    show that the rate did not change by more than 10 % over their span (the whole 95 % interval of the fitted change
    lies inside).
    """
    last = series[-STEADY_WINDOWS:]
    if len(last) == STEADY_WINDOWS and math.fsum(last) > 0:
        change, error, cov = trend(last)
        if cov < STEADY_COV and (abs(change) <= STEADY_CHANGE or abs(change) <= T_95[STEADY_WINDOWS - 2] * error):
            return "steady"
    last = series[-LEVEL_WINDOWS:]
    if len(last) == LEVEL_WINDOWS and math.fsum(last) > 0:
        change, error, _ = trend(last)
        if abs(change) + T_95[LEVEL_WINDOWS - 2] * error <= LEVEL_CHANGE:
            return "level"
    return ""
