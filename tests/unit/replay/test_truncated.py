"""A journal that somebody cut: what is left of it verifies, and is not called whole."""

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

from click.testing import CliRunner

from optimizer.cli import main

PLACEBO = Path(__file__).parents[3] / "runs" / "recorded" / "h200-7b-placebo"


def test_a_record_whose_end_was_taken_off_is_not_called_whole(tmp_path: Path) -> None:
    """The chain of what is left is sound: only the missing ending shows it."""
    shutil.copy(PLACEBO / "journal.db", tmp_path / "journal.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as database, database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f"drop trigger {name}")
        database.execute("delete from entry where seq > 15")
    done = CliRunner().invoke(main, ["replay", str(tmp_path), "--verify", "--json"])
    assert json.loads(done.stdout)["ended"] is False and json.loads(done.stdout)["identical"] is True
    assert "the end of the record was taken off" in json.loads(done.stdout)["text"]
    whole = CliRunner().invoke(main, ["replay", str(PLACEBO), "--verify"])
    assert whole.exit_code == 0 and "closing entry" not in whole.stdout
    for words in (["--policy", "evidence", "--verify"], ["--until", "0"]):
        assert CliRunner().invoke(main, ["replay", str(tmp_path), *words]).exit_code == 2
