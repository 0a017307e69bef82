"""The driver of the long sweeps has as many cases as docs/safety.md says, and runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_driver_lists_what_the_document_counts() -> None:
    """``--for 0`` begins no case."""
    command = [sys.executable, "benchmarks/sweeps/run.py", "all", "--for", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    sizes = {name: row["of"] for name, row in json.loads(done.stdout).items()}
    assert all(row["run"] == row["failed"] == 0 for row in json.loads(done.stdout).values())
    told = re.findall(r"^\| .*`sweeps/run\.py (\w+)`.*\| (\d+) of ([\d,]+)", (ROOT / "docs/safety.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: int(of.replace(",", "")) for name, _, of in told} == sizes
    assert all(int(run) <= sizes[name] for name, run, _ in told)
