"""The live view: driven by a real study on a box in memory, drawn by rich into a terminal that is a string."""

import asyncio
import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from optimizer.cli.base import print_json, say
from optimizer.core.state import State
from optimizer.evidence.startup_progress import Startup, startup_progress
from optimizer.model.entry import Entry
from optimizer.model.outcome import Failed
from optimizer.model.playbook import Prediction
from optimizer.report.progress import Progress
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog
from tests.unit.core.model_box import PLAN, ModelBox, spec


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Loading safetensors checkpoint shards:  45% Completed | 5/11 [00:03<00:04,  1.5it/s]", Startup("loading weights", 0.45)),
        ("[2026-11-29 10:00:00 TP0] Load weight begin. avail mem=138.9 GB", Startup("loading weights", None)),
        ("Capturing CUDA graph shapes:  37%|███▋      | 13/35 [00:07<00:12,  1.8it/s]", Startup("capturing graphs", 0.37)),
        ("Capturing batches (bs=64 avail_mem=10.2 GB):  50%|#####     | 10/20 [00:01<00:01]", Startup("capturing graphs", 0.5)),
        ("[10:00:00] KV Cache is allocated. #tokens: 1,000,000", Startup("allocating the KV pool", None)),
        ("INFO 11-29 [backends.py:430] Dynamo bytecode transform time: 5.2 s", Startup("compiling kernels", None)),
        ("[10:00:00] The server is fired up and ready to roll!", Startup("answering", None)),
        ("main: server is listening on http://127.0.0.1:8080", Startup("answering", None)),
        ("something else entirely 45% of the time", None),
        ("", None),
    ],
)
def test_a_line_tells_where_the_start_is(line: str, expected: Startup | None) -> None:
    assert startup_progress(line) == expected


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 5.0
        return self.now


def panels(better: float = 1200.0, scale: float = 1.0) -> list[str]:
    """What the panel showed at every entry of a whole study, with a start-up line and a load line in between."""
    view, shown = Progress(io.StringIO(), Clock()), []

    def draw() -> None:
        target = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
        target.print(view._panel())
        shown.append(target.file.getvalue())  # type: ignore[attr-defined]

    def watch(state: State, entry: Entry) -> None:
        view.watch(state, entry)
        draw()
        kind = entry.body.get("step", {}).get("kind") if entry.kind == "intent" else None
        if kind == "await_ready":
            view.note("Capturing CUDA graph shapes:  37%|███▋      | 13/35 [00:07<00:12,  1.8it/s]")
            draw()
        if kind == "measure":
            view.note("c=16: measuring, 24 of 60 s, 1,070 tok/s; mean so far 1,062 tok/s [1,041, 1,083] at 95 %")
            draw()

    log = MemoryLog()
    log.append("opened", {"spec": spec().model_copy(update={"time_scale": scale}).plain()}, expect=0)
    box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else better)
    asyncio.run(drive(log, box, PLAN, watch=watch))
    return shown


def test_the_panel_tells_phase_idea_step_beliefs_and_budget() -> None:
    shown = panels()
    story = "\n".join(shown)
    assert "starting up: capturing graphs" in story
    assert "c=16: measuring, 24 of 60 s, 1,070 tok/s; mean so far 1,062 tok/s [1,041, 1,083] at 95 %" in story
    assert "test · cuda-graph-disabled: without disable_cuda_graph, predicted ×" in story
    assert "s to go, by 1 earlier" in story or "s to go, by 2 earlier" in story
    assert "more fit at" in story and "launches spent" in story
    assert "▲ from 0.86" in story and "supported" in story  # the cause that was cured, and what was thought of it before its test
    assert "▼ from 0." in "\n".join(panels(better=380.0))  # a cause that its test spoke against
    assert all(len(panel.splitlines()) < 16 for panel in shown)  # it never fills the screen


def test_a_server_that_is_being_stopped_is_no_ranking() -> None:
    stopping = [panel for panel in panels() if re.search(r"step +stopping", panel)]
    assert stopping and not [panel for panel in stopping if re.search(r"phase +rank", panel)]
    assert any("between launches" in panel for panel in stopping)


def test_on_a_hurried_box_every_time_is_the_journals() -> None:
    """The clock here ticks 5 seconds at a time; the box's is eight times as fast. Its load said 24 seconds, and its start is timed by it."""
    shown = panels(scale=8.0)
    told = [(found[0], int(found[1])) for panel in shown for found in re.findall(r"step +([a-z]+)[a-z :]*, (\d+) s", panel)]
    assert len(told) > 10 and {"starting", "measuring", "stopping"} <= {kind for kind, _ in told}
    assert all(seconds % 40 == 0 for kind, seconds in told if kind == "starting"), told
    assert all(24 <= seconds <= 24 + 1.5 * 8 + 1 or seconds <= 20 for kind, seconds in told if kind == "measuring"), told
    assert any(seconds % 40 for kind, seconds in told if kind == "stopping"), told


def test_the_budget_counts_the_running_step() -> None:
    spent: dict[str, list[float]] = {}
    for panel in panels():
        if (step := re.search(r"step +([a-z]+)", panel)) and (found := re.search(r"([\d.]+) min spent, ([\d.]+) left", panel)):
            spent.setdefault(step[1], []).append(float(found[1]))
            assert abs(float(found[1]) + float(found[2]) - spec().budget.minutes) < 0.11, panel
    assert spent["measuring"][1] > spent["measuring"][0], "it stood still while the load ran"


