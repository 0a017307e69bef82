"""The box is this machine (``--host localhost``), or a scratch home on it (simulated boxes). The same constant program
runs, as a child process with its own session, so that Ctrl-C in the terminal reaches the coordinator and not the work
in progress."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from optimizer.crashpoint import crash_point
from optimizer.errors import PythonMissing
from optimizer.redact import Redactor, words_text
from optimizer.transport.base import (
    ANSWER,
    BOOTSTRAP,
    ERROR_TAIL_BYTES,
    OUTPUT_CAP_BYTES,
    PROBE,
    PYTHONS,
    CommandResult,
)
from optimizer.transport.relay import Relay, Stream

_CHUNK = 1 << 16
# How long a command whose caller has gone away may still take to notice before it is ended.
_LEAVE_S = 2.0


class LocalTransport:
    """``env`` is laid over the environment of this process; ``home`` becomes HOME and the working directory. ``prefix``: words
    that enter a container of this machine; then its own Python runs."""

    def __init__(
        self, env: Mapping[str, str] | None = None, home: Path | None = None, name: str = "localhost", prefix: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.prefix = tuple(prefix)
        self.same_python = not prefix
        self._python: str | None = None
        self._relays: dict[int, tuple[Relay, int]] = {}
        self.home = home
        # The launch id of another study must not be inherited: a coordinator may itself run under one.
        # The store's address may hold a password, and is no business of a server.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("OPTIMIZER_") and key != "OPTIMIZE_STORE"}
        self.env = {**inherited, **(env or {})}
        if home is not None:
            self.env["HOME"] = str(home)

    def _start_folder(self) -> str:
        """HOME, unless it does not exist: then the shim says so itself, instead of nothing starting."""
        home = Path(self.env.get("HOME") or "/")
        return str(home) if home.is_dir() else "/"

    async def _spawn(self, python: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.prefix, python, "-I", "-c", BOOTSTRAP,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self.env, cwd=self._start_folder(), start_new_session=True, limit=_CHUNK,
        )  # fmt: skip

    async def _inner_python(self) -> str:
        """The interpreter that runs us, the one Python that this machine certainly has; in a container the first name in
        ``PYTHONS`` that is a usable one there. Raises PythonMissing."""
        if not self.prefix:
            return sys.executable
        if self._python is not None:
            return self._python
        said = ""
        for name in PYTHONS:
            try:
                process = await self._spawn(name)
            except OSError as error:
                raise PythonMissing(f"{self.prefix[0]} does not start: {error}", hint="It must be on the PATH of this machine.") from error
            payload = b"%d\n" % len(PROBE) + PROBE
            out, err = await process.communicate(payload)
            if process.returncode == 0 and ANSWER in out:
                self._python = name
                return name
            said = said or (err or out).decode("utf-8", "replace").strip()[-300:]
        raise PythonMissing(
            f"`{words_text(self.prefix)}` reaches no usable Python 3.8 or newer. It said: {Redactor().text(said) or 'nothing'}",
            hint="Check the name of the container; it needs a Python with its standard library, nothing else.",
        )

    async def run(
        self, stdin: bytes, timeout_s: float, on_stdout: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        process = await self._spawn(await self._inner_python())
        assert process.stdin and process.stdout and process.stderr
        collected, errors = bytearray(), bytearray()

        async def feed(pipe: asyncio.StreamWriter) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                pipe.write(stdin)
                await pipe.drain()
            pipe.close()
            crash_point("transport.sent")

        async def read_output(pipe: asyncio.StreamReader) -> None:
            while data := await pipe.read(_CHUNK):
                if on_stdout is not None:
                    on_stdout(data)
                else:
                    collected.extend(data[: OUTPUT_CAP_BYTES - len(collected)])

        async def read_errors(pipe: asyncio.StreamReader) -> None:
            while data := await pipe.read(_CHUNK):
                errors.extend(data)
                del errors[:-ERROR_TAIL_BYTES]

        timed_out = False
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                group.create_task(feed(process.stdin))
                group.create_task(read_output(process.stdout))
                group.create_task(read_errors(process.stderr))
                group.create_task(process.wait())
        except TimeoutError:
            timed_out = True
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            if process.returncode is None:
                await asyncio.shield(self._leave(process))
        return CommandResult(None if timed_out else process.returncode, bytes(collected), bytes(errors), timed_out)

    @staticmethod
    async def _leave(process: asyncio.subprocess.Process) -> None:
        """Hangs up, as a dropped connection would; ends our child if it has not noticed after a moment."""
        transport = getattr(process, "_transport", None)
        for descriptor in (0, 1, 2):
            pipe = transport.get_pipe_transport(descriptor) if transport is not None else None
            if pipe is not None:
                pipe.close()
        try:
            await asyncio.wait_for(process.wait(), _LEAVE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def forward(self, port: int) -> tuple[str, int]:
        if not self.prefix:
            return "127.0.0.1", port
        if port not in self._relays:
            relay = Relay(self._stream, port)
            self._relays[port] = (relay, await relay.open())
        return "127.0.0.1", self._relays[port][1]

    async def _stream(self) -> Stream:
        process = await self._spawn(await self._inner_python())
        assert process.stdin and process.stdout
        return Stream(process.stdout.read, process.stdin, process.stdin.close, lambda: self._leave(process))

    async def close(self) -> None:
        relays, self._relays = self._relays, {}
        for relay, _ in relays.values():
            await relay.close()
