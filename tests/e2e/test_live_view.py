"""The live view on a real terminal (a pty, and a screen that says what a person sees): no frame is ever half drawn or cleared, the panel
stands in each, and no line of the story is lost. The view is the product's; the box under the study is one in memory."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .terminal import Terminal

ROOT = Path(__file__).parents[2]
# Every entry of a study with its notes in between, slowly enough for the view's own thread to draw as well.
STUDY = """
import asyncio, sys, time
from optimizer.report.progress import Progress
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog
from tests.unit.core.model_box import PLAN, ModelBox, spec

log = MemoryLog()
log.append("opened", {"spec": spec().plain()}, expect=0)
box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)
told = set()
with Progress(sys.stderr) as view:
    view.opened(spec(), "runs/test")
    def watch(state, entry):
        view.watch(state, entry)
        time.sleep(0.6 if entry.kind == "promoted" else 0.02)  # a decision has to be drawn at least once, see below
        kind = entry.body.get("step", {}).get("kind") if entry.kind == "intent" else None
        for share in range(0, 100, 20) if kind in ("await_ready", "measure") and kind not in told else ():
            view.note(f"Capturing CUDA graph shapes:  {share}%|##| {share}/100 [00:07<00:12]" if kind == "await_ready" else f"c=16: measuring, {share} of 100 s, 1,070 tok/s " + 200 * "x")
            told.add(kind)
            time.sleep(0.03 if share < 80 else 0.5)  # the last long enough to be drawn: four frames a second
    state = asyncio.run(drive(log, box, PLAN, watch=watch))
    from pathlib import Path
    view.finished(state, Path("runs/test"))
print("entries", ",".join(str(entry.seq) for entry in log.read() if entry.kind != "opened"), file=sys.stderr)
"""
ENTRY = re.compile(r" {0,3}(\d+) [a-z_]+ +\S")


@pytest.fixture(scope="module", params=[(80, 24), (120, 50)], ids=["80x24", "120x50"])
def seen(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    terminal = Terminal([sys.executable, "-c", STUDY], {**os.environ, "PYTHONPATH": str(ROOT)}, ROOT, columns=request.param[0], rows=request.param[1])
    try:
        assert terminal.wait(100) == 0, terminal.text[-2000:]
        yield terminal
    finally:
        terminal.close()


TYPED = """
import signal, sys, time
from optimizer.report.progress import Progress
signal.signal(signal.SIGINT, lambda *_: None)
with Progress(sys.stderr) as view:
    time.sleep(1.5)
    view.say("over")
input("and now? ")
"""


def test_what_is_typed_meanwhile_leaves_no_piece_of_the_panel() -> None:
    """A terminal shows a typed Ctrl-C as ^C at the cursor, the end of the panel's last line: that would begin another line."""
    terminal = Terminal([sys.executable, "-c", TYPED], {**os.environ, "PYTHONPATH": str(ROOT)}, ROOT, columns=80, rows=24)
    try:
        terminal.until("Connecting")
        terminal.press(b"\x03")
        terminal.answer("and now? ", "typed")
        assert terminal.wait() == 0
        told = [line.rstrip() for line in terminal.screen.display if line.strip()]
        assert told == ["over", "and now? typed"], "\n".join(told)
    finally:
        terminal.close()


def test_every_frame_is_drawn_as_a_whole_and_nothing_is_cleared(seen: Terminal) -> None:
    text = seen.said.decode()
    assert not re.search(r"\x1b\[[0-3]?J|\x1b\[\?1049h|\x1bc", text), "the screen was cleared"
    inside = re.sub(r"\x1b\[\?2026h.*?\x1b\[\?2026l", "", text, flags=re.DOTALL)
    assert inside.startswith("entries ") and "\x1b" not in inside  # all but the last line, which is not the view's


def test_the_panel_stands_in_every_frame_and_leaves_the_story_room(seen: Terminal) -> None:
    panels = []
    for _, screen in seen.drawn():
        tops = [at for at, line in enumerate(screen) if line.startswith("╭")]
        ends = [at for at, line in enumerate(screen) if line.startswith("╰")]
        assert len(tops) == len(ends) <= 1, "\n".join(screen)
        if not tops:
            panels.append("")
            continue
        assert tops[0] < ends[0] and all(line.startswith("│") for line in screen[tops[0] + 1 : ends[0]])
        assert ends[0] - tops[0] < len(screen) - 6
        panels.append("\n".join(screen[tops[0] : ends[0] + 1]))
    shown = [bool(panel) for panel in panels]
    first, last = shown.index(True), len(shown) - shown[::-1].index(True)
    assert all(shown[first:last]) and last - first > 60, "the panel vanished between two frames"
    story = " ".join("\n".join(panels).replace("│", " ").split())
    for words in ("starting up: capturing graphs", "measuring, 80 of 100 s", "if this candidate meets the target", "min a launch so far", "Kept: cuda-graph-disabled"):
        assert words in story, words


def test_no_line_of_the_story_is_lost(seen: Terminal) -> None:
    told: list[str] = []
    for gone, screen in seen.drawn():
        panel = next((at for at, line in enumerate(screen) if line.startswith("╭")), len(screen))
        lines = [line.rstrip() for line in [*gone, *screen[:panel]]]
        while lines and not lines[-1]:
            lines.pop()
        assert lines[: len(told)] == told, "a line that was told has changed or gone"
        told = lines
    entries = seen.text.rpartition("entries ")[2].strip().split(",")
    assert [found[1] for line in told if (found := ENTRY.match(line))] == entries
    assert "Target met." in "\n".join(told)
