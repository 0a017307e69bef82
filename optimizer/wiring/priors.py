"""Finds prior art when a study opens: earlier studies under the same folder, and what the user names. What is found goes into the
study's first entry; nothing is read from here again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimizer.core.prior import record_of
from optimizer.core.state import fold
from optimizer.errors import OptimizerError, UsageError
from optimizer.journal import Journal, Place
from optimizer.knowledge.prior_art import prior_art
from optimizer.model.prior import PriorArt

NONE = "none"
MAX_STUDIES = 40  # the newest; older ones are named with --prior
MAX_RECORDS = 16
MAX_FILE_BYTES = 256 * 1024


def find_prior(named: Sequence[str], roots: Any, *, own: str) -> tuple[PriorArt, ...]:
    """What the user named first, then the newest studies that confirmed something better. ``none`` alone asks for nothing.

    A study that cannot be read is left out where it was only come across, and an error where it was named."""
    if list(named) == [NONE]:
        return ()
    found: list[PriorArt] = []
    for name in named:
        found.extend(_named(name, roots))
    for folder in roots.names()[:MAX_STUDIES]:
        if folder.name == own or len(found) >= MAX_RECORDS:
            continue
        record = _met(folder)
        if record is not None and record not in found:
            found.append(record)
    return tuple(found[:MAX_RECORDS])


def _named(name: str, roots: Any) -> tuple[PriorArt, ...]:
    path = Path(name)
    if path.is_file() and path.name != "journal.db":
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise UsageError(f"{path} is larger than {MAX_FILE_BYTES // 1024} KiB: no prior-art file is.")
            return prior_art(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The prior art {path} cannot be read: {error}") from error
    folder = path.parent if path.name == "journal.db" and path.is_file() else roots.named(name)
    with Journal.open(folder, write=False) as journal:
        record = record_of(fold(journal.read()))
    if record is None:
        raise UsageError(f"The study {folder.name} confirmed nothing better than it found: it is no prior art.", hint="Name another, or --prior none.")
    return (record,)


def _met(folder: Place) -> PriorArt | None:
    """A study that lies in the same folder; one that is open, broken or of another release is none of our business here."""
    try:
        with Journal.open(folder, write=False) as journal:
            return record_of(fold(journal.read()))
    except (OptimizerError, OSError, ValueError):
        return None
