"""Two coordinators on one study: one of them writes, the other is told so, and a dead one never blocks the living."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

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


@pytest.mark.fault("F38")
def test_where_there_is_no_proc_a_lease_survives_a_clock_and_a_time_zone_that_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS: its boot time moves with the clock of the day, and ps spells a start in the zone of whoever asks."""
    (tmp_path / "sysctl").write_text('#!/bin/sh\n[ "$2" = kern.bootsessionuuid ] && echo 5A1E-0001 || date +%s%N\n')
    (tmp_path / "sysctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(lease, "_BOOT_ID", tmp_path / "none")
    assert lease.boot_id() == lease.boot_id() == "5A1E-0001"
    if shutil.which("ps") is None:
        return
    said = set()
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        said.add(lease._ask("ps", "-o", "lstart=", "-p", str(os.getpid())))
    assert len(said) == 1 and said != {""}
