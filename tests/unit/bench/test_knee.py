"""The knee finder on servers whose knee is known: found within its resolution, in few steps, never a load that fails."""

import math
import random

import pytest

from optimizer.bench.knee import RESOLUTION, knee, next_load
from optimizer.model.measurement import Invalidity, LoadPoint, ValidityCode
from optimizer.model.target import parse_target
from optimizer.report.bench_view import met_text
from optimizer.runner.benching import longer_by, strain


def search(strain_of, start: float, lowest: float = 1.0, highest: float = 4096.0, whole: bool = True) -> tuple[dict[float, float], float | None]:
    strains: dict[float, float] = {}
    while (load := next_load(strains, start=start, lowest=lowest, highest=highest, whole=whole)) is not None:
        assert lowest <= load <= highest and load not in strains
        strains[load] = strain_of(load)
    return strains, knee(strains).good


@pytest.mark.parametrize("start", [1.0, 16.0, 500.0])
@pytest.mark.parametrize("limit", [1, 2, 7, 16, 37, 100, 333, 2000])
@pytest.mark.parametrize("bend", [0.3, 1.0, 6.0])
def test_smooth_servers(start: float, limit: int, bend: float) -> None:
    strains, good = search(lambda load: (load / limit) ** bend, start)
    assert good is not None and good <= limit
    assert limit < good * (1 + RESOLUTION) or limit - good < 1
    assert len(strains) <= 14


def test_typical_searches_take_few_steps() -> None:
    steps = []
    for seed in range(200):
        limit = math.exp(random.Random(seed).uniform(math.log(4), math.log(512)))
        strains, _ = search(lambda load, limit=limit: 0.3 + 0.7 * (load / limit) ** 1.5, 16.0)
        steps.append(len(strains))
    assert sorted(steps)[100] <= 6 and max(steps) <= 11, (sorted(steps)[100], max(steps))


def test_a_cliff_is_bisected() -> None:
    strains, good = search(lambda load: math.inf if load > 90 else 0.2, 16.0)
    assert good is not None and 83 <= good <= 90 and len(strains) <= 9


def test_nothing_and_everything_meets_the_target() -> None:
    strains, good = search(lambda load: 5.0, 16.0)
    assert good is None and knee(strains).bad == 1.0 and len(strains) == 5
    strains, good = search(lambda load: 0.1, 16.0, highest=100.0)
    assert good == 100.0 and knee(strains).bad is None


def test_rates_are_not_whole() -> None:
    _, good = search(lambda rate: rate / 0.37, 1.0, lowest=0.01, whole=False)
    assert good == pytest.approx(0.37, rel=RESOLUTION) and good <= 0.37


def test_a_lucky_load_above_a_failed_one_does_not_count() -> None:
    found = knee({8.0: 0.5, 16.0: 1.2, 32.0: 0.9})
    assert (found.good, found.bad) == (8.0, 16.0)


def test_noise_ends_the_search_all_the_same() -> None:
    for seed in range(100):
        noise = random.Random(seed)
        strains, _ = search(lambda load, noise=noise: (load / 50) * noise.uniform(0.8, 1.25), 16.0)
        assert len(strains) <= 14


def point(ok: int, metrics: dict[str, float], *codes: ValidityCode) -> LoadPoint:
    return LoadPoint(concurrency=4, requests_ok=ok, requests_failed=0, prompt_tokens=1, output_tokens=1, window_s=10.0, metrics=metrics,
                     invalid=tuple(Invalidity(code=code, detail="seen") for code in codes))  # fmt: skip


def test_a_load_that_could_not_be_judged_is_measured_longer_where_that_helps() -> None:
    target = parse_target(["ttft.p95<500ms"])
    assert longer_by(point(45, {}), target) == pytest.approx(1.2 * 90 / 45)
    assert longer_by(point(3, {}), target) == 0  # that would take 36 times as long: for a person to decide
    assert longer_by(point(45, {"ttft_p95_ms": 1.0}, ValidityCode.NEVER_STEADY), target) == 2
    assert longer_by(point(45, {}, ValidityCode.CACHED_PREFIX, ValidityCode.NEVER_STEADY), target) == 0
    assert longer_by(point(0, {}), target) == 0


def test_a_load_meets_a_percentile_that_its_requests_prove() -> None:
    target = parse_target(["ttft.p95<500ms"])
    assert strain(point(90, {"ttft_p95_ms": 480.0, "ttft_p95_upper_ms": 520.0}), target) == pytest.approx(1.04)
    assert "not shown: its 90 requests prove at most 520" in met_text(target, point(90, {"ttft_p95_ms": 480.0, "ttft_p95_upper_ms": 520.0}))
    assert met_text(target, point(90, {"ttft_p95_ms": 480.0, "ttft_p95_upper_ms": 490.0})).endswith("480 ms, met")
