"""The Pareto front of what a study measured."""

import json
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner

from optimizer.cli import main
from optimizer.core.front_shown import Spread, choices
from optimizer.core.tradeoff import FrontPoint
from optimizer.model.settings import Settings
from optimizer.model.verdict import Noise

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
    assert all(row["latency_interval"][0] < row["latency_ms"] < row["latency_interval"][1] for row in front)
    assert found["kept"]["place"] == "trade-off 1" and "(kept by the study)" in found["text"]


def test_the_same_launches_have_the_same_interval_as_in_the_report() -> None:
    front = json.loads(CliRunner().invoke(main, ["tradeoff", str(HISTORY), "--json"]).stdout)["front"]
    trials = json.loads(CliRunner().invoke(main, ["report", str(HISTORY), "--format", "json", "--output", "-"]).stdout)["trials"]
    rows = {round(trial["value"], 2): trial["interval"] for trial in trials if trial["value"]}
    shared = [(row["rate_interval"], rows[row["output_tokens_per_s"]]) for row in front if row["output_tokens_per_s"] in rows]
    assert shared and all(abs(one - other) < 0.01 for pair in shared for one, other in zip(*pair, strict=True))


def test_a_latency_that_was_not_measured_is_said() -> None:
    done = CliRunner().invoke(main, ["tradeoff", str(HISTORY), "--latency", "ttft_p12_ms"])
    assert done.exit_code == 2 and "measured no ttft_p12_ms" in done.output and "ttft_p50_ms" in done.output


BY = Spread(rate=Noise(sd=0.02, degrees_of_freedom=10), latency=Noise(sd=0.02, degrees_of_freedom=10), confidence=0.95)  # 6.3 % tell two launches apart


def found(*points: tuple[float, float, int]) -> list[tuple[float, list[float], list[float]]]:
    """(rate, rates of its ties, rates of what is ahead by noise alone) of every trade-off; a point is (rate, latency, launches)."""
    made = [FrontPoint(Settings(values={"max_running_requests": place}), 16, rate, latency, launches) for place, (rate, latency, launches) in enumerate(points)]

    def rates(some: Sequence[FrontPoint]) -> list[float]:
        return [point.rate for point in some]

    return [(choice.point.rate, rates(choice.ties), rates(choice.by_noise)) for choice in choices(made, BY)]


def test_points_within_the_noise_of_each_other_are_one_trade_off() -> None:
    assert found((1000, 10.0, 1), (990, 9.9, 1), (500, 5.0, 1), (501, 5.1, 1)) == [(1000, [990], []), (501, [500], [])]


def test_what_is_beaten_by_noise_alone_is_shown_beside_what_beats_it() -> None:
    """The winner of a study, two launches that look a little worse than one lucky launch of another setting, is not left out."""
    assert found((1000, 10.0, 1), (980, 10.2, 2), (700, 12.0, 1)) == [(1000, [980], [])]


def test_slower_for_certain_and_sooner_within_the_noise_is_no_trade_off() -> None:
    assert found((1000, 10.0, 1), (700, 9.9, 1)) == [(1000, [], [700])]
    assert found((1000, 10.0, 1), (700, 9.0, 1)) == [(1000, [], []), (700, [], [])]
    assert found((1000, 10.0, 4), (965, 9.65, 4)) == [(1000, [], []), (965, [], [])], "more launches tell more apart: 3.2 % of four and four"
    assert found((1000, 10.0, 1)) == [(1000, [], [])]
