"""A server that holds its text back: rates stay, token times are not stated. Found on a real GPU, where two pieces for 512 tokens
gave a TPOT of twice the truth."""

from __future__ import annotations

import json
from typing import Any

from optimizer.bench.run import summarise
from optimizer.model.workload import Workload


def test_answers_in_a_few_large_pieces_state_no_token_times(null_server: Any, load: Any) -> None:
    workload = Workload(output_tokens=128, prompt_tokens=32)
    done = load(null_server("--gap-ms", "1"), window_s=0.8, output_tokens=128)
    as_streamed = summarise(done.lines, workload, 4)
    held = summarise(_in_two_pieces(done.lines), workload, 4)
    assert "tpot_p50_ms" in as_streamed.metrics
    assert not [name for name in held.metrics if name.startswith(("tpot", "itl"))]
    assert any("holds its text back" in note for note in held.notes)
    assert held.metrics["output_tokens_per_s"] == as_streamed.metrics["output_tokens_per_s"]


def _in_two_pieces(lines: list[bytes]) -> list[bytes]:
    """The same run as if every answer had come in two chunks."""
    summary = next(value for value in map(json.loads, lines) if value["t"] == "summary")
    place = summary["fields"].index("chunks")
    changed = []
    for line in lines:
        value = json.loads(line)
        if value["t"] == "r":
            value["v"][place] = min(value["v"][place], 2)
        changed.append(json.dumps(value).encode())
    return changed
