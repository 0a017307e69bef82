"""Two coordinators on one study: one of them writes, the other is told so, and a dead one never blocks the living."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from optimizer.errors import AnotherWriter
from optimizer.journal import Journal, lease

SERVE = """
    import sys, time
    from optimizer.errors import AnotherWriter
    from optimizer.journal import Journal
    journal = Journal.open(sys.argv[1], write=True)
    print("open", journal.epoch, flush=True)
    for line in sys.stdin:
        try:
            print(journal.append("note", {"by": journal.epoch}, expect=journal.last_seq).seq, flush=True)
        except AnotherWriter:
            sys.exit(6)
"""
RACE = """
    import sys
    from pathlib import Path
    from optimizer.errors import AnotherWriter
    from optimizer.journal import Journal
    print("ready", flush=True)
    sys.stdin.readline()
    won = 0
    for path in sorted(Path(sys.argv[1]).glob("*.db")):
        try:
            journal = Journal.open(path, write=True)  # stays open, so that the lease stays taken
        except AnotherWriter:
            continue
        journal.append("note", {}, expect=journal.last_seq)
        globals()[f"keep_{won}"] = journal
        won += 1
    print(won, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    with Journal.create(path) as journal:
        journal.append("opened", {}, expect=0)
    return path


def started(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def told(process: subprocess.Popen[str], line: str = "") -> str:
    assert process.stdin and process.stdout
    if line:
        process.stdin.write(line + "\n")
    return process.stdout.readline().strip()


def test_a_living_writer_is_respected_and_named(path: Path) -> None:
    process = started(SERVE, str(path))
    assert told(process) == "open 2"
    with pytest.raises(AnotherWriter, match=f"process {process.pid} "):
        Journal.open(path, write=True)
    holder = Journal.open(path, write=False).holder()
    assert holder is not None
    assert (holder.pid, holder.alive, holder.is_this_process) == (process.pid, True, False)
    process.kill()
    # Not reaped yet: a zombie has the PID and the start time, and will never write again.
    time.sleep(0.05)
    with Journal.open(path, write=True) as journal:
        taken = journal.read()[-1]
        assert taken.kind == "lease_taken"
        assert taken.body["previous"]["ended"] == "process gone"
    process.wait()


def test_the_old_writer_that_wakes_up_cannot_write(path: Path) -> None:
    process = started(SERVE, str(path))
    told(process)
    os.kill(process.pid, signal.SIGSTOP)
    # Another boot is the one case in which a lease is taken from a process that this machine still shows.
    connection = Journal.open(path, write=False)._connection
    connection.close()
    import sqlite3

    forged = sqlite3.connect(path)
    forged.execute("INSERT INTO lease VALUES (3, 'h', 1, '0', 'other boot', 't', NULL)")
    forged.commit()
    forged.close()
    os.kill(process.pid, signal.SIGCONT)
    told(process, "go")
    assert process.wait(10) == 6
    assert Journal.open(path, write=False).last_seq == 2


def test_of_two_racing_coordinators_exactly_one_gets_each_study(tmp_path: Path) -> None:
    folder = tmp_path / "studies"
    for n in range(100):
        with Journal.create(folder / f"{n:03}.db") as journal:
            journal.append("opened", {}, expect=0)
    racers = [started(RACE, str(folder)) for _ in range(2)]
    assert [told(racer) for racer in racers] == ["ready", "ready"]
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
    won = [int(told(racer)) for racer in racers]
    assert sum(won) == 100
    for racer in racers:
        told(racer, "end")
        assert racer.wait(10) == 0
    for path in folder.glob("*.db"):
        assert [entry.kind for entry in Journal.open(path, write=False).read()] == ["opened", "lease_taken", "note"]


def test_a_process_with_a_reused_pid_is_not_the_holder() -> None:
    mine = lease.this_process(1, "now")
    assert mine.alive
    assert mine.is_this_process
    assert not mine.model_copy(update={"pid_start": "1"}).alive
    assert not mine.model_copy(update={"boot_id": "another"}).alive
    assert mine.model_copy(update={"boot_id": "another"}).why_stale == "rebooted"
    assert not mine.model_copy(update={"released": True}).alive


def test_a_command_name_cannot_forge_a_start_time(tmp_path: Path) -> None:
    """The kernel prints the command name unescaped into the line that the start time is read from."""
    trap = tmp_path / ") R 1 1 1"
    trap.symlink_to(sys.executable)
    process = subprocess.Popen([str(trap), "-c", "input()"], stdin=subprocess.PIPE)
    try:
        start = lease.process_start(process.pid)
        assert start is not None
        assert abs(int(start) - int(lease.process_start(os.getpid()) or 0)) < 100 * 60 * 60
        assert lease.process_start(process.pid) == start
    finally:
        process.kill()
        process.wait()
    assert lease.process_start(process.pid) is None


def test_an_impatient_second_writer_waits_for_a_transaction_instead_of_failing(path: Path) -> None:
    """A deferred BEGIN would fail at once here, whatever the busy timeout says."""
    code = """
        import sqlite3, sys, time
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        print("locked", flush=True)
        time.sleep(0.4)
        connection.execute("ROLLBACK")
    """
    with Journal.open(path, write=True) as journal:
        process = started(code, str(path))
        assert told(process) == "locked"
        began = time.monotonic()
        assert journal.append("note", {}, expect=2).seq == 3
        assert time.monotonic() - began > 0.1
        process.wait()


def test_the_holder_is_plain_data(path: Path) -> None:
    holder = Journal.open(path, write=False).holder()
    assert holder is not None
    assert holder.released
    assert json.loads(holder.model_dump_json())["pid"] == os.getpid()
