"""Journals whose chain is whole and whose bodies are not: one error of ours with the entry's number, or a state; never a traceback.
And a journal that is far longer than any study writes."""

from __future__ import annotations

import copy
import resource
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.core.state import apply, fold
from optimizer.errors import JournalError
from optimizer.journal import Journal
from optimizer.model.entry import Entry, chain_hash

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "tests/histories/h200-7b-eager/journal.db"


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    path = tmp_path_factory.mktemp("history") / "journal.db"
    shutil.copy(HISTORY, path)
    with Journal.open(path, write=False) as journal:
        return list(journal.read())


def places(value: Any, depth: int = 3) -> Iterator[tuple[Any, ...]]:
    """Paths to every mapping of a body, a few levels deep."""
    if isinstance(value, dict):
        yield ()
        if depth:
            for key, inner in value.items():
                for path in places(inner, depth - 1):
                    yield (key, *path)


def changed(entry: Entry) -> Iterator[Entry]:
    for path in places(entry.body):
        body = copy.deepcopy(entry.body)
        inner: Any = body
        for key in path:
            inner = inner[key]
        for key in list(inner)[:12]:
            kept = inner.pop(key)
            yield entry.model_copy(update={"body": copy.deepcopy(body)})
            for other in (None, "text", -1, [], {"x": 1}):
                inner[key] = other
                yield entry.model_copy(update={"body": copy.deepcopy(body)})
            inner[key] = kept
        inner["a field of nobody"] = 1
        yield entry.model_copy(update={"body": copy.deepcopy(body)})


@pytest.mark.fault("H41")
def test_a_body_with_a_field_too_many_too_few_or_of_another_kind(entries: list[Entry]) -> None:
    seen: set[str] = set()
    refused = folded = 0
    for index, entry in enumerate(entries):
        kind = f"{entry.kind} {entry.body.get('step') if isinstance(entry.body.get('step'), str) else entry.body.get('step', {}).get('kind')}"
        if kind in seen:
            continue
        seen.add(kind)
        before = fold(entries[:index])
        for bad in changed(entry):
            try:
                apply(before, bad)
            except JournalError as error:
                assert f"Entry {entry.seq}" in str(error) and len(str(error)) < 1000
                refused += 1
            else:
                folded += 1
    assert len(seen) > 15 and refused > 100 and folded > 100, (len(seen), refused, folded)


@pytest.mark.fault("H41")
def test_a_command_says_so_in_one_message(tmp_path: Path) -> None:
    """A journal of this very release whose first entry lacks its target: its chain holds, its body does not."""
    (tmp_path / "runs/odd").mkdir(parents=True)
    with Journal.create(tmp_path / "runs/odd/journal.db") as journal:
        journal.append("opened", {"spec": {"study": "odd"}}, expect=0)
    for words in (("resume", "odd"), ("stop", "odd"), ("replay", "odd")):
        done = CliRunner().invoke(main, ["--runs", str(tmp_path / "runs"), "--knowledge", str(ROOT), *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, repr(done.exception))
        assert done.exit_code in (2, 6) and "Traceback" not in done.output, (words, done.output)


@pytest.mark.slow
@pytest.mark.fault("H42")
@pytest.mark.timeout(400)
def test_a_million_entries(tmp_path: Path) -> None:
    """Verified entry by entry, in seconds and without holding them all."""
    path = tmp_path / "journal.db"
    with Journal.create(path) as journal:
        journal.append("opened", {}, expect=0)
        first = journal.append("note", {"text": "x"}, expect=1)
    count = 1_000_000
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    row = connection.execute("SELECT at_utc, epoch, kind, key, cause, schema, body FROM entry WHERE seq = 2").fetchone()
    same = dict(zip(("at_utc", "epoch", "kind", "key", "cause", "schema", "body"), row, strict=True))

    def rows() -> Iterator[tuple[Any, ...]]:
        before = first.hash
        for seq in range(3, count + 1):
            own = chain_hash(seq=seq, **same, prev=before)
            yield (seq, *same.values(), before, own)
            before = own

    with connection:
        connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows())
        for _, sql in triggers:
            connection.execute(sql)
    connection.close()
    began, before_kib = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Journal.open(path, write=False) as journal:
        assert journal.verify() == count
    assert time.process_time() - began < 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200 << 10, "all of it was held at once"
