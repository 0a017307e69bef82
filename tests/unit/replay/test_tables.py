"""Tables of measurements: what is read, what is left out and why, and what the policies are allowed to know."""

import csv
import io
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from optimizer.cli import main
from optimizer.errors import UsageError
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.search.contest import contest
from optimizer.search.policies import names, policy
from optimizer.search.table import direction_of, effect_of, read_tables

ROOT = Path(__file__).parents[3]
DIRECTIONS = load_library(find_knowledge(ROOT)).directions


def text(rows: list[dict[str, object]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def grid(seed: int = 0, noise: float = 0.0, repeats: int = 1) -> str:
    """A box with a knee: more GPUs and more requests help, until the pool is full."""
    source = random.Random(seed)
    rows = []
    for tp in (1, 2, 4, 8):
        for seqs in (16, 32, 64, 128, 256, 512):
            for _ in range(repeats):
                speed = 1000 * tp**0.7 * min(seqs, 60 * tp) ** 0.6
                rows.append({"tp": tp, "max-num-seqs": seqs, "output_tps": speed * (1 + noise * source.gauss(0, 1))})
    return text(rows)


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["replay", *words])


def test_missing_cells_are_settings_that_were_not_given_and_rows_without_a_result_are_counted() -> None:
    table = "tp,offload,tps\n1,,100\n2,on,200\n4,off,\n8,on,400\n"
    found = read_tables(table, ["tp", "offload"], "tps")
    assert [point["offload"] for point in found.tables[0].points] == [None, "on", "on"]
    assert found.left_out == {"tps holds no value": 1} and found.examples == {"tps holds no value": "line 4"}


def test_text_in_numbers_leaves_the_row_out_with_its_line() -> None:
    table = "tp,tps\n1,100\n2,fast\n4,300\n8,nan\nmany,500\n16,inf\n2,120\n8,400\n3,130\n"
    found = read_tables(table, ["tp"], "tps")
    assert found.left_out == {
        "tps holds text instead of a number": 1, "tps holds nan or inf, which no run measures": 2, "tp holds text where other rows hold numbers": 1,
    }  # fmt: skip
    assert found.examples["tps holds nan or inf, which no run measures"] == "line 5"
    assert found.examples["tp holds text where other rows hold numbers"] == "line 6"
    assert [point["tp"] for point in found.tables[0].points] == [1, 4, 2, 8, 3]


def test_one_row_is_nothing_to_choose_between() -> None:
    with pytest.raises(UsageError, match="nothing to choose"):
        read_tables("tp,tps\n1,100\n", ["tp"], "tps")
    with pytest.raises(UsageError, match="nothing to choose"):
        read_tables("tp,tps\n1,100\n1,90\n", ["tp"], "tps")
    found = read_tables("g,tp,tps\na,1,100\nb,1,90\nb,2,95\n", ["tp"], "tps", group=["g"])
    assert [table.name for table in found.tables] == ["g=b"] and found.small == ("g=a",)


def test_an_empty_table_says_so() -> None:
    with pytest.raises(UsageError, match="it holds no row"):
        read_tables("tp,tps\n", ["tp"], "tps")
    with pytest.raises(UsageError, match="no column tp, tps"):
        read_tables("", ["tp"], "tps")


def test_duplicate_configurations_with_different_results_are_noise_and_none_is_overwritten() -> None:
    found = read_tables("tp,tps\n1,100\n2,200\n1,110\n1,90\n2,220\n", ["tp"], "tps").tables[0]
    assert found.results == ((100.0, 110.0, 90.0), (200.0, 220.0))
    assert found.values == (100.0, 210.0)
    assert found.noise() == pytest.approx(0.0907, abs=0.0001)
    assert contest(found, ("random",), (), 400)[0].launches_to["99%"].mean == pytest.approx(1.5, abs=0.15)


def test_a_launch_gives_one_of_the_repeated_results_and_the_truth_stays_the_mean() -> None:
    table = read_tables(grid(noise=0.05, repeats=3), ["tp", "max-num-seqs"], "output_tps").tables[0]
    assert table.noise() == pytest.approx(0.05, rel=0.35)
    score = contest(table, ("evidence",), DIRECTIONS, 50)[0]
    assert score.launches_to["90%"].reached == 1.0


@pytest.mark.parametrize(
    ("table", "words", "complaint"),
    [
        ("tp,tp,tps\n1,2,3\n", {}, "twice"),
        ("tp,tps\n1,2\n2,3\n", {"params": ["no"]}, "has no column no"),
        ("tp,tps\n1,2\n2,3\n", {"params": ["tps"]}, "the objective as a parameter"),
        ("tp,tps\n1,2\n2,3\n", {"default": {"pp": "1"}}, "--default names pp"),
    ],
)
def test_what_cannot_be_meant_is_refused(table: str, words: dict[str, object], complaint: str) -> None:
    arguments = {"params": ["tp"], **words}
    with pytest.raises(UsageError, match=complaint):
        read_tables(table, objective="tps", **arguments)  # type: ignore[arg-type]


def test_rows_with_too_many_cells_are_left_out() -> None:
    assert read_tables("tp,tps\n1,100\n2,200,7\n4,300\n", ["tp"], "tps").left_out == {"it has more cells than the header": 1}


def test_a_column_of_json_objects_gives_its_keys() -> None:
    rows = [{"flags": json.dumps(flags), "tps": speed} for flags, speed in (({}, 1.0), ({"tp": "2"}, 2.0), ({"tp-size": "4", "x": "{a:1}"}, 3.0))]
    table = read_tables(text(rows), ["flags"], "tps").tables[0]
    assert table.points[2] == {"flags:tp": None, "flags:tp-size": 4, "flags:x": "{a:1}"}
    assert policy("evidence", table, DIRECTIONS)(0).ask() == 2


@pytest.mark.parametrize(
    ("objective", "direction", "effect"),
    [
        ("total_throughput_tps", "max", "throughput"), ("tput_per_gpu", "max", "per_gpu"), ("p99_ttft_ms", "min", "latency"),
        ("mean_intvty", "max", "latency"), ("tokens_per_s", "max", "throughput"), ("median_tpot", "min", "latency"), ("objective_0", "max", "throughput"),
        ("duration_s", "min", "latency"), ("score", "max", "throughput"), ("p99", "min", "latency"), ("p99_ms", "min", "latency"), ("e2e", "min", "latency"),
        ("mean_e2el_s", "min", "latency"), ("wall_s", "min", "latency"), ("ms_per_token", "min", "latency"), ("s/it", "min", "latency"), ("p99.9", "min", "latency"),
        ("TTFT (ms)", "min", "latency"), ("tok/s", "max", "throughput"), ("tokens_s", "max", "throughput"), ("p99_tps", "max", "throughput"),
        ("error_rate", "min", "latency"), ("hit_rate", "max", "throughput"), ("tokens_per_joule", "max", "throughput"), ("cost_per_million_tokens", "min", "latency"),
        ("tps_per_watt", "max", "throughput"), ("time_per_output_token", "min", "latency"), ("busbw_gbps", "max", "throughput"), ("avg_ts", "max", "throughput"),
    ],
)  # fmt: skip
def test_the_name_of_the_objective_tells_its_direction(objective: str, direction: str, effect: str) -> None:
    assert direction_of(objective) == direction
    assert effect_of(objective, direction_of(objective)) == effect


def test_a_direction_that_the_name_does_not_tell_is_called_assumed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("tp,score,p99\n1,10,3\n2,20,4\n2,22,4\n")
    words = ("--table", str(path), "--params", "tp", "--policies", "evidence,random", "--seeds", "3")
    said = call(*words, "--objective", "score").output
    assert "more is better: the name does not tell, --direction min if it is not" in said
    assert "pooled over all repeated rows of a group, launched or not; evidence is told it" in said
    assert "(less is better, as --direction says)" in call(*words, "--objective", "score", "--direction", "min").output
    assert "(less is better)" in call(*words, "--objective", "p99").output


@pytest.mark.gate("S9")
def test_evidence_needs_at_most_half_of_random_on_a_box_with_a_knee() -> None:
    table = read_tables(grid(), ["tp", "max-num-seqs"], "output_tps").tables[0]
    scores = {score.policy: score.launches_to["95%"].mean for score in contest(table, ("evidence", "gp", "random"), DIRECTIONS, 100)}
    assert scores["evidence"] <= 0.5 * scores["random"]
    assert scores["gp"] < scores["random"]


def test_names_that_nobody_knows_fall_back_to_the_model() -> None:
    renamed = grid().replace("tp,max-num-seqs", "alpha,beta")
    table = read_tables(renamed, ["alpha", "beta"], "output_tps").tables[0]
    scores = {score.policy: score.launches_to["95%"].mean for score in contest(table, ("evidence", "random"), DIRECTIONS, 100)}
    assert scores["evidence"] < 0.8 * scores["random"]


def test_wrong_knowledge_is_overruled_by_measurements() -> None:
    """The same box upside down: everything that knowledge expects is wrong."""
    rows = list(csv.DictReader(io.StringIO(grid())))
    upside = text([{**row, "output_tps": 1e9 / float(row["output_tps"])} for row in rows])
    table = read_tables(upside, ["tp", "max-num-seqs"], "output_tps").tables[0]
    scores = {score.policy: score.launches_to["95%"].mean for score in contest(table, ("evidence", "random"), DIRECTIONS, 100)}
    assert scores["evidence"] <= scores["random"]


@pytest.mark.parametrize("name", names())
def test_a_policy_asks_for_every_configuration_once(name: str) -> None:
    table = read_tables("tp,x,tps\n1,a,100\n2,b,90\n4,a,80\n8,c,70\n", ["tp", "x"], "tps").tables[0]
    score = contest(table, (name,), DIRECTIONS, 5)[0]
    assert score.launches_to["99%"].reached == 1.0
    assert 1 <= score.launches_to["99%"].mean <= 4


def test_seeds_repeat_and_policies_see_nothing_that_was_not_paid_for() -> None:
    table = read_tables(grid(), ["tp", "max-num-seqs"], "output_tps").tables[0]
    shuffled = read_tables(grid().replace("1000", "1000"), ["tp", "max-num-seqs"], "output_tps").tables[0]
    for name in ("evidence", "gp", "random"):
        orders = []
        for source in (table, shuffled):
            run = policy(name, source, DIRECTIONS)(7)
            order = []
            for _ in range(10):
                index = run.ask()
                assert isinstance(index, int)
                order.append(index)
                run.tell(index, 0.0)  # everything measures the same, whatever the table holds
            orders.append(order)
        assert orders[0] == orders[1] and len(set(orders[0])) == 10


def test_a_configuration_that_was_never_measured_is_counted_and_not_interpolated() -> None:
    rows = [row for row in csv.DictReader(io.StringIO(grid())) if (int(row["tp"]) + int(row["max-num-seqs"])) % 3]
    table = read_tables(text([dict(row) for row in rows]), ["tp", "max-num-seqs"], "output_tps").tables[0]
    score = contest(table, ("tpe",), (), 4)[0]
    assert score.not_recorded > 0
    assert score.steps <= 4 * len(table.points)


def test_results_that_are_not_positive_are_compared_without_logarithms() -> None:
    table = read_tables("tp,gain\n1,-5\n2,0\n4,10\n", ["tp"], "gain").tables[0]
    assert table.share(10) == 1.0 and table.share(0) == 0.0
    assert contest(table, ("evidence",), DIRECTIONS, 3)[0].launches_to["99%"].reached == 1.0


def test_ten_thousand_steps_a_second_and_thousands_of_seeds() -> None:
    table = read_tables(grid(), ["tp", "max-num-seqs"], "output_tps").tables[0]
    for name in ("random", "evidence"):
        best = max(score.steps / score.own_s for score in (contest(table, (name,), DIRECTIONS, 2000)[0] for _ in range(3)))
        assert best > 10_000, (name, best)


def test_a_failed_run_that_was_written_down_as_the_fastest_does_not_win() -> None:
    found = read_tables("tp,latency_ms\n1,10\n2,8\n4,0\n8,-1\n", ["tp"], "latency_ms")
    assert found.tables[0].best == 8.0 and found.tables[0].share(10.0) == pytest.approx(0.8)
    assert found.left_out == {"latency_ms is not above 0, which no run that worked gives": 2} and "line 4" in found.examples.values()
    odd = read_tables("tp,loss\n1,10\n2,-5\n4,0\n", ["tp"], "loss").tables[0]
    assert odd.best == -5.0 and all(-1.0 <= odd.share(value) <= 1.0 for value in odd.values), "a loss may be below 0, and shares stay sane"


def test_random_needs_what_chance_says_and_its_error_is_printed() -> None:
    """Of N distinct configurations of which K are good enough, a random order needs (N + 1) / (K + 1) launches on average."""
    table = read_tables(grid(), ["tp", "max-num-seqs"], "output_tps").tables[0]
    good = sum(table.share(value) >= 0.95 for value in table.values)
    expected = (len(table.points) + 1) / (good + 1)
    found = contest(table, ["random"], DIRECTIONS, 2000)[0].launches_to["95%"]
    assert found.mean == pytest.approx(expected, abs=4 * found.se) and 0 < found.se < 0.2
    assert contest(table, ["random"], DIRECTIONS, 1)[0].launches_to["95%"].se == 0.0


def test_runs_that_ended_before_they_were_there_are_not_called_launches_to_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(grid())
    words = ("--table", str(path), "--params", "tp,max-num-seqs", "--objective", "output_tps", "--seeds", "40")
    few = json.loads(call(*words, "--policies", "evidence,random", "--launches", "3", "--json").stdout)
    group = few["groups"][0]
    assert group["policies"]["random"]["launches_to"]["95%"]["reached"] < 1 and group["evidence_against_is"] == {"random": "at most"}
    assert few["summary"]["median_is_lower_bound"]["random"]["95%"] and not few["summary"]["median_is_lower_bound"]["evidence"]["95%"]
    assert "random    at least " in few["text"] and "(reached in " in few["text"] and "evidence needs at most " in few["text"]
    one = json.loads(call(*words, "--policies", "evidence,gp", "--launches", "1", "--json").stdout)
    assert all(0 <= speed["decided"] <= speed["steps"] for speed in one["speed"].values())
    worse = text([{"conc": conc, "tps": 200.0 if conc == 2 else 100.0 + conc / 100} for conc in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)])
    path.write_text(worse)
    lost = json.loads(call("--table", str(path), "--params", "conc", "--objective", "tps", "--policies", "evidence,random", "--launches", "2", "--seeds", "40", "--json").stdout)
    assert lost["summary"]["half_of_random"] is None and "cannot be told" in lost["text"], "neither got there in every run"
    assert "evidence  not in 2 / not in 2 / not in 2" in lost["text"]


