"""A person at a real terminal: the tool runs on a pseudo-terminal of its own, what it draws is kept byte for byte, and an emulated
screen (pyte) says what the person sees at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyte

from optimizer.report.whole_frames import END as FRAME_END
from tests.e2e.fastbox import PATIENCE


class Terminal:
    """``stdout``: a file that takes it instead of the terminal, as a shell's ``>`` does. ``frames``: what the screen showed after each
    read, in order."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], cwd: Path, *, columns: int = 120, rows: int = 40, stdout: Path | None = None) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        out = stdout.open("w") if stdout is not None else theirs
        surroundings = {**env, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}

        def own_terminal() -> None:  # so that a typed Ctrl-C is a signal, as in a shell
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(words, env=surroundings, cwd=cwd, stdin=theirs, stdout=out, stderr=theirs, preexec_fn=own_terminal)
        os.close(theirs)
        if stdout is not None:
            out.close()  # type: ignore[union-attr]
        self.screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self.screen)
        self.said = b""
        self.frames: list[list[str]] = []

    def read(self, timeout_s: float = 0.1) -> bool:
        """What came since; False when the other side has ended."""
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        if not data:
            return False
        self.said += data
        self._stream.feed(data)
        self.frames.append(list(self.screen.display))
        return True

    def drawn(self) -> Iterator[tuple[list[str], list[str]]]:
        """After each frame that was drawn as a whole: the lines that have scrolled away, and the screen."""
        screen = pyte.HistoryScreen(self.screen.columns, self.screen.lines, history=5000)
        stream = pyte.ByteStream(screen)
        for frame in self.said.split(FRAME_END.encode())[:-1]:
            stream.feed(frame)
            yield ["".join(line[at].data for at in range(screen.columns)) for line in screen.history.top], list(screen.display)

    @property
    def text(self) -> str:
        return self.said.decode("utf-8", "replace").replace("\r\n", "\n")

    def until(self, words: str, timeout_s: float = 40.0, *, after: int = 0) -> int:
        """Reads until ``words`` were written; the position behind them."""
        end = time.monotonic() + timeout_s * PATIENCE
        while (at := self.text.find(words, after)) < 0:
            going = self.read()
            assert going and time.monotonic() < end, f"{words!r} was not said:\n{self.text[-3000:]}"
        return at + len(words)

    def answer(self, words: str, line: str, *, after: int = 0, timeout_s: float = 40.0) -> int:
        """Waits for a question, types a line."""
        at = self.until(words, timeout_s, after=after)
        os.write(self._ours, line.encode() + b"\n")
        return at

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def wait(self, timeout_s: float = 100.0) -> int:
        """Reads to the end; the exit code."""
        end = time.monotonic() + timeout_s * PATIENCE
        while self.read():
            assert time.monotonic() < end, self.text[-3000:]
        return self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)
