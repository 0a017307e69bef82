"""Two coordinators on one study, wherever it is kept: one of them writes, the other is told who, and a dead one never blocks the
living."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from optimizer.errors import AnotherWriter
from optimizer.journal import Journal, Place

from .conftest import PLACE, NewPlace, word

SERVE = """
    import sys
    from optimizer.journal import Journal
    journal = Journal.open(place(sys.argv[1]), write=True)
    print("open", journal.epoch, flush=True)
    sys.stdin.readline()
"""
RACE = """
    import sys
    from optimizer.errors import AnotherWriter
    from optimizer.journal import Journal
    print("ready", flush=True)
    sys.stdin.readline()
    kept = []
    for word in sys.argv[1:]:
        try:
            journal = Journal.open(place(word), write=True)  # stays open, so that the lease stays taken
        except AnotherWriter:
            continue
        journal.append("note", {}, expect=journal.last_seq)
        kept.append(journal)
    print(len(kept), flush=True)
    sys.stdin.readline()
"""


def started(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PLACE + textwrap.dedent(code), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def told(process: subprocess.Popen[str], line: str = "") -> str:
    assert process.stdin and process.stdout
    if line:
        process.stdin.write(line + "\n")
    return process.stdout.readline().strip()


def opened(place: Place) -> Place:
    with Journal.create(place) as journal:
        journal.append("opened", {}, expect=0)
    return place


def test_a_living_writer_is_respected_and_named(place: Place) -> None:
    process = started(SERVE, word(opened(place)))
    assert told(process) == "open 2"
    with pytest.raises(AnotherWriter, match=f"process {process.pid} "):
        Journal.open(place, write=True)
    holder = Journal.open(place, write=False).holder()
    assert holder is not None
    assert (holder.pid, holder.alive, holder.is_this_process, holder.runs_here) == (process.pid, True, False, True)
    process.kill()
    # Not reaped yet: a zombie has the PID and the start time, and will never write again.
    time.sleep(0.05)
    began = time.monotonic()
    with Journal.open(place, write=True) as journal:
        assert time.monotonic() - began < 8
        taken = journal.read()[-1]
        assert taken.kind == "lease_taken"
        assert taken.body["previous"]["ended"] == "process gone"
    process.wait()


def test_of_two_racing_coordinators_exactly_one_gets_each_study(new_place: NewPlace) -> None:
    places = [opened(new_place(f"s{n:02}")) for n in range(20)]
    racers = [started(RACE, *map(word, places)) for _ in range(2)]
    assert [told(racer) for racer in racers] == ["ready", "ready"]
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
    won = [int(told(racer)) for racer in racers]
    assert sum(won) == 20
    for racer in racers:
        told(racer, "end")
        assert racer.wait(10) == 0
    for place in places:
        assert [entry.kind for entry in Journal.open(place, write=False).read()] == ["opened", "lease_taken", "note"]


def test_the_holder_is_plain_data(place: Place) -> None:
    holder = Journal.open(opened(place), write=False).holder()
    assert holder is not None
    assert holder.released
    assert json.loads(holder.model_dump_json())["pid"] == os.getpid()
