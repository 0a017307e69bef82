"""Cases run side by side, each by a worker process with ports, a home and a scratch folder of its own, and what became of each as a line of
JSON: files of such lines from several machines are put together by what they name."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# What is kept of a case that failed is for reading: no models, no interpreters.
NOT_KEPT = ("models", "bin", "site", "knowledge")
ENDING_S = 10.0  # so long may what has nothing to do any more take to be gone
Line = dict[str, Any]


def read(paths: Iterable[Path]) -> dict[tuple[str, str], Line]:
    """(family, case) -> its line; of two the one that failed, else the later one. A line that a kill cut short counts for nothing."""
    found: dict[tuple[str, str], Line] = {}
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                key = (line["family"], line["case"])
                if key not in found or found[key]["ok"]:
                    found[key] = line
    return found


def living(folder: Path) -> set[int]:
    """Processes whose home is ``folder`` or lies below it."""
    home, found = f"HOME={folder}".encode(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(pair == home or pair.startswith(home + b"/") for pair in (entry / "environ").read_bytes().split(b"\0")):
                    found.add(int(entry.name))
    return found


def installed(folder: Path) -> Path:
    """A folder for Python's path that says of this checkout what an installation would say: which engines there are."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    said = folder / "optimize-0.dist-info"
    said.mkdir(parents=True)
    (said / "METADATA").write_text("Metadata-Version: 2.1\nName: optimize\nVersion: 0\n")
    (said / "entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{name} = {of}\n" for name, of in rows.items()) for group, rows in points.items()))
    return folder


def end_all(folder: Path) -> int:
    """Ends what lives there, and returns how many that were."""
    ended: set[int] = set()
    end = time.monotonic() + 20
    while (left := living(folder)) and time.monotonic() < end:
        ended |= left
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return len(ended)


# ---- a worker ---------------------------------------------------------------------------------------------------------------


def name_with_ports(name: str) -> str:
    """The name, or that with something behind it: a study's name decides on which ports it launches, and these shall be of this worker's share."""
    from itertools import count

    from optimizer.core.decide import derived_seed
    from tests import ports

    return next(one for more in count() if derived_seed(one := f"{name}-{more}" if more else name, "ports") % 10000 // ports.EACH == ports._worker)


def work(job: int, jobs: int, run: Callable[[str, str, Path], dict[str, Any]]) -> None:
    """Runs the cases that stdin names, one line each, and answers each with a line. ``run`` returns what the line shall tell besides."""
    from tests import ports

    ports._worker, ports.EACH = job, ports.EACH * ports.PROCESSES // jobs  # of the ports of tests, and in name_with_ports of those of studies
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    home = Path(os.environ["HOME"])
    for text in sys.stdin:
        family, name, evidence = json.loads(text)
        folder, began, used = Path(tempfile.mkdtemp(dir=home, prefix="")), time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        line: Line = {"family": family, "case": name, "ok": True}
        try:
            line |= run(family, name, folder)
        except Exception:  # noqa: BLE001  one failed case must not cost the others
            line |= {"ok": False, "error": traceback.format_exc(), "evidence": _kept(folder, Path(evidence), f"{family} {name}") if evidence else None}
        since = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = line.get("cpu_s", 0.0) + since.ru_utime + since.ru_stime - used.ru_utime - used.ru_stime
        line |= {"wall_s": round(time.monotonic() - began, 1), "cpu_s": round(cpu_s, 1), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                 "python": platform.python_version()}  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(line), file=answers, flush=True)


def _kept(folder: Path, evidence: Path, name: str) -> str | None:
    evidence.mkdir(parents=True, exist_ok=True)
    path = evidence / f"{''.join(letter if letter.isalnum() else '-' for letter in name)}.tar.gz"
    try:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, folder.name, filter=lambda info: None if Path(info.name).name in NOT_KEPT else info)
    except OSError:
        return None
    return str(path)


# ---- who hands the cases out ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def spread(cases: list[tuple[str, str]], command: list[str], jobs: int, for_s: float, evidence: Path | None, told: Callable[[Line], None]) -> None:
    """Runs (family, case) after (family, case) on ``jobs`` workers, each of which is ``command`` with its number and ``jobs``; begins none
    after ``for_s``. Nothing that they started is left when this returns, also after Ctrl-C."""
    end, waiting, lock = time.monotonic() + for_s, queue.SimpleQueue[tuple[str, str]](), threading.Lock()
    for case in cases:
        waiting.put(case)
    folder = Path(tempfile.mkdtemp(prefix="optimize-sweep-"))
    workers: list[subprocess.Popen[str]] = []
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        for worker in workers:
            worker.kill()

    def drive(worker: subprocess.Popen[str]) -> None:
        assert worker.stdin and worker.stdout
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < end and not stopped.is_set():
                case = waiting.get_nowait()
                worker.stdin.write(json.dumps([*case, str(evidence) if evidence else ""]) + "\n")
                worker.stdin.flush()
                text = worker.stdout.readline()
                if not text and stopped.is_set():
                    return
                with lock:
                    told(json.loads(text) if text else {"family": case[0], "case": case[1], "ok": False, "error": f"its worker ended: {worker.wait()}"})
                if not text:
                    return
        with contextlib.suppress(OSError):
            worker.stdin.close()

    paths = os.pathsep.join([str(installed(folder / "installed")), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        with stopped_by_signals(stop):
            for job in range(min(jobs, len(cases)) if for_s > 0 else 0):
                home = folder / str(job)
                home.mkdir()
                env = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": paths, "OPTIMIZE_LEARNED": "off"}
                workers.append(subprocess.Popen([*command, str(job), str(jobs)], env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                text=True, start_new_session=True))  # fmt: skip
            threads = [threading.Thread(target=drive, args=(worker,)) for worker in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for worker in workers:
                worker.wait()
            end = time.monotonic() + ENDING_S
            while living(folder) and time.monotonic() < end:  # the processes that forked end after those that used them
                time.sleep(0.1)
    finally:
        if left := end_all(folder):
            print(f"{left} processes were ended at the end" + ("" if stopped.is_set() else ", though every case was over"), file=sys.stderr)
        for worker in workers:
            worker.kill()
            worker.wait()
        shutil.rmtree(folder, ignore_errors=True)
