"""The transport protocol: run the one constant command on the box, feed it bytes, hand back bytes; forward a port. A
transport never interprets what it carries, and never lets a value of the user near a shell."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

# The Python code of the constant command: it executes a program that arrives on standard input, preceded by its length.
BOOTSTRAP = "import sys;r=sys.stdin.buffer;exec(r.read(int(r.readline())))"


def command(python: str = "python3") -> str:
    """The one command line that is ever run on a box: ASCII, single quotes, none of ``! \\ $`` or a line break inside,
    so that every login shell reads it alike. ``python`` is one of a closed list of names (see ``ssh.PYTHONS``)."""
    return f"{python} -I -c '{BOOTSTRAP}'"


class CommandResult(NamedTuple):
    """``exit`` is None when nobody knows how the command ended: the connection died or the time was over. That is
    neither success nor failure. ``stdout`` is empty when it was handed to ``on_stdout`` piece by piece."""

    exit: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool


class Transport(Protocol):
    """A way to one box. ``name`` is what the user calls it."""

    name: str

    async def run(
        self, stdin: bytes, timeout_s: float, on_stdout: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        """Runs the constant command with ``stdin``. Never raises for a lost connection: ``exit`` is None then. Raises
        what ``on_stdout`` raises, after ending the command."""
        ...

    async def forward(self, port: int) -> tuple[str, int]:
        """(host, port) on this machine that reaches ``port`` on the box's loopback address."""
        ...

    async def close(self) -> None:
        """Gives up the connection and its forwarded ports; may be called twice."""
        ...


OUTPUT_CAP_BYTES = 64 << 20
ERROR_TAIL_BYTES = 64 << 10
