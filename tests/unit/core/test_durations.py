"""What a plan says about time: from the server's own log, from earlier studies of the box, from the workload's bounds, or "unknown"."""

import shutil
from pathlib import Path

from optimizer.box.box import Box
from optimizer.core.durations import CANDIDATE, Duration, Earlier, candidates_that_fit, durations, whole
from optimizer.core.state import fold
from optimizer.journal import Journal
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.study import Budget
from optimizer.model.workload import Workload
from optimizer.report.plan_view import duration_text
from optimizer.report.prose import sentence
from optimizer.runner.execute import LiveExecutor
from optimizer.transport.local import LocalTransport
from optimizer.wiring import pinned_library
from optimizer.wiring.earlier import _seconds, earlier

ROOT = Path(__file__).parents[3]
HISTORY = Path(__file__).parents[2] / "histories/h200-7b-eager"
LOAD = Workload(side_levels=(1,), warmup_min_s=30, warmup_max_s=300, window_s=60, side_window_s=20, confirm_window_s=600)
STARTED = Evidence(facts=(Fact(name="startup.phase_s", value=153.0, unit="s", labels={"stage": "total"}, source="server.log", line=412),))


def by_kind(evidence: Evidence, before: Earlier, *, running: bool = True) -> dict[str, Duration]:
    return {row.kind: row for row in durations(LOAD, evidence, before, running=running, looked_s=2.0, deadline_s=1800)}


def test_nobody_has_started_it_here() -> None:
    rows = by_kind(Evidence(), Earlier(), running=False)
    assert rows["start"].seconds is None and "no earlier study" in rows["start"].source and "30 min" in rows["start"].source
    assert rows["measure"].seconds == (30 + 60 + 5 + 20, 300 + 60 + 10 + 20)  # the workload's own bounds
    assert whole(list(rows.values()), CANDIDATE) is None and candidates_that_fit(list(rows.values()), Budget()) is None
    assert duration_text(None, None) == "unknown"


def test_the_servers_own_log_tells_the_start() -> None:
    rows = by_kind(STARTED, Earlier())
    assert rows["start"].seconds == (153.0, 153.0) and rows["start"].source == "its last start (server.log line 412)"
    assert rows["end"].seconds == (153.0, 153.0) and rows["end"].source.startswith("as a start")
    assert rows["secure"].seconds is None and "never done here" in rows["secure"].source
    # 2 h less the slowest (543 s) or fastest (268 s) baseline and confirmation (1,083 s, 808 s), over the time of a candidate
    assert candidates_that_fit(list(rows.values()), Budget(minutes=120, launches=20)) == ((7200 - 543 - 1083) // 543, 17)
    assert candidates_that_fit(list(rows.values()), Budget(minutes=120, launches=5)) == (2, 2)
    assert candidates_that_fit(list(rows.values()), Budget(minutes=1, launches=20)) == (0, 0)


def test_earlier_studies_tell_what_their_steps_took() -> None:
    before = Earlier(("first", "second"), {"start": (140.0, 160.0), "warmup": (35.0, 60.0), "stop": (2.0,), "secure": (1.0,), "calibrate": (4.0, 5.0), "restore": (150.0,)})
    rows = by_kind(Evidence(), before)
    assert rows["start"].seconds == (140.0, 160.0) and rows["start"].source == "2 starts of studies first, second"
    assert rows["measure"].seconds == (35 + 60 + 25, 60 + 60 + 30) and "first, second" in rows["measure"].source
    assert rows["secure"].seconds == (5.0, 6.0) and rows["end"].seconds == (150.0, 150.0)
    assert by_kind(STARTED, before)["start"].source.startswith("its last start")  # this very command line


def test_a_recorded_study_is_read_and_another_box_or_a_broken_file_tells_nothing(tmp_path: Path) -> None:
    shutil.copytree(HISTORY, tmp_path / "real")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/journal.db").write_bytes(b"no database")
    folders = [tmp_path / "broken", tmp_path / "real"]
    with Journal.open(HISTORY / "journal.db", write=False) as journal:
        entries = journal.read()
    host = entries[0].body["spec"]["host"]["name"]
    box = next(entry.body["outcome"]["body"]["box"] for entry in entries if entry.kind == "outcome" and entry.body["step"] == "observe")
    found = earlier(folders, host, box["engine"], box["model_path"])
    assert found.studies == ("real",) and {"start", "warmup", "stop", "secure", "calibrate"} <= found.seconds.keys()
    assert all(10 < value < 3600 for value in found.seconds["start"])
    assert earlier(folders, "elsewhere", box["engine"], box["model_path"]).studies == ()
    assert earlier(folders, host, "vllm", box["model_path"]).studies == ()
    assert earlier(folders, host, box["engine"], "another-model").studies == ()


def test_times_are_written_with_their_unit() -> None:
    assert duration_text(83.2, 112.4) == "83 to 112 s"
    assert duration_text(83.2, 83.4) == "83 s"
    assert duration_text(115, 390) == "1.9 to 6.5 min"


def test_a_start_that_began_under_a_dead_coordinator_does_not_count_as_a_start() -> None:
    """Recorded: its coordinator was killed while the server started; what the next one waited is not how long it took."""
    killed = ROOT / "runs/recorded/h200-7b-killed"
    with Journal.open(killed, write=False) as journal:
        entries = journal.read()
    all_of_them = [entry for entry in entries if entry.kind == "outcome" and entry.body["step"] == "await_ready"]
    counted = [value for kind, value in _seconds(entries) if kind == "start"]
    assert len(all_of_them) == 3 and counted == [entry.body["outcome"]["body"]["ready_s"] for entry in all_of_them[1:]]


def test_only_studies_that_did_a_step_are_named_for_it() -> None:
    before = Earlier(("cut", "whole"), {"start": (70.0, 80.0), "warmup": (40.0,)}, {"start": ("cut", "whole"), "warmup": ("whole",)})
    rows = by_kind(Evidence(), before)
    assert rows["start"].source == "2 starts of studies cut, whole" and "warm-ups of study whole" in rows["measure"].source and "cut" not in rows["measure"].source


def test_whoever_goes_on_knows_that_it_did_not_see_the_start() -> None:
    with Journal.open(ROOT / "runs/recorded/h200-7b-killed", write=False) as journal:
        entries = journal.read()
        state = fold(entries)
        assert state.spec is not None
        executor = LiveExecutor(Box(LocalTransport()), state.spec, pinned_library(journal, entries))
        launch = next(entry for entry in entries if entry.kind == "intent" and entry.body["step"]["kind"] == "launch")
        executor.remember(entries[: launch.seq], journal.blob)
        assert executor._begun_before == {launch.key}
    outcome = next(entry for entry in entries if entry.kind == "outcome" and entry.body["step"] == "await_ready")
    body = outcome.body["outcome"]["body"] | {"began_before": True}
    told = outcome.model_copy(update={"body": {**outcome.body, "outcome": {**outcome.body["outcome"], "body": body}}})
    assert "s after the study went on, which is not how long its start took" in sentence(told) and sentence(outcome).startswith("Ready after ")
