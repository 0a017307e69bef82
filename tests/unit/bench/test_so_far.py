"""What a person who waits reads of a running load: the rate now, and from five parts of the window on the mean with its interval."""

import io
import itertools
import re
from typing import Any

import pytest

from optimizer.bench.run import progress
from optimizer.bench.so_far import so_far
from optimizer.report.bench_view import BenchProgress

RATE = 4 * 16 / 0.15  # 4 requests of 16 tokens, one every 10 ms


def test_the_load_generator_tells_the_mean_of_its_window_so_far(null_server: Any, load: Any) -> None:
    ran = load(null_server("--gap-ms", "10"), window_s=2.0)
    told = [seen for line in ran.lines if (seen := progress(line)) is not None]
    window = [seen for seen in told if seen["phase"] == "window"]
    assert len(window) >= 3  # also of a window of two seconds
    assert all(len(later["rates"]) >= len(earlier["rates"]) for earlier, later in itertools.pairwise(window))
    last = window[-1]
    assert 5 <= len(last["rates"]) <= 20 and last["window_s"] == 2.0
    assert sum(last["rates"]) / len(last["rates"]) == pytest.approx(RATE, rel=0.25)
    found = re.fullmatch(r"measuring, \d+ of 2 s, [\d,]+ tok/s; mean so far ([\d,]+) tok/s \[([\d,]+), ([\d,]+)\] at 95 %", so_far(last))
    assert found is not None, so_far(last)
    mean, low, high = (float(part.replace(",", "")) for part in found.groups())
    assert low <= mean <= high


def test_before_five_parts_there_is_no_interval_and_in_the_warm_up_no_mean() -> None:
    window = {"phase": "window", "elapsed_s": 12.0, "window_s": 60.0, "tokens_per_s": 1070.4, "rates": [1000.0, 1100.0, 1050.0, 1060.0]}
    assert so_far(window) == "measuring, 12 of 60 s, 1,070 tok/s"
    assert so_far({**window, "rates": [*window["rates"], 1040.0]}).startswith("measuring, 12 of 60 s, 1,070 tok/s; mean so far 1,050 tok/s [")
    assert so_far({"phase": "warmup", "elapsed_s": 3.2, "tokens_per_s": 31.26}) == "warming up, 3 s, 31.3 tok/s"
    assert so_far({**window, "rates": [0.0] * 6}) == "measuring, 12 of 60 s, 1,070 tok/s"  # nothing came: no mean


def test_a_line_of_an_older_load_generator_is_read_too() -> None:
    assert so_far({"phase": "window", "elapsed_s": 5.0, "tokens_per_s": 12.0}) == "measuring, 5 s, 12.0 tok/s"
    assert so_far({"phase": "window"}) == "measuring, 0 s, no rate yet"


def test_the_first_moments_of_a_window_have_no_rate() -> None:
    assert so_far({"phase": "window", "elapsed_s": 1.0, "window_s": 60.0, "tokens_per_s": 67094.0}) == "measuring, 1 of 60 s, no rate yet"
    assert so_far({"phase": "window", "elapsed_s": 4.0, "window_s": 60.0, "tokens_per_s": 40181.0}) == "measuring, 4 of 60 s, 40,181 tok/s"


def test_without_a_terminal_a_long_phase_is_told_again() -> None:
    stream, times = io.StringIO(), iter([40.0, 41.0, 69.0, 71.0, 71.0])
    view = BenchProgress(stream, lambda: next(times, 72.0))
    for second in (1, 2, 29, 31):
        view.note(f"c=8: warming up, {second} s, 100 tok/s")
    view.note("c=8: measuring, 1 of 8 s, no rate yet")
    view._stream.settle()
    assert [line.partition(" s,")[0] for line in stream.getvalue().splitlines()] == ["c=8: warming up, 1", "c=8: warming up, 31", "c=8: measuring, 1 of 8"]
