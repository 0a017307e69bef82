"""The transport protocol: run the one constant command on the box, feed it bytes, hand back bytes; forward a port. A
transport never interprets what it carries, and never lets a value of the user near a shell."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from optimizer.errors import UsageError
from optimizer.redact import words_text

# The Python code of the constant command: it executes a program that arrives on standard input, preceded by its length.
BOOTSTRAP = "import sys;r=sys.stdin.buffer;exec(r.read(int(r.readline())))"


# The only names that are ever tried; `python3` first, then new to old.
PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(14, 7, -1)))
ANSWER = b"@@python answers@@"
PROBE = b"import sys\nsys.stdout.write('%s')\nsys.exit(0 if sys.version_info >= (3, 8) else 64)\n" % ANSWER
TOO_OLD = 64
NOT_FOUND = (126, 127)
# Words that mean the same to every login shell: what names a container, a pod or a namespace needs no others.
_WORD = re.compile(r"[A-Za-z0-9_@%+:,./][A-Za-z0-9_@%+=:,./-]*|--?[A-Za-z0-9][A-Za-z0-9_@%+=:,./-]*|--")


def command(python: str = "python3", prefix: Sequence[str] = ()) -> str:
    """The one command line that is ever run on a box: ASCII, single quotes, none of ``! \\ $`` or a line break inside,
    so that every login shell reads it alike. ``python`` is one of ``PYTHONS``; ``prefix`` was checked by ``prefix_of``."""
    return " ".join((*prefix, f"{python} -I -c '{BOOTSTRAP}'"))


def prefix_of(text: str | Sequence[str]) -> tuple[str, ...]:
    """The words that enter a container, for example ``docker exec -i NAME``. Raises UsageError for a word that a shell could
    read in more than one way, and for a prefix that does not hand on standard input."""
    words = tuple(text.split() if isinstance(text, str) else text)
    if not words or words[0].startswith("-") or "=" in words[0] or not all(_WORD.fullmatch(word) for word in words):
        raise UsageError(
            f"{words_text(words)!r} cannot be used to enter a container: it must be plain words without quotes, blanks or shell signs.",
            hint="Examples: --inside 'docker exec -i sglang', --inside 'kubectl exec -i pod-0 --', --inside 'podman exec -i vllm'.",
        )
    tool = words[0].rpartition("/")[2]
    attached = any(word == "--interactive" or (word.startswith("-") and not word.startswith("--") and "i" in word) for word in words[1:])
    if tool in ("docker", "podman", "nerdctl", "kubectl", "crictl") and "exec" in words and not attached:
        raise UsageError(f"{words_text(words)!r} does not hand standard input into the container.", hint=f"Add -i: {tool} exec -i …")
    return words


def interference(done: "CommandResult") -> str | None:
    """What a login does to the probe before Python gets it, or to its answer; None where nothing tells of that."""
    if b"invalid literal for int()" in done.stderr:
        return "its start files read the standard input, which is meant for the command (a `cat`, a `read`)"
    if done.exit == 0 and ANSWER not in done.stdout:
        return "its start files end the login, or keep the answer of the command (an `exit`, an `exec`, a redirected standard output)"
    if done.exit in NOT_FOUND and b"python3" not in done.stderr + done.stdout:
        return "its start files hand over to another shell, which reads the program as its commands (an `exec`)"
    if done.exit not in (0, TOO_OLD, *NOT_FOUND):
        return f"the login ends with exit status {done.exit} before it has run the command"
    return None


class CommandResult(NamedTuple):
    """``exit`` is None when nobody knows how the command ended: the connection died or the time was over. That is
    neither success nor failure. ``stdout`` is empty when it was handed to ``on_stdout`` piece by piece."""

    exit: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool


class Transport(Protocol):
    """A way to one box. ``name`` is what the user calls it; ``same_python``: the interpreter that runs us runs there."""

    name: str
    same_python: bool

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
