"""A view never holds up what it shows: terminals and pipes whose reader stops, comes back, or goes."""

import os
import pty
import select
from pathlib import Path

import pytest

from optimizer.report.progress import Progress
from optimizer.report.pump import HELD_BYTES
from optimizer.report.steady_stream import steady


def read_until(descriptor: int, wanted: bytes, limit_s: float = 60.0) -> bytes:
    seen = b""
    while wanted not in seen and select.select([descriptor], [], [], limit_s)[0]:
        seen += os.read(descriptor, 1 << 16)
    return seen


@pytest.mark.timeout(120)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_reader_that_does_not_read_holds_nothing_up_and_finds_it_all_later(terminal: bool) -> None:
    """More than the kernel keeps for it, as after Ctrl-S: with writes that wait, this test would never come to read."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        out = steady(stream)
        for number in range(3000):
            out.write(f"line {number} {'.' * 60}\n")
            out.flush()
        assert out.behind
        seen = read_until(reader, b"line 2999 ").replace(b"\r", b"")
        out.settle()
        assert not out.behind
        assert [int(line.split()[1]) for line in seen.splitlines() if line.startswith(b"line ")] == list(range(3000))
    os.close(reader)


@pytest.mark.timeout(120)
def test_what_nobody_reads_is_dropped_at_last() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        out = steady(stream)
        for _ in range(3 * HELD_BYTES // 1000):
            out.write("x" * 1000)
        came = 0
        while out.behind:  # the last of it may have come before the pump says so
            came += len(os.read(reader, 1 << 16)) if select.select([reader], [], [], 0.02)[0] else 0
        assert came < 2 * HELD_BYTES
        out.write("again\n")
        assert read_until(reader, b"again\n").endswith(b"again\n")
        os.close(reader)
        out.write("to nobody\n")
        out.settle()
        out.write("to nobody\n")


@pytest.mark.timeout(120)
def test_a_panel_on_a_stopped_terminal_ends_when_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        with Progress(stream) as progress:
            for number in range(200):
                progress.say(f"said {number} {'.' * 40}")
        assert progress._stream.behind
        assert b"said 199 " in read_until(reader, b"said 199 ")
    os.close(reader)


def test_a_file_is_written_to_at_once(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w", encoding="utf-8") as stream:
        out = steady(stream)
        out.write("one\n")
        out.flush()
        assert (tmp_path / "said").read_text() == "one\n"
