"""Decisions depend on their arguments alone. Everything below the shell is imported, and exercised on real input, in a
process in which reading a clock, drawing a random number, opening a file, making a connection or starting a process raises."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = ["model", "stats", "ceiling", "core"]

# Imports come first: Python itself reads files for them. What follows is the work.
HARNESS = """
    import importlib, pkgutil, sys
    names = []
    for package in sys.argv[1].split(","):
        module = importlib.import_module(f"optimizer.{package}")
        names += [f"optimizer.{package}", *(found.name for found in pkgutil.walk_packages(module.__path__, module.__name__ + "."))]
    for name in names:
        importlib.import_module(name)
    forbidden = {"optimizer.log", "optimizer.crashpoint", "asyncssh", "click", "httpx", "numpy", "optuna", "rich", "sqlite3",
                 "sqlite_utils", "structlog", "yaml"}
    assert not forbidden & set(sys.modules), forbidden & set(sys.modules)
    entries = []
    if len(sys.argv) > 2:
        import json
        entries = json.loads(sys.stdin.read())

    import builtins, io, os, random, socket, subprocess, time
    def refuse(name):
        def raiser(*args, **kwargs):
            raise AssertionError(f"{name} was called by what has to be pure")
        return raiser
    for module, functions in {
        time: ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "localtime", "gmtime"],
        random: ["random", "randint", "choice", "shuffle", "sample", "uniform", "gauss", "getrandbits", "seed", "SystemRandom"],
        os: ["urandom", "open", "listdir", "scandir", "stat", "getenv", "getcwd", "system", "fork"],
        socket: ["socket", "create_connection", "getaddrinfo"],
        subprocess: ["run", "Popen"],
        builtins: ["open", "input", "print"],
        io: ["open"],
    }.items():
        for function in functions:
            setattr(module, function, refuse(f"{module.__name__}.{function}"))
"""


def run(work: str, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HARNESS) + textwrap.dedent(work), ",".join(PURE), *args],
        input=stdin, capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip


def test_everything_pure_imports_without_an_outside_package() -> None:
    done = run("sys.stdout.write(str(len(names)))")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.parametrize("call", ["time.time()", "random.random()", "open('/dev/null')", "os.urandom(1)", "socket.socket()", "subprocess.run([])"])
def test_the_harness_refuses(call: str) -> None:
    done = run(call)
    assert done.returncode != 0
    assert "has to be pure" in done.stderr


def recorded() -> list[Path]:
    return sorted([*(ROOT / "runs" / "recorded").glob("*/journal.db"), *(ROOT / "tests" / "histories").glob("**/journal.db")])


def test_recorded_histories_fold_without_a_clock_or_a_file() -> None:
    """Every prefix of every recorded study, in the purged process."""
    from optimizer.journal import Journal

    histories = []
    for path in recorded():
        with Journal.open(path, write=False) as journal:
            histories.append("[" + ",".join(entry.model_dump_json() for entry in journal.read()) + "]")
    if not histories:
        pytest.skip("no study is recorded yet: runs/recorded/ and tests/histories/ are empty")
    work = """
        from optimizer.core.state import fold
        from optimizer.model.entry import Entry
        for history in entries:
            parsed = [Entry.model_validate(entry) for entry in history]
            for end in range(len(parsed) + 1):
                fold(parsed[:end])
    """
    done = run(work, "stdin", stdin="[" + ",".join(histories) + "]")
    assert done.returncode == 0, done.stderr
