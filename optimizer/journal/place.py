"""Where a study's journal is kept: a folder with its SQLite file, or a study of a PostgreSQL database. Holds the
database's address, and shows it without its password; connects to nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from optimizer.errors import UsageError

VARIABLE = "OPTIMIZE_STORE"
SCHEMES = ("postgresql", "postgres")
_HINT = f"Example: --store postgresql://user@host:5432/database, or {VARIABLE}; the password belongs in ~/.pgpass."


@dataclass(frozen=True)
class Database:
    """A database that keeps studies. ``url`` may hold a password: it is never shown, and takes no part in ``repr``."""

    shown: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # the password, in every spelling

    def __str__(self) -> str:
        return self.shown

    def masked(self, text: str) -> str:
        """A message of the driver without the password."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class Stored:
    """One study of a database."""

    database: Database
    name: str

    def __str__(self) -> str:
        return f"study {self.name} in {self.database.shown}"


# What names one study's journal: its folder (or file), or its name in a database. Both have a ``name``.
Place = Path | Stored


def database(url: str) -> Database:
    """The database of an address. Raises UsageError for what is none, without repeating it: it may hold a password."""
    scheme, colon, rest = url.strip().partition("://")
    if not colon or scheme not in SCHEMES:
        raise UsageError("The store is no PostgreSQL address.", hint=f"{_HINT} SQLite needs no store: --runs FOLDER.")
    if re.search(r"%(?![0-9A-Fa-f]{2})", rest) or re.search(r"\s", rest):
        raise UsageError(
            "The store's address holds a character that an address cannot hold.",
            hint=f"Write % as %25, @ as %40, / as %2F, a space as %20. {_HINT}",
        )
    try:
        parts = urlsplit(f"postgresql://{rest}")
        raw = parts.password or ""
        query = dict(parse_qsl(parts.query))
    except ValueError:
        raise UsageError("The store's address cannot be understood.", hint=_HINT) from None
    secrets = {raw, unquote(raw), query.get("password", ""), query.get("sslpassword", "")} - {""}
    user = (parts.username or query.get("user") or "") + "@" if parts.username or query.get("user") else ""
    host = parts.netloc.rpartition("@")[2] or query.get("host", "")
    shown = f"postgresql://{user}{host}{parts.path}"
    for secret in secrets:  # in case it stands where none is expected
        shown = shown.replace(secret, "***")
    return Database(shown=shown, url=f"postgresql://{rest}", secrets=tuple(sorted(secrets, key=len, reverse=True)))
