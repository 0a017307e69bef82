"""Whether what was launched still answers, asked when a load on it came to nothing: a server or a member of a deployment that hangs has
to be launched again, while a load generator that failed may simply be run again."""

from __future__ import annotations

import asyncio

from optimizer.box.box import Box
from optimizer.endpoint.client import Endpoint
from optimizer.engines.base import Engine
from optimizer.runner.context import Served

ATTEMPTS, PAUSE_S = 2, 2.0  # a server that is just dropping a thousand requests may be slow once


async def silent_part(box: Box, adapter: Engine, served: Served) -> str:
    """What does not answer its health check any more, in words; empty where everything does. A router counts as silent only where it
    gives no answer at all: with a hung worker it rightly says that it is not healthy."""
    for worker in served.workers:
        if why := await _silence(box, adapter, worker.port, healthy=True):
            return f"{worker.name or 'The server'} on port {worker.port} does not answer its health check any more ({why})."
    if served.leading.name is not None and (why := await _silence(box, adapter, served.port, healthy=False)):
        return f"The router on port {served.port} does not answer any more ({why})."
    return ""


async def _silence(box: Box, adapter: Engine, port: int, *, healthy: bool) -> str:
    host, here = await box.forward(port)
    ready = adapter.ready(here, host)
    said = ""
    async with Endpoint(ready.base_url, api_key=box.api_key) as endpoint:
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S)
            answer = await endpoint.get_text(ready.probe.path, timeout_s=ready.timeout_s)
            if answer.status in ready.probe.ok or (answer.status is not None and not healthy):
                return ""
            said = answer.error or f"status {answer.status}"
    return said