def test_cells_that_nobody_can_compute_with_are_left_out_with_their_reason() -> None:
    huge = read_tables("tp,score\n1,5\n2,1e308\n4,1e308\n2,6\n", ["tp"], "score")
    assert huge.left_out == {"score holds a number that no unit makes a measurement": 2} and len(huge.tables[0].points) == 2
    rows = [{"flags": cell, "tps": speed} for cell, speed in (('{"tp": 1}', 1), ('{"tp": 2}', 2), ("{bad", 3), ("[1]", 4), ("", 5))]
    found = read_tables(text(rows), ["flags"], "tps")
    assert found.left_out == {"flags holds no JSON object where other rows hold one": 2}
    assert [point["flags:tp"] for point in found.tables[0].points] == [1, 2, None]


def test_a_header_with_spaces_is_read_and_another_separator_is_named() -> None:
    assert [point["tp"] for point in read_tables(" tp , tps\n1,5\n2,6\n", ["tp"], "tps").tables[0].points] == [1, 2]
    with pytest.raises(UsageError) as told:
        read_tables("tp;tps\n1;5\n2;6\n", ["tp"], "tps")
    assert "separated by semicolons" in str(told.value.hint)


def test_what_was_looked_up_is_not_called_decided() -> None:
    table = read_tables(grid(), ["tp", "max-num-seqs"], "output_tps").tables[0]
    score = contest(table, ["evidence"], DIRECTIONS, 50)[0]
    assert 0 < score.decided <= score.steps / 10, "without noise and ties, all seeds are one history"
    chance = contest(table, ["random"], DIRECTIONS, 50)[0]
    assert chance.decided == chance.steps


