"""A terminal's stream whose every write is shown at once: between the marks of synchronized output (mode 2026) a terminal that knows them
draws nothing, so that no half of a frame is ever seen. Others ignore the marks."""

from __future__ import annotations

from typing import Any, TextIO

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"


class WholeFrames:
    """Everything but ``write`` is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(f"{BEGIN}{text}{END}") if text else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