def test_what_was_kept_on_trial_is_not_called_supported() -> None:
    """Kept because it meets the target, to be decided by its confirmation; here it is the cause that the panel names first."""
    view, said = Progress(io.StringIO()), []

    def watch(state: State, entry: Entry) -> None:
        view.watch(state, entry)
        target = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
        target.print(view._panel())
        rows = [line for line in target.file.getvalue().splitlines() if "cuda-graph-disabled " in line and re.search(r"0\.\d\d", line)]  # type: ignore[attr-defined]
        said.append((state.provisional is not None, " ".join(rows)))

    log = MemoryLog()
    log.append("opened", {"spec": spec().plain()}, expect=0)
    # Better by what one launch cannot show, and past the target.
    plan = replace(PLAN, playbooks=tuple(book.model_copy(update={"predicts": Prediction(ratio=(1.1, 1.5))}) for book in PLAN.playbooks if book.id == "cuda-graph-disabled"))
    box = ModelBox({"disable_cuda_graph": True}, lambda values: 900.0 if values.get("disable_cuda_graph") else 1045.0, noise=0.005)
    asyncio.run(drive(log, box, plan, watch=watch))
    trial = [row for provisional, row in said if provisional]
    assert trial and all("kept on trial" in row and "supported" not in row for row in trial), trial
    assert not any("kept on trial" in row for provisional, row in said if not provisional)


TOLD = """
import sys
from optimizer.report.progress import Progress
with Progress(sys.stderr) as view:
    for number in range(3000):
        view.say(f"line {number}")
print("went on", file=open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("shell", ["2>&1 | head -1", "2>&-", "2>/dev/full"])
def test_whoever_listens_may_go_without_ending_the_study(shell: str, tmp_path: Path) -> None:
    """`| head`, a pager that was left, a dead tee, no standard error at all, a full disk: the story is in the journal."""
    mark = tmp_path / "mark"
    words = f"unset PYTHONUNBUFFERED; {shlex.quote(sys.executable)} -c {shlex.quote(TOLD)} {mark} {shell}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[3])
    assert mark.read_text() == "went on\n" and done.returncode == 0, done.stderr


def test_without_a_terminal_every_entry_is_one_plain_line() -> None:
    stream = io.StringIO()
    with Progress(stream) as view:
        log = MemoryLog()
        log.append("opened", {"spec": spec().plain()}, expect=0)
        box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)
        state = asyncio.run(drive(log, box, PLAN, watch=view.watch))
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue() and len(lines) >= state.seq - 1
    assert any("judged" in line for line in lines)


@pytest.mark.fault("H26")
def test_nothing_of_a_box_moves_the_cursor_of_a_terminal() -> None:
    """A start-up line that retitles the window, clears the screen and reorders text, in the panel and in the lines above it."""
    hostile = "\x1b]0;owned\x07 loading \x1b[2J\x1b[31mred\x9b2J \u202eback\r\b\x00 10%"
    view = Progress(io.StringIO())
    log = MemoryLog()
    log.append("opened", {"spec": spec().plain()}, expect=0)
    box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0, crash=lambda values: "crashed")
    said = Failed(cause="crashed", message=f"the server said {hostile}")
    box.fault = lambda step, number: said if step.kind == "await_ready" else None
    asyncio.run(drive(log, box, PLAN, watch=view.watch))
    view.note(hostile)
    target = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    target.print(view._panel())
    lines = view.console.file.getvalue()  # type: ignore[attr-defined]
    assert "the server said" in lines and "loading" in target.file.getvalue()  # type: ignore[attr-defined]
    for shown in (lines, target.file.getvalue()):  # type: ignore[attr-defined]
        assert not [char for char in shown if char != "\n" and not char.isprintable()], repr(shown)


@pytest.mark.fault("H26")
def test_nothing_of_a_box_moves_the_cursor_through_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    value = "a\x1b]0;owned\x07b\x1b[2Jc\x9b2Jd\u202e"
    say(value, err=True)
    say(f"{value}\n")
    print_json({"said": value})
    out, err = capsys.readouterr()
    assert all(char == "\n" or char.isprintable() for char in out + err)
    assert json.loads(out.partition("\n\n")[2]) == {"said": value}  # a program gets what was said


@pytest.mark.parametrize(("columns", "rows"), [(30, 8), (60, 16), (80, 24), (110, 50)])
def test_a_small_screen_keeps_room_for_the_story(columns: int, rows: int) -> None:
    """One line for each row of the panel where there is little room, and the step's time is among what is left."""
    view = Progress(io.StringIO(), Clock())
    tallest, steps = 0, 0

    def watch(state: State, entry: Entry) -> None:
        nonlocal tallest, steps
        view.watch(state, entry)
        target = Console(file=io.StringIO(), width=columns, height=rows, force_terminal=True, color_system=None)
        view.console = target
        target.print(view._panel())
        lines = target.file.getvalue().splitlines()  # type: ignore[attr-defined]
        tallest, steps = max(tallest, len(lines)), steps + any(re.match(r"│ step +(measuring|starting)", line) for line in lines)

    log = MemoryLog()
    log.append("opened", {"spec": spec().plain()}, expect=0)
    box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)
    asyncio.run(drive(log, box, PLAN, watch=watch))
    assert tallest <= rows - 3 and steps > 2, (tallest, steps)


def test_a_line_that_says_nothing_does_not_take_the_place_of_one_that_does() -> None:
    view = Progress(io.StringIO())
    for line in ("Load weight begin. avail mem=138.9 GB", "  warnings.warn(", "288, 320, 352, 384, 416,"):
        view.note(line)
    assert view._note == "Load weight begin. avail mem=138.9 GB"