def test_the_command_prints_a_document(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(grid())
    done = call("--table", str(path), "--params", "tp,max-num-seqs", "--objective", "output_tps", "--policies", "evidence,random", "--seeds", "30", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    group = found["groups"][0]
    assert group["default"]["configuration"] == {"tp": 1, "max-num-seqs": 16}
    assert group["default"]["share_of_best"] == pytest.approx(0.03, abs=0.001)
    assert set(group["policies"]["evidence"]["launches_to"]) == {"90%", "95%", "99%"}
    assert len(group["policies"]["random"]["regret"]) > 5
    assert found["summary"]["half_of_random"] is True


def test_where_it_does_not_win_the_report_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    # A spike where neither knowledge nor its neighbours would look.
    path.write_text(text([{"conc": conc, "tps": 200.0 if conc == 2 else 100.0 + conc / 100} for conc in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)]))
    done = call("--table", str(path), "--params", "conc", "--objective", "tps", "--policies", "evidence,random", "--seeds", "200")
    assert done.exit_code == 0
    assert "It does not win on: t.csv" in done.output


def test_a_default_that_was_never_measured_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(grid())
    words = ["--table", str(path), "--params", "tp,max-num-seqs", "--objective", "output_tps", "--policies", "random", "--seeds", "2"]
    assert "the default was never measured" in call(*words, "--default", "tp=16").output
    assert "gives 100 % of the best" in call(*words, "--default", "tp=8,max-num-seqs=512").output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "Name either a study or a --table"),
        (["--table", "T", "--params", "tp"], "--params and --objective"),
        (["--table", "T", "--params", "tp", "--objective", "output_tps", "--policies", "oracle"], "no policy 'oracle'"),
        (["--table", "T", "--params", "tp", "--objective", "output_tps", "--where", "tp"], "is not understood"),
        (["--table", "T", "--params", "tp", "--objective", "output_tps", "--logs", "x"], "--logs needs --baseline"),
        (["--table", "T", "--params", "tp", "--objective", "output_tps", "--baseline", "3"], "--baseline says nothing here"),
        (["--table", "T", "--params", "tp", "--objective", "output_tps", "--logs", "x", "--baseline", "inf"], "--baseline inf is no measurement"),
        (["--table", "T", "--params", "tp", "--objective", "output_tps", "--logs", "x", "--baseline", "-5"], "--baseline -5 is no measurement"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_a_usage_error(words: list[str], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(grid())
    done = call(*[str(path) if word == "T" else word for word in words])
    assert done.exit_code == 2 and complaint in done.output


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"tp,tps\n1,\xff\xfe\n")
    assert "not UTF-8" in call("--table", str(path), "--params", "tp", "--objective", "tps").output


def test_a_point_that_tpe_asks_for_is_spelled_in_the_table_s_values() -> None:
    """Optuna knows ordered numbers by their place: place 1 of tp is 2 here, and must not be taken for tp = 1."""
    rows = [{"tp": tp, "seqs": seqs, "tps": 100.0 * tp + seqs} for tp in (1, 2, 4, 8) for seqs in (0, 1, 2, 3) if (tp, seqs) != (1, 1) and (tp + seqs) % 3]
    table = read_tables(text(rows), ["tp", "seqs"], "tps").tables[0]
    recorded = {(point["tp"], point["seqs"]) for point in table.points}
    asked = []
    for seed in range(6):
        run, measured = policy("tpe", table, ())(seed), set()
        for _ in range(5):
            found = run.ask()
            if isinstance(found, int):
                measured.add((table.points[found]["tp"], table.points[found]["seqs"]))
                run.tell(found, 0.0)
            else:
                asked.append((found["tp"], found["seqs"]))
                assert asked[-1] not in recorded - measured
                run.unrecorded()
    assert {tp for tp, _ in asked} <= {1, 2, 4, 8}
