"""One call tells what the kernel says of a box and a server, beside the answers of programs: bounded, read-only, no secrets."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.box.plain import machine, procfs
from optimizer.evidence.found import Found
from optimizer.evidence.host import host_facts

BUSY = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], env={**os.environ, "NCCL_CUMEM_ENABLE": "0", "OMP_NUM_THREADS": "1"})
print("up", flush=True)
child.wait()
"""


async def test_a_server_is_watched(box: Box, home: Path, spawn: Callable[..., Any], tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "4", "SGLANG_API_KEY": "supersecretvalue1", "HF_TOKEN": "hf_" + "a" * 30, "EDITOR": "vi"}
    process = spawn([sys.executable, "-c", BUSY], env=environment, stdout=-1)
    assert process.stdout.readline() == b"up\n"
    host, answers = await box.survey(process.pid, {"a.txt": ["echo", "out"], "none.txt": ["no-such-program-here"]}, interval_s=0.8)
    assert (answers["a.txt"].exit, answers["a.txt"].stdout) == (0, b"out\n") and "none.txt" not in answers
    server = host["server"]
    assert server["environment"] == {"OMP_NUM_THREADS": "4", "SGLANG_API_KEY": "«secret»"}
    worker = next(row for row in server["processes"] if row["parent"] == process.pid)
    assert worker["environment_changes"] == {"NCCL_CUMEM_ENABLE": "0", "OMP_NUM_THREADS": "1"}
    assert worker["cpu_pct"] > 5 and worker["rss_bytes"] > 1 << 20
    assert all(str(worker["pid"]) in sample for sample in server["busiest_threads"]) and len(server["busiest_threads"]) == 4
    assert "supersecret" not in str(host) and "hf_aaa" not in str(host) and "EDITOR" not in str(host)
    assert list(home.iterdir()) == []  # it writes nothing
    found = Found("host.json")
    host_facts(found, b"{}", host, "vllm", {"OMP_NUM_THREADS": "4", "SGLANG_API_KEY": "«secret»"})
    assert found.get("settings.env_differs") == {"OMP_NUM_THREADS": {"asked": "4", "rank": "1"}}
    assert found.get("host.cpu_count") == os.cpu_count()


async def test_programs_run_side_by_side_and_are_bounded(box: Box) -> None:
    began = time.monotonic()
    slow = {f"{number}.txt": ["sleep", "1"] for number in range(8)}
    _, answers = await box.survey(None, {**slow, "big.txt": ["sh", "-c", "yes | head -c 100000"]}, interval_s=0.2, max_bytes=1000)
    assert time.monotonic() - began < 6 and all(answers[name].exit == 0 for name in slow)
    assert answers["big.txt"].truncated and len(answers["big.txt"].stdout) == 1000
    began = time.monotonic()
    _, answers = await box.survey(None, {"hangs.txt": ["sleep", "60"]}, interval_s=0.2, timeout_s=0.5)
    assert answers["hangs.txt"].timed_out and time.monotonic() - began < 6


@pytest.mark.parametrize(
    ("lines", "files", "folder", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.stat": "", "a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000", "a/cpu.stat": ""}, "a/b", 1.5),
        ("0::/\n", {"cpu.stat": "", "cpu.max": "400000 100000"}, "", 4.0),
        ("4:cpu,cpuacct:/x\n0::/\n", {"cpu,cpuacct/x/cpu.stat": "", "cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, "cpu,cpuacct/x", 2.5),
        ("4:cpu:/x\n", {"cpu/cpu.stat": "", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "cpu", None),
        ("0::/gone\n", {}, None, None),
    ],
    ids=["v2-parent-limits", "v2-in-a-container", "v1", "v1-no-limit", "nothing"],
)  # fmt: skip
def test_cpu_limit_of_both_kinds_of_control_groups(
    lines: str, files: dict[str, str], folder: str | None, quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's paths, laid out below a scratch folder."""
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    real_read, real_exists = procfs.read, os.path.exists
    moved = lambda path: str(path).replace("/sys/fs/cgroup", str(tmp_path))  # noqa: E731
    monkeypatch.setattr(machine.procfs, "read", lambda path, cap=1 << 22: lines.encode() if path.endswith("/cgroup") else real_read(moved(path), cap))
    monkeypatch.setattr(machine.os.path, "exists", lambda path: real_exists(moved(path)))
    found = machine.cgroup_folder(None)
    assert found == (None if folder is None else "/sys/fs/cgroup" + (f"/{folder}" if folder else ""))
    assert machine.quota_cores(found) == quota


def test_numa_pages_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"7f00 default anon=3 dirty=3 N0=2 N1=1 kernelpagesize_kB=4\n7f01 default file=/x N1=1 kernelpagesize_kB=2048\n7f02 default\n"
    monkeypatch.setattr(machine.procfs, "read", lambda path, cap=0: text)
    assert machine._numa_bytes(1, 1 << 20) == {"0": 8192, "1": 4096 + (2 << 20)}
    assert machine._numa_bytes(1, 1 << 40) is None  # answering would hold up the server
