"""`optimize --help` answers at once: nothing heavy is imported before a command needs it."""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGET_S = 0.3
HEAVY = {"asyncssh", "httpx", "optuna", "numpy", "pydantic", "sqlite_utils", "yaml", "psycopg", "rich", "structlog"}


def test_help_is_within_its_budget() -> None:
    taken = []
    for _ in range(10):  # the machine may be busy with something else: the best of ten is what the program needs
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "optimizer", "--help"], cwd=ROOT, capture_output=True, check=True)
        taken.append(time.monotonic() - began)
        if taken[-1] <= BUDGET_S:
            break
    assert b"diagnose" in done.stdout
    assert min(taken) <= BUDGET_S, taken


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, runpy; sys.argv = ['optimize', '--help']\ntry: runpy.run_module('optimizer', run_name='__main__')\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not HEAVY & {name.partition(".")[0] for name in done.stderr.split()}
