"""What a journal promises, wherever it is kept: against its own callers, against other programs, and against edits."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError, JournalTooNew
from optimizer.journal import Journal, Place, Stored
from optimizer.journal.copying import copy_to_database
from optimizer.journal.views import NAMES
from optimizer.model.entry import BODY_VERSION, GENESIS, EntryKind

from .conftest import PLACE, NewPlace, Outside, word


def filled(place: Place, trials: int = 3) -> Place:
    """A closed journal: opened, then launches with their outcomes."""
    with Journal.create(place) as journal:
        journal.append("opened", {"study": "s"}, expect=0)
        for n in range(trials):
            seq = journal.last_seq
            journal.append("intent", {"step": {"kind": "launch"}, "n": n}, key=f"launch-{n}", cause=1, expect=seq)
            journal.append("outcome", {"status": "done"}, key=f"launch-{n}", expect=seq + 1, blobs={"log": b"line %d" % n})
    return place


class TestAppendAndRead:
    def test_what_append_returns_is_what_read_returns(self, place: Place) -> None:
        with Journal.create(place) as journal:
            first = journal.append("opened", {"z": 1, "a": [1.5, None, True], "text": "é «x»"}, expect=0)
            second = journal.append("ranked", {}, cause=1, expect=1)
            assert journal.read() == [first, second]
            assert journal.read(after=1) == [second]
            assert journal.read(after=2) == []
        assert (first.seq, first.prev, second.prev) == (1, GENESIS, first.hash)
        assert first.body == {"z": 1, "a": [1.5, None, True], "text": "é «x»"}

    def test_every_kind_can_be_appended(self, place: Place) -> None:
        with Journal.create(place) as journal:
            for kind in EntryKind:
                key = "k" if kind in ("intent", "outcome") else None
                journal.append(kind, {"status": "done"}, key=key, expect=journal.last_seq)
            assert [entry.kind for entry in journal.read()] == list(EntryKind)
            assert journal.verify() == len(EntryKind)

    @pytest.mark.fault("H19")
    def test_half_a_surrogate_pair_becomes_the_replacement_character(self, place: Place) -> None:
        """JSON can spell one, and a server may send it under any name; no file and no database takes it."""
        with Journal.create(place) as journal:
            entry = journal.append("opened", {"a\ud800": "b\udcff", "api_key": "0123456789\ud800abcdef", "carried": "\U0010eee9"}, expect=0)
            assert entry.body["a\ufffd"] == "b\ufffd" and entry.body["carried"] == "\U0010eee9" and "0123456789" not in str(entry.body)
            assert journal.read() == [entry] and journal.verify() == 1

    @pytest.mark.fault("F48")
    def test_unknown_kinds_and_values_that_are_not_json_are_refused(self, place: Place) -> None:
        with Journal.create(place) as journal:
            for kind, body in (("surprise", {}), ("note", {"x": float("nan")}), ("note", {"x": float("inf")})):
                with pytest.raises(ValueError):
                    journal.append(kind, body, expect=0)
            with pytest.raises(TypeError):
                journal.append("note", {"x": object()}, expect=0)
            assert journal.read() == []
            journal.append("note", {}, expect=0)  # and the journal is still usable

    def test_expectation_that_is_wrong_writes_nothing(self, place: Place) -> None:
        with Journal.create(place) as journal:
            journal.append("opened", {}, expect=0)
            for wrong in (0, 2):
                with pytest.raises(AnotherWriter):
                    journal.append("note", {}, expect=wrong)
            assert journal.last_seq == 1

    def test_a_cause_must_be_an_earlier_entry(self, place: Place) -> None:
        with Journal.create(place) as journal:
            journal.append("opened", {}, expect=0)
            for wrong in (0, 2, 7):
                with pytest.raises(JournalError):
                    journal.append("note", {}, cause=wrong, expect=1)
            assert journal.last_seq == 1


class TestIntentAndOutcome:
    def test_only_one_intent_is_open(self, place: Place) -> None:
        with Journal.create(place) as journal:
            journal.append("intent", {}, key="a", expect=0)
            with pytest.raises(JournalError, match="no outcome yet"):
                journal.append("intent", {}, key="b", expect=1)

    def test_unknown_leaves_the_intent_open_until_it_is_settled_once(self, place: Place) -> None:
        with Journal.create(place) as journal:
            journal.append("intent", {}, key="a", expect=0)
            journal.append("outcome", {"status": "unknown"}, key="a", expect=1)
            with pytest.raises(JournalError, match="no outcome yet"):
                journal.append("intent", {}, key="b", expect=2)
            journal.append("outcome", {"status": "unknown"}, key="a", expect=2)
            journal.append("outcome", {"outcome": {"status": "done"}}, key="a", expect=3)
            for status in ("done", "failed", "unknown"):
                with pytest.raises(JournalError):
                    journal.append("outcome", {"status": status}, key="a", expect=4)
            journal.append("intent", {}, key="b", expect=4)
            assert journal.verify() == 5

    @pytest.mark.fault("H40")
    def test_keys_are_needed_and_never_used_again(self, place: Place) -> None:
        with Journal.create(place) as journal:
            for kind in ("intent", "outcome"):
                for key in (None, ""):
                    with pytest.raises(JournalError):
                        journal.append(kind, {"status": "done"}, key=key, expect=0)
            with pytest.raises(JournalError, match="needs an intent"):
                journal.append("outcome", {"status": "done"}, key="never", expect=0)
            journal.append("intent", {}, key="a", expect=0)
            journal.append("outcome", {"status": "failed"}, key="a", expect=1)
            with pytest.raises(JournalError, match="refuse"):
                journal.append("intent", {}, key="a", expect=2)


    def test_each_box_has_one_open_intent(self, place: Place) -> None:
        with Journal.create(place) as journal:
            journal.append("intent", {"box": "a"}, key="a1", expect=0)
            journal.append("intent", {"box": "b"}, key="b1", expect=1)
            with pytest.raises(JournalError, match="no outcome yet"):
                journal.append("intent", {"box": "a"}, key="a2", expect=2)
            journal.append("outcome", {"box": "b", "outcome": {"status": "done"}}, key="b1", expect=2)
            journal.append("intent", {"box": "b"}, key="b2", expect=3)
            assert journal.verify() == 4


class TestWhoeverComes:
    """Whoever connects, with whatever program, is held to the rules."""

    NEXT = "(seq, at_utc, epoch, kind, key, cause, schema, body, prev, hash) SELECT"
    OF = "FROM entry WHERE seq = 7"

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("UPDATE entry SET body = '{}' WHERE seq = 1", "append-only"),
            ("DELETE FROM entry WHERE seq = 1", "append-only"),
            ("UPDATE blob SET kept = ''", "append-only"),
            ("DELETE FROM blob", "append-only"),
            ("DELETE FROM lease", "append-only"),
            ("UPDATE lease SET pid = 1", "append-only"),
            (f"INSERT INTO entry {NEXT} 9, at_utc, epoch, 'note', NULL, NULL, 1, '{{}}', hash, hash {OF}", "gap"),
            (f"INSERT INTO entry {NEXT} 7, at_utc, epoch, 'note', NULL, NULL, 1, '{{}}', hash, hash {OF}", "gap"),
            (f"INSERT INTO entry {NEXT} 8, at_utc, 99, 'note', NULL, NULL, 1, '{{}}', hash, hash {OF}", "lease"),
            (f"INSERT INTO entry {NEXT} 8, at_utc, epoch, 'note', NULL, NULL, 1, '{{}}', prev, hash {OF}", "chain"),
            (f"INSERT INTO entry {NEXT} 8, at_utc, epoch, 'note', NULL, 8, 1, '{{}}', hash, hash {OF}", "cause"),
            (f"INSERT INTO entry {NEXT} 8, at_utc, epoch, 'intent', 'launch-0', NULL, 1, '{{}}', hash, hash {OF}", "UNIQUE|hold"),
            (f"INSERT INTO entry {NEXT} 8, at_utc, epoch, 'outcome', 'never', NULL, 1, '{{}}', hash, hash {OF}", "orphan"),
            (f"INSERT INTO entry {NEXT} 8, at_utc, epoch, 'outcome', 'launch-0', NULL, 1, '{{\"status\":\"done\"}}', hash, hash {OF}", "settled"),
        ],
    )  # fmt: skip
    def test_by_the_place_s_own_client(self, place: Place, outside: Outside, statement: str, message: str) -> None:
        filled(place)
        if isinstance(place, Stored):
            statement = statement.replace("(seq,", "(study, seq,").replace("SELECT ", "SELECT study, ")
        with pytest.raises(ValueError, match=message):
            outside.run(statement)
        assert Journal.open(place, write=False).verify() == 7


class TestDamage:
    @pytest.mark.parametrize("column", ["at_utc", "kind", "key", "body", "cause"])
    def test_an_edited_entry_is_noticed(self, place: Place, outside: Outside, column: str) -> None:
        value = {"at_utc": "'x'", "kind": "'note'", "key": "'other'", "body": "'{\"n\":9}'", "cause": "3"}[column]
        filled(place)
        outside.tamper(f"UPDATE entry SET {column} = {value} WHERE seq = 4")
        with Journal.open(place, write=False) as journal:
            with pytest.raises(JournalCorrupt, match="Entry 4 was changed"):
                journal.read()
            with pytest.raises(JournalCorrupt):
                journal.verify()

    def test_a_removed_entry_is_noticed_even_when_renumbered(self, place: Place, outside: Outside) -> None:
        filled(place)
        outside.tamper("DELETE FROM entry WHERE seq = 4")
        with pytest.raises(JournalCorrupt, match="breaks at entry 5"):
            Journal.open(place, write=False).read()
        outside.tamper(*(f"UPDATE entry SET seq = {n - 1} WHERE seq = {n}" for n in (5, 6, 7)))
        with pytest.raises(JournalCorrupt, match="breaks at entry 4"):
            Journal.open(place, write=False).read()
        with pytest.raises(JournalCorrupt):
            Journal.open(place, write=False).read(after=7)

    def test_an_edited_attachment_is_noticed(self, place: Place, outside: Outside) -> None:
        filled(place)
        outside.tamper("UPDATE blob SET data = (SELECT data FROM blob ORDER BY sha256 DESC LIMIT 1)")
        with pytest.raises(JournalCorrupt, match="digest"):
            Journal.open(place, write=False).verify()
        outside.tamper("DELETE FROM blob")
        with pytest.raises(JournalCorrupt, match="does not hold"):
            Journal.open(place, write=False).verify()

    @pytest.mark.parametrize("change", ["kind = 'invented'", f"schema = {BODY_VERSION[EntryKind.OPENED] + 1}"])
    def test_entries_of_a_newer_release_are_refused_by_name(self, place: Place, outside: Outside, change: str) -> None:
        filled(place)
        outside.tamper(f"UPDATE entry SET {change} WHERE seq = 1")
        with pytest.raises(JournalTooNew, match="Entry 1"):
            Journal.open(place, write=False).read()


class TestOpening:
    def test_a_study_that_is_not_there(self, place: Place, new_place: NewPlace) -> None:
        for write in (True, False):
            with pytest.raises(JournalError, match=r"There (is|are) no"):
                Journal.open(place, write=write)
        filled(new_place("another"))
        with pytest.raises(JournalError, match="There is no"):
            Journal.open(place, write=True)

    def test_a_study_is_created_once(self, place: Place) -> None:
        filled(place)
        with pytest.raises(JournalError, match="already"):
            Journal.create(place)
        assert Journal.open(place, write=False).verify() == 7

    def test_studies_do_not_see_each_other(self, new_place: NewPlace) -> None:
        with Journal.create(new_place("a")) as first, Journal.create(new_place("b")) as second:
            first.append("intent", {}, key="k", expect=0, blobs={"log": b"of a"})
            second.append("intent", {}, key="k", expect=0, blobs={"log": b"of a"})
            second.append("outcome", {"status": "done"}, key="k", expect=1)
            assert (first.last_seq, second.last_seq) == (1, 2)
            assert (len(first.rows("trial")), len(second.rows("trial"))) == (1, 1)
            assert first.rows("trial")[0]["status"] == "open"

    def test_a_reader_follows_a_writer_and_leaves_no_trace(self, place: Place) -> None:
        filled(place)
        reader = Journal.open(place, write=False)
        assert reader.last_seq == 7
        with pytest.raises(JournalError, match="reading only"):
            reader.append("note", {}, expect=7)
        with Journal.open(place, write=True) as writer:
            writer.append("note", {}, expect=8)
            assert [entry.kind for entry in reader.read(after=7)] == ["lease_taken", "note"]
            assert reader.read(limit=2) == writer.read(limit=2)
            writer.append("note", {}, expect=9)
            assert reader.last_seq == 10
        holder = reader.holder()
        assert holder is not None and (holder.epoch, holder.alive, holder.released) == (2, False, True)
        reader.close()
        reader.close()


class TestViews:
    def test_views_survive_bodies_without_their_keys(self, place: Place) -> None:
        with Journal.create(place) as journal:
            for kind in EntryKind:
                journal.append(kind, {}, key="k" if kind in ("intent", "outcome") else None, expect=journal.last_seq)
            for odd in ({"hypotheses": [1, "x", {}]}, {"hypotheses": {"a": 1}}, {"hypotheses": None}):
                journal.append("ranked", odd, expect=journal.last_seq)
            for view in NAMES:
                journal.rows(view)
            with pytest.raises(ValueError):
                journal.rows("entry; DROP TABLE entry")

    def test_the_same_rows_everywhere(self, place: Place) -> None:
        point = {"concurrency": 16, "metrics": {"output_tokens_per_s": 812.5}, "requests_ok": 9, "invalid": None}
        with Journal.create(place) as journal:
            journal.append("intent", {"step": {"kind": "measure", "settings": {"values": {}}}}, key="m", expect=0)
            journal.append("outcome", {"outcome": {"status": "done", "body": {"measurement": {"points": [point]}}, "duration_s": 2.5}}, key="m", expect=1)
            journal.append("judged", {"hypothesis": "h", "judgement": {"verdict": "supported", "ratio": 1.5, "low": 1, "high": 2.0}, "why": "\x00 odd \\u0000"}, cause=2, expect=2)
            journal.append("ranked", {"hypotheses": [{"id": "h", "score_db": 9, "probability": 0.9, "family": "f"}]}, expect=3)
            journal.append("flipped", {"flips": [{"fact": "graphs.mode", "before": "none", "after": "full", "blame": "x"}]}, expect=4)
            journal.append("refused", {"kind": "dead", "hypothesis": "h", "why": "it does nothing", "source": "s"}, cause=3, expect=5)
            trial, measured = journal.rows("trial"), journal.rows("measurement")
            assert [(row["step"], row["status"], row["duration_s"], row["outcome_seq"], row["settings"]) for row in trial] == [("measure", "done", 2.5, 2, "{}")]
            assert [(row["concurrency"], row["output_tokens_per_s"], row["requests_ok"], row["ttft_p50_ms"]) for row in measured] == [(16, 812.5, 9, None)]
            decided = journal.rows("decision")
            assert next((row["seq"], row["kind"], row["subject"], row["verdict"], row["ratio"], row["ratio_low"]) for row in decided) == (3, "judged", "h", "supported", 1.5, 1)
            assert [(row["id"], row["score_db"], row["probability"]) for row in journal.rows("hypothesis")] == [("h", 9, 0.9)]
            assert [(row["fact"], row["before"], row["after"], row["blame"]) for row in journal.rows("flip")] == [("graphs.mode", "none", "full", "x")]
            assert [(row["kind"], row["why"], row["cause"]) for row in journal.rows("refusal")] == [("dead", "it does nothing", 3)]
            assert journal.read()[2].body["why"] == "\x00 odd \\u0000"

    def test_a_row_names_its_box_where_there_are_several(self, place: Place) -> None:
        with Journal.create(place) as journal:
            journal.append("ranked", {"hypotheses": [{"id": "h"}]}, expect=0)
            journal.append("intent", {"step": {"kind": "launch"}, "box": "a"}, key="m", expect=1)
            journal.append("intent", {"step": {"kind": "launch"}, "box": "b"}, key="n", expect=2)
            journal.append("outcome", {"measurement": {"points": [{}]}, "status": "done", "box": "b"}, key="n", expect=3)
            journal.append("ranked", {"hypotheses": [{"id": "h"}], "box": "a"}, expect=4)
            journal.append("flipped", {"flips": [{}], "box": "b"}, expect=5)
            journal.append("refused", {"box": "a"}, expect=6)
            found = {view: [row["box"] for row in journal.rows(view)] for view in NAMES}
        assert found == {"trial": ["a", "b"], "measurement": ["b"], "hypothesis": [None, "a"], "flip": ["b"], "refusal": ["a"], "decision": [None, "a", "b", "a"]}

    def test_a_view_has_the_same_columns_everywhere(self, postgres: object, new_place: NewPlace, tmp_path: Path) -> None:
        with Journal.create(new_place("study")) as journal, Journal.create(tmp_path / "j.db") as file:
            for one in (journal, file):
                one.append("ranked", {"hypotheses": [{"id": "h"}]}, expect=0)
                one.append("flipped", {"flips": [{}]}, expect=1)
                one.append("refused", {}, expect=2)
                one.append("intent", {}, key="m", expect=3)
                one.append("outcome", {"measurement": {"points": [{}]}}, key="m", expect=4)
            for view in NAMES:
                assert list(journal.rows(view)[0]) == list(file.rows(view)[0]), view


class TestCopies:
    def test_an_export_of_an_open_study_is_closed_and_complete(self, place: Place, tmp_path: Path) -> None:
        with Journal.create(place) as journal:
            journal.append("opened", {}, expect=0, blobs={"spec": b"text"})
            copy = journal.export(tmp_path / "out" / "journal.db")
            with pytest.raises(JournalError, match="exists already"):
                journal.export(copy)
            original = journal.read()
        assert [item.name for item in copy.parent.iterdir()] == ["journal.db"]
        with Journal.open(copy, write=False) as exported:
            assert exported.read() == original
            assert exported.verify() == 1
            assert exported.blob(original[0].body["blobs"]["spec"]) == b"text"
        assert [item.name for item in copy.parent.iterdir()] == ["journal.db"]
        with Journal.open(copy, write=True) as resumed:  # and it can be carried on
            resumed.append("note", {}, expect=2)

    def test_there_and_back_again_and_carried_on(self, place: Place, new_place: NewPlace, postgres: object, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        filled(place)
        with Journal.open(place, write=True) as journal:  # a second lease, and one that wrote nothing
            journal.append("note", {"text": "é \x00"}, expect=8)
        Journal.open(place, write=True).close()
        database = request.getfixturevalue("postgres").new_database()
        with Journal.open(place, write=False) as journal:
            original = journal.read()
            there = copy_to_database(journal, Stored(database, "there"))
            with pytest.raises(JournalError, match="already"):
                copy_to_database(journal, there)
        with Journal.open(there, write=False) as journal:
            assert journal.read() == original
            back = journal.export(tmp_path / "back.db")
        with Journal.open(back, write=True) as journal:
            assert journal.read()[:-1] == original
            assert journal.epoch == 4
            with pytest.raises(JournalError, match="is being written"):
                copy_to_database(journal, Stored(database, "half"))
        with Journal.open(there, write=True) as journal:
            assert (journal.epoch, journal.read()[-1].body["previous"]["ended"]) == (4, "released")

    def test_a_damaged_original_is_not_copied(self, place: Place, outside: Outside, tmp_path: Path) -> None:
        filled(place)
        outside.tamper("UPDATE entry SET body = '{}' WHERE seq = 4")
        with Journal.open(place, write=False) as journal, pytest.raises(JournalCorrupt):
            from optimizer.journal.copying import copy_to_file

            copy_to_file(journal, tmp_path / "copy.db")
        assert not list(tmp_path.glob("*copy*"))


class TestForkedWriter:
    def test_a_child_process_cannot_write_with_its_parents_journal(self, place: Place) -> None:
        code = """
            import os, sys
            from optimizer.errors import JournalError
            from optimizer.journal import Journal
            journal = Journal.create(place(sys.argv[1]))
            if os.fork() == 0:
                try:
                    journal.append("note", {}, expect=0)
                except JournalError:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
            journal.append("note", {}, expect=0)
        """
        subprocess.run([sys.executable, "-W", "ignore", "-c", PLACE + textwrap.dedent(code), word(place)], check=True)
        assert Journal.open(place, write=False).last_seq == 1
