"""What runs on the box: one text each, standard library only, Python 3.8 syntax, started by the oldest Python at hand."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optimizer.bench.program import loadgen_program
from optimizer.transport.base import BOOTSTRAP
from tests.interpreters import interpreters
from tests.old_syntax import parsed

from .conftest import BENCH


def sent() -> bytes:
    """The load generator as a box gets it."""
    return b"%d\n" % len(loadgen_program()) + loadgen_program()


def test_stdlib_only_and_python_38() -> None:
    tree = parsed((BENCH / "nullserver.py").read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            imported.add(node.module.split(".")[0])
    assert imported - set(sys.stdlib_module_names) <= {"uvloop"}


@pytest.mark.parametrize("version", [(3, 8), (3, 12)])
def test_runs_under_other_pythons(version: tuple[int, int]) -> None:
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} here")
    job = b'{"base_url":"http://127.0.0.1:9","concurrency":1,"output_tokens":1,"warmup_min_s":0,"warmup_max_s":0,"window_s":0.3,'
    job += b'"prompts":{"seed":"1","salt":"1","vocabulary":"ascii","prompt_tokens":8}}\n'
    done = subprocess.run([python, "-I", "-c", BOOTSTRAP], input=sent() + job, capture_output=True, timeout=20, check=False)
    assert not done.stderr and b'"refused"' in done.stdout.splitlines()[-1]


def test_runs_on_uvloop_where_there_is_one(null_server: Any) -> None:
    """The comparison's environment has it (benchmarks/loadgen); ours need not."""
    python = Path(__file__).parents[3] / ".clients/plain/bin/python"
    if not python.exists() or subprocess.run([python, "-c", "import uvloop"], capture_output=True, check=False).returncode:
        pytest.skip("no uvloop here")
    job = {"base_url": null_server("--gap-ms", "5"), "model": "m", "concurrency": 8, "output_tokens": 32, "warmup_min_s": 0.2, "warmup_max_s": 0.4,
           "window_s": 1.0, "prompts": {"seed": "1", "salt": "1", "vocabulary": "words", "prompt_tokens": 16}}  # fmt: skip
    done = subprocess.run([python, "-I", "-c", BOOTSTRAP], input=sent() + json.dumps(job).encode() + b"\n", capture_output=True, timeout=30, check=False)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert not done.stderr and not summary["errors"] and summary["loop"] == "uvloop"
    assert sum(summary["tokens"]) / summary["measured_s"] == pytest.approx(8 * 32 / 0.155, rel=0.1)
