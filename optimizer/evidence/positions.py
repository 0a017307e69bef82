"""Finds where a key stands in a JSON text, so that a fact can point at the bytes that support it. Parses nothing."""

import re

from optimizer.evidence.lines import Line

_SPAN = 200


class Positions:
    """Places of keys within one JSON document. The n-th lookup of an ``index`` is the n-th occurrence of the key."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def at(self, key: str, index: int = 0) -> Line | None:
        """The line of ``"key":`` and the bytes from there to the end of the line (at most 200); None when it is not there."""
        place = re.compile(rb'"' + re.escape(key.encode("utf-8", "replace")) + rb'"[ \t]{0,20}:')
        for number, match in enumerate(place.finditer(self._data)):
            if number == index:
                return self._line(match.start())
        return None

    def word(self, word: str) -> Line | None:
        """The line of the first ``"word"``, key or value."""
        start = self._data.find(b'"' + word.encode("utf-8", "replace") + b'"')
        return None if start < 0 else self._line(start)

    def _line(self, start: int) -> Line:
        end = self._data.find(b"\n", start, start + _SPAN)
        raw = self._data[start : end if end >= 0 else start + _SPAN]
        return Line(self._data.count(b"\n", 0, start) + 1, start, raw)
