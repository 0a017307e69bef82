"""The box is reached over SSH: the user's own ``~/.ssh/config``, agent, keys, known hosts and jump hosts, read by
asyncssh (imported here and nowhere else). Every way in which a connection can fail becomes one clear error; a
connection that dies while a command runs becomes ``exit=None``, never success and never failure."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from optimizer.crashpoint import crash_point
from optimizer.errors import AuthRefused, BoxError, HostKeyChanged, HostUnknown, LinkLost, OptimizerError, PythonMissing
from optimizer.redact import words_text
from optimizer.transport.base import (
    ERROR_TAIL_BYTES,
    OUTPUT_CAP_BYTES,
    PROBE,
    PYTHONS,
    TOO_OLD,
    CommandResult,
    command,
    interference,
)
from optimizer.transport.relay import Relay, Stream

_PROBE_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 20
_CHUNK = 1 << 16
# What has arrived before the end is read within this.
_STREAMS_END_S = 5.0


class _NotStarted(Exception):
    """The connection died before the command had read a byte."""


class _NoRoom(_NotStarted):
    """The connection lives and carries no more commands at a time (sshd's MaxSessions)."""


async def _end_with_channel(connection: asyncssh.SSHClientConnection, process: "asyncssh.SSHClientProcess[bytes]",
                            streams: Sequence[asyncio.Task[None]]) -> None:  # fmt: skip
    """Returns once the channel or its connection has ended, and the streams with it. Raises ConnectionLost when the streams do not say so
    themselves: asyncssh can leave a reader asleep when a link breaks at the wrong moment, and the call would then last until its deadline."""
    ends = [asyncio.ensure_future(connection.wait_closed()), asyncio.ensure_future(process.wait_closed())]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        _, asleep = await asyncio.wait(streams, timeout=_STREAMS_END_S)
        if asleep:
            raise asyncssh.ConnectionLost("The connection ended, and its output did not")
    finally:
        for end in ends:
            end.cancel()


async def _open(connection: asyncssh.SSHClientConnection, line: str) -> "asyncssh.SSHClientProcess[bytes]":
    """A process that has read nothing yet. Raises _NotStarted: also when the connection has ended and the opening does not say so."""
    # Bytes everywhere: one bad UTF-8 byte would otherwise close the connection.
    opening = asyncio.ensure_future(connection.create_process(line, encoding=None))
    ending = asyncio.ensure_future(connection.wait_closed())
    try:
        await asyncio.wait((opening, ending), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((opening,), timeout=_STREAMS_END_S)
        if not opening.done():
            raise _NotStarted("the connection ended")
        return opening.result()
    except asyncssh.ChannelOpenError as error:
        raise (_NotStarted if connection.is_closed() else _NoRoom)(str(error)) from error
    except (asyncssh.Error, OSError, AssertionError, AttributeError) as error:
        # The last two are asyncssh's own, when the link breaks between two answers of the server.
        raise _NotStarted(str(error) or "the connection ended") from error
    finally:
        opening.cancel()
        ending.cancel()


class SSHTransport:
    """A connection that is made on first use and made again when it was lost. ``config``: SSH configuration files in
    place of the user's own; ``prefix``: words that enter a container there; ``options`` go to asyncssh as they are (tests)."""

    def __init__(self, host: str, *, user: str | None = None, port: int | None = None,
                 config: Sequence[Path] | None = None, prefix: Sequence[str] = (), **options: Any) -> None:  # fmt: skip
        self.name = f"{user}@{host}" if user else host
        self.same_python = False  # it may be any
        self._prefix = tuple(prefix)
        self._relays: dict[int, tuple[Relay, int]] = {}
        self._host = host
        self._options: dict[str, Any] = {
            "keepalive_interval": 15,
            "keepalive_count_max": 4,
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "login_timeout": _CONNECT_TIMEOUT_S,
            # Nobody is there to type a password.
            "password_auth": False,
            "kbdint_auth": False,
            **({"username": user} if user else {}),
            **({"port": port} if port else {}),
            **({"config": [str(path) for path in config]} if config is not None else {}),
            **options,
        }
        if self._options.get("known_hosts", ()) is None:
            raise ValueError("known_hosts=None would accept any machine; give a file")
        self._connection: asyncssh.SSHClientConnection | None = None
        self._connecting = asyncio.Lock()
        self._python: str | None = None
        self._forwards: dict[int, asyncssh.SSHListener] = {}

    async def connect(self) -> None:
        """Connects and finds a Python, or raises HostUnknown, HostKeyChanged, AuthRefused, PythonMissing or
        LinkLost."""
        await self._connected()

    async def _connected(self) -> tuple[asyncssh.SSHClientConnection, str]:
        """The connection and its Python. Calls run side by side: each goes on with the connection that it was given here, since another
        one may find it dead and drop it at any time."""
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._forwards.clear()
                self._connection = await self._dial()
            connection = self._connection
            if self._python is None:
                self._python = await self._find_python(connection)
            return connection, self._python

    def _drop(self, connection: asyncssh.SSHClientConnection) -> None:
        """This one is of no more use. One that was made in its place meanwhile stays."""
        connection.abort()
        if self._connection is connection:
            self._connection = None

    async def _dial(self) -> asyncssh.SSHClientConnection:
        try:
            return await asyncssh.connect(self._host, **self._options)
        except (OSError, asyncssh.Error, TimeoutError, ValueError) as error:
            raised = self._explain(error)
            if self._python is not None and isinstance(raised, HostUnknown):
                # It was reachable before: the link is down, not the name wrong.
                raise LinkLost(f"The connection to {self.name} is down and could not be made again: {error}",
                               hint="`optimize resume` goes on from here.") from error  # fmt: skip
            raise raised from error

    def _explain(self, error: BaseException) -> OptimizerError:
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return self._explain_host_key(error)
        if isinstance(error, asyncssh.PermissionDenied):
            return AuthRefused(
                f"{self.name} accepted none of your SSH keys ({error.reason}).",
                hint=f"Check that `ssh {self.name} true` works without a password: load the key into your agent (ssh-add), or"
                " name it as IdentityFile in ~/.ssh/config.",
            )
        if isinstance(error, asyncssh.ConfigParseError | asyncssh.KeyImportError):
            return BoxError(f"Your SSH configuration for {self.name} cannot be used: {error}",
                            hint="Correct ~/.ssh/config or the key file that it names.")  # fmt: skip
        if isinstance(error, socket.gaierror):
            return HostUnknown(
                f"There is no host named {self.name}: the name does not resolve.",
                hint="Give a name that `ssh` knows (a Host entry of ~/.ssh/config), an address, or `localhost`.",
            )
        if isinstance(error, ConnectionRefusedError):
            return HostUnknown(f"{self.name} refuses SSH connections: {error}",
                               hint="Is sshd running there, and is it the right port?")  # fmt: skip
        if isinstance(error, TimeoutError):
            return HostUnknown(f"{self.name} did not answer within {_CONNECT_TIMEOUT_S} s.",
                               hint="Is the box up, and are you on the network or VPN that reaches it?")  # fmt: skip
        if isinstance(error, asyncssh.Error):
            return HostUnknown(f"{self.name} answered, but no SSH session came about: {error.reason}",
                               hint=f"Check that `ssh {self.name} true` works.")  # fmt: skip
        return HostUnknown(f"{self.name} cannot be reached: {error}", hint=f"Check that `ssh {self.name} true` works.")

    def _explain_host_key(self, error: asyncssh.HostKeyNotVerifiable) -> HostKeyChanged:
        if "changed" in str(error) or self._has_known_key():
            return HostKeyChanged(
                f"The machine that answers as {self.name} has another host key than the one you know. Somebody may be"
                " listening in, or the box was installed anew.",
                hint=f"If you know why it changed: `ssh-keygen -R {self._host}`, then `ssh {self.name}` once.",
            )
        return HostKeyChanged(
            f"The host key of {self.name} is not among your known hosts, so nobody can tell whether this is your box.",
            hint=f"Connect once with `ssh {self.name}`, compare the fingerprint, and answer yes.",
        )

    def _has_known_key(self) -> bool:
        """Whether the known hosts hold any key for this machine, asked as asyncssh itself asks."""
        try:
            options = asyncssh.SSHClientConnectionOptions(host=self._host, **{"config": (), **self._options})
            files = options.known_hosts or [str(Path.home() / ".ssh" / "known_hosts")]
            port = options.port if options.port != 22 else None
            name = options.host_key_alias or options.host
            for file in [files] if isinstance(files, str | Path) else files:
                if asyncssh.match_known_hosts(str(file), name, "", port)[0]:
                    return True
        except (OSError, ValueError, TypeError, asyncssh.Error):
            return False  # an unreadable file knows nobody
        return False

    async def _find_python(self, connection: asyncssh.SSHClientConnection) -> str:
        said, first, tried = "", None, False
        for name in PYTHONS:
            payload = b"%d\n" % len(PROBE) + PROBE
            try:
                done = await self._execute(connection, command(name, self._prefix), payload, _PROBE_TIMEOUT_S, None)
            except _NotStarted as error:
                raise LinkLost(
                    f"{self.name} accepted the login and runs no command: {error}",
                    hint=f"Check that `ssh {self.name} true` works; the account may be limited to file transfer.",
                ) from error
            why = interference(done)
            if done.exit == 0 and why is None:
                return name
            first = first if tried else why
            tried = True
            if done.exit is None:
                raise LinkLost(f"The connection to {self.name} was lost, or its login shell hangs, before anything was done.",
                               hint=f"Check that `ssh {self.name} true` returns at once.")  # fmt: skip
            if done.exit == TOO_OLD:
                said = said or f"{name} is older than 3.8"
            else:
                said = said or (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
        if first is not None and not self._prefix:
            raise PythonMissing(
                f"{self.name} does not hand commands to Python: {first}. It said: {said or 'nothing'}",
                why="The tool works on the box through `ssh` without a terminal, and nothing came of it.",
                hint=f"`ssh {self.name} python3 --version` must answer at once and say nothing else first. Let ~/.bashrc (or what your shell reads) do such "
                "things for interactive shells only; for bash and zsh: `case $- in *i*) ;; *) return;; esac` at its top.",
            )
        raise PythonMissing(
            f"{self.name} has no usable Python 3.8 or newer. It said: {said or 'nothing'}",
            hint="The tool needs a Python with its standard library on the box and installs nothing itself: install python3."
            + (f" `{words_text(self._prefix)}` must reach a container that has one." if self._prefix else ""),
        )

    async def run(
        self, stdin: bytes, timeout_s: float, on_stdout: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        for last_try in (False, True):
            connection, python = await self._connected()
            try:
                return await self._execute(connection, command(python, self._prefix), stdin, timeout_s, on_stdout)
            except _NoRoom:
                # Another one for this call alone: what runs over the first one goes on.
                async with await self._dial() as spare:
                    try:
                        return await self._execute(spare, command(python, self._prefix), stdin, timeout_s, on_stdout)
                    except _NotStarted as error:
                        raise LinkLost(f"{self.name} starts no command, over a new connection neither: {error}", why="This call did nothing: its command was never read.",
                                       hint="sshd's MaxSessions there must be 1 or more.") from error  # fmt: skip
            except _NotStarted as error:
                # The command has read nothing, so it has done nothing: a connection that died while idle is made again.
                self._drop(connection)
                if last_try:
                    raise LinkLost(
                        f"{self.name} does not start commands any more: {error}",
                        why="This call did nothing: its command was never read.",
                        hint="Try again in a minute.",
                    ) from error
        raise AssertionError("unreachable")

    @staticmethod
    async def _execute(
        connection: asyncssh.SSHClientConnection, line: str, stdin: bytes, timeout_s: float,
        on_stdout: Callable[[bytes], None] | None,
    ) -> CommandResult:  # fmt: skip
        collected, errors = bytearray(), bytearray()
        process: asyncssh.SSHClientProcess[bytes] | None = None
        timed_out = False

        async def feed(running: "asyncssh.SSHClientProcess[bytes]") -> None:
            # The command may end, or the link die, before it has read everything: its exit says which.
            with contextlib.suppress(OSError, asyncssh.Error):
                running.stdin.write(stdin)
                await running.stdin.drain()
                running.stdin.write_eof()
                crash_point("transport.sent")

        async def read_output(running: "asyncssh.SSHClientProcess[bytes]") -> None:
            while data := await running.stdout.read(_CHUNK):
                if on_stdout is not None:
                    on_stdout(data)
                else:
                    collected.extend(data[: OUTPUT_CAP_BYTES - len(collected)])

        async def read_errors(running: "asyncssh.SSHClientProcess[bytes]") -> None:
            while data := await running.stderr.read(_CHUNK):
                errors.extend(data)
                del errors[:-ERROR_TAIL_BYTES]

        exit_code: int | None = None
        try:
            async with asyncio.timeout(timeout_s):
                process = await _open(connection, line)
                async with asyncio.TaskGroup() as group:
                    streams = [group.create_task(one(process)) for one in (feed, read_output, read_errors)]
                    group.create_task(_end_with_channel(connection, process, streams))
                exit_code = process.exit_status
        except TimeoutError:
            timed_out = True
        except (asyncssh.Error, OSError) as error:
            errors.extend(str(error).encode("utf-8", "replace"))
        except BaseExceptionGroup as group_error:
            lost = group_error.subgroup((asyncssh.Error, OSError))
            if lost is None or len(lost.exceptions) != len(group_error.exceptions):
                raise group_error.exceptions[0] from None
            errors.extend(str(lost.exceptions[0]).encode("utf-8", "replace"))
        finally:
            if process is not None:
                process.close()
        return CommandResult(exit_code, bytes(collected), bytes(errors), timed_out)

    async def forward(self, port: int) -> tuple[str, int]:
        connection, _ = await self._connected()
        if self._prefix:
            if port not in self._relays:
                relay = Relay(self._stream, port)
                self._relays[port] = (relay, await relay.open())
            return "127.0.0.1", self._relays[port][1]
        if port not in self._forwards:
            try:
                listener = await connection.forward_local_port("127.0.0.1", 0, "127.0.0.1", port)
            except (OSError, asyncssh.Error) as error:
                raise LinkLost(f"No port could be forwarded to {self.name}: {error}") from error
            if self._connection is not connection:  # dropped meanwhile: what listens here leads nowhere
                listener.close()
                raise LinkLost(f"The connection to {self.name} was lost while a port was forwarded.")
            self._forwards[port] = listener
        return "127.0.0.1", int(self._forwards[port].get_port())

    async def _stream(self) -> Stream:
        """A run of the constant command whose input stays open: for the relay."""
        connection, python = await self._connected()
        try:
            process = await _open(connection, command(python, self._prefix))
        except _NotStarted as error:
            raise ConnectionError(str(error)) from error

        async def leave() -> None:
            process.close()

        return Stream(process.stdout.read, process.stdin, process.stdin.write_eof, leave)

    async def close(self) -> None:
        relays, self._relays = self._relays, {}
        for relay, _ in relays.values():
            await relay.close()
        connection, self._connection = self._connection, None
        self._forwards.clear()
        if connection is not None:
            connection.close()
            with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
                async with asyncio.timeout(5):
                    await connection.wait_closed()
