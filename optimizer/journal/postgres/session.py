"""One connection to a database of journals: how it is made so that a dead link is noticed within seconds, what makes the
database acceptable, and what the driver's errors mean to the user. A password is in no message. Knows nothing of
entries or leases."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from optimizer.errors import JournalCorrupt, JournalError, JournalTooNew, StoreLost
from optimizer.journal.base import now_utc
from optimizer.journal.place import Database
from optimizer.journal.postgres import schema, views
from optimizer.journal.refusals import refused

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

EXTRA = "postgres"

# On both sides a peer that says nothing is given up after about ten seconds: the lease hangs on the session.
_LINK = {"connect_timeout": "10", "keepalives": "1", "keepalives_idle": "4", "keepalives_interval": "2", "keepalives_count": "3", "tcp_user_timeout": "10000"}
# name -> (value, only when it is now). What a server's defaults may say otherwise: a commit that is not on disk when it
# is acknowledged, sessions that are ended for being idle, a snapshot older than the lock.
_SETTINGS = {
    "tcp_keepalives_idle": "4", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "10000",
    "idle_session_timeout": "0", "idle_in_transaction_session_timeout": "60000", "lock_timeout": "30000",
    "default_transaction_isolation": "read committed", "standard_conforming_strings": "on", "TimeZone": "UTC",
}  # fmt: skip


def driver() -> Any:
    """The driver's module. Raises JournalError where it is not installed, with the extra that brings it."""
    try:
        import psycopg
    except ImportError as error:  # absent, or without libpq
        raise JournalError(
            f"A store in PostgreSQL needs the driver psycopg 3, which cannot be loaded ({str(error).splitlines()[0]}).",
            hint=f"Install it with: pip install 'optimize[{EXTRA}]'",
        ) from error
    return psycopg


def connected(database: Database, *, readonly: bool = False) -> Connection:
    """A connection in autocommit mode. Raises StoreLost where nobody answers, JournalError where the server refuses."""
    psycopg = driver()
    try:
        given = psycopg.conninfo.conninfo_to_dict(database.url)
        connection: Connection = psycopg.connect(
            **{"application_name": "optimize", **_LINK, **given}, autocommit=True, prepare_threshold=None
        )
    except psycopg.ProgrammingError:
        # The driver's message may repeat the address, password and all.
        raise JournalError(
            f"The driver cannot understand the address of {database} or one of its options.",
            hint="Compare it with PostgreSQL's own: postgresql://user@host:port/database?sslmode=require",
        ) from None
    except psycopg.OperationalError as error:
        raise _unreachable(database, str(error)) from None
    try:
        with explained(database, connection):
            _prepare(connection, readonly=readonly)
            _check_server(database, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: Connection, *, readonly: bool) -> None:
    wanted = {**_SETTINGS, **({"default_transaction_read_only": "on"} if readonly else {})}
    connection.execute(
        "SELECT set_config(w.name, w.value, false) FROM unnest(%s::text[], %s::text[]) AS w(name, value)"
        " JOIN pg_catalog.pg_settings AS s ON s.name = w.name",
        (list(wanted), list(wanted.values())),
    )
    connection.execute("SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'")


def _check_server(database: Database, connection: Connection) -> None:
    version = connection.info.server_version
    if version < schema.SERVER_MIN:
        raise JournalError(
            f"{database} is PostgreSQL {version // 10000}; journals need {schema.SERVER_MIN // 10000} or later.",
            hint="Use a newer server, or keep the studies in files (leave --store out).",
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise JournalError(
            f"{database} keeps its text as {encoding}; journals need UTF8.", hint="createdb --encoding UTF8 --template template0 NAME"
        )


_CAUSES = (
    ("password authentication failed", "Check user and password: ~/.pgpass (host:port:database:user:password), or PGPASSWORD."),
    ("no password supplied", "Put the password into ~/.pgpass (host:port:database:user:password), or PGPASSWORD."),
    ("pg_hba.conf", "The server's pg_hba.conf lets nobody in with this user, database and address: ask who administers it."),
    ("database", "Make it with `createdb`, or correct the last part of the address."),
    ("role", "Make it with `createuser`, or correct the user of the address."),
)  # fmt: skip


def _unreachable(database: Database, text: str) -> JournalError:
    said = database.masked(" ".join(text.split()))
    if ("FATAL" not in said and "no password supplied" not in said) or "starting up" in said or "shutting down" in said or "recovery" in said or "too many" in said:
        return StoreLost(
            f"{database} cannot be reached: {said}.", hint="Check host and port, and that the server runs (`pg_isready -h HOST -p PORT`)."
        )
    denied = [hint for words, hint in _CAUSES[:3] if words in said]
    absent = [hint for words, hint in _CAUSES[3:] if f"{words} " in said and "does not exist" in said]
    hints = [*denied, *absent, "Make `psql` with the same address work first."]
    return JournalError(f"{database} lets nobody in: {said}.", hint=hints[0])


def version_of(database: Database, connection: Connection) -> int:
    """The version of the tables; 0 where there are none. Raises JournalCorrupt for a schema of somebody else's."""
    psycopg = driver()
    with explained(database, connection):
        if connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema.NAMESPACE,)).fetchone() is None:
            return 0
        try:
            row = connection.execute("SELECT version FROM optimize.format").fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
    if row is None:
        raise JournalCorrupt(
            f"{database} has a schema {schema.NAMESPACE!r} that is not of journals.", hint="Use another database: createdb NAME"
        )
    return int(row[0])


