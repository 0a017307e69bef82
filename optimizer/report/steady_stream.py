"""A stream to somebody who may have gone: a closed pipe, a terminal that hung up. What cannot be shown is dropped, for it is in the
journal; whoever tells a story must never end what the story is about."""

from __future__ import annotations

import atexit
import errno
import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO, cast


class SteadyStream:
    """Everything but ``write`` and ``flush`` is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed = False

    def write(self, text: str) -> int:
        self._tried(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._tried(self._stream.flush)

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


def steady(stream: TextIO | None) -> TextIO:
    """The stream, or one that forgets where this process was started without (``2>&-``)."""
    return cast(TextIO, SteadyStream(stream if stream is not None else io.StringIO()))
