"""Looks at the server and the GPUs while the window is measured: requests at the server, throttle reasons, processes on the GPUs.
It judges nothing (``core.witness``); what it cannot see is missing, and looking costs the box a page and a table a second."""

from __future__ import annotations

import asyncio
import contextlib
import re

from optimizer.box.box import Box
from optimizer.box.results import ServerProcess
from optimizer.core.witness import GpuProcess, GpuSample, Witness
from optimizer.endpoint.client import Endpoint
from optimizer.errors import BoxError, LinkLost

EVERY_S = 1.0
# One call to the box samples for so long: short enough to end soon after the load, long enough that it costs nothing.
CHUNK_S = 5.0
_APPS = ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits")
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_RUNNING = re.compile(
    r"^(?:sglang:num_running_reqs|sglang:num_queue_reqs|vllm:num_requests_running|vllm:num_requests_waiting"
    r"|llamacpp:requests_processing|llamacpp:requests_deferred)(\{[^}]*\})? +([0-9.eE+]+)\s*$",
    re.MULTILINE,
)
_TP_RANK = re.compile(r'tp_rank="(\d+)"')


class Watch:
    """Everything that one load level showed beside it. ``in_window`` is told by the load's own progress."""

    def __init__(self, box: Box, *, metrics_path: str, port: int, has_nvidia_smi: bool, longest_s: float) -> None:
        self._box, self._path, self._port, self._smi = box, metrics_path, port, has_nvidia_smi
        self._chunk_s = min(CHUNK_S, max(1.0, longest_s / 4))
        self.in_window = False
        self.csv: list[str] = []  # every row, for gpu.csv
        self.driver = b""  # which one is loaded, for gpu_driver.csv
        self.pages: list[str] = []  # the gauges of every look, for metrics_load.txt
        self._in_flight: list[float] = []
        self._gpu: list[GpuSample] = []
        self._before: tuple[GpuProcess, ...] = ()
        self._after: tuple[GpuProcess, ...] = ()
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Watch:
        self._before, self.driver = await asyncio.gather(self._processes(), self._loaded())
        self._tasks = [asyncio.create_task(self._server())]
        if self._smi:
            self._tasks.append(asyncio.create_task(self._table()))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tasks[0].cancel()
        if kind is not None:  # a measurement that was cut short leaves nobody sampling on the box
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finish(self) -> None:
        """The load has ended: a last look at the GPUs, and no more samples than the one under way."""
        self.in_window, self._stop = False, True
        self._after = await self._processes()

    def seen(self, ours: tuple[int, ...] = ()) -> Witness:
        return Witness(in_flight=tuple(self._in_flight), gpu=tuple(self._gpu), before=self._before, after=self._after, ours=ours)

    async def _server(self) -> None:
        """Requests at the server, once a second while the window is measured."""
        with contextlib.suppress(BoxError, LinkLost):
            host, here = await self._box.forward(self._port)
            async with Endpoint(f"http://{host}:{here}", api_key=self._box.api_key) as endpoint:
                while True:
                    await asyncio.sleep(EVERY_S if not self.in_window or len(self._in_flight) >= 5 else EVERY_S / 5)
                    if not self.in_window:
                        continue
                    answer = await endpoint.get_text(self._path, timeout_s=5)
                    if answer.status in (401, 403, 404):
                        return  # this server shows no metrics
                    if answer.ok and self.in_window and (count := in_flight(answer.text)) is not None:
                        self._in_flight.append(count)
                        self.pages.append("".join(f"{row[0]}\n" for row in _RUNNING.finditer(answer.text)))

    async def _table(self) -> None:
        with contextlib.suppress(BoxError, LinkLost):
            while not self._stop:
                before = self.in_window
                text = await self._box.sample_gpu(self._chunk_s)
                if not text:
                    return
                self.csv.append(text if text.endswith("\n") else text + "\n")
                if before and self.in_window:
                    self._gpu += table_samples(text)

    async def _loaded(self) -> bytes:
        if self._smi:
            with contextlib.suppress(BoxError, LinkLost):
                done = await self._box.command(_DRIVER, timeout_s=15)
                return done.stdout if done.exit == 0 else b""
        return b""

    async def _processes(self) -> tuple[GpuProcess, ...]:
        return await gpu_processes(self._box) if self._smi else ()


async def processes_of(box: Box, server: ServerProcess) -> tuple[int, ...]:
    """What lives of a running server: its processes, of a deployment those of every member, and their descendants."""
    return tuple([pid for one in server.processes for pid in await box.family(one.pid, one.start_time)])


async def gpu_processes(box: Box) -> tuple[GpuProcess, ...]:
    """What nvidia-smi lists on the GPUs of a box; nothing where it does not answer."""
    with contextlib.suppress(BoxError, LinkLost):
        done = await box.command(_APPS, timeout_s=15)
        if done.exit == 0:
            return app_rows(done.stdout.decode("utf-8", "replace"))
    return ()


def in_flight(metrics: str) -> float | None:
    """Running and waiting requests by the server's own gauges; None where it has none. Tensor-parallel ranks repeat one
    another: the first counts."""
    rows = [(labels or "", float(value)) for labels, value in _RUNNING.findall(metrics)]
    counted = [value for labels, value in rows if (rank := _TP_RANK.search(labels)) is None or rank[1] == "0"]
    return sum(counted) if counted else None


def table_samples(csv: str) -> list[GpuSample]:
    """Rows that carry the ninth column, the mask of throttle reasons; older rows and broken ones are left out."""
    found = []
    for line in csv.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 9 or not cells[1].isdigit():
            continue
        with contextlib.suppress(ValueError):
            clock = re.match(r"\d+(?:\.\d+)?", cells[6])
            found.append(GpuSample(index=int(cells[1]), reasons=int(cells[8], 16), sm_mhz=float(clock[0]) if clock else None))
    return found


def app_rows(csv: str) -> tuple[GpuProcess, ...]:
    found = []
    for line in csv.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 3 and cells[0].isdigit():
            with contextlib.suppress(ValueError):
                found.append(GpuProcess(pid=int(cells[0]), gpu=cells[1], mib=float(cells[2])))
    return tuple(found)
