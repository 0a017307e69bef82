"""The time of the running step, as its outcome is journalled: against the lines of a real load generator's course."""

from optimizer.bench.so_far import load_time, so_far
from optimizer.report.step_clock import StepClock

SCALE = 24.0


def line(level: str, phase: str, elapsed_s: float, window_s: float) -> str:
    return f"{level}: {so_far({'phase': phase, 'elapsed_s': elapsed_s, 'tokens_per_s': 900.0, 'window_s': window_s})}"


def course(levels: list[tuple[str, float, float]], began: float = 100.0) -> tuple[float, float]:
    """Levels of (name, warm-up, window) in the server's seconds, one line in a real second, 0.5 real seconds before each and 9 behind
    all: what the clock says at the end, and what the journal counts."""
    clock, now = StepClock("measure", began, SCALE), began
    before = 0.0
    for name, warmup, window in levels:
        now += 0.5
        start = now
        while (passed := (now + 1.0 - start) * SCALE) < warmup + window:
            now += 1.0
            clock.heard(line(name, "warmup", passed, window) if passed < warmup else line(name, "window", passed - warmup, window), now)
            assert clock.seconds(now) >= before, "time ran backwards"
            before = clock.seconds(now)
        now = start + (warmup + window) / SCALE
    clock.heard("answering the probes", now + 1.0)
    return clock.seconds(now + 9.0), sum(warmup + window for _, warmup, window in levels)


def test_a_measurement_is_timed_by_what_was_offered() -> None:
    said, journalled = course([("c=32", 73.9, 600.0), ("c=1", 10.6, 40.0)])
    assert abs(said - journalled) < 1.5 * SCALE, (said, journalled)  # one line's worth; our own clock times the scale would be 230 s more
    said, journalled = course([("c=32", 121.5, 60.0)])
    assert abs(said - journalled) < 1.5 * SCALE, (said, journalled)


def test_two_clients_at_once_are_two_loads_and_the_same_level_again_is_one_more() -> None:
    clock = StepClock("check", 0.0, SCALE)
    for second in range(1, 11):
        clock.heard(line("c=8, client 1", "warmup" if second < 5 else "window", SCALE * (second if second < 5 else second - 4), 144.0), float(second))
        clock.heard(line("c=8, client 2", "warmup" if second < 6 else "window", SCALE * (second if second < 6 else second - 5), 144.0), float(second))
    assert abs(clock.seconds(10.0) - 2 * 240.0) < 2 * SCALE
    again = StepClock("check", 0.0, SCALE)
    for second in range(1, 9):
        again.heard(line("c=8", "warmup" if second % 4 in (1, 2) else "window", SCALE * ((second - 1) % 2 + 1), 48.0), float(second))
    assert abs(again.seconds(8.0) - 8 * SCALE) < 1.5 * SCALE


def test_a_real_server_has_our_clock_and_what_is_our_own_handling_is_not_hurried() -> None:
    real = StepClock("measure", 10.0, 1.0)
    real.heard(line("c=16", "window", 5.0, 60.0), 40.0)
    assert real.seconds(45.0) == 35.0
    assert StepClock("await_ready", 10.0, SCALE).seconds(12.0) == 2 * SCALE
    assert StepClock("stop", 10.0, SCALE).seconds(12.0) == 2.0
    assert StepClock("measure", 10.0, SCALE).seconds(12.0) == 2.0  # before its load begins


def test_only_a_load_generators_line_says_where_the_load_is() -> None:
    assert load_time("c=16: warming up, 63 s, 1,070 tok/s") == ("c=16", False, 63.0, None)
    assert load_time("c=16: measuring, 24 of 60 s, 1,070 tok/s; mean so far 1,062 tok/s [1,041, 1,083] at 95 %") == ("c=16", True, 24.0, 60.0)
    assert load_time("Capturing CUDA graph shapes:  37%|███▋      | 13/35 [00:07<00:12,  1.8it/s]") is None
