"""The user's probes, and what servers answer to a completion."""

from pathlib import Path

import pytest

from optimizer.errors import UsageError
from optimizer.model.answers import FEWEST_PROBES, PROBES
from optimizer.runner.answers import parse, read_probes


def test_probes_are_strings_or_objects(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('"one"\n\n{"prompt": "two", "note": "kept apart"}\n"three"\n{"prompt": "four"}\n')
    assert read_probes(path) == ("one", "two", "three", "four")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"a"\n"b"\n"c"\n', "3 probes"), ("", "0 probes"), ('"x"\n' * 65, "65 probes"), ('"a"\nnot json\n', "line 2"), ('{"text": "a"}\n', "line 1"),
        ('"  "\n', "line 1"), ('"' + "x" * 20_001 + '"\n', "20,001"), ("[1]\n", "line 1"),
    ],
)  # fmt: skip
def test_what_is_no_probe_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_probes(path)


def test_the_built_in_probes_are_enough_to_tell_a_change() -> None:
    assert len(set(PROBES)) == len(PROBES) >= 2 * FEWEST_PROBES


def test_tokens_and_margins_of_an_answer() -> None:
    choice = {"text": " a b", "logprobs": {"tokens": [" a", " b"], "token_logprobs": [-0.1, -1.5],
                                             "top_logprobs": [{" a": -0.1, " c": -3.1}, {" b": -1.5, " d": -1.2}]}}  # fmt: skip
    found = parse({"choices": [choice]})
    assert found is not None and found.tokens == (" a", " b")
    assert found.margins == (3.0, 0.0)  # a token that was not the likeliest is a tie
    assert found.close == {1: (" d",)}
    bare = parse({"choices": [{"text": " a  b\nc"}]})
    assert bare is not None and bare.tokens == (" a", "  b", "\nc") and bare.margins == ()


@pytest.mark.parametrize("value", [None, [], {}, {"choices": []}, {"choices": [{"text": None}]}, {"choices": ["x"]}])
def test_what_is_no_answer_is_none(value: object) -> None:
    assert parse(value) is None


def test_odd_log_probabilities_do_not_cost_the_answer() -> None:
    odd = {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None]}
    assert parse({"choices": [{"text": "a", "logprobs": odd}]}).margins == (20.0,)  # type: ignore[union-attr]
    assert parse({"choices": [{"text": "a", "logprobs": {"tokens": ["a"]}}]}).tokens == ("a",)  # type: ignore[union-attr]
