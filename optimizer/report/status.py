"""What became of a hypothesis, in words; the journal's own words are short names. Its probability is about the cause: a change that
does not run, or that was taken back, says nothing of it."""

from typing import Final

STATUS: Final = {
    "open": "open",
    "supported": "supported by a measurement",
    "kept": "its change is kept",
    "pruned": "its change is ruled out",
    "stale": "tried before the baseline moved",
    "deferred": "put aside",
    "refused": "its change was refused",
    "handed_over": "handed over",
}


def status_text(status: str) -> str:
    return STATUS.get(status, status.replace("_", " "))
