"""Finds an engine inside an argv: python modules, console scripts, script files, behind launch wrappers. Responsible
for where a server's own options begin; knows no engine by itself."""

from collections.abc import Sequence
from pathlib import PurePosixPath

# These stay alive as parents and repeat the server's argv in their own: the server is their child, not they.
_PARENTS = frozenset(
    (
        "bash",
        "sh",
        "dash",
        "zsh",
        "fish",
        "ksh",
        "timeout",
        "sudo",
        "su",
        "srun",
        "mpirun",
        "mpiexec",
        "docker",
        "podman",
        "conda",
        "script",
        "strace",
        "gdb",
        "watch",
        "ssh",
        "tmux",
        "screen",
        "supervisord",
        "tini",
        "dumb-init",
    )
)


def is_parent(argv: Sequence[str]) -> bool:
    """A shell or wrapper that only carries a server's command line in its own arguments."""
    return bool(argv) and PurePosixPath(argv[0]).name in _PARENTS


def after_module(argv: Sequence[str], modules: Sequence[str]) -> int | None:
    """Index after ``-m MODULE`` for the first of ``modules`` that is there."""
    for index in range(1, len(argv) - 1):
        if argv[index] == "-m" and argv[index + 1] in modules and _is_python_call(argv, index):
            return index + 2
    return None


def after_script(argv: Sequence[str], names: Sequence[str], subcommand: str | None) -> int | None:
    """Index after a script or console script of one of these names (compared with the end of the path), and its
    subcommand."""
    for index, token in enumerate(argv):
        if token.startswith("-"):
            continue
        if any(token == name or token.endswith(f"/{name}") for name in names):
            if subcommand is None:
                return index + 1
            if index + 1 < len(argv) and argv[index + 1] == subcommand:
                return index + 2
    return None


def interpreter(argv: Sequence[str]) -> list[str] | None:
    """The python call that runs the server, wrappers before it included, without ``-m`` or script; None for a bare
    console script."""
    for index, token in enumerate(argv):
        if PurePosixPath(token).name.startswith(("python", "pypy")):
            end = index + 1
            while end < len(argv) and argv[end].startswith("-") and argv[end] not in ("-m", "-c"):
                end += 2 if argv[end] in ("-X", "-W") else 1
            return list(argv[:end])
    return None


def _is_python_call(argv: Sequence[str], index: int) -> bool:
    return any("python" in PurePosixPath(token).name or "pypy" in PurePosixPath(token).name for token in argv[:index])
