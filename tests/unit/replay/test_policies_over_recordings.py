"""Another policy over what was measured: recorded launches of a real server, and a study's journal."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from optimizer.cli import main
from optimizer.wiring.replaying import first_difference

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "tests" / "recordings" / "sglang-0.5.12-h200"
HISTORY = ROOT / "tests" / "histories" / "h200-7b-eager"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["replay", *words])


def document(*words: str) -> dict[str, object]:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def recorded(policy: str, start: str, concurrency: int = 16) -> dict[str, object]:
    return document(str(RECORDINGS), "--policy", policy, "--from", start, "--concurrency", str(concurrency))


def test_from_eager_to_within_five_percent_of_the_best_in_one_launch() -> None:
    found = recorded("evidence", "tp1-7b-nograph")
    assert found["launches_to_95%"] == 1
    assert found["best"] == {"name": "tp1-7b-contdecode8", "value": 2728.66}
    assert found["launches"][0]["name"] == "tp1-7b-graph32"  # type: ignore[index]
    assert "cuda-graph-disabled" in found["launches"][0]["why"]  # type: ignore[index]


def test_graphs_that_are_too_small_are_cured_in_one_launch() -> None:
    assert recorded("evidence", "tp1-7b-graph4")["launches_to_95%"] == 1


def test_a_dead_setting_and_a_launch_that_must_fail_are_never_launched() -> None:
    for start in ("tp1-7b-nograph", "tp1-7b-graph4", "tp1-7b-graph32-b"):
        names = {launch["name"] for launch in recorded("evidence", start)["launches"]}  # type: ignore[attr-defined]
        assert not names & {"tp1-7b-contdecode8", "tp1-7b-badflag", "tp1-7b-oom"}, (start, names)


def test_what_was_refused_is_listed_with_the_reason() -> None:
    refused = recorded("evidence", "tp1-7b-nograph")["refused"]
    assert isinstance(refused, dict) and {"tp1-7b-badflag", "tp1-7b-oom", "tp1-7b-contdecode8"} <= set(refused) and refused["tp1-7b-contdecode8"].startswith("dead: ")


def test_one_configuration_beside_the_baseline_is_nothing_to_choose_between() -> None:
    for policy in ("tpe", "gp", "random"):
        done = call(str(ROOT / "runs" / "recorded" / "h200-7b-eager"), "--policy", policy)
        assert done.exit_code == 2 and "there is nothing for" in done.output


def test_what_was_never_measured_is_counted() -> None:
    assert '{"disable_cuda_graph":null}' in recorded("evidence", "tp1-7b-nograph")["not_recorded"]  # type: ignore[operator]


def test_only_launches_of_the_same_model_and_gpus_are_compared() -> None:
    names = {launch["name"] for launch in recorded("evidence", "tp2-27b-nccl-shm")["launches"]}  # type: ignore[attr-defined]
    assert names and all(name.startswith("tp2-27b") for name in names)


@pytest.mark.parametrize("policy", ["random", "gp", "tpe"])
def test_plain_policies_run_on_the_same_measurements(policy: str) -> None:
    found = recorded(policy, "tp1-7b-nograph")
    assert 1 <= found["launches_to"]["95%"]["mean"] <= 6  # type: ignore[index]


def test_a_file_is_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([{"cuda_graph_max_bs": 999}, {"disable_cuda_graph": None, "cuda_graph_max_bs": 4}, {"disable_cuda_graph": None, "cuda_graph_max_bs": 32}]))
    found = recorded(str(path), "tp1-7b-nograph")
    assert [launch["name"] for launch in found["launches"]] == ["tp1-7b-graph4", "tp1-7b-graph32"]  # type: ignore[attr-defined]
    assert found["launches_to_95%"] == 2 and found["not_recorded"] == ['{"cuda_graph_max_bs":999}']


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--policy", "evidence", "--from", "nothing"], "does not name one launch"),
        (["--policy", "evidence", "--from", "tp1-7b-oom", "--concurrency", "16"], "was not measured at concurrency 16"),
        (["--policy", "oracle", "--from", "tp1-7b-nograph", "--concurrency", "16"], "no policy 'oracle'"),
        (["--policy", "evidence", "--from", "tp1-7b-nograph", "--concurrency", "7"], "Loads that were measured: 1, 16"),
        (["--policy", "missing.json", "--from", "tp1-7b-nograph", "--concurrency", "16"], "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: list[str], complaint: str) -> None:
    done = call(str(RECORDINGS), *words)
    assert done.exit_code == 2 and complaint in done.output


def test_a_journal_is_replayed_under_another_policy() -> None:
    found = document(str(HISTORY), "--policy", "evidence")
    assert found["launches_to_95%"] == 1
    assert document(str(HISTORY), "--policy", "evidence")["launches"] == found["launches"]


def test_a_journal_is_replayed_for_any_metric_and_load_that_it_measured() -> None:
    best = {words: document(str(HISTORY), "--policy", "evidence", *words)["best"] for words in ((), ("--objective", "ttft_p50_ms"), ("--concurrency", "1"))}
    rates = [best[words]["value"] for words in best]  # type: ignore[index]
    assert len(set(rates)) == 3, "the target's own, a latency, and the rate of a side level"
    done = call(str(HISTORY), "--policy", "random", "--objective", "nothing")
    assert done.exit_code == 2 and "measured no nothing" in done.output and "tpot_p50_ms" in done.output
    done = call(str(HISTORY), "--policy", "random", "--concurrency", "77")
    assert done.exit_code == 2 and "measured nothing at concurrency 77" in done.output


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["STUDY", "--seeds", "3"], "--seeds"), (["STUDY", "--verify", "--seeds", "3"], "--seeds"), (["STUDY", "--policy", "evidence", "--verify"], "--verify"),
        (["STUDY", "--policy", "evidence", "--until", "3"], "--until"), (["STUDY", "--policy", "evidence", "--seeds", "3"], "--seeds"),
        (["STUDY", "--from", "baseline"], "--from"), (["STUDY", "--objective", "x"], "--objective"), (["STUDY", "--where", "a=b"], "--where"),
        (["--table", __file__, "--params", "a", "--objective", "b", "--verify"], "--verify"),
        (["--table", __file__, "--params", "a", "--objective", "b", "--policy", "tpe"], "--policy"),
    ],
)  # fmt: skip
def test_an_option_that_would_say_nothing_is_refused_with_where_it_belongs(words: list[str], option: str) -> None:
    done = call(*[str(HISTORY) if word == "STUDY" else word for word in words])
    assert done.exit_code == 2 and f"{option} says nothing here" in done.output
    assert "belongs to: optimize replay" in done.output or "a policy with luck" in done.output


def test_an_entry_that_the_journal_does_not_have_is_no_end_of_a_replay() -> None:
    for words in (("--verify",), ()):
        done = call(str(HISTORY), *words, "--until", "9999")
        assert done.exit_code == 2 and "there is no entry 9999" in done.output


def test_what_an_older_policy_decided_otherwise_is_named_with_the_place_and_the_reason() -> None:
    done = call(str(HISTORY), "--verify")
    assert done.exit_code == 6, done.output
    assert "entry 17 (chosen), first in bundle[0]" in done.output
    assert 'recorded   "cuda-graph-disabled"' in done.output and 'recomputed "ngram-speculation-off"' in done.output
    assert "policy version 1" in done.output and "no fault of the record" in done.output


@pytest.mark.parametrize(
    ("recorded", "recomputed", "expected"),
    [
        ('["chosen",{"a":{"b":[1,2]}},3]', '["chosen",{"a":{"b":[1,3]}},3]', ("a.b[1]", "2", "3")),
        ('["chosen",{"a":1},3]', '["chosen",{"a":1,"c":null},3]', ("c", "nothing", "null")),
        ('["chosen",{"a":1},3]', '["pruned",{"a":1},3]', ("[0]", '"chosen"', '"pruned"')),
        ('["chosen",{"a":1},3]', "finished", ("the decision", '["chosen",{"a":1},3]', "finished")),
        ('["chosen",{"a":[1]},3]', '["chosen",{"a":[1,2]},4]', ("a[1]", "nothing", "2")),
    ],
)
def test_the_first_difference_of_two_decisions(recorded: str, recomputed: str, expected: tuple[str, str, str]) -> None:
    assert first_difference(recorded, recomputed) == expected
