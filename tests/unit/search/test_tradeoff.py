"""The Pareto front of what a study measured."""

import json
from pathlib import Path

from click.testing import CliRunner

from optimizer.cli import main

HISTORY = Path(__file__).parents[2] / "histories" / "h200-7b-eager"


def test_no_point_of_the_front_is_beaten_by_another() -> None:
    done = CliRunner().invoke(main, ["tradeoff", str(HISTORY), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    front = found["front"]
    assert len(front) >= 2 and found["beaten"] >= 1
    rates, delays = [row["output_tokens_per_s"] for row in front], [row["latency_ms"] for row in front]
    assert rates == sorted(rates, reverse=True) and delays == sorted(delays, reverse=True)
    assert all(row["rate_interval"][0] < row["output_tokens_per_s"] < row["rate_interval"][1] for row in front)


def test_the_same_launches_have_the_same_interval_as_in_the_report() -> None:
    front = json.loads(CliRunner().invoke(main, ["tradeoff", str(HISTORY), "--json"]).stdout)["front"]
    trials = json.loads(CliRunner().invoke(main, ["report", str(HISTORY), "--format", "json", "--output", "-"]).stdout)["trials"]
    rows = {round(trial["value"], 2): trial["interval"] for trial in trials if trial["value"]}
    shared = [(row["rate_interval"], rows[row["output_tokens_per_s"]]) for row in front if row["output_tokens_per_s"] in rows]
    assert shared and all(abs(one - other) < 0.01 for pair in shared for one, other in zip(*pair, strict=True))


def test_a_latency_that_was_not_measured_is_said() -> None:
    done = CliRunner().invoke(main, ["tradeoff", str(HISTORY), "--latency", "ttft_p12_ms"])
    assert done.exit_code == 2 and "measured no ttft_p12_ms" in done.output and "ttft_p50_ms" in done.output
