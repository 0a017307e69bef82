"""The driver of the long sweeps has as many cases as docs/safety.md says, runs, and leaves nothing behind."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.sweeps import spread
from benchmarks.sweeps.forking import Forks

ROOT = Path(__file__).parents[2]


def test_the_driver_lists_what_the_document_counts() -> None:
    """``--for 0`` begins no case."""
    command = [sys.executable, "benchmarks/sweeps/run.py", "all", "--for", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    sizes = {name: row["of"] for name, row in json.loads(done.stdout).items()}
    assert all(row["run"] == row["failed"] == 0 for row in json.loads(done.stdout).values())
    told = re.findall(r"^\| .*`sweeps/run\.py (\w+)`.*\| ([\d,]+) of ([\d,]+)", (ROOT / "docs/safety.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: int(of.replace(",", "")) for name, _, of in told} == sizes
    assert all(int(run.replace(",", "")) <= sizes[name] for name, run, _ in told)


def test_a_forked_command_is_a_process_like_any_other(tmp_path: Path) -> None:
    """Its words, environment, folder, streams and way out are its own, and SIGKILL ends it."""
    forks = Forks(tmp_path)

    def run(*words: str, **env: str) -> tuple[int, str, str]:
        with (tmp_path / "out").open("w+") as out, (tmp_path / "err").open("w+") as err:
            process = forks.start(words, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **env}, tmp_path, out, err)
            code = process.wait(120)
            assert process.poll() == code
            return code, (tmp_path / "out").read_text(), (tmp_path / "err").read_text()

    try:
        from optimizer import __version__

        assert run("--version") == (0, f"optimize, version {__version__}\n", "")
        code, out, err = run("--runs", "none", "journal", "nosuch", "--json")
        assert code != 0 and "nosuch" in json.loads(out)["error"]["message"] and "Traceback" not in err
        (tmp_path / "mine").mkdir()
        assert run("studies", OPTIMIZE_RUNS=str(tmp_path / "mine"))[0] == 0
        assert run("doctor", "--host", "localhost", OPTIMIZER_CRASH_AT="*:1")[0] == -9
        assert run("--version")[0] == 0  # the others are not concerned
    finally:
        forks.close()
    assert spread.living(tmp_path) == set()


WORKER = """
import json, subprocess, sys
for text in sys.stdin:
    family, name, _ = json.loads(text)
    if name == "dies":
        sys.exit(7)
    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
    print(json.dumps({"family": family, "case": name, "ok": name != "bad"}), flush=True)
"""


def test_cases_are_shared_out_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A failed case and a dead worker cost no other case; what a worker leaves running is ended and told of."""
    monkeypatch.setattr(spread, "ENDING_S", 0.1)
    monkeypatch.setattr(spread.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(spread.shutil, "rmtree", lambda *_, **__: None)
    lines: list[spread.Line] = []
    cases = [("kills", name) for name in ("one", "bad", "dies", "two", "three")]
    spread.spread(cases, [sys.executable, "-c", WORKER], 2, 600.0, None, lines.append)
    assert {line["case"]: line["ok"] for line in lines} == {"one": True, "bad": False, "dies": False, "two": True, "three": True}
    assert "its worker ended: 7" in next(line["error"] for line in lines if line["case"] == "dies")
    assert "4 processes were ended at the end, though every case was over" in capfd.readouterr().err
    end = time.monotonic() + 10
    while spread.living(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert spread.living(tmp_path) == set()


def test_results_of_several_machines_are_one(tmp_path: Path) -> None:
    """A failure is never hidden by a later success, and a line that was cut short counts for nothing."""
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    rows = [{"family": "kills", "case": f"seed {seed}", "ok": ok, "deaths": 20} for seed, ok in ((1, True), (2, False), (3, True))]
    here.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"family": "kills", "ca')
    there.write_text("".join(json.dumps({**row, "ok": True}) + "\n" for row in rows[1:2]))
    found = spread.read([here, there, tmp_path / "none.jsonl"])
    assert {case: line["ok"] for (_, case), line in found.items()} == {"seed 1": True, "seed 2": False, "seed 3": True}
    command = [sys.executable, "benchmarks/sweeps/run.py", "kills", "--count", "4", "--for", "0", "--out", str(here), "--out", str(there)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (1, {"kills": {"run": 3, "failed": 1, "of": 4, "deaths": 60}})
