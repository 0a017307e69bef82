"""The steady-state rule: eight warm-up shapes, noise, and the copy inside the load generator."""

import math
import random

import pytest

from optimizer.bench.plain import steady as sent
from optimizer.stats import steady
from optimizer.stats.interval import t_quantile

RATE, WINDOW_S, MAX_WINDOWS, MIN_WINDOWS = 1000.0, 5.0, 60, 6


def shape(name: str, t: float, rng: random.Random) -> float:
    """Rate at ``t`` seconds; the truth is RATE, 40 % of it before anything is warm."""
    cold = 0.4
    if name == "flat":
        return RATE
    if name == "exponential":
        return RATE * (1 - (1 - cold) * math.exp(-t / 20))
    if name == "step":  # kernels compile, then all is well
        return RATE * (cold if t < 25 else 1)
    if name == "slow drift":
        return RATE * (cold + (1 - cold) * min(1.0, t / 200))
    if name == "cycle":  # prefill and decode waves, a period of a few windows
        return RATE * (1 + 0.04 * math.sin(2 * math.pi * t / 13))
    if name == "decay on idle":  # warm from an earlier run, cools, is heated up again
        return RATE * (1 - 0.3 * math.exp(-t / 10))
    if name == "two-phase":
        return RATE * (cold if t < 15 else 0.8 if t < 40 else 1)
    assert name == "never"
    return RATE * (1 + 0.5 * rng.uniform(-1, 1))


SHAPES = ("flat", "exponential", "step", "slow drift", "cycle", "decay on idle", "two-phase", "never")


def run(name: str, noise: float, seed: int) -> tuple[str, int, float]:
    """(verdict, windows used, rate over the 12 windows after that, relative to the truth)."""
    rng = random.Random(f"{name}/{noise}/{seed}")

    def window(index: int) -> float:
        return shape(name, (index + 0.5) * WINDOW_S, rng) * (1 + noise * rng.gauss(0, 1))

    series = []
    verdict = ""
    for index in range(MAX_WINDOWS):
        series.append(window(index))
        if index + 1 >= MIN_WINDOWS:
            verdict = steady.steadiness(series)
            if verdict:
                break
    measured = [window(len(series) + extra) for extra in range(12)]
    found = steady.window_mean(measured)
    assert found is not None
    if not verdict and not found.usable:
        verdict = "invalid"
    return verdict, len(series), found.mean / RATE


@pytest.mark.gate("S6")
@pytest.mark.parametrize("noise", [0.005, 0.015, 0.03])
@pytest.mark.parametrize("name", SHAPES)
def test_ends_within_ten_percent_of_the_truth_or_says_never(name: str, noise: float) -> None:
    wrong, steady_runs = 0, 0
    for seed in range(60):
        verdict, _, rate = run(name, noise, seed)
        steady_runs += verdict in ("steady", "level")
        if verdict in ("steady", "level") and abs(rate - 1) > 0.10:
            wrong += 1
    assert wrong == 0
    if name == "never":
        assert steady_runs == 0
    elif noise <= 0.015:
        assert steady_runs >= 57  # and where it can settle, it does


def test_a_quiet_server_is_found_steady_as_soon_as_ten_windows_exist() -> None:
    assert steady.steadiness([100.0] * 9) == ""
    assert steady.steadiness([100.0] * 10) == "steady"
    assert run("flat", 0.005, 1)[1] <= 12


def test_a_rough_but_level_server_does_not_cost_the_longest_warm_up() -> None:
    used = [run("cycle", 0.015, seed)[1] for seed in range(30)]
    assert max(used) <= 40 and sorted(used)[15] <= 25


def test_a_steep_line_is_neither_steady_nor_level() -> None:
    assert steady.steadiness([100.0 + 3 * i for i in range(30)]) == ""
    assert steady.steadiness([0.0] * 30) == ""


def test_the_copy_in_the_load_generator_agrees() -> None:
    for name in ("STEADY_WINDOWS", "LEVEL_WINDOWS", "STEADY_COV", "STEADY_CHANGE", "LEVEL_CHANGE"):
        assert getattr(sent, name) == getattr(steady, name)
    for freedom, value in sent.T_95.items():
        assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)
    seen = set()
    for name in SHAPES:
        for noise in (0.0, 0.005, 0.02, 0.05):
            rng = random.Random(f"{name}{noise}")
            series = [shape(name, 5.0 * i, rng) * (1 + noise * rng.gauss(0, 1)) for i in range(60)]
            for end in range(61):
                got = steady.steadiness(series[:end])
                assert sent.steadiness(series[:end]) == got
                seen.add(got)
    assert seen == {"steady", "level", ""}


def ar1(rng: random.Random, n: int, rho: float, sd: float) -> list[float]:
    x, out = rng.gauss(0, sd), []
    for _ in range(n):
        out.append(100 * (1 + x))
        x = rho * x + math.sqrt(1 - rho * rho) * rng.gauss(0, sd)
    return out


@pytest.mark.parametrize(("rho", "floor"), [(0.0, 0.88), (0.4, 0.78), (-0.4, 0.90)])
def test_interval_of_a_windows_mean_covers_the_truth(rho: float, floor: float) -> None:
    """20 sub-windows cannot show long correlations; what they claim is checked for short ones, in both directions."""
    rng = random.Random(rho)
    inside = 0
    for _ in range(600):
        found = steady.window_mean(ar1(rng, 20, rho, 0.08))
        assert found is not None
        inside += abs(found.mean - 100) <= found.half_width * found.mean
    assert inside / 600 >= floor


def test_a_window_that_moves_is_seen_and_a_noisy_one_is_not_called_moving() -> None:
    rng = random.Random(3)
    still = [steady.window_mean(ar1(rng, 20, 0.2, 0.10)) for _ in range(500)]
    assert sum(found.moved for found in still if found) <= 15
    rising = [[y * (1 + 0.4 * i / 19) for i, y in enumerate(ar1(rng, 20, 0.0, 0.05))] for _ in range(200)]
    assert sum(found.moved for series in rising if (found := steady.window_mean(series))) >= 196


def test_windows_without_content_have_no_mean() -> None:
    assert steady.window_mean([1.0] * 4) is None
    assert steady.window_mean([0.0] * 20) is None
    flat = steady.window_mean([5.0] * 20)
    assert flat is not None and flat.usable and flat.half_width == 0


def test_alternating_waves_do_not_make_a_good_mean_useless() -> None:
    found = steady.window_mean([160.0, 105.0] * 10)  # recorded shape of a CPU engine at concurrency 16
    assert found is not None and found.usable and found.half_width < 0.05
