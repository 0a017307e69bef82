"""The saturation rule on simulated queues: false alarms at 80 % load, hits at 120 %."""

import heapq
import random

import pytest

from optimizer.stats import saturation

Points = list[tuple[float, float]]


def queue(
    load: float, servers: int, rng: random.Random, seconds: float = 120.0, service_s: float = 2.0
) -> tuple[Points, Points]:
    """A server that works on ``servers`` requests at a time, Poisson arrivals, service times within ±50 %; from empty."""
    rate = load * servers / service_s
    free = [0.0] * servers
    heapq.heapify(free)
    at, waits, changes = 0.0, [], []
    while True:
        at += rng.expovariate(rate)
        if at > seconds:
            break
        begin = max(at, heapq.heappop(free))
        end = begin + service_s * rng.uniform(0.5, 1.5)
        heapq.heappush(free, end)
        if begin + 0.1 <= seconds:
            waits.append((at, begin + 0.1 - at))
        changes += [(at, 1), (end, -1)]
    changes.sort()
    flight, count, index = [], 0, 0
    for tick in range(int(seconds * 4)):
        while index < len(changes) and changes[index][0] <= tick / 4:
            count += changes[index][1]
            index += 1
        flight.append((tick / 4, float(count)))
    return flight, waits


@pytest.mark.gate("S7")
@pytest.mark.parametrize("servers", [8, 32])
def test_a_load_of_80_percent_is_rarely_called_saturated(servers: int) -> None:
    rng = random.Random(servers)
    alarms = sum(saturation.over_saturated(*queue(0.8, servers, rng)) for _ in range(150))
    assert alarms <= 3


@pytest.mark.gate("S7")
@pytest.mark.parametrize("servers", [8, 32])
def test_a_load_of_120_percent_is_called_saturated(servers: int) -> None:
    rng = random.Random(servers)
    hits = sum(saturation.over_saturated(*queue(1.2, servers, rng)) for _ in range(150))
    assert hits >= 147


def test_short_and_flat_series_say_nothing() -> None:
    flat = [(float(i), 4.0) for i in range(100)]
    rising = [(float(i), 4.0 + i) for i in range(100)]
    assert not saturation.over_saturated(flat, flat)
    assert not saturation.over_saturated(rising, flat)
    assert saturation.over_saturated(rising, rising)
    assert not saturation.over_saturated(rising[:20], rising[:20])
    assert saturation.rise([]) is None
    assert saturation.rise([(float(i), 0.0) for i in range(100)]) is not None
