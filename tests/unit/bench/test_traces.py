"""Traces and conversations in the formats of others."""

import json
from pathlib import Path
from typing import Any

import pytest

from optimizer.bench.traces import parse_conversations, parse_trace, resolve
from optimizer.errors import UsageError
from optimizer.model.workload import Workload
from optimizer.runner.hosts import read_workload

MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 61]}

{"timestamp": 33600, "input_length": 10, "output_length": 1, "hash_ids": [7]}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,0
2023-11-16 18:16:46.6805900,1,55
"""
AZURE_2024 = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.009930+00:00,2399,6\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,Conversation log\n"
SHARE = [
    {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello there, you."}, {"from": "human", "value": "Bye"}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "I begin"}, {"from": "human", "value": "?"}]},
    {"id": "c", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a" * 400}]},
]


def test_mooncake() -> None:
    first, second, third = parse_trace(MOONCAKE, "t")
    assert (first.at_s, second.at_s, third.at_s) == pytest.approx((0.0, 3.053, 6.118))
    assert (second.prompt_tokens, second.output_tokens, second.blocks) == (6472, 26, (46, 47, 61))


def test_azure_of_both_years_and_burstgpt() -> None:
    rows = parse_trace(AZURE, "t")
    assert [row.at_s for row in rows] == pytest.approx([0, 4.314579, 60.0])  # an answer without tokens offers nothing
    assert [row.prompt_tokens for row in rows] == [374, 396, 1]
    assert [row.at_s for row in parse_trace(AZURE_2024, "t")] == pytest.approx([0, 1])
    assert [(row.at_s, row.prompt_tokens, row.output_tokens) for row in parse_trace(BURST, "t")] == [(0, 472, 18), (40, 1087, 230)]


def test_a_part_of_a_trace_played_faster() -> None:
    rows = parse_trace(AZURE, "t", speed=2.0, from_s=4.0, most=2)
    assert [row.at_s for row in rows] == pytest.approx([0.1572895, 28.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "0 usable"), ("{}\n{}", "line 1"), ('{"timestamp": 1, "input_length": "x", "output_length": 3}', "line 1"), ("a,b\n1,2\n", "line 2"), ("{", "not JSON"),
     ('{"timestamp": 1, "input_length": 4, "output_length": 3}', "1 usable"), ("[1, 2]", "0 usable"), ("\x00\x01", "0 usable"), ('{"timestamp": 1e999, "input_length": 4, "output_length": 3}', "line 1"),
     ('{"timestamp": 1, "input_length": 4, "output_length": 3, "hash_ids": ["x"]}', "hash_ids"), ("[" * 100000, "not JSON")],
)  # fmt: skip
def test_broken_traces_are_named_with_their_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_trace(text, "t.jsonl")


def test_sharegpt_and_openai_messages() -> None:
    first, second = parse_conversations(json.dumps(SHARE), "s")
    assert [(turn.asked, turn.answered, turn.output_tokens) for turn in first] == [("Hi", "Hello there, you.", 4)]
    assert second[0].asked == "q" and second[0].output_tokens == 100
    assert len(parse_conversations("\n".join(json.dumps(one) for one in SHARE), "s", most=1)) == 1
    for text in ("[]", "{}", json.dumps(SHARE[1:2]), '[{"conversations": "x"}]'):
        with pytest.raises(UsageError, match="no conversation"):
            parse_conversations(text, "s")


def test_a_workload_file_points_to_its_sources(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    (tmp_path / "s.json").write_text(json.dumps(SHARE))
    (tmp_path / "w.toml").write_text('trace = "t.jsonl"\ntrace_speed = 2.0\nwindow_s = 5\n')
    found = read_workload(tmp_path / "w.toml", Workload())
    assert found.arrival == "trace" and found.trace[1].at_s == pytest.approx(1.5265) and found.side_levels == ()
    assert found.prompt_tokens == round((6955 + 6472 + 10) / 3) and "trace" in found.text
    again = Workload.model_validate(json.loads(json.dumps(found.plain())))
    assert again == found  # a journal holds all of it: the file may go
    (tmp_path / "w.toml").write_text('conversations = "s.json"\nthink_s = 1.5\n')
    talks = read_workload(tmp_path / "w.toml", Workload())
    assert talks.api == "chat" and len(talks.conversations) == 2 and "2 recorded conversations" in talks.text
    (tmp_path / "w.toml").write_text('prompt_lengths = {kind = "uniform", low = 10, high = 20}\narrival = "poisson"\nrate_per_s = 3\n')
    mixed = read_workload(tmp_path / "w.toml", Workload())
    assert 14 <= mixed.prompt_tokens <= 16 and mixed.rate_per_s == 3


@pytest.mark.parametrize("text", ['trace = "nowhere.jsonl"', "trace_speed = 2", 'trace = "w.toml"', 'conversations = "w.toml"', "max_conversations = 3",
                                  'trace = "w.toml"\ntrace_speed = 0', "arrival = 'poisson'", 'slo = "1000tps"', "trace = 3"])  # fmt: skip
def test_what_cannot_be_used_is_one_clear_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "w.toml").write_text(text)
    with pytest.raises(UsageError, match="workload file"):
        read_workload(tmp_path / "w.toml", Workload())


def test_resolved_fields_pass_through() -> None:
    data: dict[str, Any] = {"concurrency": 3, "trace": [{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1}]}
    assert resolve(data, lambda name: "") == data
