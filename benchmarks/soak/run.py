"""A soak: one server launched again and again while somebody is killed at random: the shim, the server, the coordinator, the guard, or
nobody. After every launch the box has to be what it was before: its port, its processes, its files, its shared memory, and in the end
its memory and our descriptors.

    python benchmarks/soak/run.py --launches 200                      # the simulated server
    python benchmarks/soak/run.py --launches 10 --argv "..." --port N  # any other server that answers GET /health

Each launch is one coordinator in a process of its own, which secures the box, launches, waits until the server answers, and gives the box
back. Whatever was killed, a second coordinator then ends the study from the box's own record, as ``optimize restore`` does."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

from optimizer.box.box import Box  # noqa: E402
from optimizer.errors import OptimizerError  # noqa: E402
from optimizer.transport.local import LocalTransport  # noqa: E402
from tests.e2e.fastbox import FastBox, free_port, listening  # noqa: E402

VICTIMS = ("nobody", "shim", "server", "coordinator", "guard")
READY_S = 180.0
AT_MOST_S = 4.0  # after which the latest kill falls


async def one_launch(home: Path, port: int, argv: Sequence[str], study: str) -> None:
    """What a coordinator does for one launch."""
    box = Box(LocalTransport(home=home))
    await box.lock(study)
    await box.secure(study, None, poll_s=0.1)
    launched = await box.launch(study, "1", argv, port=port)
    print(json.dumps({"server": launched.pid}), flush=True)
    end = time.monotonic() + READY_S
    while not await asyncio.to_thread(answers, port):
        if not (await box.state(study, "1")).alive:
            break
        if time.monotonic() > end:
            raise TimeoutError("the server did not answer")
        await asyncio.sleep(0.2)
    else:
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.sleep(0.3)
    await given_back(box, study)


async def given_back(box: Box, study: str) -> None:
    """Ends whatever is left of a study."""
    swept = await box.sweep(study, term_s=10)
    if not swept.clean:
        raise RuntimeError(f"left after a sweep: {swept}")
    await box.disarm(study)
    await box.cleanup(study)
    await box.unlock(study)


async def recovered(home: Path) -> None:
    """As ``optimize restore``: from the box's own record, whoever held it."""
    box = Box(LocalTransport(home=home))
    holder = await box.holder()
    if holder is not None:
        await given_back(box, holder.study)
    else:
        await box.unlock("restore")  # one whose writing was broken off is nobody's


def answers(port: int) -> bool:
    import urllib.request

    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def of_home(home: Path) -> dict[int, tuple[str, str]]:
    """Living processes whose home this is, other than this one: pid -> (launch id, command line)."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                pairs = dict(pair.partition(b"=")[::2] for pair in (folder / "environ").read_bytes().split(b"\0"))
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if pairs.get(b"HOME") == str(home).encode() and line:
                    found[int(folder.name)] = (pairs.get(b"OPTIMIZER_LAUNCH_ID", b"").decode(), line)
    return found


def victim_of(kind: str, home: Path, coordinator: int, study: str) -> int | None:
    """The process to kill, where it lives at this moment."""
    if kind == "coordinator":
        return coordinator
    for pid, (launch, line) in of_home(home).items():
        if kind == "guard" and launch == f"{study}:guard":
            return pid
        if kind == "server" and launch == f"{study}:1":
            return pid
        if kind == "shim" and not launch and pid != coordinator and " -c " in line and "soak" not in line:
            return pid
    return None


def traces(home: Path, port: int) -> dict[str, Any]:
    """What may differ after a launch: nothing of it."""
    root = home / ".optimizer"
    return {
        "processes": sorted(line[:120] for _, line in of_home(home).values()),
        "files": sorted(str(path) for path in root.rglob("*")) + ([str(root)] if root.exists() else []),
        "port": listening(port),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }  # fmt: skip


def segments(pids: Iterable[int]) -> set[str]:
    """Shared memory that these processes have mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            rows = (row.split(None, 5) for row in Path(f"/proc/{pid}/maps").read_text().splitlines())
            found |= {row[5] for row in rows if len(row) == 6 and row[5].startswith("/dev/shm/")}
    return found


def resident_mib() -> float:
    """Of this process, which talks to the box all the while."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def available_mib() -> float:
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) / 1024


def soak(home: Path, env: Mapping[str, str], argv: Sequence[str], port: int, launches: int, seed: int) -> dict[str, Any]:
    """Raises AssertionError at the first trace that is left."""
    rng, killed, ready, took = random.Random(seed), Counter[str](), 0, []
    before, memory, resident = traces(home, port), available_mib(), resident_mib()
    for number in range(launches):
        study, kind = f"soak{number}", VICTIMS[number % len(VICTIMS)]
        began = time.monotonic()
        words = [sys.executable, __file__, "--one", study, "--home", str(home), "--port", str(port), "--argv", shlex.join(argv)]
        coordinator = subprocess.Popen(words, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        at, seen, shared = began + rng.uniform(0.3, AT_MOST_S), 0.0, set[str]()
        while coordinator.poll() is None:
            if time.monotonic() > seen + 0.2:
                shared |= segments(of_home(home))
                seen = time.monotonic()
            if kind != "nobody" and time.monotonic() > at and (pid := victim_of(kind, home, coordinator.pid, study)) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed[kind] += 1
                break
            time.sleep(0.005)
        out, err = coordinator.communicate(timeout=READY_S + 120)
        ready += '"ready"' in out
        if kind == "nobody":
            assert coordinator.returncode == 0, err
        end = time.monotonic() + 60
        while True:  # a shim of the dead coordinator may still be at work, and holds the lock as long
            done = subprocess.run([sys.executable, __file__, "--recover", "--home", str(home)], env=dict(env), capture_output=True, text=True, check=False)
            after = traces(home, port)
            left = sorted(path for path in shared if Path(path).exists())
            if done.returncode == 0 and after == before and not left:
                break
            assert time.monotonic() < end, f"launch {number}, {kind} killed: {json.dumps({'before': before, 'after': after, 'shared': left}, indent=1)}\n{done.stderr}\n{err}"
            time.sleep(0.3)
        took.append(time.monotonic() - began)
    return {
        "launches": launches, "ready": ready, "killed": dict(sorted(killed.items())), "left": 0, "seconds_a_launch": round(sum(took) / len(took), 2),
        "memory_mib_less": round(memory - available_mib(), 1), "descriptors_more": traces(home, port)["descriptors"] - before["descriptors"],
        "resident_mib_more": round(resident_mib() - resident, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--argv", help="command line of the server; without it the simulated one")
    parser.add_argument("--port", type=int)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--recover", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one or given.recover:
        try:
            asyncio.run(one_launch(given.home, given.port, shlex.split(given.argv), given.one) if given.one else recovered(given.home))
        except OptimizerError as error:
            sys.exit(f"{type(error).__name__}: {error}")
        return
    with tempfile.TemporaryDirectory(prefix="optimize-soak-") as folder:
        box = FastBox(Path(folder))
        try:
            argv, port = (shlex.split(given.argv), given.port or free_port()) if given.argv else (box.argv, box.port)
            print(json.dumps(soak(box.home, box.env, argv, port, given.launches, given.seed)))
        finally:
            box.close()


if __name__ == "__main__":
    main()
