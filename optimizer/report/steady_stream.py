"""A stream to somebody who may have gone, or who does not read: a closed pipe, a terminal that hung up or was stopped. What cannot be
shown is dropped, for it is in the journal; whoever tells a story must neither end nor hold up what the story is about."""

from __future__ import annotations

import atexit
import errno
import io
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from optimizer.report.pump import Pump

PATIENCE_S = 2.0  # at the end, for somebody who reads slowly

class SteadyStream:
    """Everything but ``write`` and ``flush`` is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed = False
        self._pump = Pump(descriptor, self._lost) if (descriptor := _reader_behind(stream)) is not None else None
        if self._pump is not None:
            atexit.register(self.settle)

    @property
    def behind(self) -> bool:
        """Whether the reader has not taken everything yet: then nothing is drawn that the next drawing replaces."""
        return self._pump is not None and self._pump.behind

    def write(self, text: str) -> int:
        if self._pump is not None:
            self._pump.put(text.encode(self._stream.encoding or "utf-8", self._stream.errors or "replace"))
        else:
            self._tried(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        if self._pump is None:
            self._tried(self._stream.flush)

    def settle(self) -> None:
        """Before somebody else writes to the same place: what was written is read by now, or never."""
        if self._pump is not None:
            self._pump.settle(PATIENCE_S)
        self.flush()

    def _lost(self, error: OSError) -> None:
        if error.errno in (errno.EPIPE, errno.EIO):
            self._let_go()

    def _tried(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                self._let_go()
            elif not self._failed:  # a full disk may have room again: what is still held back then is tried once more at the end
                self._failed = True
                atexit.register(self._last_try)
        except ValueError:  # it was closed
            pass

    def _last_try(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._let_go()

    def _let_go(self) -> None:
        """What is still buffered would be written again when this process ends, and would be its exit code then."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _reader_behind(stream: TextIO) -> int | None:
    """The descriptor, where somebody has to read before more can be written: no file, and nothing in memory."""
    try:
        descriptor = stream.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (OSError, ValueError, AttributeError):
        return None


def steady(stream: TextIO | None) -> SteadyStream:
    """The stream, or one that forgets where this process was started without (``2>&-``)."""
    return SteadyStream(stream if stream is not None else io.StringIO())
