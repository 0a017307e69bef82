"""Whose answers were measured: the port is ours alone to the end, or the measurement is worthless."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from optimizer.box.box import Box
from optimizer.engines.registry import engine
from optimizer.model.measurement import ValidityCode
from optimizer.model.step import Measure
from optimizer.runner.context import Served, Worker
from optimizer.runner.measure import _box_invalid
from tests.unit.core.model_box import spec

from .test_launch import Server, said


@pytest.mark.fault("F26")
async def test_a_port_that_is_not_ours_alone(box: Box, server: Server, free_port: int, spawn: Callable[..., Any]) -> None:
    """A second server on the port while the window was measured: whose answers were they?"""
    await box.launch("test", "1", server(free_port, "reuseport"), port=free_port)
    await said(box, "test", "1")
    whole = Worker(name=None, role="server", port=free_port, argv=("x",), env={})
    served = Served(port=free_port, model="m", workers=(whole,))
    step = Measure(key="2", launch="1", purpose="candidate", levels=(), run_index=0)
    assert await _box_invalid(box, spec(), engine("sglang"), step, served) == []
    spawn(server(free_port, "reuseport"), stdout=-3)
    for _ in range(200):
        found = await _box_invalid(box, spec(), engine("sglang"), step, served)
        if found:
            break
        await asyncio.sleep(0.02)
    assert [item.code for item in found] == [ValidityCode.WRONG_SERVER]
