"""One entry of the journal, the closed set of entry kinds, and the digest that chains them. Knows nothing of SQLite,
files or clocks: ``at_utc`` arrives as text, is for people only and must never enter a decision."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from optimizer.model.base import Frozen
from optimizer.model.canonical import digest


class EntryKind(StrEnum):
    """What an entry records. Closed: a kind that is not listed here was written by a newer release."""

    OPENED = "opened"  # spec, plan digest, pinned knowledge, versions
    INTENT = "intent"  # an effect that is about to happen
    OUTCOME = "outcome"  # how that effect ended: done, failed or unknown
    CEILING = "ceiling"
    FLIPPED = "flipped"  # start-up facts that differ from the baseline's
    RANKED = "ranked"
    CHOSEN = "chosen"
    REFUSED = "refused"  # a setting that will not be launched, and why
    JUDGED = "judged"
    PRUNED = "pruned"
    DEFERRED = "deferred"  # an effect too small to be shown within the budget
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    DRIFTED = "drifted"
    GUARD_FIRED = "guard_fired"
    KNOWLEDGE_CHANGED = "knowledge_changed"
    LEASE_TAKEN = "lease_taken"  # a later coordinator took over
    NOTE = "note"  # an operator's remark
    CLOSED = "closed"


# Version of each kind's body. Raise it when a body changes shape; an entry above it is refused by name, never guessed
# at.
BODY_VERSION: dict[EntryKind, int] = dict.fromkeys(EntryKind, 1)

# Kinds that carry the idempotency key of an effect. An outcome repeats the key of its intent.
KEYED: frozenset[EntryKind] = frozenset({EntryKind.INTENT, EntryKind.OUTCOME})

# The ``prev`` of the first entry.
GENESIS = "0" * 64


class Entry(Frozen):
    """A committed entry. ``prev`` is the hash of the entry before it, so that a cut or an edit is visible."""

    seq: int = Field(gt=0)
    at_utc: str
    epoch: int = Field(gt=0)  # the writer's lease
    kind: EntryKind
    key: str | None = None
    cause: int | None = None  # the entry that justified this one
    schema_version: int = Field(default=1, gt=0)
    body: dict[str, Any]
    prev: str
    hash: str

    @property
    def box(self) -> str:
        """The box that the entry is about, in a study on several; empty for the study as a whole and where there is only one."""
        return str(self.body.get("box", ""))


def chain_hash(
    *,
    seq: int,
    at_utc: str,
    epoch: int,
    kind: str,
    key: str | None,
    cause: int | None,
    schema: int,
    body: str,
    prev: str,
) -> str:
    """sha256 over every column of the entry; ``body`` is the stored text, so that even its spelling is covered."""
    return digest([seq, at_utc, epoch, kind, key, cause, schema, body, prev])
