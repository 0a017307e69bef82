"""Dying at any point of an append, losing power at any page, or running out of disk: what was committed stays, what was
not leaves no trace, and the next coordinator carries on."""

import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from optimizer.crashpoint import crash_point
from optimizer.errors import JournalError
from optimizer.journal import Journal


def test_a_crash_point_that_nobody_could_mean_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIMIZER_CRASH_AT", "journal.append")
    with pytest.raises(ValueError, match="NAME:COUNT"):
        crash_point("journal.append")
    monkeypatch.delenv("OPTIMIZER_CRASH_AT")
    crash_point("journal.append")


def test_power_loss_at_every_frame_of_the_write_ahead_log(tmp_path: Path) -> None:
    """What reached the disk is a prefix of the log; each one must hold a prefix of the entries, chain intact."""
    path = tmp_path / "journal.db"
    journal = Journal.create(path)
    journal.append("opened", {}, expect=0)
    for n in range(16):
        journal.append("note", {"text": "x" * 300 * (n % 5)}, expect=n + 1, blobs={"log": os.urandom(2000)})
    wal = path.with_name("journal.db-wal").read_bytes()
    main = path.read_bytes()
    journal.close()
    page = struct.unpack(">I", wal[8:12])[0]
    frames = (len(wal) - 32) // (page + 24)
    assert frames > 60
    lengths: list[int] = []
    for frame in range(frames + 1):
        for torn in (0, 700):  # a frame that was written in part counts as not written
            copy = tmp_path / "lost" / "journal.db"
            shutil.rmtree(copy.parent, ignore_errors=True)
            copy.parent.mkdir()
            copy.write_bytes(main)
            copy.with_name("journal.db-wal").write_bytes(wal[: 32 + frame * (page + 24) + torn])
            connection = sqlite3.connect(copy)
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'entry'").fetchone()[0]
            connection.close()
            lengths.append(Journal.open(copy, write=False).verify() if tables else 0)
    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(18))


@pytest.mark.fault("F42")
def test_disk_full_at_any_append_loses_only_that_append(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal.create(path) as journal:
        journal.append("opened", {}, expect=0)
        full = 0
        for n in range(50):
            pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
            journal._connection.execute(f"PRAGMA max_page_count = {pages + n % 3}")
            try:
                journal.append("note", {"n": n}, expect=journal.last_seq, blobs={"log": os.urandom(20_000)})
            except JournalError as error:
                assert "No space left" in str(error)
                full += 1
            journal._connection.execute("PRAGMA max_page_count = 1000000")
            # Space is back: the same append succeeds, under the same number.
            journal.append("note", {"n": n, "again": True}, expect=journal.last_seq)
        assert full == 50
        assert journal.verify() == 51


@pytest.mark.fault("F42")
def test_a_file_size_limit_in_the_middle_of_a_commit_is_reported_and_survived(tmp_path: Path) -> None:
    """The kernel refuses the write itself (SQLITE_FULL or an I/O error), not SQLite's own page limit."""
    code = """
        import resource, signal, sys
        from optimizer.errors import JournalError
        from optimizer.journal import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = Journal.create(sys.argv[1])
        journal.append("opened", {}, expect=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        seq = 1
        try:
            while seq < 100:
                seq = journal.append("note", {"text": "x" * 2000}, expect=seq).seq
        except JournalError:
            print(seq)
            sys.exit(0)
        sys.exit("the limit was not reached")
    """
    for limit in (300_000, 301_111, 303_333):
        path = tmp_path / f"{limit}.db"
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(path), str(limit)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        with Journal.open(path, write=True) as journal:
            journal.verify()
            # All that was acknowledged, and never more than the one append that was refused.
            assert [entry.kind for entry in journal.read()].count("note") == int(run.stdout) - 1
            journal.append("note", {}, expect=journal.last_seq)
