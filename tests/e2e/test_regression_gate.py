"""docs/examples/regression-gate.yml does what it says: its steps are run as a runner runs them, against a server that is fast enough
and against one that is not. Only the port, the length of the window and the pause between two looks are the test's."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .fastbox import FastBox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WORKFLOW = Path(__file__).parents[2] / "docs/examples/regression-gate.yml"


def steps(box: FastBox, target: str) -> list[dict[str, Any]]:
    text = WORKFLOW.read_text(encoding="utf-8")
    text, measured = re.subn(r"--concurrency 16 --window 120 --target '1000tps,ttft\.p95<500ms'", f"--workload w.json --concurrency 8 --window 2 --target '{target}'", text)
    assert measured == 1 and text.count("8000") == 3 and "sleep 5" in text
    found: list[dict[str, Any]] = yaml.safe_load(text.replace("8000", str(box.port)).replace("sleep 5", "sleep 0.2"))["jobs"]["gate"]["steps"]
    return found


def gate(box: FastBox, target: str) -> dict[str, int]:
    """What a runner does: `bash -e` for each step until one fails, then those that are for failures or for every case. (name -> exit code)"""
    (box.here / "deploy").mkdir(exist_ok=True)
    (box.here / "deploy/launch.sh").write_text(f"cd {box.home}\nexec {' '.join(box.argv)}\n")
    env = {**box.env, "PATH": f"{box.env['PATH']}:{Path(sys.executable).parent}", "OPTIMIZE_KNOWLEDGE": str(box.folder / "knowledge")}
    codes: dict[str, int] = {}
    failed = False
    for step in steps(box, target):
        when = step.get("if", "success()")
        if "run" not in step or when not in ("always()", "failure()" if failed else "success()"):
            continue
        script = box.here / "step.sh"
        script.write_text(step["run"])
        with (box.here / "said").open("ab") as said:
            # The server of the first step outlives it, so nothing waits for the step's output to end.
            process = subprocess.Popen(["bash", "-e", str(script)], cwd=box.here, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        codes[step["name"].partition(" (")[0]] = code = process.wait(300)
        failed = failed or code != 0
    return codes


def test_a_server_that_is_too_slow_does_not_pass_and_the_artifacts_say_why(box: FastBox) -> None:
    codes = gate(box, "100000tps")
    assert codes == {"Start the server of this change": 0, "Measure": 3, "Say why": 0, "Stop the server": 0}, (box.here / "said").read_text()[-3000:]
    measured = json.loads((box.here / "bench.json").read_text())
    assert measured["points"][0]["metrics"]["output_tokens_per_s"] > 10
    diagnosis = json.loads((box.here / "diagnosis.json").read_text())
    assert any(row["id"] == "cuda-graph-disabled" for row in diagnosis["hypotheses"])
    assert (box.here / "server.log").stat().st_size > 0
    pid = int((box.here / "server.pid").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(300):
            os.kill(pid, 0)
            subprocess.run(["sleep", "0.1"], check=True)


def test_one_that_is_fast_enough_passes(box: FastBox) -> None:
    codes = gate(box, "20tps")
    assert codes["Start the server of this change"] == 0 and codes["Stop the server"] == 0
    assert codes["Measure"] == 0 or (codes["Measure"] == 4 and "Say why" in codes), (box.here / "said").read_text()[-3000:]  # 4: never steady, on a busy machine
    assert json.loads((box.here / "bench.json").read_text())["points"][0]["metrics"]["output_tokens_per_s"] > 20
