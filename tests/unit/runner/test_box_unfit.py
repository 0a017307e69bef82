"""What no setting can help ends the study with a person asked, instead of one setting after another being given up."""

from __future__ import annotations

import asyncio

from optimizer.box.results import ShimRefused
from optimizer.model.step import Stop

from .test_rejoin import FakeBox, _executor, _secured

NO_ROOM = b"OSError: [Errno 28] No space left on device\n"


async def test_a_disk_that_stays_full_is_no_setting() -> None:
    told: list[str] = []
    executor = _executor(FakeBox())
    executor.box_unfit = told.append
    first = executor._exit_of(NO_ROOM, 1, "exited")
    assert first.cause == "disk_full" and first.retryable and not told, "one launch may have met it by chance"
    executor._exit_of(NO_ROOM, 1, "exited")
    assert len(told) == 1 and "whatever their settings" in told[0]
    executor._exit_of(b"torch.OutOfMemoryError: CUDA out of memory\n", 1, "exited")
    assert len(told) == 1


async def test_an_original_that_something_restarts_is_told_by_the_next_beat() -> None:
    class Restarted(FakeBox):
        async def heartbeat(self, study: str, beat: int) -> bool:
            raise ShimRefused("restarted", "process 7 runs its command line again")

    told: list[str] = []
    executor = _executor(Restarted(), _secured())
    executor.box_unfit = told.append
    await executor.execute(Stop(key="9", launch="8"))
    await asyncio.sleep(0.05)
    assert told == ["process 7 runs its command line again"]
    await executor.close()
