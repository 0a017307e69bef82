"""The rules by which a measurement is not believed: each on both sides of its limit, and silent where a fact is missing."""

import pytest

from optimizer.core.validity import foreign_in_flight, in_flight_limit, invalidities
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import ADVICE, ValidityCode


def facts(**given: Value) -> Evidence:
    return Evidence(facts=tuple(Fact(name=name.replace("__", "."), value=value) for name, value in given.items()))


def codes(evidence: Evidence, sheet: float | None = None) -> list[ValidityCode]:
    return [item.code for item in invalidities(evidence, gpu_memory_gib=sheet)]


def test_every_code_has_advice() -> None:
    assert set(ADVICE) == set(ValidityCode)


def test_missing_facts_accuse_nobody() -> None:
    assert codes(Evidence()) == []
    assert codes(facts(client__concurrency=4)) == codes(facts(server__in_flight_p90=900.0)) == []


@pytest.mark.parametrize(("servers", "invalid"), [(1, False), (2, True)])
def test_two_servers_in_one_log(servers: int, invalid: bool) -> None:
    assert (ValidityCode.TWO_SERVERS in codes(facts(validity__servers_in_log=servers))) is invalid


@pytest.mark.parametrize(
    ("outcome", "failed", "stage", "lines", "invalid"),
    [
        ("ok", 1, "ready", 50, True),  # one engine failed, another answered
        ("ok", None, "captured", None, True),  # recorded as up, its log never serves
        ("ok", None, "captured", 50, False),  # it printed steps: it served, only the line that says so is cut off
        ("ok", None, "ready", None, False),
        ("ok", None, "listening", None, False),
        ("ok", None, None, None, False),  # a server told to be quiet
        ("oom", 1, "weights", None, False),  # recorded as failed: there is no number to doubt
    ],
)
def test_a_failed_start_behind_a_recorded_success(
    outcome: str, failed: int | None, stage: str | None, lines: int | None, invalid: bool
) -> None:
    given = {"startup__outcome": outcome, "validity__failed_starts": failed, "startup__last_stage": stage, "decode__lines": lines}
    evidence = facts(**{name: value for name, value in given.items() if value is not None})
    assert (ValidityCode.START_FAILED in codes(evidence)) is invalid


def test_a_closed_loop_never_has_more_in_flight_than_it_sent() -> None:
    for concurrency in (1, 4, 64, 512):
        limit = in_flight_limit(concurrency)
        assert codes(facts(client__concurrency=concurrency, server__in_flight_p90=limit)) == []
        assert codes(facts(client__concurrency=concurrency, server__in_flight_p90=limit + 1)) == [ValidityCode.FOREIGN_TRAFFIC]
    assert codes(facts(client__concurrency=4, server__in_flight_p90=90.0, client__request_rate=9.0)) == []  # an open loop may


def test_live_samples_follow_the_same_rule_and_forgive_a_short_overhang() -> None:
    assert foreign_in_flight([0.0] * 9 + [4.0] * 90 + [8.0] * 9, 4) is None  # requests of the level before, still being aborted
    caught = foreign_in_flight([4.0] * 50 + [8.0] * 50, 4)
    assert caught is not None and caught.code is ValidityCode.FOREIGN_TRAFFIC
    assert foreign_in_flight([], 4) is None and foreign_in_flight([0.0, 0.0], 4) is None


@pytest.mark.parametrize(
    ("given", "invalid"),
    [
        ({"memory__kv_gib": 119.3, "memory__weights_gib": 39.9}, False),
        ({"memory__kv_gib": 8.64, "memory__weights_gib": 10.0}, True),
        ({"memory__kv_gib": 8.64, "memory__weights_gib": 10.0, "settings__asked": {"kv_cache_memory_bytes": 9 << 30}}, False),
        ({"memory__kv_gib": 8.64, "memory__weights_gib": 10.0, "settings__asked": {"gpu_memory_utilization": 0.1}}, False),
        ({"memory__kv_gib": 8.64, "memory__weights_gib": 10.0, "memory__fraction_static": 0.85}, True),
        ({"memory__kv_gib": 8.64, "memory__weights_gib": 10.0, "model__hybrid_state": True}, False),
        ({"memory__kv_gib": 3.0, "memory__weights_gib": 156.0}, False),  # weights that nearly fill the GPU leave little
        ({"memory__weights_gib": 10.0}, False),
    ],
)
def test_the_pool_against_what_the_weights_leave(given: dict[str, Value], invalid: bool) -> None:
    assert (ValidityCode.KV_POOL_SHRUNK in codes(facts(**given), sheet=178.4)) is invalid
    assert codes(facts(**given)) == []  # without the size of the GPU nothing can be said


def test_the_pool_against_the_one_that_the_same_settings_gave() -> None:
    assert codes(facts(validity__kv_pool_ratio=0.98)) == []
    assert codes(facts(validity__kv_pool_ratio=0.4)) == [ValidityCode.KV_POOL_SHRUNK]
