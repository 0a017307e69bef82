"""Carries entries from the study's loop to whatever derives something from them, in a thread of its own: the loop only puts a
reference into a queue. What hangs or breaks behind it is left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from optimizer import log
from optimizer.core.state import State
from optimizer.model.entry import Entry

MOST_WAITING = 10_000  # entries; a study writes a few hundred, and each holds what it refers to


class Feed:
    """``consume`` is called for every entry in order, by one thread; ``caught_up`` by the same whenever no further one waits."""

    def __init__(self, name: str, consume: Callable[[State, Entry], None], caught_up: Callable[[], None] = lambda: None) -> None:
        self.lost = 0  # entries that were not consumed
        self._waiting: queue.Queue[tuple[State, Entry] | None] = queue.Queue(MOST_WAITING)
        self._consume, self._caught_up, self._log = consume, caught_up, log.get(__name__)
        self._thread = threading.Thread(target=self._work, name=f"optimize-{name}", daemon=True)
        self._thread.start()

    def put(self, state: State, entry: Entry) -> None:
        """Never waits."""
        try:
            self._waiting.put_nowait((state, entry))
        except queue.Full:
            self.lost += 1

    def close(self, wait_s: float) -> bool:
        """No more entries come. Whether everything was consumed within ``wait_s`` seconds; if not, it is given up."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return False
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._consume(*item)
                if self._waiting.empty():
                    self._caught_up()
            except Exception as error:  # noqa: BLE001  a defect here must cost an entry's numbers, never a study
                self.lost += 1
                self._log.warning("an entry could not be shown to other programs", seq=item[1].seq, why=f"{type(error).__name__}: {error}")
        self._caught_up()
