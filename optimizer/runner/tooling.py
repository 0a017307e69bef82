"""Runs a load testing tool as a process of this machine, and makes a load point of what it wrote."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.bench.tools.base import Tool, Work, load_point, no_result
from optimizer.errors import UsageError
from optimizer.model.measurement import LoadPoint
from optimizer.model.workload import Workload

DEFAULT_REQUESTS, WAVES = 100, 10
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ERROR = re.compile(r"\b\w*(?:[Ee]rror|ERROR|Exception)\b\W*:|^(?:[Ff]ailed|FATAL|fatal)\b")
KEPT_BYTES = 16_000  # of what it said, for the reason when it fails
TELL_S = 5.0


def requests_of(workload: Workload, load: float) -> int:
    """How many to ask of a tool that is told a number and not a time: ten rounds of every user, or the window's arrivals."""
    return max(DEFAULT_REQUESTS, int(WAVES * load)) if workload.arrival == "closed" else max(1, round(load * workload.window_s))


def work_of(workload: Workload, load: float, url: str, model: str, tokenizer: str | None, requests: int | None, run: str) -> Work:
    """One load of a plain workload. ``run`` tells runs apart: a tool draws its prompts from the seed alone, and with the same seed
    again the server's prefix cache would have them."""
    closed = workload.arrival == "closed"
    return Work(
        url=url, model=model, tokenizer=tokenizer or model, requests=requests or requests_of(workload, load), prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens, concurrency=workload.concurrency, rate_per_s=None if closed else load, ignore_eos=workload.ignore_eos,
        seed=int.from_bytes(hashlib.sha256(run.encode()).digest()[:3], "big"), folder=Path(),
    )  # fmt: skip


@dataclass
class ToolRunner:
    """``program``: the words that start the tool; ``env``: added to this process's environment (its API key, where it takes one)."""

    tool: Tool
    program: tuple[str, ...]
    env: Mapping[str, str]
    limit_s: float
    tokenizer: str | None = None
    requests: int | None = None  # of each load; None: ``requests_of``
    process: asyncio.subprocess.Process | None = None
    stopped: bool = False

    async def measure(self, work: Work, report: Callable[[str], None]) -> LoadPoint:
        """One load. Raises UsageError where the tool cannot be started; every other failure is an invalid point that says why. ``report``
        gets, every few seconds, how long it runs and what it said last: a tool that hangs looks like one that works."""
        with tempfile.TemporaryDirectory(prefix="optimize-tool-") as name:
            folder = Path(name)
            asked = replace(work, folder=folder / "results")
            asked.folder.mkdir()
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.program, *self.tool.arguments(asked), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd=folder, start_new_session=True,
                    env={**os.environ, **self.tool.environment(), **self.env},
                )  # fmt: skip
            except OSError as error:
                raise UsageError(
                    f"{self.tool.name} cannot be started: {' '.join(self.program)}: {error.strerror}.",
                    why="Nothing was measured.",
                    hint=f"Install it where it is found, or say how it starts: --with-command '/venv/bin/{' '.join(self.tool.program)}'",
                ) from error
            self.process, said, why = process, b"", ""
            assert process.stdout is not None

            async def tell() -> None:
                began = time.monotonic()
                while True:
                    await asyncio.sleep(TELL_S)
                    last = self._without_secrets(_last_line(said))
                    report(f"{time.monotonic() - began:.0f} s of at most {self.limit_s:.0f} s{f'; it says: {last}' if last else ', and it has said nothing yet'}")

            telling = asyncio.ensure_future(tell())
            try:
                async with asyncio.timeout(self.limit_s):
                    while data := await process.stdout.read(1 << 16):
                        said = (said + data)[-KEPT_BYTES:]
                    await process.wait()
            except TimeoutError:
                why = f"it did not end within {self.limit_s:.0f} s"
            finally:
                telling.cancel()
                if process.returncode is None:
                    self._kill(process)
                    await process.wait()
                self.process = None
            if self.stopped:
                return no_result("it was stopped", asked, self.tool)
            try:
                if why:
                    raise ValueError(why)
                return load_point(self.tool.read(asked.folder, asked), asked, self.tool)
            except (OSError, ValueError, LookupError, TypeError) as error:
                told = f"exit {process.returncode}, {type(error).__name__}: {error}; it said: {_reason(said) or 'nothing'}"
                return no_result(self._without_secrets(told), asked, self.tool)

    def _without_secrets(self, text: str) -> str:
        for secret in self.env.values():
            text = text.replace(secret, "<the API key>")
        return text

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """The session that was started for it, with whatever it started itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        self.stopped = True
        if self.process is not None and self.process.returncode is None:
            self._kill(self.process)


def _lines(said: bytes) -> list[str]:
    """What was said in words, without colours and the frames that are drawn around it."""
    bare = (line.strip(" \t│┃║|") for line in _COLOUR.sub("", said.decode("utf-8", "replace")).splitlines())
    return [line for line in bare if any(character.isalnum() for character in line)]


def _last_line(said: bytes) -> str:
    lines = _lines(said)
    return lines[-1][-300:] if lines else ""


def _reason(said: bytes) -> str:
    """The last line that speaks of an error; below it often stands advice. Without one, the last."""
    lines = _lines(said)
    telling = [line for line in lines if _ERROR.search(line)]
    return (telling or lines)[-1][:300] if lines else ""
