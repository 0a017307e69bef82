"""``optimize bench`` as a person uses it, against null servers: table, documents, files, knee, comparison, Ctrl-C."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optimizer.cli import main

SHORT = ("--window", "1", "--warmup", "0.3", "--warmup-max", "2", "--prompt-tokens", "32", "--output-tokens", "16")
KEY = "sk-canary-0123456789abcdef"


def bench(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["bench", *words], env=env)


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_steps_as_document_csv_and_plot(null_server: Any, tmp_path: Path) -> None:
    url = null_server("--gap-ms", "5")
    files = {name: tmp_path / f"o.{name}" for name in ("csv", "svg", "json")}
    result = bench(url, *SHORT, "--concurrency", "1,4", "--csv", str(files["csv"]), "--plot", str(files["svg"]), "--out", str(files["json"]), "--json")
    found = document(result)
    assert "concurrency 1, 4, 32 prompt tokens" in result.stderr
    assert [point["load"] for point in found["points"]] == [1, 4]
    assert found["points"][1]["metrics"]["output_tokens_per_s"] == pytest.approx(4 * 16 / 0.075, rel=0.15)
    assert json.loads(files["json"].read_text()) == found
    rows = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert [float(row["concurrency"]) for row in rows] == [1, 4] and float(rows[1]["tpot_p50_ms"]) == pytest.approx(5, rel=0.3)
    drawn = files["svg"].read_text()
    assert drawn.startswith("<svg") and "TPOT" in drawn and found["points"][0]["valid"] in (True, False)


def test_the_table_names_what_is_missing_and_how_much(null_server: Any) -> None:
    result = bench(null_server("--gap-ms", "5"), *SHORT, "--concurrency", "2", "--target", "ttft.p99.9<1s,1tps", "--slo", "ttft<1s")
    assert "out tok/s" in result.stdout and "good req/s" in result.stdout
    assert "needs 4603 without a miss" in result.stdout
    assert result.exit_code == 3


def test_a_target_that_is_met_and_one_that_is_not(null_server: Any) -> None:
    url = null_server("--gap-ms", "5")
    assert bench(url, *SHORT, "--target", "1tps@2").exit_code in (0, 4)  # 4: never steady on a busy machine
    assert bench(url, *SHORT, "--target", "1000000tps@2").exit_code == 3


@pytest.mark.slow
def test_the_knee_of_a_server_with_a_known_one(null_server: Any) -> None:
    """Each stream adds to the step time in no null server, so the bound is on the rate: 10 users make 10 * 16/0.075 tok/s."""
    result = bench(null_server("--gap-ms", "5"), *SHORT, "--knee", "--concurrency", "2,12", "--target", "e2e<5s", "--json")
    found = document(result)
    assert found["knee"] is not None and (found["knee"]["good"] == 12 or found["note"])


def test_two_servers_are_offered_the_same_work(null_server: Any) -> None:
    slow, fast = null_server("--gap-ms", "10"), null_server("--gap-ms", "5")
    result = bench(slow, "--against", fast, *SHORT, "--concurrency", "2", "--json")
    found = document(result)
    one, other = found["points"][0]["metrics"], found["against"]["points"][0]["metrics"]
    assert other["output_tokens_per_s"] / one["output_tokens_per_s"] == pytest.approx(2, rel=0.2)


def test_the_key_of_the_environment_is_used_and_never_shown(null_server: Any, tmp_path: Path) -> None:
    url = null_server("--gap-ms", "5", "--api-key", KEY)
    result = bench(url, *SHORT, "--out", str(tmp_path / "o.json"), env={"OPTIMIZE_API_KEY": KEY})
    assert "out tok/s" in result.stdout, result.output
    assert KEY not in result.output and KEY not in (tmp_path / "o.json").read_text()
    without = bench(url, *SHORT)
    assert without.exit_code == 2 and "OPTIMIZE_API_KEY" in without.output and KEY not in without.output


def test_ctrl_c_prints_what_was_measured(null_server: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "optimizer", "bench", null_server("--gap-ms", "5"), "--concurrency", "2,4", "--json", *SHORT]
    command[command.index("--window") + 1] = "60"
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, env={**os.environ, "COLUMNS": "200"})
    end = time.monotonic() + 30
    while "measuring" not in (tmp_path / "err").read_text():
        assert time.monotonic() < end and process.poll() is None, (tmp_path / "err").read_text()
        time.sleep(0.05)
    time.sleep(0.8)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    found = json.loads(out)
    assert process.returncode == 130 and found["interrupted"] and len(found["points"]) == 1
    assert 0.3 < found["points"][0]["window_s"] < 30
    assert found["points"][0]["metrics"]["output_tokens_per_s"] == pytest.approx(2 * 16 / 0.075, rel=0.3)
    codes = [item["code"] for item in found["points"][0]["invalid"]]
    assert "interrupted" in codes and "errors" not in codes and not found["points"][0]["errors"]  # stopping is nobody's failure


def test_rates_of_an_open_loop(null_server: Any) -> None:
    found = document(bench(null_server("--gap-ms", "2"), *SHORT, "--rate", "40", "--json"))
    assert found["points"][0]["unit"] == "requests/s" and found["workload"]["arrival"] == "poisson"
    assert found["points"][0]["metrics"]["requests_per_s"] == pytest.approx(40, rel=0.5)
