"""Two coordinators race for one study, in processes of their own: at most one writes, the loser is told so and ends with 6.
``OPTIMIZER_SWEEP=full``: a hundred races of each kind."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.journal import Journal

RACES = 100 if os.environ.get("OPTIMIZER_SWEEP") == "full" else 6
COMMON = """
import json, os, random, signal, sqlite3, sys, time
from pathlib import Path
from optimizer.errors import AnotherWriter
from optimizer.journal import Journal, files

folder, races = Path(sys.argv[1]), int(sys.argv[2])


def forked(run, *given):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = run(*given) or 0
    except AnotherWriter:
        code = 6
    except BaseException as error:
        print("unforeseen: %r" % error, file=sys.stderr, flush=True)
    os._exit(code)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def opened(path):
    with Journal.create(path) as journal:
        journal.append("opened", {}, expect=0)


def dies_as_holder(path):
    Journal.open(path, write=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
# The last coordinator is dead; two come back at the same moment. The winner stays until both have said what they are.
AT_ONCE = COMMON + """
def comes_back(path, start, stay, told):
    os.read(start, 1)
    try:
        journal = Journal.open(path, write=True)
        for n in range(3):
            journal.append("note", {"pid": os.getpid()}, expect=journal.last_seq)
    finally:
        os.write(told, b"x")
    os.read(stay, 1)
    journal.close()


for race in range(races):
    path = folder / str(race) / "journal.db"
    opened(path)
    assert ended(forked(dies_as_holder, path)) == -9
    (start, go), (stay, leave), (heard, told) = os.pipe(), os.pipe(), os.pipe()
    both = [forked(comes_back, path, start, stay, told) for _ in range(2)]
    os.write(go, b"xx")
    for _ in both:
        os.read(heard, 1)
    os.write(leave, b"xx")
    print(json.dumps(sorted(ended(one) for one in both)), flush=True)
    for handle in (start, go, stay, leave, heard, told):
        os.close(handle)
"""
# The first is stopped in the midst of its appends, loses the study (as after a reboot), and wakes while the second takes over.
WAKES = COMMON + """
rng = random.Random(7)


def appends(path, began):
    journal = Journal.open(path, write=True)
    for n in range(100000):
        journal.append("note", {"pid": os.getpid()}, expect=journal.last_seq)
        if n == 2:
            os.write(began, b"x")
        time.sleep(rng.uniform(0, 0.01))  # or nobody else would ever get a turn


def takes_over(path, patience_ms):
    files.BUSY_TIMEOUT_MS = patience_ms  # of a writer that was stopped within a transaction
    journal = Journal.open(path, write=True)
    for n in range(5):
        journal.append("note", {"pid": os.getpid()}, expect=journal.last_seq)
    journal.close()


for race in range(races):
    path = folder / str(race) / "journal.db"
    opened(path)
    heard, began = os.pipe()
    first = forked(appends, path, began)
    os.read(heard, 1)
    assert ended(forked(takes_over, path, 60000)) == 6, "the living writer lost its study"
    time.sleep(rng.uniform(0, 0.02))
    os.kill(first, signal.SIGSTOP)
    assert ended(forked(takes_over, path, 100)) == 6, "a stopped writer lost its study"
    os.kill(first, signal.SIGCONT)
    forged = sqlite3.connect(path, timeout=60)
    forged.execute("INSERT INTO lease SELECT max(epoch) + 1, 'h', 1, '0', 'other boot', 't', NULL FROM lease")
    forged.commit()
    os.kill(first, signal.SIGSTOP)
    forged.close()
    second = forked(takes_over, path, 60000)
    time.sleep(rng.uniform(0, 0.02))
    os.kill(first, signal.SIGCONT)
    print(json.dumps([ended(first), ended(second)]), flush=True)
    os.close(heard), os.close(began)
"""


@pytest.mark.parametrize(("code", "exits"), [(AT_ONCE, [0, 6]), (WAKES, [6, 0])], ids=["at once", "wakes"])
def test_of_two_coordinators_one_writes(code: str, exits: list[int], tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(RACES)], capture_output=True, text=True, check=False)
    assert run.returncode == 0 and not run.stderr, run.stderr
    assert [json.loads(line) for line in run.stdout.splitlines()] == [exits] * RACES
    for race in range(RACES):
        with Journal.open(tmp_path / str(race) / "journal.db", write=False) as journal:
            journal.verify()
            entries = journal.read()
        writers = [entry.body["pid"] for entry in entries if entry.kind == "note"]
        changes = sum(one != other for one, other in itertools.pairwise(writers))
        assert changes == (code is WAKES), f"race {race}: two wrote at once"
        assert [entry.epoch for entry in entries] == sorted(entry.epoch for entry in entries)
