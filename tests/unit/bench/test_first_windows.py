"""A load whose first windows show what the job calls hopeless ends there, and says so; any other runs to its end."""

from typing import Any

import pytest

from optimizer.bench.run import STOPPED_EARLY, summarise
from optimizer.model.workload import Workload

# 4 requests of 16 tokens, one every 10 ms: 4 * 16 tokens in 0.15 s.
RATE = 4 * 16 / 0.15


@pytest.mark.parametrize(("stop_below", "stopped"), [(2 * RATE, True), (0.5 * RATE, False), (None, False)])
def test_a_hopeless_rate_ends_the_window_after_a_third_of_it(null_server: Any, load: Any, stop_below: float | None, stopped: bool) -> None:
    ran = load(null_server("--gap-ms", "10"), window_s=1.8, stop_below=stop_below)
    point = summarise(ran.lines, Workload(output_tokens=16), 4)
    assert ran.status == 0 and not ran.summary["gave_up"]
    assert bool(ran.summary["stopped_early"]) is stopped
    assert any(note.startswith(STOPPED_EARLY) for note in point.notes) is stopped
    assert point.window_s == pytest.approx(0.6 if stopped else 1.8, rel=0.15)
    # What was measured until then is a measurement: the same rate, whatever the length of the window.
    assert point.metrics["output_tokens_per_s"] == pytest.approx(RATE, rel=0.15)


def test_before_a_request_has_told_its_tokens_nothing_is_hopeless(null_server: Any, load: Any) -> None:
    """A chunk of four tokens counts as one until then: a draft must not look four times slower than it is."""
    url = null_server("--gap-ms", "10", "--tokens-per-chunk", "4")
    ran = load(url, output_tokens=2000, window_s=1.2, stop_below=3 * 4 * 100.0)
    assert ran.summary["stopped_early"] == ""
