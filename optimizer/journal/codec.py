"""Entries to rows and back: the only way into the journal, and therefore the place where secrets are taken out. Refuses
what it does not know by name instead of guessing; never opens a file."""

import json
from collections.abc import Mapping
from typing import Any

from optimizer.errors import JournalCorrupt, JournalTooNew
from optimizer.model.canonical import canonical_json
from optimizer.model.entry import BODY_VERSION, Entry, EntryKind, chain_hash
from optimizer.redact import Redactor

COLUMNS = ("seq", "at_utc", "epoch", "kind", "key", "cause", "schema", "body", "prev", "hash")
KINDS = frozenset(kind.value for kind in EntryKind)


def encoded(
    *,
    seq: int,
    at_utc: str,
    epoch: int,
    kind: str,
    key: str | None,
    cause: int | None,
    body: Mapping[str, Any],
    prev: str,
    redactor: Redactor,
) -> tuple[tuple[Any, ...], Entry]:
    """The row to insert (in the order of COLUMNS) and the entry that reading it back yields, byte for byte.

    Raises ValueError for an unknown kind, for NaN and infinities, and for values that are not JSON: programming
    errors."""
    known = EntryKind(kind)
    text = canonical_json(redactor.value(dict(body)))
    version = BODY_VERSION[known]
    link = chain_hash(
        seq=seq,
        at_utc=at_utc,
        epoch=epoch,
        kind=known.value,
        key=key,
        cause=cause,
        schema=version,
        body=text,
        prev=prev,
    )
    row = (seq, at_utc, epoch, known.value, key, cause, version, text, prev, link)
    return row, decoded(row)


def decoded(row: tuple[Any, ...]) -> Entry:
    """The entry of a row. Raises JournalTooNew for a kind or body version of a later release, JournalCorrupt if the
    row does not have the hash that it carries."""
    seq, at_utc, epoch, kind, key, cause, schema, body, prev, link = row
    if kind not in KINDS:
        raise JournalTooNew(
            f"Entry {seq} is of kind {kind!r}, which this release does not know.",
            hint="Read it with the release that wrote it, or a later one.",
        )
    if schema > BODY_VERSION[EntryKind(kind)]:
        raise JournalTooNew(
            f"Entry {seq} ({kind}) has body version {schema}; this release knows {BODY_VERSION[EntryKind(kind)]}.",
            hint="Read it with the release that wrote it, or a later one.",
        )
    wanted = chain_hash(
        seq=seq, at_utc=at_utc, epoch=epoch, kind=kind, key=key, cause=cause, schema=schema, body=body, prev=prev
    )
    if wanted != link:
        raise JournalCorrupt(
            f"Entry {seq} was changed after it was written: its content does not have the hash that it carries.",
            hint="Restore the study's folder from a copy; nothing after this entry can be trusted.",
        )
    return Entry(
        seq=seq, at_utc=at_utc, epoch=epoch, kind=EntryKind(kind), key=key, cause=cause, schema_version=schema,
        body=json.loads(body), prev=prev, hash=link,
    )  # fmt: skip
