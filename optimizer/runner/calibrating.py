"""The calibration step: null server and load generator run on the box, where the load is going to be offered. Judged by
``bench.calibrate``; this is only the carrying."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from optimizer.bench.calibrate import NULLSERVER, best, calibration_job, judge, null_server_arguments
from optimizer.bench.program import loadgen_program
from optimizer.box.box import Box
from optimizer.model.outcome import Done, Failed
from optimizer.runner.base import Effect

ROUNDS = 3
START_S = 15.0


async def calibrate(box: Box, launch_id: str, *, chunks_per_s: float, concurrency: int) -> Effect:
    """Whether the load generator sustains three times ``chunks_per_s`` on this box. What it adds to latencies is recorded and
    does not fail a throughput target: a busy box adds it to its server as well."""
    # A dead coordinator's calibration of this step may still be ending itself there, with all that bears its name.
    launch_id = f"{launch_id}:{secrets.token_hex(4)}"
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_first(line: bytes) -> None:
        if not port.done():
            port.set_result(int(json.loads(line)["port"]))

    server = asyncio.create_task(
        box.run_job(NULLSERVER.read_bytes(), b"", f"{launch_id}:server", 60.0, on_first, args=null_server_arguments(chunks_per_s, concurrency))
    )
    try:
        waiting: set[asyncio.Future[Any]] = {server, port}
        done, _ = await asyncio.wait(waiting, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if port not in done:
            said = server.result().stderr.decode("utf-8", "replace")[-300:] if server in done else "it said nothing in time"
            return Effect(Failed(cause="client_bound", message=f"The null server did not start on the box: {said}"))
        rounds = []
        for index in range(ROUNDS):
            job = json.dumps(calibration_job(f"http://127.0.0.1:{port.result()}", concurrency)).encode() + b"\n"
            lines: list[bytes] = []
            await box.run_job(loadgen_program(same_python=box.transport.same_python), job, f"{launch_id}:load{index}", 60.0, lines.append)
            rounds.append(judge(lines, chunks_per_s, concurrency))
            if rounds[-1].sustains and rounds[-1].prompt:
                break
        found = best(rounds)
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
        await box.sweep(launch_id, term_s=2, gpu_wait_s=0)
    body = {**found.plain(), "tokens_per_s": found.capacity_chunks_per_s, "text": found.text, "prompt": found.prompt}
    if not found.sustains:
        return Effect(Failed(cause="client_bound", message=f"The load generator cannot keep up here: {found.text}.", body=body))
    return Effect(Done(body=body))
