"""The two places that keep journals, for the tests that both have to pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.journal import Place, Stored
from tests.postgres import Server, name_of

# New and empty places, as many as a test asks for; all of one test in one folder or database.
NewPlace = Callable[[str], Place]


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewPlace]:
    if kind == "sqlite":
        yield lambda name: tmp_path / name / "journal.db"
        return
    database = request.getfixturevalue("postgres").new_database()
    yield lambda name: Stored(database, name)


@pytest.fixture
def place(new_place: NewPlace) -> Place:
    return new_place("study")


class Outside:
    """Another program at a journal: it has the place's own client, and no respect."""

    def __init__(self, place: Place, server: Server | None) -> None:
        self.place, self.server = place, server

    def run(self, *statements: str) -> None:
        """Raises ValueError with the place's refusal. In PostgreSQL, ``entry``, ``lease`` and ``blob`` of the only study."""
        if isinstance(self.place, Stored):
            assert self.server is not None
            self.server.sql("SET search_path = optimize, public;\n" + ";\n".join(statements), name_of(self.place.database))
            return
        connection = sqlite3.connect(self.place)
        try:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        except sqlite3.Error as error:
            raise ValueError(str(error)) from error
        finally:
            connection.close()

    def tamper(self, *statements: str) -> None:
        """As somebody who takes the rules away first: the owner of the file or of the tables."""
        if isinstance(self.place, Stored):
            off = [f"ALTER TABLE {table} DISABLE TRIGGER ALL" for table in ("entry", "blob", "lease", "study")]
            self.run(*off, *statements)
            return
        connection = sqlite3.connect(self.place)
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()


@pytest.fixture
def outside(place: Place, kind: str, request: pytest.FixtureRequest) -> Outside:
    return Outside(place, request.getfixturevalue("postgres") if kind == "postgresql" else None)


def word(place: Place) -> str:
    """The place as a word of a command line; ``PLACE`` below makes it a place again."""
    return f"{place.database.url}#{place.name}" if isinstance(place, Stored) else str(place)


PLACE = """
def place(word):
    from pathlib import Path
    from optimizer.journal import Stored, database
    if word.startswith("postgresql://"):
        url, _, name = word.partition("#")
        return Stored(database(url), name)
    return Path(word)
"""


