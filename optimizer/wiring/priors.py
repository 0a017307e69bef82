"""Finds prior art and the launches of earlier studies when a study opens: under the same folder, and what the user names. What is found
goes into the study's first entry; nothing is read from here again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.core.prior import launches_of, record_of
from optimizer.core.state import State, fold
from optimizer.errors import OptimizerError, UsageError
from optimizer.journal import Journal, Place
from optimizer.knowledge.prior_art import prior_art
from optimizer.model.prior import EarlierStudy, PriorArt

NONE = "none"
MAX_STUDIES = 40  # the newest; older ones are named with --prior
MAX_RECORDS = 16
MAX_EARLIER = 8
MAX_FILE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Known:
    """``prior_art``: known-good results. ``earlier``: launches of earlier studies, for the sampler."""

    prior_art: tuple[PriorArt, ...] = ()
    earlier: tuple[EarlierStudy, ...] = ()


def find_known(named: Sequence[str], roots: Any, *, own: str) -> Known:
    """What the user named first, then the newest studies. ``none`` alone asks for nothing.

    A study that cannot be read is left out where it was only come across, and an error where it was named."""
    if list(named) == [NONE]:
        return Known()
    art: list[PriorArt] = []
    earlier: list[EarlierStudy] = []
    for name in named:
        found = _named(name, roots)
        art.extend(found.prior_art)
        earlier.extend(found.earlier)
    for folder in roots.names()[:MAX_STUDIES]:
        if folder.name == own or (len(art) >= MAX_RECORDS and len(earlier) >= MAX_EARLIER):
            continue
        found = _met(folder)
        art.extend(record for record in found.prior_art if record not in art)
        earlier.extend(study for study in found.earlier if study not in earlier)
    return Known(tuple(art[:MAX_RECORDS]), tuple(earlier[:MAX_EARLIER]))


def find_prior(named: Sequence[str], roots: Any, *, own: str) -> tuple[PriorArt, ...]:
    """The known-good results alone."""
    return find_known(named, roots, own=own).prior_art


def _named(name: str, roots: Any) -> Known:
    path = Path(name)
    if path.is_file() and path.name != "journal.db":
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise UsageError(f"{path} is larger than {MAX_FILE_BYTES // 1024} KiB: no prior-art file is.")
            return Known(prior_art(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The prior art {path} cannot be read: {error}") from error
    folder = path.parent if path.name == "journal.db" and path.is_file() else roots.named(name)
    with Journal.open(folder, write=False) as journal:
        found = _of(fold(journal.read()))
    if not found.prior_art and not found.earlier:
        raise UsageError(
            f"The study {folder.name} launched nothing but what it found, or has not ended: it teaches nothing.", hint="Name another, or --prior none."
        )
    return found


def _met(folder: Place) -> Known:
    """A study that lies in the same folder; one that is open, broken or of another release is none of our business here."""
    try:
        with Journal.open(folder, write=False) as journal:
            return _of(fold(journal.read()))
    except (OptimizerError, OSError, ValueError):
        return Known()


def _of(state: State) -> Known:
    record, launches = record_of(state), launches_of(state)
    return Known((record,) if record is not None else (), (launches,) if launches is not None else ())
