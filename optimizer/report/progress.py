"""What the terminal shows while a study runs: phase, hypothesis, launches and minutes spent and left, the last lines of the
journal. A live panel on a terminal, plain lines elsewhere. Reads the folded state; decides nothing."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from optimizer.core.closing import PLAIN_ENDINGS, is_confirmed_better, what_runs
from optimizer.core.state import State
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.study import StudySpec
from optimizer.report.prose import result_text, sentence

QUIET = {EntryKind.LEASE_TAKEN}
LINES = 8


class Progress:
    """A context manager; ``watch`` takes every entry, ``note`` the small news of the running step."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._lines: deque[str] = deque(maxlen=LINES)
        self._state: State | None = None
        self._note = ""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, get_renderable=self._panel, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def opened(self, spec: StudySpec, folder: Path) -> None:
        self._say(f"Study {spec.study}: target {spec.target.text} on {spec.host.name}; {spec.workload.text}.")
        self._say(f"Journal: {folder / 'journal.db'} (optimize journal {spec.study})")

    def ask(self, question: str) -> bool:
        """One yes/no question; the panel steps aside for it."""
        if self._live is not None:
            self._live.stop()
        answer = self.console.input(f"{question} [y/N] ")
        if self._live is not None:
            self._live.start()
        return answer.strip().lower() in ("y", "yes")

    def watch(self, state: State, entry: Entry) -> None:
        self._state = state
        if entry.kind in QUIET:
            return
        line = f"{entry.seq:>4} {entry.kind.value:<9} {sentence(entry)}"
        self._lines.append(line)
        self._note = ""
        self._say(line if self._live is None else line[:400])

    def note(self, text: str) -> None:
        self._note = text

    def finished(self, state: State, folder: Path) -> None:
        if state.closed is None:
            return
        result = state.closed
        self._say("")
        self._say(f"{PLAIN_ENDINGS.get(result['ending'], result['ending']).capitalize()}. {result['reason']}")
        self._say(f"  baseline  {result_text(result['baseline'])}")
        self._say(f"  best      {result_text(result['best'])}")
        self._say(f"  spent     {result['launches']} launches after the baseline, {result['minutes']:.1f} minutes")
        self._say(f"  box       {what_runs(state)}")
        self._say(f"  report    {folder / 'report.md'}; {'the best' if is_confirmed_better(state) else 'the original'} command line: {folder / 'launch.sh'}")

    def _say(self, line: str) -> None:
        (self._live.console if self._live is not None else self.console).print(Text(line))

    def _panel(self) -> Panel:
        state = self._state
        table = Table.grid(padding=(0, 2))
        if state is None or state.spec is None:
            return Panel(Text("Connecting …"), title="optimize")
        spec = state.spec
        hypothesis = state.test.hypothesis if state.test else (state.ranked[0]["id"] if state.ranked else "none yet")
        used = state.launches_baseline + state.launches_after
        table.add_row("phase", phase_of(state))
        table.add_row("hypothesis", hypothesis)
        table.add_row("launches", f"{used} spent, {max(0, spec.budget.launches - used)} left")
        table.add_row("minutes", f"{state.minutes:.1f} spent, {max(0.0, spec.budget.minutes - state.minutes):.1f} left")
        return Panel(Group(table, Text(self._note, style="dim", no_wrap=True)), title=f"optimize · {spec.study} · {spec.target.text}")


def phase_of(state: State) -> str:
    """The phase of the state machine that the study is in, in the design's words."""
    if state.closed is not None:
        return "closed"
    if state.closing is not None:
        return "closing"
    if state.survey is None:
        return "survey"
    if not state.armed:
        return "secure"
    if state.calibrated is None:
        return "calibrate"
    if not state.base_arm.results:
        return "baseline"
    if state.test is not None:
        return "test"
    if state.server is not None and state.server.purpose == "confirm":
        return "confirm"
    return "rank"
