"""Dying at any point of an append, losing power at any page, or running out of disk: what was committed stays, what was
not leaves no trace, and the next coordinator carries on."""

import os
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from optimizer.crashpoint import crash_point
from optimizer.errors import JournalError
from optimizer.journal import Journal
from optimizer.journal.files import is_unfinished
from optimizer.journal.store import FileJournal


def test_a_crash_point_that_nobody_could_mean_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIMIZER_CRASH_AT", "journal.append")
    with pytest.raises(ValueError, match="NAME:COUNT"):
        crash_point("journal.append")
    monkeypatch.delenv("OPTIMIZER_CRASH_AT")
    crash_point("journal.append")


FULL = os.environ.get("OPTIMIZER_SWEEP") == "full"
RECORDED = Path(__file__).parents[2] / "histories/h200-7b-eager/journal.db"


def written_again(path: Path, studies: int) -> tuple[Journal, list[int]]:
    """The entries of a recorded study with all their attachments, ``studies`` times, none of it checkpointed: (the open journal, size
    of the write-ahead log in bytes when each append had returned)."""
    journal, acknowledged = Journal.create(path), []
    assert isinstance(journal, FileJournal)
    journal._connection.execute("PRAGMA wal_autocheckpoint = 0")
    with Journal.open(RECORDED, write=False) as recorded:
        for again in range(studies):
            first = journal.last_seq
            for entry in recorded.read():
                body = {name: value for name, value in entry.body.items() if name != "blobs"}
                blobs = {name: recorded.blob(digest) + b"%d" % again for name, digest in (entry.body.get("blobs") or {}).items()}
                key, cause = entry.key and f"{again}.{entry.key}", entry.cause and first + entry.cause
                journal.append(entry.kind, body, key=key, cause=cause, expect=journal.last_seq, blobs=blobs)
                acknowledged.append(path.with_name("journal.db-wal").stat().st_size)
    return journal, acknowledged


def test_power_loss_at_frames_of_the_write_ahead_log(tmp_path: Path) -> None:
    """What reached the disk is a prefix of the log, its last frame whole or in part. Each one must hold a prefix of the entries with the
    chain intact, and every append that had returned when the log was that long. ``OPTIMIZER_SWEEP=full``: every frame of two studies."""
    path = tmp_path / "journal.db"
    journal, acknowledged = written_again(path, 2 if FULL else 1)
    lost = tmp_path / "lost" / "journal.db"
    lost.parent.mkdir()
    wal = lost.with_name("journal.db-wal")
    shutil.copy(path, lost)
    shutil.copy(path.with_name("journal.db-wal"), wal)
    journal.close()
    page = struct.unpack(">I", wal.read_bytes()[8:12])[0]
    frames = (wal.stat().st_size - 32) // (page + 24)
    assert frames > 250 * (1 + FULL)
    lengths: list[int] = []
    for frame in range(frames, -1, -1 if FULL else -11):
        for torn in (700, 0) if frame < frames else (0,):  # a frame that was written in part counts as not written
            os.truncate(wal, 32 + frame * (page + 24) + torn)
            lost.with_name("journal.db-shm").unlink(missing_ok=True)
            kept = 0
            if not is_unfinished(lost):
                with Journal.open(lost, write=False) as journal:
                    kept = journal.verify()
            assert kept >= sum(size <= wal.stat().st_size for size in acknowledged), f"frame {frame}: an append that had returned is lost"
            lengths.append(kept)
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == len(acknowledged) and lengths[-1] == 0
    if FULL:
        assert set(lengths) == set(range(len(acknowledged) + 1)) and len(lengths) > 1000


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
