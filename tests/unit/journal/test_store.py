"""The journal keeps its rules: against its own callers, against other programs, and against edits of the file."""

import json
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from optimizer.errors import AnotherWriter, JournalCorrupt, JournalError, JournalTooNew
from optimizer.journal import Journal, files, schema
from optimizer.model.entry import BODY_VERSION, EntryKind


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study" / "journal.db"


def filled(path: Path, trials: int = 3) -> Path:
    """A closed journal: opened, then launches with their outcomes."""
    with Journal.create(path) as journal:
        journal.append("opened", {"study": "s"}, expect=0)
        for n in range(trials):
            seq = journal.last_seq
            journal.append("intent", {"step": {"kind": "launch"}, "n": n}, key=f"launch-{n}", cause=1, expect=seq)
            journal.append("outcome", {"status": "done"}, key=f"launch-{n}", expect=seq + 1, blobs={"log": b"line %d" % n})
    return path


def tampered(path: Path, *statements: str) -> None:
    """Edit the file as somebody who takes the triggers away first."""
    connection = sqlite3.connect(path)
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


class TestTheFileItselfRefuses:
    """Whoever opens the file, with whatever program, is held to the rules."""

    ROW = "(seq, at_utc, epoch, kind, key, cause, schema, body, prev, hash)"

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("UPDATE entry SET body = '{}' WHERE seq = 1", "append-only"),
            ("DELETE FROM entry WHERE seq = 1", "append-only"),
            ("UPDATE blob SET data = x'00'", "append-only"),
            ("DELETE FROM blob", "append-only"),
            ("DELETE FROM lease", "append-only"),
            ("UPDATE lease SET pid = 1", "append-only"),
            ("INSERT INTO lease VALUES (9, 'h', 1, '1', 'b', 't', NULL)", "next one"),
            (f"INSERT INTO entry {ROW} SELECT 9, at_utc, epoch, 'note', NULL, NULL, 1, '{{}}', hash, hash FROM entry WHERE seq = 7", "gap"),
            (f"INSERT OR REPLACE INTO entry {ROW} SELECT 7, at_utc, epoch, 'note', NULL, NULL, 1, '{{}}', hash, hash FROM entry WHERE seq = 7", "gap"),
            (f"INSERT INTO entry {ROW} SELECT 8, at_utc, 99, 'note', NULL, NULL, 1, '{{}}', hash, hash FROM entry WHERE seq = 7", "lease"),
            (f"INSERT INTO entry {ROW} SELECT 8, at_utc, epoch, 'note', NULL, NULL, 1, '{{}}', prev, hash FROM entry WHERE seq = 7", "chain"),
            (f"INSERT INTO entry {ROW} SELECT 8, at_utc, epoch, 'note', NULL, 8, 1, '{{}}', hash, hash FROM entry WHERE seq = 7", "cause"),
            (f"INSERT INTO entry {ROW} SELECT 8, at_utc, epoch, 'note', NULL, NULL, 1, '{{x', hash, hash FROM entry WHERE seq = 7", "CHECK|JSON"),
            (f"INSERT INTO entry {ROW} SELECT 8, at_utc, epoch, 'note', NULL, NULL, 1, '[]', hash, hash FROM entry WHERE seq = 7", "CHECK"),
            (f"INSERT INTO entry {ROW} SELECT 'x', at_utc, epoch, 'note', NULL, NULL, 1, '{{}}', hash, hash FROM entry WHERE seq = 7", "gap|mismatch"),
        ],
    )  # fmt: skip
    def test_by_plain_sqlite(self, path: Path, statement: str, message: str) -> None:
        filled(path)
        before = path.read_bytes()
        connection = sqlite3.connect(path)
        with pytest.raises(sqlite3.Error, match=message):
            connection.execute(statement)
        connection.close()
        assert Journal.open(path, write=False).verify() == 7
        assert path.read_bytes() == before


