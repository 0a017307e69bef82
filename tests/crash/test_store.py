"""A whole study whose journal lives in PostgreSQL: its coordinator is killed and resumed, its sessions are ended, a second coordinator
is turned away, and what it leaves is the study that a file would hold."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from optimizer.journal import Journal, Stored
from optimizer.journal.postgres import store as module
from tests.e2e.fastbox import FastBox, check_ledger, wait_until
from tests.postgres import Server, name_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MET = ("met", [{"disable_cuda_graph": None, "disable_decode_cuda_graph": None}])
SECRET = "c0rrect-horse-battery"
POINTS = (
    "journal.create.before_commit:1",  # the study is not there yet
    "journal.lease.after_commit:1",  # it is, without an entry: nothing was opened
    "box.secure.after:1",  # guarded, not journalled
    "journal.append.before_commit:4",
    "loop.after_effect:2",  # an effect, not journalled
    "journal.append.after_commit:2",
)


def test_killed_again_and_again_and_resumed(box: FastBox, postgres: Server) -> None:
    base = postgres.new_database()
    if not postgres.sql("SELECT 1 FROM pg_roles WHERE rolname = 'guarded'"):
        postgres.sql(f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{SECRET}'")
    postgres.sql(f"ALTER ROLE guarded PASSWORD '{SECRET}'")
    store = {"OPTIMIZE_STORE": postgres.database(name_of(base), user="guarded", password=SECRET).url}
    words, said = box.study("team", "--finish", "restore"), []
    for point in POINTS:
        done = box(*words, **store, OPTIMIZER_CRASH_AT=point)
        said.append(done.out + done.err)
        assert done.exit == -signal.SIGKILL, f"at {point}: {done.exit}\n{done.err}"
        if point == POINTS[1]:
            early = box("resume", "team", **store)
            assert early.exit == 6 and "never opened completely" in early.err, early.err
        elif point not in POINTS[:2]:  # until then it is begun again under its name
            words = ["resume", "team", "--json"]

    # A second coordinator is turned away and told who drives the study; the one that runs loses its sessions, twice.
    running = box.start("resume", "team", "--json", **store)
    place = Stored(base, "team")

    def driven_by() -> int | None:
        with Journal.open(place, write=False) as journal:
            holder = journal.holder()
        return holder.pid if holder is not None and holder.alive else None

    wait_until(lambda: driven_by() == running.pid, 30, "the coordinator holds the study")
    second = box("resume", "team", **store)
    assert second.exit == 6 and f"process {running.pid} " in second.err, second.err
    for _ in range(2):
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'")
        time.sleep(1.0)
    done = box.finish(running)
    assert done.decision == MET, done.err
    box.assert_clean()

    assert box("replay", "team", "--verify", "--json", **store).json["identical"]
    learned = box("learned", "--json", **store)
    assert [(row["cause"], row["tests"]) for row in learned.json["rows"]] == [("cuda-graph-disabled", 1)]
    said.append(box("journal", "team", "--all", **store).out + learned.out)

    # Out into a file, where the ledger of the box is compared with it, and where it replays the same.
    assert box("copy", "team", str(box.runs / "team" / "journal.db"), **store).exit == 0
    check_ledger(box, "team")
    assert box("replay", "team", "--verify", "--json").json["identical"]
    for path in box.runs.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert not any(SECRET in text for text in [*said, done.out, done.err])
    assert all(SECRET.encode() not in (box.here / name).read_bytes() for name in os.listdir(box.here) if (box.here / name).is_file())


def test_a_coordinator_whose_study_was_taken_over_stops_acting(box: FastBox, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    base = postgres.new_database()
    store = {"OPTIMIZE_STORE": base.url}
    running = box.start(*box.study("lost", "--finish", "restore"), **store)
    place = Stored(base, "lost")

    def measuring() -> bool:
        try:
            with Journal.open(place, write=False) as journal:
                return any(entry.kind == "intent" and entry.body["step"]["kind"] == "measure" for entry in journal.read())
        except Exception:
            return False

    wait_until(measuring, 60, "a measurement")
    os.kill(running.pid, signal.SIGSTOP)  # it hears of nothing
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()", name_of(base))
    monkeypatch.setattr(module, "TAKEOVER_S", 0.1)  # the first is stopped: it need not be waited for
    with Journal.open(place, write=True) as successor:
        last = successor.last_seq
        os.kill(running.pid, signal.SIGCONT)
        done = box.finish(running, 60)
        assert done.exit == 6 and "taken over by process" in done.err, done.err
        assert successor.last_seq == last, "it wrote nothing more"
    # Whoever has the study now finds out how it stands on the box, and nothing is left.
    done = box("stop", "lost", "--json", **store)
    assert done.exit == 0 and done.json["ending"] == "interrupted", done.err
    box.assert_clean()
    assert box("replay", "lost", "--verify", "--json", **store).json["identical"]


def test_stopped_from_another_machine(box: FastBox, postgres: Server) -> None:
    """`optimize stop` cannot signal the coordinator: the word is left in the store."""
    base = postgres.new_database()
    store = {"OPTIMIZE_STORE": base.url}
    running = box.start(*box.study("far", "--finish", "restore"), **store)
    place = Stored(base, "far")

    def opened() -> bool:
        try:
            with Journal.open(place, write=False) as journal:
                return journal.last_seq > 8
        except Exception:
            return False

    wait_until(opened, 60, "the study is under way")
    # As seen from elsewhere: the same lease, of a machine of another name.
    postgres.sql(
        "ALTER TABLE optimize.lease DISABLE TRIGGER lease_only_released; UPDATE optimize.lease SET host = 'elsewhere', boot_id = 'another';"
        "ALTER TABLE optimize.lease ENABLE TRIGGER lease_only_released", name_of(base))  # fmt: skip
    asked = box("stop", "far", "--json", **store)
    assert asked.json == {"study": "far", "asked": True, "coordinator": running.pid, "on": "elsewhere"}
    done = box.finish(running, 60)
    assert done.exit == 130 and json.loads(done.out)["ending"] == "interrupted", done.err
    box.assert_clean()
