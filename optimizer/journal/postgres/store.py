"""The journal of one study in a PostgreSQL database. The lease is an advisory lock of this connection's session: when the
session ends, however it ends, the lease is free. A connection that is lost in the middle of an append is made again, the
lease with it if nobody has taken it, and what was committed is read back, so that no entry is lost or written twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from optimizer import log
from optimizer.crashpoint import crash_point
from optimizer.errors import AnotherWriter, JournalError, StoreLost
from optimizer.journal import lease
from optimizer.journal.base import Journal, Numbered, Row, now_utc
from optimizer.journal.blobs import BLOB_COLUMNS, Blob, blob_of, blob_row
from optimizer.journal.codec import COLUMNS
from optimizer.journal.lease import Holder
from optimizer.journal.place import Database, Stored
from optimizer.journal.postgres import schema, session
from optimizer.journal.views import check_name
from optimizer.model.entry import GENESIS, Entry
from optimizer.redact import Redactor

if TYPE_CHECKING:
    from optimizer.journal.postgres.session import Connection

# How long an append waits for a lost database. Nothing is done on the box meanwhile.
PATIENCE_S = 60.0
# How long a coordinator goes on with a step without knowing that it still holds the study, and how much longer than that
# another one waits before it acts, where the first did not let go in order and cannot be seen from here.
FENCE_S = 20.0
TAKEOVER_S = 40.0
# How long the session of a process of this machine that is gone may take to end.
ENDING_S = 10.0

T = TypeVar("T")
_COLUMNS = ", ".join(COLUMNS)
INSERT = f"INSERT INTO optimize.entry (study, {_COLUMNS}) VALUES (%s, {', '.join(['%s'] * len(COLUMNS))})"
INSERT_STUDY = "INSERT INTO optimize.study (name, created_utc) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING RETURNING id"  # no row: the name is taken
EMPTY_STUDY = "SELECT id FROM optimize.study AS s WHERE name = %s AND NOT EXISTS (SELECT 1 FROM optimize.entry AS e WHERE e.study = s.id)"
INSERT_BLOB = (
    f"INSERT INTO optimize.blob (study, {', '.join(BLOB_COLUMNS)}) VALUES (%s, {', '.join(['%s'] * len(BLOB_COLUMNS))})"
    " ON CONFLICT DO NOTHING"
)
_INSERT_LEASE = (
    "INSERT INTO optimize.lease (study, epoch, host, pid, pid_start, boot_id, at_utc, backend, backend_start)"
    " SELECT %s, %s, %s, %s, %s, %s, %s, pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid()"
)


class DatabaseJournal(Journal):
    """See ``Journal``."""

    lease_can_be_lost = True

    def __init__(self, place: Stored, connection: Connection, study: int, *, write: bool, redactor: Redactor | None) -> None:
        super().__init__(str(place), write=write, redactor=redactor)
        self.place = place
        self._connection = connection
        self._study = study
        self._mutex = threading.RLock()  # `confirm_lease` comes from another thread
        self._confirmed_s = time.monotonic()
        for secret in place.database.secrets:
            self.redactor.learn(secret)

    @property
    def _database(self) -> Database:
        return self.place.database

    @property
    def database(self) -> Database | None:
        return self._database

    @property
    def unconfirmed_s(self) -> float:
        return time.monotonic() - self._confirmed_s

    @classmethod
    def create_in(cls, place: Stored, *, redactor: Redactor | None = None) -> Self:
        connection = session.connected(place.database)
        try:
            session.ensure_tables(place.database, connection)
            with session.explained(place.database, connection, place), connection.transaction():
                row = connection.execute(INSERT_STUDY, (place.name, now_utc())).fetchone()
                row = row or connection.execute(EMPTY_STUDY, (place.name,)).fetchone()  # of one that died before its first entry
                if row is None:
                    raise JournalError(
                        f"There is a journal already: {place}.", hint="Resume that study, or give the new one another name."
                    )
                crash_point("journal.create.before_commit")
            journal = cls(place, connection, row[0], write=True, redactor=redactor)
            journal._take_lease()
            if journal.last_seq:
                journal.close()
                raise JournalError(f"Another process has just begun {place}.", hint="Give the new study another name.")
        except BaseException:
            connection.close()
            raise
        return journal

    @classmethod
    def open_in(cls, place: Stored, *, write: bool, redactor: Redactor | None = None) -> Self:
        connection = session.connected(place.database, readonly=not write)
        try:
            session.check_version(place.database, session.version_of(place.database, connection), write=write)
            with session.explained(place.database, connection, place):
                row = connection.execute("SELECT id FROM optimize.study WHERE name = %s", (place.name,)).fetchone()
            if row is None:
                raise JournalError(
                    f"There is no study {place.name!r} in {place.database}.", hint="`optimize --store … studies` lists those there are."
                )
            journal = cls(place, connection, row[0], write=write, redactor=redactor)
            if write:
                journal._take_lease()
        except BaseException:
            connection.close()
            raise
        return journal

    # ---- the lease -----------------------------------------------------------------------------------------------------

    def _take_lease(self) -> None:
        """Take over the study, or raise AnotherWriter if a session holds it. A holder that did not let go in order, and
        that cannot be seen to be gone, is given the time within which it must notice."""
        with session.explained(self._database, self._connection, self.place):
            give_up = time.monotonic() + ENDING_S
            while not self._locked():
                holder = self._holder()
                if holder is None or not holder.is_gone_from_here or time.monotonic() > give_up:
                    raise AnotherWriter(
                        f"{self.place} is being written by {self._who(holder)}.",
                        hint="Wait for it, or stop it with `optimize stop`; then resume.",
                    )
                if time.monotonic() > give_up - ENDING_S / 2:
                    self._end_session(holder.epoch)  # its process is gone; the server has not heard of it
                time.sleep(0.05)
            holder = self._holder(held=False)
            if holder is not None and not holder.released and not holder.is_gone_from_here:
                log.get(__name__).warning("waiting until the last coordinator must have noticed", host=holder.host, seconds=TAKEOVER_S)
                time.sleep(TAKEOVER_S)
            mine = lease.this_process((holder.epoch if holder else 0) + 1, now_utc())
            with self._connection.transaction():
                self._connection.execute(
                    _INSERT_LEASE, (self._study, mine.epoch, mine.host, mine.pid, mine.pid_start, mine.boot_id, mine.at_utc)
                )
                taken = self._taken(mine, holder, *self._last())
                if taken is not None:
                    self._connection.execute(INSERT, (self._study, *taken))
                crash_point("journal.lease.before_commit")
        self.epoch = mine.epoch
        self._confirmed_s = time.monotonic()
        crash_point("journal.lease.after_commit")

    def _locked(self) -> bool:
        return bool(self._one("SELECT pg_try_advisory_lock(%s, %s)", schema.LEASE_LOCK, self._study))

    def _who(self, holder: Holder | None) -> str:
        if holder is None:
            return "a process that has not said who it is"
        return f"process {holder.pid} on {holder.host} (since {holder.at_utc})"

    def _end_session(self, epoch: int) -> None:
        """End the database session of a lease, if it is still the very one that took it."""
        self._connection.execute(
            "SELECT pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity AS a JOIN optimize.lease AS l"
            " ON l.backend = a.pid AND l.backend_start = a.backend_start WHERE l.study = %s AND l.epoch = %s AND a.pid <> pg_backend_pid()",
            (self._study, epoch),
        )

    def confirm_lease(self) -> bool:
        if not self._write or not self.epoch:
            return False
        with self._mutex:
            asked = self._confirmed_s
            try:
                row = self._asked()
            except StoreLost as lost:
                self._renew(asked + FENCE_S, lost)
                row = self._asked()
            self._confirmed_s = time.monotonic()
        held, epoch, stop = row
        if not held or epoch != self.epoch:
            raise AnotherWriter(f"{self.place} was taken over by {self._who(self._holder())}.", why="Two writers would break the study's record, so nothing more is done here.", hint="Follow it with `optimize journal STUDY --follow`.")
        return bool(stop)

    def _asked(self) -> tuple[bool, int, bool]:
        with session.explained(self._database, self._connection, self.place):
            row = self._connection.execute(
                "SELECT optimize.held(%(study)s), (SELECT max(epoch) FROM optimize.lease WHERE study = %(study)s),"
                " EXISTS (SELECT 1 FROM optimize.stop WHERE study = %(study)s AND epoch = %(epoch)s)",
                {"study": self._study, "epoch": self.epoch},
            ).fetchone()
        assert row is not None
        return row[0], row[1], row[2]

    def _renew(self, until_s: float, lost: StoreLost) -> None:
        """Connect again and take back the lock of the same lease. Raises AnotherWriter if the study was taken over,
        StoreLost if the database does not answer until then."""
        log.get(__name__).warning("the connection to the store was lost", why=lost.message)
        self._connection.close()
        while True:
            try:
                connection = session.connected(self._database)
                try:
                    self._retake(connection, until_s)
                except BaseException:
                    connection.close()
                    raise
            except StoreLost as error:
                if time.monotonic() > until_s:
                    raise StoreLost(f"{lost.message} It did not come back: {error.message}", hint=lost.hint) from error
                time.sleep(0.5)
                continue
            log.get(__name__).warning("connected to the store again; nobody has taken the study meanwhile")
            return

    def _retake(self, connection: Connection, until_s: float) -> None:
        with session.explained(self._database, connection, self.place):
            self._connection = connection
            while not (mine := self._locked()) and self._newest_epoch() == self.epoch and time.monotonic() < until_s:
                self._end_session(self.epoch)  # our own, which the server still takes for alive
                time.sleep(0.1)
            holder = self._holder()
        if not mine or holder is None or holder.epoch != self.epoch or holder.released:
            who = self._who(holder if holder is not None and holder.epoch != self.epoch else None)
            raise AnotherWriter(
                f"{self.place} was taken over by {who} while the connection was lost.",
                why="Two writers would break the study's record, so nothing more is done here.",
                hint="Follow it with `optimize journal STUDY --follow`.",
            )

    def _newest_epoch(self) -> int:
        return int(self._one("SELECT coalesce(max(epoch), 0) FROM optimize.lease WHERE study = %s", self._study))

    def holder(self) -> Holder | None:
        with self._mutex, session.explained(self._database, self._connection, self.place):
            return self._holder()

    def _holder(self, *, held: bool | None = None) -> Holder | None:
        row = self._connection.execute(
            "SELECT epoch, host, pid, pid_start, boot_id, at_utc, released_utc IS NOT NULL, EXISTS ("
            " SELECT 1 FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s::bigint::oid AND objid = %s::bigint::oid"
            " AND objsubid = 2 AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))"
            " FROM optimize.lease WHERE study = %s ORDER BY epoch DESC LIMIT 1",
            (schema.LEASE_LOCK, self._study, self._study),
        ).fetchone()
        if row is None:
            return None
        return Holder(
            epoch=row[0], host=row[1], pid=row[2], pid_start=row[3], boot_id=row[4], at_utc=row[5], released=row[6],
            held=(row[7] and not row[6]) if held is None else held,
        )  # fmt: skip

    def ask_stop(self) -> bool:
        """Needs a connection that may write, and no lease."""
        connection = session.connected(self._database)
        try:
            with session.explained(self._database, connection, self.place):
                connection.execute(
                    "INSERT INTO optimize.stop (study, epoch, at_utc) SELECT study, max(epoch), %s FROM optimize.lease WHERE study = %s"
                    " GROUP BY study ON CONFLICT DO NOTHING",
                    (now_utc(), self._study),
                )
        finally:
            connection.close()
        return True

    # ---- entries -------------------------------------------------------------------------------------------------------

    def _committed(self, expect: int, numbered: Numbered, packs: Sequence[Blob]) -> Entry:
        made: dict[str, tuple[Row, Entry]] = {}  # by the hash before it: a second attempt commits the very same row
        with self._mutex:
            until_s = time.monotonic() + PATIENCE_S
            while True:
                try:
                    entry = self._attempt(expect, numbered, packs, made)
                    self._confirmed_s = time.monotonic()
                    return entry
                except StoreLost as lost:
                    try:
                        self._renew(until_s, lost)
                        known = self._read_back(expect, made)
                    except StoreLost as error:
                        if time.monotonic() < until_s:
                            continue  # lost once more: the next attempt finds the connection closed
                        raise StoreLost(
                            f"{error.message} Whether entry {expect + 1} was written is not known.", hint=error.hint
                        ) from error
                    if known is not None:
                        return known

    def _attempt(self, expect: int, numbered: Numbered, packs: Sequence[Blob], made: dict[str, tuple[Row, Entry]]) -> Entry:
        with session.explained(self._database, self._connection, self.place), self._connection.transaction():
            seq, prev = self._last()
            self._check_expected(seq, expect)
            if prev not in made:
                made[prev] = numbered(seq + 1, prev)
            row, entry = made[prev]
            for blob in packs:
                self._connection.execute(INSERT_BLOB, (self._study, *blob_row(blob)))
            self._connection.execute(INSERT, (self._study, *row))
            crash_point("journal.append.before_commit")
        return entry

    def _read_back(self, expect: int, made: dict[str, tuple[Row, Entry]]) -> Entry | None:
        """The entry of a commit whose answer was lost, if it was committed."""
        with session.explained(self._database, self._connection, self.place):
            seq, last = self._last()
        return next((entry for _, entry in made.values() if (entry.seq, entry.hash) == (seq, last) and seq == expect + 1), None)

    def _last(self) -> tuple[int, str]:
        row = self._connection.execute(
            "SELECT seq, hash FROM optimize.entry WHERE study = %s ORDER BY seq DESC LIMIT 1", (self._study,)
        ).fetchone()
        return (row[0], row[1]) if row else (0, GENESIS)

    @property
    def last_seq(self) -> int:
        return self._read(self._last)[0]

    def _rows(self, first: int, count: int = -1) -> list[Row]:
        return self._read(
            lambda: self._connection.execute(
                f"SELECT {_COLUMNS} FROM optimize.entry WHERE study = %s AND seq >= %s ORDER BY seq LIMIT %s",
                (self._study, first, count if count >= 0 else None),
            ).fetchall()
        )

    def _blob(self, sha256: str) -> Blob | None:
        row = self._read(
            lambda: self._connection.execute(
                f"SELECT {', '.join(BLOB_COLUMNS)} FROM optimize.blob WHERE study = %s AND sha256 = %s", (self._study, sha256)
            ).fetchone()
        )
        return None if row is None else blob_of(row)

    def _blobs(self) -> Iterator[Blob]:
        names = self._read(
            lambda: self._connection.execute("SELECT sha256 FROM optimize.blob WHERE study = %s ORDER BY sha256", (self._study,)).fetchall()
        )
        for (name,) in names:  # one at a time: a study's logs need not fit into memory
            found = self._blob(name)
            assert found is not None
            yield found

    def _leases(self) -> list[tuple[Any, ...]]:
        return self._read(
            lambda: self._connection.execute(
                "SELECT epoch, host, pid, pid_start, boot_id, at_utc, released_utc FROM optimize.lease WHERE study = %s ORDER BY epoch",
                (self._study,),
            ).fetchall()
        )

    def rows(self, view: str) -> list[dict[str, Any]]:
        check_name(view)

        def asked() -> list[dict[str, Any]]:
            cursor = self._connection.execute(f"SELECT * FROM optimize.{view} WHERE study = %s ORDER BY seq", (self.place.name,))
            names = [column.name for column in cursor.description or ()]
            return [{name: value for name, value in zip(names, row, strict=True) if name != "study"} for row in cursor]

        return self._read(asked)

    def export(self, dest: Path | str) -> Path:
        from optimizer.journal.copying import copy_to_file

        return copy_to_file(self, Path(dest))

    def close(self) -> None:
        try:
            if self._write and self.epoch and not self._connection.closed:
                self._connection.execute(
                    "UPDATE optimize.lease SET released_utc = %s WHERE study = %s AND epoch = %s AND released_utc IS NULL",
                    (now_utc(), self._study, self.epoch),
                )
        except session.driver().Error:
            # The lease lapses with the session anyway; failing here would hide why the caller is closing.
            pass
        finally:
            self.epoch, self._write = 0, False
            self._connection.close()

    def _read(self, ask: Callable[[], T]) -> T:
        """Reading changes nothing: after a lost connection it is simply done again, once."""
        with self._mutex:
            try:
                with session.explained(self._database, self._connection, self.place):
                    return ask()
            except StoreLost as lost:
                if self._write:
                    self._renew(time.monotonic() + PATIENCE_S, lost)
                else:
                    self._connection = session.connected(self._database, readonly=True)
                with session.explained(self._database, self._connection, self.place):
                    return ask()

    def _one(self, statement: Any, *values: Any) -> Any:
        row = self._connection.execute(statement, values).fetchone()
        assert row is not None
        return row[0]

    def _check_place(self) -> None:
        """The server checks its own pages as it reads them; the chain finds the rest."""

    def _check_still_there(self) -> None:
        """A dropped table refuses the insert; nothing can be written unseen."""
