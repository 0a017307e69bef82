"""The study's memory: append-only, gapless, hash-chained entries in one SQLite file. The only package that touches
SQLite; it stores what it is given and decides nothing."""

from optimizer.journal.lease import Holder
from optimizer.journal.store import Journal

__all__ = ["Holder", "Journal"]