def check_version(database: Database, version: int, *, write: bool) -> None:
    """Raise JournalError if these tables cannot be used. A newer version is read, and never written."""
    if version == 0:
        raise JournalError(
            f"There are no studies in {database}.", hint="The first `optimize --store … run` or `copy` makes the tables."
        )
    if write and version > schema.VERSION:
        raise JournalTooNew(
            f"The tables of {database} were made by a newer release (format {version}; this one writes {schema.VERSION}).",
            why="They can be read here; what this release wrote there, that one would misread.",
            hint="Use the release that wrote them, or a later one.",
        )
    if version < schema.VERSION:
        raise JournalError(
            f"The tables of {database} have the old format {version}; this release needs {schema.VERSION}.",
            hint="Copy the studies with the release that made them (`optimize copy STUDY FILE.db`) and from there into a new database.",
        )


def ensure_tables(database: Database, connection: Connection) -> None:
    """Make the tables in a database that has none; the second of two at once finds them made."""
    version = version_of(database, connection)
    if version == 0:
        with explained(database, connection), connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (schema.APPEND_LOCK,))
            if version_of(database, connection) == 0:
                for statements in (schema.TABLES, schema.TRIGGERS, views.VIEWS):
                    connection.execute(statements)
                connection.execute("INSERT INTO optimize.format VALUES (%s, %s)", (schema.VERSION, now_utc()))
        version = version_of(database, connection)
    check_version(database, version, write=True)


@contextlib.contextmanager
def explained(database: Database, connection: Connection, where: object = None) -> Iterator[None]:
    """Turn the driver's errors into ours; StoreLost means that the connection is of no more use."""
    psycopg = driver()
    where = where or database
    role = connection.info.user if not connection.closed else getpass.getuser()
    try:
        yield
    except psycopg.Error as error:
        said = database.masked(" ".join((error.diag.message_primary or str(error)).split()))
        if connection.closed:
            raise StoreLost(
                f"The connection to {database} was lost: {said}.", hint="When the database answers again, `optimize resume` goes on."
            ) from error
        if isinstance(error, psycopg.errors.RaiseException | psycopg.IntegrityError):
            raise refused(where, said) from error
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise JournalError(
                f"The role {role!r} may not do this in {database}: {said}.",
                hint="The document on stores lists what a reader and a coordinator need: GRANT … ON ALL TABLES IN SCHEMA optimize TO …",
            ) from error
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            raise JournalError(
                f"{database} takes no writes: {said}.",
                why="It is a standby, or the role is read-only; a study without its journal is not run.",
                hint="Name the primary and a role that may write.",
            ) from error
        if isinstance(error, psycopg.errors.DiskFull | psycopg.errors.OutOfMemory):
            raise JournalError(f"{database} has no room: {said}.", why="The last entry was not written, and nothing is done that is not.", hint="Free some space there, then `optimize resume`.") from error
        if isinstance(error, psycopg.errors.DataCorrupted | psycopg.errors.IndexCorrupted):
            raise JournalCorrupt(f"{database} is damaged: {said}.", hint="Restore the database from its backup.") from error
        if isinstance(error, psycopg.DataError):
            raise refused(where, said) from error
        if isinstance(error, psycopg.OperationalError):
            raise JournalError(f"{database} refuses for now: {said}.", why="The last entry was not written, and nothing is done that is not.", hint="When it accepts again, `optimize resume`.") from error
        raise JournalError(f"{database} refuses: {said}.", hint="This is a bug; please report it.") from error
