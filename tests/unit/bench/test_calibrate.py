"""Calibration: what it measures on this machine, and how it judges."""

import json

import pytest

from optimizer.bench import calibrate
from optimizer.errors import BoxError


def made(**changes: float) -> calibrate.Calibration:
    values = {
        "concurrency": 16,
        "target_chunks_per_s": 1000.0,
        "offered_chunks_per_s": 3000.0,
        "received_chunks_per_s": 3000.0,
        "capacity_chunks_per_s": 30000.0,
        "cpu_share": 0.1,
        "added_p50_ms": 0.1,
        "added_p99_ms": 0.5,
    }
    return calibrate.Calibration.model_validate({**values, **changes})


def test_a_modest_target_is_within_reach_here() -> None:
    found = calibrate.calibrate_here(200, 8, rounds=1)
    assert found.offered_chunks_per_s == pytest.approx(600)
    assert found.received_chunks_per_s == pytest.approx(600, rel=0.05)
    assert found.sustains
    assert 0 < found.added_p50_ms < 5 and found.added_p50_ms <= found.added_p99_ms


def test_each_bound_is_held() -> None:
    assert made().sustains and made().prompt
    assert not made(received_chunks_per_s=2900.0).sustains
    assert not made(capacity_chunks_per_s=2999.0).sustains
    assert not made(added_p99_ms=1.01).prompt
    assert calibrate.processes_needed(1000, made()) == 1
    assert calibrate.processes_needed(20000, made()) == 3


def test_the_best_round_counts() -> None:
    slow, late, good = made(received_chunks_per_s=10.0), made(added_p99_ms=3.0), made()
    assert calibrate.best([slow, late, good]) is good
    assert calibrate.best([slow, late]) is late


def test_a_generator_that_fails_is_no_calibration() -> None:
    summary = {"t": "summary", "errors": {"refused": 3}, "gave_up": "", "delay_real_ms": []}
    for lines in ([], [b"oops"], [json.dumps(summary).encode()], [b'{"t":"refused","why":"x"}']):
        with pytest.raises(BoxError, match="null server"):
            calibrate.judge(lines, 100, 4)


def test_the_gap_makes_three_times_the_target() -> None:
    assert calibrate.gap_ms(1000, 30) == pytest.approx(10)
    assert calibrate.gap_ms(1, 30) == calibrate.LONGEST_GAP_MS
