"""What the terminal shows while a study runs: phase, the idea under test, how the beliefs move, how far the running step is by its
own past, how long the whole study may take, what of the budget is left, the last decisions, and every journal line above it. A live panel on
a terminal, drawn in whole frames; plain lines elsewhere. Reads the folded state; decides nothing."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from optimizer.core.closing import PLAIN_ENDINGS, is_confirmed_better, is_refuted, what_runs
from optimizer.core.phase import phase_of
from optimizer.core.score import probability_of
from optimizer.core.state import State
from optimizer.evidence.startup_progress import Startup, startup_progress
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.study import StudySpec
from optimizer.redact import printable
from optimizer.report.prose import changes_text, result_text, sentence
from optimizer.report.quiet_keys import quiet_keys
from optimizer.report.remaining import Remaining, remaining, remaining_text
from optimizer.report.setup import confidence_text, simulated_text
from optimizer.report.status import status_text
from optimizer.report.steady_stream import steady
from optimizer.report.step_clock import StepClock
from optimizer.report.whole_frames import WholeFrames

QUIET = {EntryKind.LEASE_TAKEN}
DECISIONS = {
    EntryKind.CHOSEN, EntryKind.JUDGED, EntryKind.PROMOTED, EntryKind.PRUNED, EntryKind.DEFERRED, EntryKind.ROLLED_BACK, EntryKind.DRIFTED, EntryKind.GUARD_FIRED,
}  # fmt: skip
BELIEFS, DECIDED = 5, 3
SMALL_SCREEN, TINY_SCREEN, LEAST_SCREEN = 34, 20, 12  # rows; on fewer the panel shows less, so that the story above it is seen
NARROW = 80  # columns; on fewer no row of the panel is wrapped
LINE_CHARACTERS = 400  # of an entry on a terminal; the journal has it whole
KIND_COLUMN = 15
REDRAW_S = 0.25
_WORD = re.compile(r"[A-Za-z]{2,}[^\w.(]|[A-Za-z]{2,}$")
STEPS = {
    "observe": "reading the box", "secure": "securing the box", "calibrate": "calibrating the load generator", "launch": "launching", "await_ready": "starting up",
    "measure": "measuring", "check": "testing without a relaunch", "stop": "stopping", "restore": "restoring", "propose": "asking the sampler",
}  # fmt: skip


class Progress:
    """A context manager; ``watch`` takes every entry, ``note`` the small news of the running step. ``clock``: seconds, monotonic."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._keys = steady(stream), ExitStack()
        shown = cast(TextIO, self._stream)
        self.console = Console(file=cast(TextIO, WholeFrames(shown)) if shown.isatty() else shown, highlight=False, soft_wrap=True)
        self._clock = clock
        self._live: Live | None = None
        # One drawing at a time, from what it erases to what it writes: two at once, each above a panel of the height that it knew, lose a line.
        self._drawing, self._over, self._thread = threading.RLock(), threading.Event(), cast("threading.Thread | None", None)
        self._state: State | None = None
        self._note = ""
        self._startup: Startup | None = None
        self._step: tuple[StepClock, float] | None = None  # and the seconds of the windows that it was asked for
        self._took: dict[str, list[float]] = {}  # seconds of finished steps beyond their windows, as journalled, by kind
        self._ranked: dict[str, float] = {}  # probability of each cause in the last ranking before it was cured
        self._before: dict[str, float] = {}  # the same, before the current ranking
        self._decided: deque[Entry] = deque(maxlen=DECIDED)
        self._launched_at = 0.0  # minutes of the study when the launch of now began

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._keys.enter_context(quiet_keys(cast(TextIO, self._stream)))
            self._live = Live(console=self.console, get_renderable=self._panel, auto_refresh=False, transient=True)
            self._live.start()
            self._thread = threading.Thread(target=self._redraw, args=(self._live,), name="live view", daemon=True)
            self._thread.start()
        return self

    def _redraw(self, live: Live) -> None:
        while not self._over.wait(REDRAW_S):
            if self._stream.behind:
                continue  # a terminal that does not read gets the news later, and no frame that the next one replaces
            with self._drawing:
                live.refresh()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None and self._thread is not None:
            self._over.set()
            self._thread.join()
            self._live.stop()
            self._live = None
        self._stream.settle()
        self._keys.close()

    def opened(self, spec: StudySpec, where: str) -> None:
        self.say(f"Study {spec.study}: target {spec.target.text} on {spec.host.name}; {spec.workload.text}.")
        self.say(f"Journal: {where} (optimize journal {spec.study})")
        if spec.time_scale != 1:
            self.say(f"The simulated server's clock runs {spec.time_scale:g} times as fast as yours; starts and loads are timed by it.")

    def watch(self, state: State, entry: Entry) -> None:
        if entry.kind == EntryKind.RANKED:
            settled = {name for name, belief in state.beliefs.items() if belief.final_db is not None}
            self._before = dict(self._ranked)
            self._ranked |= {row["id"]: row["probability"] for row in state.ranked if row["id"] not in settled}
        self._state = state
        self._timed(entry)
        if entry.kind in QUIET:
            return
        if entry.kind in DECISIONS:
            self._decided.append(entry)
        self._note, self._startup = "", None
        self._tell(entry)

    def _tell(self, entry: Entry) -> None:
        head, text = f"{entry.seq:>4} {entry.kind.value:<9} ", printable(sentence(entry))
        if self._live is None:
            self.say(head + text)
            return
        row = Table.grid()
        row.add_column(width=KIND_COLUMN, no_wrap=True)
        row.add_column()
        row.add_row(Text(head, style="dim"), Text(text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]}…"))
        with self._drawing:
            self._live.console.print(row, soft_wrap=False)

    def _timed(self, entry: Entry) -> None:
        now = self._clock()
        if entry.kind == EntryKind.INTENT:
            step = entry.body["step"]
            scale = self._state.spec.time_scale if self._state is not None and self._state.spec is not None else 1.0
            clock = StepClock(str(step["kind"]), now, scale)
            self._step = (clock, math.fsum(level["window_s"] for level in step.get("levels", ())))
            if clock.kind == "launch" and self._state is not None:
                self._launched_at = self._state.minutes
        elif entry.kind == EntryKind.OUTCOME and self._step is not None:
            clock, windows = self._step
            self._step = None
            if (outcome := entry.body["outcome"])["status"] == "done":
                self._took.setdefault(clock.kind, []).append(max(0.0, outcome["duration_s"] - windows))

    def note(self, text: str) -> None:
        if len(_WORD.findall(text)) > 1 or not self._note:  # a list of sizes, or the end of a warning, says nothing to who waits
            self._note = printable(text)
        if self._step is not None:
            self._step[0].heard(text, self._clock())
        if self._step is not None and self._step[0].kind == "await_ready" and (seen := startup_progress(text)) is not None:
            self._startup = seen

    def finished(self, state: State, folder: Path) -> None:
        if state.closed is None:
            return
        result = state.closed
        self.say("")
        ending = PLAIN_ENDINGS.get(result["ending"], result["ending"]).capitalize()
        self.say(result["reason"] if result["reason"].startswith(ending) else f"{ending}. {result['reason']}")
        self.say(f"  baseline  {result_text(result['baseline'])}")
        self.say(f"  best      {result_text(result['best'])}")
        if sure := confidence_text(state):
            self.say(f"  sure      {sure}")
        self.say(f"  spent     {result['launches']} launch{'es' * (result['launches'] != 1)} after the baseline, {result['minutes']:.1f} minutes")
        self.say(f"  box       {what_runs(state)}{' It is simulated: no figure was measured on a GPU.' if simulated_text(state) else ''}")
        launch = f"; {'the best' if is_confirmed_better(state) else 'the original'} command line: {folder / 'launch.sh'}" if (folder / "launch.sh").exists() else ""
        self.say(f"  report    {folder / 'report.md'}{launch}")

    def say(self, line: str) -> None:
        """A line above the panel."""
        with self._drawing:
            self.console.print(Text(printable(line)), soft_wrap=not self.console.is_terminal)

    # ---- the panel ------------------------------------------------------------------------------------------------

    def _panel(self) -> Panel:
        state = self._state
        if state is None or state.spec is None:
            return Panel(Text("Connecting …"), title="optimize")
        spec, small, tiny = state.spec, self.console.height < SMALL_SCREEN, self.console.height < TINY_SCREEN
        gap: list[RenderableType] = [] if small else [Text()]
        parts: list[RenderableType] = [self._now(state, tight=tiny or self.console.width < NARROW)]
        if state.ranked and not tiny:
            parts += [*gap, self._beliefs(state, 3 if small else BELIEFS)]
        if self._decided and not tiny:
            parts += gap
            for entry in list(self._decided)[-1 if small else 0 :]:
                parts.append(Text(f"{entry.seq:>4} {entry.kind.value:<8} {printable(sentence(entry))}", no_wrap=True, overflow="ellipsis"))
        if self._note:
            parts += [*gap, Text(self._note, style="dim", no_wrap=True, overflow="ellipsis")]
        return Panel(Group(*parts), title=f"optimize · {spec.study} · {spec.target.text}")

    def _now(self, state: State, *, tight: bool) -> Table:
        """``tight``: on a small screen, one line for each row and no bar."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()

        def cell(text: str) -> Text:
            return Text(text, no_wrap=True, overflow="ellipsis") if tight else Text(text)

        least = self.console.height < LEAST_SCREEN and self._step is not None
        if not state.boxes and not least:
            table.add_row("phase", cell(f"{_phase_text(state)}{self._tested(state)}"))
        for name, part in state.boxes.items():
            table.add_row(name, cell(f"{_phase_text(part)}{self._tested(part)}{_step_of(part)}"))
        if self._step is not None and not state.boxes:
            table.add_row("step", self._running(bar=not tight))
        running = self._step[0].seconds(self._clock()) / 60.0 if self._step is not None else 0.0
        if not least:
            table.add_row("budget", cell(budget_text(state, remaining(state, self._launched_at, running), running)))
        if left := remaining_text(state, self._launched_at, running):
            table.add_row("ends in", cell(left))
        return table

    def _tested(self, state: State) -> str:
        test = state.test
        if test is None:
            return ""
        predicted = f", predicted ×{test.ratio[0]:.2f} to ×{test.ratio[1]:.2f}" if test.ratio else ""
        return f" · {test.hypothesis}: {changes_text(test.changes) or 'a sample of its space'}{predicted}"

    def _running(self, *, bar: bool) -> RenderableType:
        """The running step with its bar: the server's own where it tells, else against how long this study's steps of the kind took."""
        assert self._step is not None
        clock, windows = self._step
        elapsed = clock.seconds(self._clock())
        took = self._took.get(clock.kind, [])
        usual = windows + math.fsum(took) / len(took) if took else None
        what = STEPS.get(clock.kind, clock.kind)
        share = None
        if self._startup is not None:
            what, share = f"{what}: {self._startup.phase}", self._startup.share
        if share is None and usual:
            share = min(0.99, elapsed / usual)
        earlier = f"{len(took)} earlier" if usual else ""
        expected = "" if not usual else f", about {max(0.0, usual - elapsed):.0f} s to go, by {earlier}" if elapsed < usual + 1 else f", longer than {earlier} (about {usual:.0f} s)"
        said = Text(f"{what}, {elapsed:.0f} s{expected}")
        if not bar or share is None:
            return Text(said.plain, no_wrap=not bar, overflow=None if bar else "ellipsis")
        row = Table.grid(padding=(0, 2))
        row.add_row(said, ProgressBar(total=1.0, completed=share, width=20))
        return row

    def _beliefs(self, state: State, shown: int) -> Table:
        table = Table.grid(padding=(0, 2))
        # What was cured first, with the probability that it was the cause: the evidence of the cured server says less.
        cured = [{"id": name, "probability": probability_of(belief.final_db)} for name, belief in state.beliefs.items()
                 if belief.final_db is not None and belief.status in ("supported", "kept")][-shown // 2 :]  # fmt: skip
        names = {row["id"] for row in cured}
        for row in [*cured, *(row for row in state.ranked if row["id"] not in names)][:shown]:
            before = (self._ranked if row["id"] in names else self._before).get(row["id"])
            moved = "" if before is None or f"{row['probability']:.2f}" == f"{before:.2f}" else f"{'▲' if row['probability'] > before else '▼'} from {before:.2f}"
            belief = state.beliefs.get(row["id"])
            said = "open" if belief is None else _status(state, row["id"], belief.status)
            table.add_row(
                Text(row["id"]), ProgressBar(total=1.0, completed=float(row["probability"]), width=16), Text(f"{row['probability']:.2f} {moved}"),
                Text(said, style="dim"),
            )  # fmt: skip
        return table


def _phase_text(state: State) -> str:
    """The phase in words. A server that is being stopped after its verdict is no ranking, though one may follow."""
    phase = phase_of(state)
    return "between launches" if phase == "rank" and state.open is not None and state.open.kind == "stop" else phase


def _status(state: State, name: str, status: str) -> str:
    """In words. What was kept on trust, to be decided by the confirmation, is not yet supported by anything."""
    if status in ("supported", "kept") and state.provisional is not None and name in (state.provisional["hypothesis"], *state.provisional.get("companions", ())):
        return "kept on trial"
    if status in ("supported", "kept") and is_refuted(state):
        return "not confirmed"
    return status_text(status)


def _step_of(part: State) -> str:
    """What one of several boxes is doing now."""
    if part.lost:
        return " · lost"
    return f" · {STEPS.get(part.open.kind, part.open.kind)}" if part.open is not None else " · waiting"


def budget_text(state: State, foreseen: Remaining | None, running: float) -> str:
    """Launches and minutes spent and left, with the ``running`` minutes of the step of now, and how many launches after the one of now
    the minutes pay for at this study's own pace."""
    assert state.spec is not None
    budget, used = state.spec.budget, state.launches_baseline + state.launches_after
    spent = state.minutes + running
    left, minutes_left = max(0, budget.launches - used), max(0.0, budget.minutes - spent)
    text = f"{used} launch{'es' * (used != 1)} spent, {left} left; {spent:.1f} min spent, {minutes_left:.1f} left"
    if foreseen is not None:
        text += f"; about {min(left, int(max(0.0, minutes_left - foreseen.unfinished) / foreseen.pace))} more fit at {foreseen.pace:.1f} min each"
    return text
