"""Real sockets for the load generator: null servers as processes of their own, jobs run in a process of their own."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "optimizer" / "bench"


class Ran:
    """Lines, exit status and summary of one run of the load generator."""

    def __init__(self, done: "subprocess.CompletedProcess[bytes]") -> None:
        self.lines = done.stdout.splitlines()
        self.status = done.returncode
        self.stderr = done.stderr.decode()
        self.summary: dict[str, Any] = json.loads(self.lines[-1]) if self.lines else {}


@contextmanager
def running_null_server(*arguments: str) -> Iterator[str]:
    """A null server for the time of a with block; its base URL."""
    process = subprocess.Popen([sys.executable, str(BENCH / "nullserver.py"), *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    finally:
        process.terminate()
        assert process.wait(5) == 0
        process.stdout.close()


@pytest.fixture
def null_server() -> Iterator[Callable[..., str]]:
    """Start a null server with these arguments; its base URL."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(running_null_server(*arguments))


def run_load(base_url: str, *, timeout_s: float = 30, env: dict[str, str] | None = None, **changes: Any) -> Ran:
    """Run one small job against a URL; keyword arguments replace parts of the job."""
    prompts = {"seed": "7", "salt": "a", "vocabulary": "words", "prompt_tokens": 32}
    job: dict[str, Any] = {
        "base_url": base_url,
        "model": "m",
        "concurrency": 4,
        "output_tokens": 16,
        "prompts": prompts,
    }
    job.update(warmup_min_s=0.1, warmup_max_s=0.2, window_s=0.6)
    job.update(changes)
    command = [sys.executable, str(BENCH / "loadgen.py")]
    done = subprocess.run(
        command, input=json.dumps(job).encode() + b"\n", capture_output=True, timeout=timeout_s, env=env, check=False
    )
    return Ran(done)


@pytest.fixture
def load() -> Callable[..., Ran]:
    return run_load


@pytest.fixture
def vocabulary() -> set[str]:
    """Fact names of the project's own vocabulary."""
    path = Path(__file__).parents[3] / "playbooks" / "facts.yaml"
    return set(re.findall(r"- name: (\S+)", path.read_text()))
