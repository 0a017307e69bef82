"""Bytes on their way to somebody who may have stopped reading: a terminal after Ctrl-S, a hung SSH session, a pager. A thread waits
for them, so that nobody else has to."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

HELD_BYTES = 1 << 20  # what may wait; beyond it news is dropped, for it is in the journal


class Pump:
    """Writes to a descriptor in the order in which it was given. ``lost`` is called with the error that ended it; what comes later
    is dropped."""

    def __init__(self, descriptor: int, lost: Callable[[OSError], None]) -> None:
        self._descriptor, self._lost = descriptor, lost
        self._waiting: deque[bytes] = deque()
        self._held, self._dead = 0, False
        self._changed = threading.Condition()
        # A daemon: at the end nobody waits for a terminal that does not read.
        threading.Thread(target=self._run, name="to the terminal", daemon=True).start()

    @property
    def behind(self) -> bool:
        """Whether something still waits to be read."""
        return self._held > 0

    def put(self, data: bytes) -> None:
        with self._changed:
            if data and not self._dead and self._held + len(data) <= HELD_BYTES:
                self._waiting.append(data)
                self._held += len(data)
                self._changed.notify_all()

    def settle(self, patience_s: float) -> None:
        """Until everything was read, but no longer than this."""
        end = time.monotonic() + patience_s
        with self._changed:
            while self._held and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._waiting.popleft()
            try:
                self._write(data)
            except OSError as error:
                with self._changed:
                    self._dead, self._held = True, 0
                    self._waiting.clear()
                    self._changed.notify_all()
                self._lost(error)
                return
            with self._changed:
                self._held -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # somebody who shares the terminal set it so
                select.select([], [self._descriptor], [], 1.0)