class TestDamage:
    @pytest.mark.parametrize("column", ["at_utc", "kind", "key", "body", "cause"])
    def test_an_edited_entry_is_noticed(self, path: Path, column: str) -> None:
        value = {"at_utc": "'x'", "kind": "'note'", "key": "'other'", "body": "'{\"n\":9}'", "cause": "3"}[column]
        filled(path)
        tampered(path, f"UPDATE entry SET {column} = {value} WHERE seq = 4")
        journal = Journal.open(path, write=False)
        with pytest.raises(JournalCorrupt, match="Entry 4 was changed"):
            journal.read()
        with pytest.raises(JournalCorrupt):
            journal.verify()

    @pytest.mark.fault("H39")
    def test_a_removed_entry_is_noticed_even_when_renumbered(self, path: Path) -> None:
        filled(path)
        tampered(path, "PRAGMA foreign_keys = OFF", "DELETE FROM entry WHERE seq = 4")
        with pytest.raises(JournalCorrupt, match="breaks at entry 5"):
            Journal.open(path, write=False).read()
        tampered(path, *(f"UPDATE entry SET seq = {n - 1} WHERE seq = {n}" for n in (5, 6, 7)))
        with pytest.raises(JournalCorrupt, match="breaks at entry 4"):
            Journal.open(path, write=False).read()
        with pytest.raises(JournalCorrupt):
            Journal.open(path, write=False).read(after=7)

    @pytest.mark.fault("H38")
    def test_a_flipped_byte_of_the_file_is_noticed(self, path: Path) -> None:
        filled(path)
        data = bytearray(path.read_bytes())
        where = data.index(b'"study":"s"')
        data[where + 9] ^= 1
        path.write_bytes(data)
        with pytest.raises(JournalCorrupt):
            Journal.open(path, write=False).verify()

    def test_an_edited_attachment_is_noticed(self, path: Path) -> None:
        filled(path)
        tampered(path, "UPDATE blob SET data = (SELECT data FROM blob ORDER BY sha256 DESC LIMIT 1)")
        with pytest.raises(JournalCorrupt, match="digest"):
            Journal.open(path, write=False).verify()
        tampered(path, "DELETE FROM blob")
        with pytest.raises(JournalCorrupt, match="does not hold"):
            Journal.open(path, write=False).verify()

    def test_pages_cut_off_are_noticed(self, path: Path) -> None:
        filled(path, trials=40)
        with path.open("r+b") as file:
            file.truncate(4096 * 6)
        with pytest.raises(JournalCorrupt):
            Journal.open(path, write=False).verify()


class TestForeignFiles:
    @pytest.mark.fault("H36")
    def test_absent_empty_and_foreign_files_have_names(self, tmp_path: Path) -> None:
        with pytest.raises(JournalError, match="no journal at"):
            Journal.open(tmp_path / "none.db", write=False)
        (tmp_path / "empty.db").touch()
        with pytest.raises(JournalCorrupt, match="holds no entry"):
            Journal.open(tmp_path / "empty.db", write=True)
        (tmp_path / "text.db").write_text("hello " * 100)
        for write in (True, False):
            with pytest.raises(JournalCorrupt, match="no SQLite file"):
                Journal.open(tmp_path / "text.db", write=write)
        foreign = sqlite3.connect(tmp_path / "foreign.db")
        foreign.execute("CREATE TABLE entry (seq INTEGER)")
        foreign.close()
        before = (tmp_path / "foreign.db").read_bytes()
        for attempt in (Journal.create, lambda path: Journal.open(path, write=True), lambda path: Journal.open(path, write=False)):
            with pytest.raises(JournalCorrupt, match="not a journal"):
                attempt(tmp_path / "foreign.db")
        assert (tmp_path / "foreign.db").read_bytes() == before
        with pytest.raises(JournalCorrupt):
            Journal.create(tmp_path / "text.db")

    @pytest.mark.fault("H25")
    def test_a_study_is_created_once(self, path: Path) -> None:
        filled(path)
        with pytest.raises(JournalError, match="already"):
            Journal.create(path)
        assert Journal.open(path, write=False).verify() == 7

    def test_one_without_an_entry_is_taken_over_once_its_writer_is_gone(self, path: Path) -> None:
        """Its coordinator died between making it and saying what it is for: nothing was done, and its name is free."""
        with Journal.create(path), pytest.raises(AnotherWriter, match="being written by process"):
            Journal.create(path)
        with Journal.create(path) as journal:
            assert journal.epoch == 2 and journal.last_seq == 0
            journal.append("opened", {}, expect=0)
            assert journal.verify() == 1
        with pytest.raises(JournalError, match="already"):
            Journal.create(path)

    @pytest.mark.fault("H37")
    def test_a_newer_file_is_read_and_never_written(self, path: Path) -> None:
        filled(path)
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {schema.USER_VERSION + 1}")
        connection.close()
        with pytest.raises(JournalTooNew, match="newer release"):
            Journal.open(path, write=True)
        assert len(Journal.open(path, write=False).read()) == 7

    @pytest.mark.parametrize("change", ["kind = 'invented'", f"schema = {BODY_VERSION[EntryKind.OPENED] + 1}"])
    def test_entries_of_a_newer_release_are_refused_by_name(self, path: Path, change: str) -> None:
        filled(path)
        tampered(path, f"UPDATE entry SET {change} WHERE seq = 1")
        with pytest.raises(JournalTooNew, match="Entry 1"):
            Journal.open(path, write=False).read()

    @pytest.mark.fault("F41")
    @pytest.mark.parametrize("fate", ["deleted", "replaced"])
    def test_a_file_that_vanishes_under_the_writer_stops_it(self, path: Path, tmp_path: Path, fate: str) -> None:
        with Journal.create(path) as journal:
            journal.append("opened", {}, expect=0)
            path.unlink()
            if fate == "replaced":
                path.write_bytes(filled(tmp_path / "other.db").read_bytes())
            with pytest.raises(JournalCorrupt, match="deleted or replaced"):
                journal.append("note", {}, expect=1)

    def test_network_file_systems_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(
            "20 1 8:1 / / rw - ext4 /dev/sda rw\n21 20 0:5 / /home rw shared:1 - nfs4 server:/home rw\n22 21 8:2 / /home/a\\040b rw - xfs /dev/sdb rw\n"
        )
        assert files.filesystem(Path("/home/x"), mounts) == "nfs4"
        assert files.filesystem(Path("/home/a b/y"), mounts) == "xfs"
        assert files.filesystem(Path("/homes"), mounts) == "ext4"
        assert files.filesystem(Path("/"), tmp_path / "absent") == ""
        monkeypatch.setattr(files, "filesystem", lambda folder: "nfs4")
        with pytest.raises(JournalError, match="network file system"):
            Journal.create(tmp_path / "s" / "journal.db")


