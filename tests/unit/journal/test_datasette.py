"""Journals open in Datasette as they are: a recorded one and one that is being written, every documented view over HTTP."""

import asyncio
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from optimizer.journal import Journal
from optimizer.journal.views import NAMES
from optimizer.runner.loop import drive
from tests.datasette import answer, serving
from tests.unit.core.many_boxes import Driver, several
from tests.unit.core.model_box import PLAN, ModelBox, spec

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/histories/h200-7b-eager/journal.db"
DOCUMENT = (ROOT / "docs" / "journal.md").read_text(encoding="utf-8")


def box() -> ModelBox:
    return ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)


def on_two_boxes(path: Path) -> None:
    """A whole study on two boxes in memory, its entries in a file."""
    driver = Driver(several(2), {name: box() for name in ("a", "b")})
    driver.run()
    with Journal.create(path) as journal:
        for entry in driver.log.read():
            journal.append(entry.kind, entry.body, key=entry.key, cause=entry.cause, expect=journal.last_seq)


def test_every_documented_view_answers_over_http(tmp_path: Path) -> None:
    """Three files by one server: recorded by an earlier release, on two boxes, and one whose study goes on meanwhile."""
    recorded, boxes, live = (tmp_path / f"{name}.db" for name in ("recorded", "boxes", "live"))
    shutil.copy(RECORDED, recorded)
    on_two_boxes(boxes)
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.partition("## Views")[2].partition("\n## ")[0], re.MULTILINE)
    assert sorted(documented) == sorted(NAMES)
    with Journal.create(live) as journal:
        journal.append("opened", {"spec": spec().plain()}, expect=0)
        with serving([recorded.name, boxes.name, live.name], tmp_path) as address:
            assert answer(address, "/live/trial.json")["rows"] == []
            for path in (recorded, boxes):
                with Journal.open(path, write=False) as read:
                    for view in documented:
                        told = answer(address, f"/{path.stem}/{view}.json", _size="max")["rows"]
                        assert len(told) == len(read.rows(view)), (path.stem, view)
                        assert told or view == "refusal" or (path, view) == (boxes, "flip"), (path.stem, view)
            for sql in queries():
                assert answer(address, "/recorded.json", sql=sql)["rows"], sql
            by_box = answer(address, "/boxes.json", sql="select box, count(*) as n from trial where step = 'launch' group by box")["rows"]
            assert [row["box"] for row in by_box] == ["a", "b"] and all(row["n"] >= 1 for row in by_box)
            asyncio.run(drive(journal, box(), PLAN))  # the study goes on while it is looked at
            assert len(answer(address, "/live/trial.json", _size="max")["rows"]) == len(journal.rows("trial")) > 5
            with pytest.raises(AssertionError, match="400"):
                answer(address, "/live.json", sql="delete from entry")
        assert journal.verify() == journal.last_seq


@pytest.mark.parametrize("section", ["Views", "Tables"])
def test_every_column_is_documented_and_no_other(section: str, tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db"):
        pass
    text = DOCUMENT.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE)
    shared = {"seq", "at_utc", "box"} if section == "Views" else set()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        kind = "view" if section == "Views" else "table"
        assert {name for name, _ in rows} == {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = ?", (kind,))}
        for name, cells in rows:
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
            named = set(re.findall(r"`(\w+)`", cells))
            assert shared <= columns <= named | shared, (name, columns - named - shared)
            assert named - columns <= {"done", "failed", "unknown", "open", "zlib", "all"}, (name, named - columns)


def queries() -> list[str]:
    """What docs/journal.md asks by sqlite-utils."""
    found = re.findall(r'^\$ sqlite-utils runs/STUDY/journal.db "(.+?)"', DOCUMENT, re.MULTILINE)
    assert len(found) >= 4
    return [sql for sql in found if "box" not in sql and "text(" not in sql]


def test_sqlite_utils_opens_it_as_it_is(tmp_path: Path) -> None:
    shutil.copy(RECORDED, tmp_path / "journal.db")
    before = (tmp_path / "journal.db").read_bytes()

    def asked(*words: str) -> Any:
        done = subprocess.run([sys.executable, "-m", "sqlite_utils", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    views = asked("views", "journal.db")
    assert all(f'"{name}"' in views for name in NAMES)
    assert "CREATE TABLE entry" in asked("schema", "journal.db")
    refused = subprocess.run([sys.executable, "-m", "sqlite_utils", "journal.db", "delete from entry"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "append-only" in refused.stderr
    assert (tmp_path / "journal.db").read_bytes() == before
