"""``python -m optimizer``, and the command ``optimize``."""

import errno
import os
import sys
from types import TracebackType


def main() -> None:
    """The command line. Ctrl-C while it is still being loaded ends it as quietly as later; what nobody foresaw is said to be a bug."""
    _open_streams()
    if not os.environ.get("HOME", "").startswith("/"):
        os.environ.pop("HOME", None)  # empty (cron, some containers) or relative: the user's entry says where the home is
    sys.excepthook = _bug
    try:
        from optimizer.cli import main as command

        try:
            command()
        finally:
            _flushed()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _open_streams() -> None:
    """Streams that the caller closed (cron, daemons) lead nowhere. Left closed, their numbers would go to the next file that is opened,
    the journal for one, and a child that writes to its standard output would write into it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one, as those below it are open
            os.set_inheritable(found, True)
            setattr(sys, name, open(found, mode, closefd=False))  # noqa: SIM115 - for the life of the process


def _flushed() -> None:
    """What was said has left, or this raises: the interpreter, which flushes at its exit, would say so in words of its own."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer has nowhere to go
        if error.errno == errno.EPIPE:  # the reader has what it wanted (`| head`)
            raise SystemExit(1) from None
        raise


# What a file system or a limit of this machine says: nobody's bug, and it comes wherever something is written.
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def _bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The three parts that every error has; where it is a bug, after the traceback for whoever mends it."""
    import json

    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        name = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        parts = {
            "message": f"{error.strerror}{name}.",
            "why": f"This machine could not do what the command needed.{_left_by(sys.argv, error)}",
            "hint": "Make room (df, quota, ulimit), then the same command again. `optimize restore --host HOST` needs no room here.",
        }
    else:
        sys.__excepthook__(kind, error, trace)
        parts = _of_a_bug(kind, error)
    if "--json" in sys.argv:
        print(json.dumps({"error": {"kind": "OptimizerError", **parts}}))
    print("optimize: " + "\n".join(parts.values()), file=sys.stderr)


def _of_a_bug(kind: type[BaseException], error: BaseException) -> dict[str, str]:
    return {
        "message": f"{kind.__name__}: {error}. This is a bug.",
        "why": f"The command ended before its work was done.{_left_by(sys.argv, error)}",
        "hint": "Report it with the lines above.",
    }


def _left_by(words: list[str], error: BaseException) -> str:
    """What became of the study of a command that drives one, which whoever raised may know; all others only read."""
    if notes := getattr(error, "__notes__", ()):
        return f" {' '.join(notes)}"
    if {"restore", "bench", "mcp"} & set(words):
        return " `optimize doctor --host HOST` says how the box stands."
    if not {"run", "resume", "stop"} & set(words):
        return " It changed nothing on a box."
    return (" `optimize studies` says whether its study is closed. Where it is open the guard on its box restores the box; "
            "`optimize resume STUDY` goes on with it, `optimize stop STUDY` ends it.")  # fmt: skip


if __name__ == "__main__":
    main()
