"""Dying at any point of an append, wherever the journal is kept: what was committed stays, what was not leaves no trace, and the next
coordinator carries on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from optimizer.journal import Journal, Place

from .conftest import PLACE, NewPlace, word

# One study that acknowledges on stdout what has been committed; it carries on where its journal ends. Each argument after the
# place is one point to die at; every study is started in a fork, dies there, is looked at, and is resumed.
STUDIES = """
    import os, sys
    from optimizer.errors import JournalError
    from optimizer.journal import Journal

    def study(path):
        try:
            journal = Journal.open(path, write=True)
        except JournalError:
            journal = Journal.create(path)  # refuses to touch a journal that has begun
        entries = [entry for entry in journal.read() if entry.kind != "lease_taken"]
        for n in range(len(entries), 8):
            seq = journal.last_seq
            if n % 2 == 0:
                journal.append("intent", {"n": n}, key=f"k{n}", expect=seq)
            else:
                journal.append("outcome", {"status": "done", "n": n}, key=f"k{n - 1}", expect=seq, blobs={"log": b"x" * n})
            os.write(1, b"%d " % n)
        journal.close()

    def look(path):
        try:
            with Journal.open(path, write=False) as journal:
                os.write(1, b"%d " % journal.last_seq)
        except JournalError:
            os.write(1, b"-1 ")

    def forked(work, path, point):
        child = os.fork()
        if not child:
            if point:
                os.environ["OPTIMIZER_CRASH_AT"] = point
            work(path)
            os._exit(0)
        os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.wait()[1]))

    if sys.argv[1].startswith("postgresql:"):  # once, instead of in every fork
        import psycopg
        from optimizer.journal.postgres import store
    for number, point in enumerate(sys.argv[2:]):
        path = place(sys.argv[1].replace("NUMBER", str(number)))
        forked(study, path, point)
        forked(look, path, "")
        forked(study, path, "")
"""


def studies(place: Place, *points: str, **environment: str) -> list[list[int]]:
    """Per run, and three runs a point (it dies, it is looked at, it is resumed): the acknowledged numbers, then the exit status."""
    run = subprocess.run(
        [sys.executable, "-c", PLACE + textwrap.dedent(STUDIES), word(place), *points],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [[int(word) for word in line.split()] for line in run.stdout.splitlines()]


def test_killed_at_every_point_and_resumed_nothing_is_lost_or_doubled(new_place: NewPlace, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    studies(new_place("whole"), "", OPTIMIZER_CRASH_TRACE=str(trace))
    passed = trace.read_text().split()
    assert set(passed) == {
        "journal.create.before_commit", "journal.lease.before_commit", "journal.lease.after_commit",
        "journal.append.before_begin", "journal.append.before_commit", "journal.append.after_commit",
    }  # fmt: skip
    points = passed.index("journal.lease.before_commit", 2)  # the resumed run adds its own
    assert points == 3 + 8 * 3
    runs = studies(new_place("at-NUMBER"), *(f"*:{k + 1}" for k in range(points)))
    for k in range(points):
        (*acknowledged, died), (wreck, _), (*more, ended) = runs[3 * k : 3 * k + 3]
        assert (died, ended) == (-signal.SIGKILL, 0), passed[k]
        if k == 0:
            assert wreck == -1, "the study does not exist yet"
        else:
            assert wreck - len(acknowledged) in (0, 1), passed[k]
        with Journal.open(new_place(f"at-{k}"), write=False) as journal:
            journal.verify()
            entries = [entry for entry in journal.read() if entry.kind != "lease_taken"]
        assert [entry.body["n"] for entry in entries] == list(range(8)), passed[k]
        assert not set(acknowledged) & set(more)


def test_named_points_count_their_own_passages(new_place: NewPlace) -> None:
    first, wreck, _ = studies(new_place("named"), "journal.append.after_commit:3")
    assert first == [0, 1, -signal.SIGKILL]
    assert wreck == [3, 0]
