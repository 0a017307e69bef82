"""A whole study on two boxes whose journal is in a real PostgreSQL: driven, cut in the middle, taken over by another coordinator, recomputed
from the database, and the start of the team's next study."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from optimizer.core.state import State, fold
from optimizer.errors import OptimizerError
from optimizer.journal import Journal, Stored
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.step import Launch
from optimizer.runner.boxes import drive_boxes
from optimizer.runner.recorded import MemoryLog, verify
from optimizer.runner.recorded_boxes import RecordedBoxes, drive_recorded
from optimizer.wiring.priors import find_known
from optimizer.wiring.roots import Roots
from tests.postgres import Server
from tests.unit.core.many_boxes import several
from tests.unit.core.model_box import PLAN
from tests.unit.core.test_boxes import boxes_of


class _Cut(Exception):
    """The coordinator dies."""


def test_two_boxes_and_two_coordinators_share_a_study_in_a_store(postgres: Server, tmp_path: Path) -> None:
    place, boxes = Stored(postgres.new_database(), "test"), boxes_of(2)

    def dies(state: State, entry: Entry) -> None:
        if entry.seq == 45:
            raise _Cut

    with Journal.create(place) as journal:
        journal.append("opened", {"spec": several(2).plain()}, expect=0)
        with pytest.raises(OptimizerError), Journal.open(place, write=True):
            pass  # one coordinator at a time: the lease is the database's
        with pytest.raises(_Cut):
            asyncio.run(drive_boxes(journal, boxes, PLAN, watch=dies))
    with Journal.open(place, write=True) as journal:
        state = asyncio.run(drive_boxes(journal, boxes, PLAN))
    assert state.closed is not None and state.closed["ending"] == "met"

    with Journal.open(place, write=False) as journal:
        journal.verify()
        entries = journal.read()
    assert fold(entries).closed == state.closed
    found = verify(entries, lambda seq: PLAN)
    assert found.decisions > 30 and not found.mismatches
    launches = [entry.key for entry in entries if entry.kind == EntryKind.INTENT and entry.body["step"]["kind"] == "launch"]
    started = [step.key for box in boxes.values() for step in box.calls if isinstance(step, Launch)]
    assert sorted(started) == sorted(str(key) for key in launches), "no launch is started twice, by whoever coordinates"
    assert {entry.box for entry in entries if entry.box} == {"a", "b"}

    log = MemoryLog()
    log.append("opened", entries[0].body, expect=0)
    again = asyncio.run(drive_recorded(log, RecordedBoxes(entries), PLAN))
    assert again.closed is not None and again.closed["ending"] == "met", "driven again without its boxes"

    known = find_known((), Roots(runs=tmp_path, store=place.database), own="next")
    assert [study.name for study in known.earlier] == ["test"]
    launched = {json.dumps(part.arms[digest].settings.values, sort_keys=True) for part in state.boxes.values() for digest in part.arms if part.arms[digest].results}
    assert {json.dumps(arm.settings, sort_keys=True) for arm in known.earlier[0].arms} == launched - {"{}"}, "of both boxes, each over its own baseline"
    assert any(arm.ln is not None and arm.ln > 0.5 for arm in known.earlier[0].arms), "what the team's next sampler starts from"