class TestReadingOnly:
    def test_reading_creates_nothing_and_works_on_read_only_media(self, path: Path) -> None:
        filled(path)
        before = sorted(item.name for item in path.parent.iterdir())
        assert before == ["journal.db"]
        with Journal.open(path, write=False) as journal:
            assert len(journal.read()) == 7
            assert journal.holder() is not None
            assert len(journal.rows("trial")) == 3
            with pytest.raises(JournalError, match="reading only"):
                journal.append("note", {}, expect=7)
            assert sorted(item.name for item in path.parent.iterdir()) == before

    def test_a_reader_follows_a_writer(self, path: Path) -> None:
        filled(path)
        reader = Journal.open(path, write=False)
        assert reader.last_seq == 7
        with Journal.open(path, write=True) as writer:
            writer.append("note", {}, expect=8)
            assert [entry.kind for entry in reader.read(after=7)] == ["lease_taken", "note"]
            writer.append("note", {}, expect=9)
            assert reader.last_seq == 10
        assert reader.last_seq == 10
        assert Journal.open(path, write=False).last_seq == 10


class TestViews:
    def test_views_survive_bodies_without_their_keys(self, path: Path) -> None:
        with Journal.create(path) as journal:
            for kind in EntryKind:
                journal.append(kind, {}, key="k" if kind in ("intent", "outcome") else None, expect=journal.last_seq)
            for view in ("decision", "trial", "measurement", "hypothesis", "flip", "refusal"):
                journal.rows(view)
            with pytest.raises(ValueError):
                journal.rows("entry; DROP TABLE entry")

    def test_sqlite_utils_reads_what_people_ask_for(self, path: Path) -> None:
        point = {"concurrency": 16, "metrics": {"output_tokens_per_s": 812.5}, "requests_ok": 9}
        with Journal.create(path) as journal:
            journal.append("intent", {"step": {"kind": "measure"}}, key="m", expect=0)
            journal.append("outcome", {"status": "done", "body": {"measurement": {"points": [point]}}, "duration_s": 2.5}, key="m", expect=1)
        run = subprocess.run(
            [sys.executable, "-m", "sqlite_utils", "query", str(path), "SELECT output_tokens_per_s, concurrency FROM measurement"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(run.stdout) == [{"output_tokens_per_s": 812.5, "concurrency": 16}]
        with Journal.open(path, write=False) as journal:
            assert [(row["step"], row["status"], row["duration_s"]) for row in journal.rows("trial")] == [("measure", "done", 2.5)]


class TestForkedWriter:
    def test_a_child_process_cannot_write_with_its_parents_journal(self, path: Path) -> None:
        code = """
            import os, sys
            from optimizer.errors import JournalError
            from optimizer.journal import Journal
            journal = Journal.create(sys.argv[1])
            if os.fork() == 0:
                try:
                    journal.append("note", {}, expect=0)
                except JournalError:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
            journal.append("note", {}, expect=0)
        """
        subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(path)], check=True)
        assert Journal.open(path, write=False).last_seq == 1
