"""A job streams its lines, is bounded, and is gone when its call is over."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.errors import LinkLost

from .conftest import alive, until


async def test_source_input_arguments_and_lines(box: Box) -> None:
    lines: list[bytes] = []
    source = (
        b"import os,sys\nif __name__ == '__main__':\n data = sys.stdin.buffer.read()\n print(len(data), sys.argv[1:])\n"
    )
    source += b" print(os.environ['OPTIMIZER_LAUNCH_ID'], os.environ['A'])\n sys.stderr.write('note')\n print('no line end', end='')"
    data = os.urandom(300_000)
    result = await box.run_job(source, data, "s1:j", 20, lines.append, args=["-a", "b c"], env_changes={"A": "$x"})
    assert lines == [b"300000 ['-a', 'b c']", b"s1:j $x", b"no line end"]
    assert (result.exit, result.stderr, result.timed_out) == (0, b"note", False)


async def test_lines_arrive_while_the_job_runs(box: Box) -> None:
    seen: list[float] = []
    job = b"import time\nfor _ in range(3):\n print('x', flush=True)\n time.sleep(0.3)"
    await box.run_job(job, b"", "s1:j", 20, lambda _: seen.append(time.monotonic()))
    assert seen[2] - seen[0] > 0.4


async def test_a_job_that_fails_says_how(box: Box) -> None:
    result = await box.run_job(b"import sys; sys.exit('it broke')", b"", "s1:j", 20, lambda _: None)
    assert (result.exit, result.stderr) == (1, b"it broke\n")
    result = await box.run_job(b"import os; os.kill(os.getpid(), 11)", b"", "s1:j", 20, lambda _: None)
    assert (result.exit, result.signal) == (-11, "SIGSEGV")


FAMILY = b"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("sleep_s", ["0", "60"])
async def test_a_job_is_gone_with_its_family(box: Box, sleep_s: str) -> None:
    lines: list[bytes] = []
    result = await box.run_job(FAMILY, b"", "s1:j", 1, lines.append, args=[sleep_s])
    assert result.timed_out is (sleep_s == "60")
    assert not any(alive(int(pid)) for pid in lines[0].split())


async def test_output_is_capped(box: Box) -> None:
    received = 0

    def count(line: bytes) -> None:
        nonlocal received
        received += len(line)

    result = await box.run_job(b"while True: print('x' * 1000)", b"", "s1:j", 20, count, max_bytes=200_000)
    assert result.truncated and result.exit is None and received <= 200_000


async def test_a_job_ends_when_its_caller_goes_away(box: Box) -> None:
    lines: list[bytes] = []
    call = asyncio.ensure_future(box.run_job(FAMILY, b"", "s1:j", 60, lines.append, args=["60"]))
    await until(lambda: lines)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not any(alive(int(pid)) for pid in lines[0].split()))


async def test_a_job_whose_shim_is_killed_is_found_by_its_launch_id(box: Box) -> None:
    lines: list[bytes] = []
    call = asyncio.ensure_future(box.run_job(FAMILY, b"", "s1:j", 60, lines.append, args=["60"]))
    await until(lambda: lines)
    job = int(lines[0].split()[0])
    os.kill(int(Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[1]), 9)
    with pytest.raises(LinkLost):
        await call
    swept = await box.sweep("s1", term_s=0.2)
    assert swept.clean and not any(alive(int(pid)) for pid in lines[0].split())


async def test_affinity(box: Box) -> None:
    cpu, lines = min(os.sched_getaffinity(0)), []
    await box.run_job(b"import os; print(os.sched_getaffinity(0))", b"", "s1:j", 20, lines.append, affinity=[cpu])
    assert lines == [str({cpu}).encode()]
