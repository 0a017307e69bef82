"""The soak of benchmarks/soak, short: one launch for each victim, and the box is what it was after each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.e2e.fastbox import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_launched_again_and_again_while_somebody_is_killed() -> None:
    """It fails at the first trace: a process, a file, a port, a segment of shared memory."""
    command = [sys.executable, str(REPOSITORY / "benchmarks/soak/run.py"), "--launches", "5"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert said["launches"] == 5 and said["left"] == 0 and said["ready"] >= 1
    assert said["killed"].get("coordinator") and len(said["killed"]) >= 2, said
    assert said["descriptors_more"] == 0
    assert said["resident_mib_more"] < 16, "whoever talks to the box keeps memory of every launch"
