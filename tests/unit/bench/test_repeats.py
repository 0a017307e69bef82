"""What an answer's own text could have predicted: the share on made-up streams, and through a real run."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from optimizer.bench.plain.answers import pieces_of, repeat_share
from optimizer.bench.run import summarise
from optimizer.model.workload import Workload


def test_a_cycle_is_predictable_from_its_second_round_on() -> None:
    cycle = [f"t{index % 24}" for index in range(128)]
    assert repeat_share(cycle) == pytest.approx((128 - 27) / 125)


def test_new_text_is_not_predictable() -> None:
    draw = random.Random(1)
    assert repeat_share([str(draw.randrange(5000)) for _ in range(500)]) == 0.0


def test_a_changed_continuation_counts_as_wrong() -> None:
    assert repeat_share(["a", "b", "c", "x", "a", "b", "c", "y"] * 8) < 0.7


def test_short_answers_say_nothing() -> None:
    assert repeat_share(["a"] * 15) is None and repeat_share([]) is None


def test_pieces_are_the_texts_of_events() -> None:
    events = [
        {"choices": [{"text": "a"}]}, {"choices": [{"delta": {"content": "b"}}]}, {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [], "usage": {"prompt_tokens": 1}}, {"choices": [{"text": ""}]},
    ]  # fmt: skip
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\r\n\r\n" for event in events) + b"data: [DONE]\n\nrest"
    assert pieces_of(body) == ["a", "b"]
    assert pieces_of(b"\xff\n\ndata: 1\n\ndata: []\n\n") == []


def test_a_run_states_it(null_server: Any, load: Any) -> None:
    """The null server sends the same text again and again: all of it is predictable."""
    done = load(null_server("--gap-ms", "2"), window_s=0.6, output_tokens=32)
    point = summarise(done.lines, Workload(output_tokens=32, prompt_tokens=32), 4)
    assert point.metrics["output_repeat_share"] > 0.9
