"""What only a database can do to a journal: cut the connection in the middle of an append, crash, lose a session that carries a
lease, refuse a role, be somebody else's. On a real PostgreSQL server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer import log
from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError, JournalTooNew, StoreLost, UsageError
from optimizer.journal import Database, Journal, Stored, database
from optimizer.journal import postgres as shared
from optimizer.journal.postgres import schema, session, store
from optimizer.wiring import leasing
from tests.postgres import Link, Server, name_of

PASSWORD = "s3cr3t-pass/w@rd"
ESCAPED = "s3cr3t-pass%2Fw%40rd"


@pytest.fixture
def base(postgres: Server) -> Database:
    return postgres.new_database()


@pytest.fixture
def study(base: Database) -> Stored:
    return Stored(base, "study")


@pytest.fixture
def link(postgres: Server) -> Iterator[Link]:
    made = Link(postgres.port)
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 1.0)
    monkeypatch.setattr(store, "FENCE_S", 1.0)
    monkeypatch.setattr(store, "TAKEOVER_S", 0.3)
    monkeypatch.setattr(session, "_LINK", {**session._LINK, "connect_timeout": "2"})


def end_sessions(postgres: Server, base: Database) -> None:
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()", name_of(base))


def through(link: Link, postgres: Server, base: Database) -> Stored:
    return Stored(postgres.database(name_of(base), port=link.port), "study")


class TestAConnectionThatIsCut:
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("what", [b"BEGIN", b"INSERT INTO optimize.entry", b"COMMIT"])
    def test_in_the_middle_of_an_append_the_entry_is_there_once(self, when: str, what: bytes, postgres: Server, base: Database, link: Link) -> None:
        """Before: the server never gets the message. After: it acts on it, and its answer is lost."""
        with Journal.create(through(link, postgres, base)) as journal:
            journal.append("opened", {}, expect=0)
            armed = [when]

            def cut(data: bytes) -> str | None:
                return armed.pop() if what in data and armed else None

            link.cut_when = cut
            entry = journal.append("note", {"n": 1}, expect=1, blobs={"log": b"x" * 100})
            assert not armed and link.cuts == 1
            again = journal.append("note", {"n": 2}, expect=2)
            assert journal.read()[1:] == [entry, again]
            assert journal.verify() == 3
            assert journal.epoch == 1 and again.epoch == 1
        with Journal.open(Stored(base, "study"), write=False) as reader:
            assert len(reader.read()) == 3
            assert reader.blob(entry.body["blobs"]["log"]) == b"x" * 100

    def test_again_and_again(self, postgres: Server, base: Database, link: Link) -> None:
        """Cut at each message in turn, and again at the first messages of the new connection."""
        with Journal.create(through(link, postgres, base)) as journal:
            seq, count = 0, [0]
            for at in range(1, 25):
                count[0] = 0

                def cut(data: bytes, at: int = at) -> str | None:
                    count[0] += 1
                    return ("before", "after")[at % 2] if count[0] == at % 9 else None

                link.cut_when = cut
                seq = journal.append("note", {"n": at}, expect=seq).seq
            link.cut_when = lambda data: None
            assert [entry.body["n"] for entry in journal.read()] == list(range(1, 25))
            assert journal.verify() == 24
            assert link.cuts >= 12

    def test_that_does_not_come_back_is_unknown_and_resuming_reads_what_was_committed(
        self, postgres: Server, base: Database, link: Link, impatient: None
    ) -> None:
        journal = Journal.create(through(link, postgres, base))
        journal.append("opened", {}, expect=0)

        def cut(data: bytes) -> str | None:
            if b"COMMIT" in data:
                link.refusing = True
                return "after"
            return None

        link.cut_when = cut
        with pytest.raises(StoreLost, match="Whether entry 2 was written is not known") as told:
            journal.append("note", {"n": 1}, expect=1)
        assert told.value.retryable and "resume" in told.value.hint
        journal.close()
        link.refusing = False
        with Journal.open(Stored(base, "study"), write=True) as journal:
            assert [entry.kind for entry in journal.read()] == ["opened", "note", "lease_taken"]
            assert journal.read()[-1].body["previous"]["ended"] == "connection lost"

    def test_reading_goes_on(self, postgres: Server, base: Database, link: Link, study: Stored) -> None:
        with Journal.create(study) as journal:
            journal.append("opened", {}, expect=0)
        with Journal.open(through(link, postgres, base), write=False) as reader:
            assert reader.last_seq == 1
            link.cut_all()
            assert reader.last_seq == 1
            link.cut_all()
            assert len(reader.read()) == 1


def test_a_server_that_crashes_and_starts_again_costs_the_study_nothing(postgres: Server, study: Stored) -> None:
    with Journal.create(study) as journal:
        journal.append("opened", {}, expect=0)
        postgres.stop(3)
        writing = threading.Thread(target=lambda: journal.append("note", {}, expect=1))
        writing.start()
        time.sleep(1.0)
        assert writing.is_alive(), "it waits"
        postgres.start()  # not in the thread: it would end with it
        writing.join(30)
        assert journal.verify() == 2
        assert journal.confirm_lease() is False


class TestALostSession:
    def test_is_a_lost_lease_that_is_taken_back_if_nobody_else_has_it(self, postgres: Server, base: Database, study: Stored) -> None:
        with Journal.create(study) as journal:
            end_sessions(postgres, base)
            holder = Journal.open(study, write=False).holder()
            assert holder is not None and not holder.alive
            assert journal.confirm_lease() is False
            with pytest.raises(AnotherWriter, match="is being written by process"):
                Journal.open(study, write=True)
            journal.append("opened", {}, expect=0)

    def test_is_told_to_whoever_asks_and_nothing_is_written_after_a_takeover(self, postgres: Server, base: Database, study: Stored, impatient: None) -> None:
        journal = Journal.create(study)
        journal.append("opened", {}, expect=0)
        end_sessions(postgres, base)
        began = time.monotonic()
        with Journal.open(study, write=True) as successor:
            # The first process is alive: it is given the time in which it must have noticed.
            assert time.monotonic() - began >= store.TAKEOVER_S
            assert successor.read()[-1].body["previous"]["ended"] == "connection lost"
            with pytest.raises(AnotherWriter, match="taken over by process"):
                journal.confirm_lease()
            with pytest.raises(AnotherWriter, match="taken over by process"):
                journal.append("note", {}, expect=2)
            successor.append("note", {}, expect=2)
        with pytest.raises(AnotherWriter):  # nor after the successor has gone
            journal.append("note", {}, expect=3)
        journal.close()
        with Journal.open(study, write=False) as reader:
            assert [entry.kind for entry in reader.read()] == ["opened", "lease_taken", "note"]
            holder = reader.holder()
            assert holder is not None and holder.epoch == 2 and holder.released

    def test_a_half_dead_session_of_our_own_is_ended(self, postgres: Server, base: Database, study: Stored, link: Link) -> None:
        """The server still takes the old connection for alive: it holds the lock that the new one needs."""
        with Journal.create(through(link, postgres, base)) as journal:
            journal.append("opened", {}, expect=0)
            clients = [client for client, _ in link.pairs]
            for client in clients:  # our side is gone, the server's side stays
                client.close()
            journal._connection.close()
            assert journal.append("note", {}, expect=1).seq == 2

    def test_an_append_without_the_lock_is_refused_by_the_database(self, study: Stored) -> None:
        """As behind a pooler that hands out another session for each transaction."""
        with Journal.create(study) as journal:
            journal._connection.execute("SELECT pg_advisory_unlock_all()")
            with pytest.raises(AnotherWriter, match="does not hold the study's lock"):
                journal.append("opened", {}, expect=0)
            with pytest.raises(AnotherWriter):
                journal.confirm_lease()

    async def test_ends_the_step_that_runs(self, postgres: Server, base: Database, study: Stored, impatient: None) -> None:
        journal = Journal.create(study)
        ended = []

        async def step() -> None:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                ended.append(time.monotonic())
                raise

        class Stop:
            reason: str | None = None

            def ask(self, reason: str, ending: str = "interrupted") -> None:
                self.reason = reason

        running = asyncio.ensure_future(leasing.held(journal, step(), Stop(), heartbeat_s=0.05))
        await asyncio.sleep(0.2)
        assert not running.done()
        with session.connected(base) as other:
            number = other.execute("SELECT id FROM optimize.study").fetchone()
            assert number is not None
            while other.execute("SELECT pg_try_advisory_lock(%s, %s)", (schema.LEASE_LOCK, number[0])).fetchone() != (True,):
                other.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()")
            with pytest.raises(AnotherWriter):
                await asyncio.wait_for(running, 10)
        assert ended
        journal.close()

    async def test_a_database_that_says_nothing_any_more_ends_it_too(
        self, postgres: Server, base: Database, link: Link, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leasing, "CONFIRM_S", 0.5)
        journal = Journal.create(through(link, postgres, base))
        silence = threading.Event()
        link.cut_when = lambda data: (silence.wait(20), None)[1]
        began = time.monotonic()

        class Stop:
            reason: str | None = None

            def ask(self, reason: str, ending: str = "interrupted") -> None:
                self.reason = reason

        with pytest.raises(StoreLost, match="did not confirm within"):
            await leasing.held(journal, asyncio.sleep(30), Stop(), heartbeat_s=0.05)
        assert time.monotonic() - began < 5
        silence.set()
        journal.close()

    async def test_work_that_ends_or_fails_is_given_on(self, study: Stored) -> None:
        class Stop:
            reason: str | None = None

            def ask(self, reason: str, ending: str = "interrupted") -> None:
                self.reason = reason

        async def fails() -> None:
            raise KeyError("x")

        with Journal.create(study) as journal:
            assert await leasing.held(journal, asyncio.sleep(0.2, "done"), Stop(), heartbeat_s=0.05) == "done"
            with pytest.raises(KeyError):
                await leasing.held(journal, fails(), Stop())
            stop = Stop()
            with Journal.open(study, write=False) as reader:
                assert reader.ask_stop()
                assert reader.ask_stop(), "asking twice is harmless"
            await leasing.held(journal, asyncio.sleep(0.3), stop, heartbeat_s=0.05)
            assert stop.reason is not None and "optimize stop" in stop.reason
        with Journal.open(study, write=True) as journal:  # the word was for the coordinator before
            assert journal.confirm_lease() is False


class TestRefusals:
    def test_nobody_there(self, postgres: Server, base: Database) -> None:
        with pytest.raises(StoreLost, match=r"cannot be reached.*refused") as told:
            Journal.open(Stored(postgres.database(name_of(base), port=1), "s"), write=False)
        assert "pg_isready" in told.value.hint

    def test_wrong_password_and_no_password(self, postgres: Server, base: Database) -> None:
        if not postgres.sql("SELECT 1 FROM pg_roles WHERE rolname = 'guarded'"):
            postgres.sql(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}' SUPERUSER")
        for secret in ("wr0ng-pass", ""):
            with pytest.raises(JournalError, match="lets nobody in") as told:
                Journal.create(Stored(postgres.database(name_of(base), user="guarded", password=secret), "s"))
            assert not isinstance(told.value, StoreLost) and "pgpass" in told.value.hint
            assert "wr0ng" not in str(told.value)
        place = Stored(postgres.database(name_of(base), user="guarded", password=ESCAPED), "s")
        with Journal.create(place) as journal:
            journal.append("opened", {"text": f"psql {place.database.url} with {PASSWORD}"}, expect=0, blobs={"log": PASSWORD.encode()})
            assert PASSWORD not in json.dumps(journal.read()[0].body) and ESCAPED not in json.dumps(journal.read()[0].body)
            assert PASSWORD.encode() not in journal.blob(journal.read()[0].body["blobs"]["log"])
            assert not any(secret in f"{place} {place!r} {journal.where}" for secret in (PASSWORD, ESCAPED))

    @pytest.mark.parametrize(
        ("user", "name", "message", "hint"),
        [("postgres", "absent", "does not exist", "createdb"), ("stranger", "postgres", "does not exist", "createuser"), ("nobodys", "postgres", "pg_hba.conf", "pg_hba.conf")],
    )
    def test_nobody_is_let_in(self, postgres: Server, user: str, name: str, message: str, hint: str) -> None:
        with pytest.raises(JournalError, match=message) as told:
            Journal.open(Stored(postgres.database(name, user=user), "s"), write=True)
        assert hint in told.value.hint

    def test_a_missing_driver_names_the_extra(self, study: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(JournalError, match="psycopg 3") as told:
            Journal.open(study, write=False)
        assert told.value.hint == "Install it with: pip install 'optimize[postgres]'"

    def test_tables_of_another_release(self, postgres: Server, base: Database, study: Stored) -> None:
        with Journal.create(study) as journal:
            journal.append("opened", {}, expect=0)
        postgres.sql("UPDATE optimize.format SET version = version + 1", name_of(base))
        with pytest.raises(JournalTooNew, match="newer release"):
            Journal.open(study, write=True)
        with pytest.raises(JournalTooNew, match="newer release"):
            Journal.create(Stored(base, "other"))
        with Journal.open(study, write=False) as reader:
            assert reader.verify() == 1
        postgres.sql("UPDATE optimize.format SET version = -1", name_of(base))
        for write in (True, False):
            with pytest.raises(JournalError, match="old format"):
                Journal.open(study, write=write)

    def test_a_schema_of_somebody_else_s_is_left_alone(self, postgres: Server, base: Database, study: Stored) -> None:
        postgres.sql("CREATE SCHEMA optimize; CREATE TABLE optimize.entry (x int)", name_of(base))
        for attempt in (lambda: Journal.create(study), lambda: Journal.open(study, write=False), lambda: shared.studies(base)):
            with pytest.raises(JournalCorrupt, match="not of journals"):
                attempt()

    def test_an_encoding_that_loses_characters(self, postgres: Server) -> None:
        postgres.sql("DROP DATABASE IF EXISTS latin")
        postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        with pytest.raises(JournalError, match="LATIN1"):
            Journal.create(Stored(postgres.database("latin"), "s"))

    def test_a_reader_s_role_reads_and_does_not_write(self, postgres: Server, base: Database, study: Stored) -> None:
        with Journal.create(study) as journal:
            journal.append("opened", {}, expect=0)
        grants = [*documented("reader"), f"GRANT CONNECT ON DATABASE {name_of(base)} TO reader"]
        postgres.sql("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN", name_of(base))
        postgres.sql(";".join(grants), name_of(base))
        mine = Stored(postgres.database(name_of(base), user="reader"), "study")
        with Journal.open(mine, write=False) as reader:
            assert reader.verify() == 1
            assert reader.holder() is not None
            assert reader.rows("trial") == []
        assert [one.name for one in shared.studies(mine.database)] == ["study"]
        for attempt in (lambda: Journal.open(mine, write=True), lambda: Journal.create(Stored(mine.database, "new")), lambda: shared.teach(mine.database, [("m", None)])):
            with pytest.raises(JournalError, match="role 'reader' may not") as told:
                attempt()
            assert "GRANT" in told.value.hint
        postgres.sql("DROP OWNED BY reader; DROP ROLE reader", name_of(base))

    def test_a_coordinator_s_role_needs_no_more_than_the_document_says(self, postgres: Server, base: Database, study: Stored) -> None:
        Journal.create(study).close()
        postgres.sql("DROP ROLE IF EXISTS coordinator; CREATE ROLE coordinator LOGIN", name_of(base))
        postgres.sql(";".join(documented("coordinator")), name_of(base))
        theirs = postgres.database(name_of(base), user="coordinator")
        with Journal.create(Stored(theirs, "new")) as journal:
            journal.append("opened", {}, expect=0, blobs={"log": b"x"})
            end_sessions(postgres, base)
            journal.append("note", {}, expect=1)
            with Journal.open(Stored(theirs, "new"), write=False) as reader:
                assert reader.ask_stop()
            assert journal.confirm_lease() is True
        assert shared.teach(theirs, [("m", None)]) == 1
        with Journal.open(Stored(theirs, "study"), write=True) as journal:
            assert journal.epoch == 2
        postgres.sql("DROP OWNED BY coordinator; DROP ROLE coordinator", name_of(base))

    def test_a_standby_or_a_session_that_only_reads(self, postgres: Server, base: Database, study: Stored) -> None:
        Journal.create(study).close()
        only = database(f"{base.url}?options=-c%20default_transaction_read_only%3Don")
        with pytest.raises(JournalError, match="takes no writes"):
            Journal.open(Stored(only, "study"), write=True)
        assert Journal.open(Stored(only, "study"), write=False).last_seq == 0

    def test_a_room_that_is_full_loses_only_that_append(self, postgres: Server, base: Database, study: Stored) -> None:
        with Journal.create(study) as journal:
            journal.append("opened", {}, expect=0)
            postgres.sql(
                "CREATE FUNCTION full_() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;"
                "CREATE TRIGGER a_full BEFORE INSERT ON optimize.entry FOR EACH ROW EXECUTE FUNCTION full_()", name_of(base))  # fmt: skip
            with pytest.raises(JournalError, match="no room"):
                journal.append("note", {}, expect=1)
            postgres.sql("DROP TRIGGER a_full ON optimize.entry", name_of(base))
            assert journal.append("note", {}, expect=1).seq == 2


def documented(role: str) -> list[str]:
    """The statements that the document on stores gives to a role."""
    text = (Path(__file__).parents[3] / "docs" / "store.md").read_text(encoding="utf-8")
    block = next(part for part in text.split("```")[1::2] if part.startswith("sql") and f"TO {role}" in part)
    return [line for line in block.splitlines()[1:] if line.startswith("GRANT")]


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        ["mysql://u:hunter2secret@h/d", "u:hunter2secret@h/d", "postgresql:/u:hunter2secret@h/d", "postgresql://u:hunter2secret%@h/d",
         "postgresql://u:hunter2secret%zz@h/d", "postgresql://u:hunter2secret @h/d", "postgresql://u:hunter2secret@[h/d"],
    )  # fmt: skip
    def test_what_is_none_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(UsageError) as told:
            database(url)
        assert "hunter2" not in str(told.value) and told.value.hint

    @pytest.mark.parametrize(
        "url",
        ["postgresql://u:hunter2secret@h:1/d?sslmode=disable", "postgres://u@h:1/d?password=hunter2secret", "postgresql:///d?host=/run/x&password=hunter2secret",
         "postgresql://h:1,g:2/d?user=u&password=hunter2secret", "postgresql://u:hunter2secret@h:1/d?nonsense=1"],
    )  # fmt: skip
    def test_a_password_is_never_shown(self, url: str) -> None:
        found = database(url)
        assert "hunter2" not in f"{found} {found!r} {found.masked(url)}"
        with pytest.raises(JournalError) as told:
            Journal.open(Stored(found, "s"), write=False)
        assert "hunter2" not in str(told.value) + repr(told.value) + repr(told.value.__cause__)

    def test_nor_written_into_the_log(self, postgres: Server, base: Database, tmp_path: Path) -> None:
        if not postgres.sql("SELECT 1 FROM pg_roles WHERE rolname = 'guarded'"):
            postgres.sql(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}' SUPERUSER")
        place = Stored(postgres.database(name_of(base), user="guarded", password=ESCAPED), "s")
        with Journal.create(place) as journal:
            log.configure(level="error", log_file=tmp_path / "log.jsonl", redactor=journal.redactor)
            log.get("test").warning("x", url=place.database.url, password=PASSWORD)
            end_sessions(postgres, base)
            journal.append("opened", {}, expect=0)
        text = (tmp_path / "log.jsonl").read_text()
        assert "lost" in text and PASSWORD not in text and ESCAPED not in text


class TestAllStudies:
    def test_newest_first_and_none_without_tables(self, base: Database) -> None:
        assert shared.studies(base) == [] and shared.taught(base) == [] and not shared.holds(Stored(base, "a"))
        for name in ("a", "b", "c"):
            with Journal.create(Stored(base, name)) as journal:
                journal.append("opened", {}, expect=0)
            time.sleep(0.002)
        with Journal.open(Stored(base, "a"), write=True):
            pass
        assert [one.name for one in shared.studies(base)] == ["a", "c", "b"]
        assert shared.holds(Stored(base, "b")) and not shared.holds(Stored(base, "d"))

    def test_tables_are_made_once_by_many_at_once(self, base: Database) -> None:
        code = """
            import sys
            from optimizer.journal import Journal, Stored, database
            sys.stdin.readline()
            with Journal.create(Stored(database(sys.argv[1]), sys.argv[2])) as journal:
                journal.append("opened", {}, expect=0)
        """
        racers = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), base.url, f"s{n}"], stdin=subprocess.PIPE, text=True) for n in range(4)]
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.close()
        assert [racer.wait(60) for racer in racers] == [0, 0, 0, 0]
        assert sorted(one.name for one in shared.studies(base)) == ["s0", "s1", "s2", "s3"]

    def test_what_was_taught_is_never_counted_twice(self, base: Database) -> None:
        row = '{"cause": "c"}'
        assert shared.teach(base, [("m1", row), ("m2", row)]) == 2
        assert shared.teach(base, [("m2", row), ("m3", None)]) == 1
        assert sorted(shared.taught(base)) == [("m1", row), ("m2", row), ("m3", None)]
