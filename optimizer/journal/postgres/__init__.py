"""Journals in a PostgreSQL database, for teams. The only package that touches the driver; nothing of it is imported unless
a store was named. Here is what concerns all studies of a database: their list, a copy that comes in, and what they taught."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from optimizer.errors import JournalError
from optimizer.journal.base import Row, now_utc
from optimizer.journal.blobs import Blob, blob_row
from optimizer.journal.place import Database, Stored

if TYPE_CHECKING:
    from optimizer.journal.postgres.session import Connection

T = TypeVar("T")


def studies(database: Database) -> list[Stored]:
    """All studies, the one that was written to last first; none where nobody has made the tables yet."""

    def ask(connection: Connection) -> list[Stored]:
        rows = connection.execute(
            "SELECT s.name FROM optimize.study AS s ORDER BY coalesce("
            " (SELECT e.at_utc FROM optimize.entry AS e WHERE e.study = s.id ORDER BY e.seq DESC LIMIT 1), s.created_utc) DESC, s.name"
        )
        return [Stored(database, name) for (name,) in rows]

    return _reading(database, ask) or []


def holds(place: Stored) -> bool:
    """Whether there is a study of this name."""

    def ask(connection: Connection) -> bool:
        return connection.execute("SELECT 1 FROM optimize.study WHERE name = %s", (place.name,)).fetchone() is not None

    return bool(_reading(place.database, ask))


def holds_entries(place: Stored) -> bool:
    """Whether there is a study of this name, and anything in it."""

    def ask(connection: Connection) -> bool:
        query = "SELECT 1 FROM optimize.study AS s WHERE name = %s AND EXISTS (SELECT 1 FROM optimize.entry AS e WHERE e.study = s.id)"
        return connection.execute(query, (place.name,)).fetchone() is not None

    return bool(_reading(place.database, ask))


def copy_in(dest: Stored, blobs: Iterator[Blob], ordered: Iterable[tuple[tuple[Any, ...] | None, Row | None]]) -> None:
    """A whole study in one transaction; it appears complete or not at all."""
    from optimizer.journal.postgres import schema, session, store

    with contextlib.closing(session.connected(dest.database)) as connection:
        session.ensure_tables(dest.database, connection)
        with session.explained(dest.database, connection, dest), connection.transaction():
            made = connection.execute(store.INSERT_STUDY, (dest.name, now_utc())).fetchone()
            if made is None:
                raise JournalError(f"There is a {dest} already.", why="A copy never writes over a study: nothing was changed.", hint="Give the copy another name with --study.")
            connection.execute("SELECT pg_advisory_lock(%s, %s)", (schema.LEASE_LOCK, made[0]))  # gone with the connection
            for blob in blobs:
                connection.execute(store.INSERT_BLOB, (made[0], *blob_row(blob)))
            for lease, row in ordered:
                if lease is not None:
                    connection.execute(
                        "INSERT INTO optimize.lease (study, epoch, host, pid, pid_start, boot_id, at_utc, released_utc)"
                        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
                        (made[0], *lease),
                    )
                if row is not None:
                    connection.execute(store.INSERT, (made[0], *row))


def taught(database: Database) -> list[tuple[str, str | None]]:
    """What studies taught, in the order in which they did: (mark, sums as JSON, or None where those stand with another
    mark)."""

    def ask(connection: Connection) -> list[tuple[str, str | None]]:
        return connection.execute("SELECT mark, sums FROM optimize.taught ORDER BY at_utc, mark").fetchall()

    return _reading(database, ask) or []


def teach(database: Database, tests: Iterable[tuple[str, str | None]]) -> int:
    """Add what is not known by its mark yet; how much that was. Two at once add nothing twice."""
    from optimizer.journal.postgres import session

    with contextlib.closing(session.connected(database)) as connection:
        session.ensure_tables(database, connection)
        with session.explained(database, connection), connection.transaction():
            at = now_utc()
            return sum(
                connection.execute("INSERT INTO optimize.taught (mark, at_utc, sums) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (mark, at, sums)).rowcount
                for mark, sums in tests
            )


def _reading(database: Database, ask: Callable[[Connection], T]) -> T | None:
    """An answer, or None where there are no tables."""
    from optimizer.journal.postgres import session

    with contextlib.closing(session.connected(database, readonly=True)) as connection:
        version = session.version_of(database, connection)
        if version == 0:
            return None
        session.check_version(database, version, write=False)
        with session.explained(database, connection):
            return ask(connection)
