"""The box itself says which of its processes are sides of one split: real processes under the names that engines have."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.box.plain import machine, procfs
from optimizer.evidence.deployment import described, groups


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[dict[int, str]]:
    for name in ("sglang/launch_server.py", "sglang_router/launch_router.py"):
        file = tmp_path / name
        file.parent.mkdir()
        (file.parent / "__init__.py").touch()
        file.write_text("import time\ntime.sleep(60)\n")
    lines = {
        "prefill": ["-m", "sglang.launch_server", "--model-path", str(tmp_path), "--disaggregation-mode", "prefill", "--port", "31501", "--api-key", "sk-canary"],
        "decode": ["-m", "sglang.launch_server", "--model-path", str(tmp_path), "--disaggregation-mode", "decode", "--port", "31502"],
        "router": ["-m", "sglang_router.launch_router", "--pd-disaggregation", "--prefill", "http://127.0.0.1:31501", "--port", "31500"],
    }
    started = [subprocess.Popen([sys.executable, *line], env={**os.environ, "PYTHONPATH": str(tmp_path)}) for line in lines.values()]
    yield {process.pid: role for process, role in zip(started, lines, strict=True)}
    for process in started:
        process.kill()
        process.wait()


def test_a_split_on_this_machine(pair: dict[int, str]) -> None:
    end = time.monotonic() + 20
    found: list[dict[str, object]] = []
    while len(found) < 3 and time.monotonic() < end:  # a process carries its command line only after exec
        time.sleep(0.1)
        found = [row for row in machine._servers(procfs.table(), False) if row["pid"] in pair]
    assert {row["pid"]: row["role"] for row in found} == pair
    assert "sk-canary" not in repr(found)
    assert [described(group) for group in groups(found)] == [["router:31500", "prefill:31501", "decode:31502"]]
