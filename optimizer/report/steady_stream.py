"""A stream to somebody who may have gone: a closed pipe, a terminal that hung up. What cannot be shown is dropped, for it is in the
journal; whoever tells a story must never end what the story is about."""

from __future__ import annotations

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
        except ValueError:  # it was closed
            pass

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
