"""A Python whose clock of the day can be set while its processes live, as an administrator or NTP sets a machine's: all that it starts
with the same Python has the same clock. Files and the kernel keep the real one."""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path

_PRELUDE = """
import datetime, mmap, os, runpy, struct, sys, time

with open({offset!r}, "rb") as _file:
    _page = mmap.mmap(_file.fileno(), 16, access=mmap.ACCESS_READ)
_time, _monotonic, _datetime = time.time, time.monotonic, datetime.datetime
time.time = lambda: _time() + struct.unpack_from("d", _page, 0)[0]
time.time_ns = lambda: int(time.time() * 1e9)
time.monotonic = lambda: _monotonic() - struct.unpack_from("d", _page, 8)[0]

class _Shifted(_datetime):
    @classmethod
    def now(cls, tz=None):
        return _datetime.fromtimestamp(time.time(), tz)

datetime.datetime = _Shifted
sys.executable = {program!r}
words = sys.argv[1:]
while words and words[0] in ("-I", "-u", "-S", "-E", "-B"):
    words.pop(0)
if words[:1] == ["-c"]:
    sys.argv = ["-c", *words[2:]]
    exec(compile(words[1], "<string>", "exec"), {{"__name__": "__main__", "__builtins__": __builtins__}})
elif words[:1] == ["-m"]:
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""


class SetClock:
    """``python``: the program to run instead of this Python. Every process of it has a clock of the day that is ``step`` away from the
    machine's, and a monotonic clock that has stood still for as long as ``sleep`` says."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(16))
        with self._file.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 16)
        self.python = str(folder / "python")
        prelude = folder / "prelude.py"
        prelude.write_text(_PRELUDE.format(offset=str(self._file), program=self.python))
        Path(self.python).write_text(f'#!/bin/sh\nexec {sys.executable} -I {prelude} "$@"\n')
        os.chmod(self.python, 0o755)

    def step(self, seconds: float) -> None:
        """From now on the clock of the day is this far from the machine's."""
        struct.pack_into("d", self._page, 0, seconds)

    def sleep(self, seconds: float) -> None:
        """As after a suspension: the monotonic clock did not go on for so long."""
        struct.pack_into("d", self._page, 8, seconds)
