"""The study's memory: append-only, gapless, hash-chained entries in one SQLite file, or, for teams, in a PostgreSQL
database. The only package that touches either; it stores what it is given and decides nothing."""

from optimizer.journal.base import Journal
from optimizer.journal.lease import Holder
from optimizer.journal.place import Database, Place, Stored, database

__all__ = ["Database", "Holder", "Journal", "Place", "Stored", "database"]
