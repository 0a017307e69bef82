"""Before a study exists its box must be free, also of an earlier study that had its name and whose journal is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from optimizer import wiring
from optimizer.box.box import Box
from optimizer.box.results import BoxLocked
from optimizer.errors import UsageError
from optimizer.model.study import HostSpec, StudySpec
from optimizer.model.target import Target
from optimizer.model.workload import Workload
from optimizer.transport.local import LocalTransport


async def test_the_name_of_a_study_that_left_something_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home := tmp_path / "home").mkdir()
    box = Box(LocalTransport(home=home))

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[Box]:
        yield box

    async def consent(*_: Any) -> None:
        return None

    monkeypatch.setattr(wiring, "opened_box", opened)
    monkeypatch.setattr(wiring, "_check_consent", consent)

    async def free(study: str) -> Box:
        spec = StudySpec(study=study, host=HostSpec(name="box", kind="local"), target=Target(), workload=Workload())
        async with AsyncExitStack() as stack:
            return await wiring._free_box(stack, spec, tmp_path)

    assert await free("s1") is box
    await box.lock("s1")
    await box.secure("s1", None, poll_s=0.1)
    with pytest.raises(BoxLocked, match="held by study s1"):
        await free("s1")
    await box.unlock("s1")
    with pytest.raises(UsageError, match="earlier study 's1'"):
        await free("s1")
    assert await free("s2") is box
    await box.disarm("s1")
    await box.cleanup("s1")
    assert await free("s1") is box
