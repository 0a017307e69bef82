"""Splits raw log bytes into lines with their number and byte offset. Never decodes a whole file and never runs a regex
over
an unbounded line: a log may be broken UTF-8, full of progress bars, or one line of a gigabyte."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 64 * 1024  # longer lines are cut; the longest useful one (resolved arguments) has about 25 KiB

_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_STAMP = re.compile(rb"\[(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")


class Piece(NamedTuple):
    """A stretch of a log. ``first_line`` is None when the stretch does not start at the top (its line numbers are
    unknown)."""

    data: bytes
    offset: int = 0
    first_line: int | None = 1


class Line(NamedTuple):
    """One line without its terminator. ``number`` counts newlines from 1, as editors and grep do; a carriage return
    starts
    a new line here (progress bars) but not a new number. ``start`` is the byte offset within the source."""

    number: int | None
    start: int
    raw: bytes


def iter_lines(pieces: Iterable[Piece]) -> Iterator[Line]:
    """All non-empty lines, split at newlines and carriage returns, cut at ``MAX_LINE_BYTES``."""
    for data, offset, first in pieces:
        number = first
        start = offset
        for raw in data.split(b"\n"):
            size = len(raw)
            if b"\r" in raw:
                begin = 0
                for part in raw.split(b"\r"):
                    if part:
                        yield Line(number, start + begin, part[:MAX_LINE_BYTES])
                    begin += len(part) + 1
            elif size:
                yield Line(number, start, raw if size <= MAX_LINE_BYTES else raw[:MAX_LINE_BYTES])
            start += size + 1
            if number is not None:
                number += 1


def pieces_of(data: bytes | Iterable[Piece]) -> tuple[Piece, ...]:
    """A whole file, or pieces of one, as pieces."""
    return (Piece(data),) if isinstance(data, bytes | bytearray) else tuple(data)


def text(raw: bytes, limit: int = 2000) -> str:
    """Printable text of a line: escape sequences and control characters dropped, broken UTF-8 replaced, cut at
    ``limit``."""
    return _ANSI.sub(b"", raw[: limit * 2]).decode("utf-8", "replace")[:limit]


def clean(raw: bytes) -> bytes:
    """The line without ANSI escapes and control characters."""
    return _ANSI.sub(b"", raw) if b"\x1b" in raw else raw


class Clock:
    """Reads ``[2026-11-29 19:46:33 ...`` stamps as seconds; remembers the last one because lines come in bursts."""

    def __init__(self) -> None:
        self._last: tuple[bytes, float | None] = (b"", None)

    def seconds(self, raw: bytes) -> float | None:
        """Seconds of the stamp that ``raw`` starts with, comparable within one log; None when there is none."""
        key = raw[:24]
        if key == self._last[0]:
            return self._last[1]
        match = _STAMP.match(key)
        value: float | None = None
        if match:
            year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
            value = _days(year, month, day) * 86400.0 + hour * 3600 + minute * 60 + second
            if match[7]:
                value += int(match[7]) / 10 ** len(match[7])
        self._last = (key, value)
        return value


def _days(year: int, month: int, day: int) -> int:
    """Days since a fixed date of the proleptic Gregorian calendar; odd month or day numbers do no harm."""
    shifted = year - (month <= 2)
    return 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day
