"""Splits raw log bytes into lines with their number and byte offset. Never decodes a whole file and never runs a regex
over an unbounded line: a log may be broken UTF-8, full of progress bars, or one line of a gigabyte."""

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

BLOCK_BYTES = 256 * 1024
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


class Block:
    """Consecutive raw lines of one stretch. Ordinarily they differ by ``step``, the width of the terminator, and count
    up from ``number``; with ``starts`` and ``numbers`` each has its own (carriage returns, cut lines)."""

    __slots__ = ("_starts", "lines", "number", "numbers", "offset", "step")

    def __init__(
        self,
        lines: list[bytes],
        offset: int,
        number: int | None,
        step: int = 1,
        starts: list[int] | None = None,
        numbers: list[int | None] | None = None,
    ) -> None:
        self.lines = lines
        self.offset = offset
        self.number = number
        self.step = step
        self._starts = starts
        self.numbers = numbers

    def starts(self) -> list[int]:
        """Byte offsets of the lines within the source, less ``index * step``. Computed at the first question."""
        if self._starts is None:
            self._starts = list(accumulate(map(len, self.lines), initial=self.offset))
        return self._starts

    def line(self, index: int) -> Line:
        start = self.starts()[index] + index * self.step
        if self.numbers is not None:
            return Line(self.numbers[index], start, self.lines[index])
        return Line(None if self.number is None else self.number + index, start, self.lines[index])


def blocks(pieces: Iterable[Piece]) -> Iterator[Block]:
    """All lines in order, without their terminators, in blocks of bounded size: whoever reads millions of lines pays
    only for those it looks at. A line longer than ``MAX_LINE_BYTES`` is cut and its rest is skipped unread."""
    for data, offset, first in pieces:
        number = first
        begin, size = 0, len(data)
        while begin < size:
            end = begin + BLOCK_BYTES
            if end >= size:
                end = size
            else:
                newline = data.rfind(b"\n", begin, end)
                end = end if newline < 0 else newline + 1
            block = data[begin:end]
            whole = end == size or block.endswith(b"\n")
            yield from _split(block, offset + begin, number)
            if number is not None:
                number += block.count(b"\n")
            if not whole:  # inside a line longer than a block: its terminator ends the block after next
                newline = data.find(b"\n", end)
                end = size if newline < 0 else newline + 1
                if number is not None and newline >= 0:
                    number += 1
            begin = end


def _split(block: bytes, offset: int, number: int | None) -> Iterator[Block]:
    step = 1
    returns = block.count(b"\r")
    if returns and returns == block.count(b"\r\n") == block.count(b"\n"):
        step, returns = 2, 0  # a terminal's line ends
    lines = block.split(b"\r\n" if step == 2 else b"\n")
    if not returns and (len(block) <= MAX_LINE_BYTES or max(map(len, lines)) <= MAX_LINE_BYTES):
        yield Block(lines, offset, number, step)
        return
    if returns == block.count(b"\r\n") and max(map(len, lines)) <= MAX_LINE_BYTES:  # both kinds of line ends
        starts = list(accumulate(map(len, lines), initial=offset))
        yield Block([raw[:-1] if raw[-1:] == b"\r" else raw for raw in lines], offset, number, 1, starts)
        return
    if returns:
        # A progress bar stands between two lines of a block: what is before and behind it is split at newlines alone.
        low = block.rfind(b"\n", 0, block.find(b"\r")) + 1
        high = block.find(b"\n", block.rfind(b"\r")) + 1 or len(block)
        if low or high < len(block):
            for begin, end in ((0, low), (low, high), (high, len(block))):
                if begin < end:
                    yield from _split(block[begin:end], offset + begin, number)
                    number = None if number is None else number + block.count(b"\n", begin, end)
            return
    kept: list[bytes] = []
    starts = []
    numbers: list[int | None] = []
    start = offset
    for index, raw in enumerate(lines):
        at = start
        for part in raw.split(b"\r") if b"\r" in raw else (raw,):
            if part:
                kept.append(part if len(part) <= MAX_LINE_BYTES else part[:MAX_LINE_BYTES])
                starts.append(at)
                numbers.append(None if number is None else number + index)
            at += len(part) + 1
        start += len(raw) + step
    yield Block(kept, offset, number, 0, starts, numbers)


def iter_lines(pieces: Iterable[Piece]) -> Iterator[Line]:
    """All non-empty lines, split at newlines and carriage returns, cut at ``MAX_LINE_BYTES``."""
    for block in blocks(pieces):
        if block.numbers is not None:
            yield from map(Line, block.numbers, block.starts(), block.lines)
            continue
        number, step = block.number, block.step
        for index, (raw, start) in enumerate(zip(block.lines, block.starts(), strict=False)):
            if raw:
                yield Line(None if number is None else number + index, start + index * step, raw)


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
