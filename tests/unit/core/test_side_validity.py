"""A level beside the target's whose measurement is not valid: the verdict that compares it says so, since policy version 6."""

from pathlib import Path

import pytest

from optimizer.core.since import SIDE_VALIDITY_SAID
from optimizer.core.state import State, fold
from optimizer.core.verdicts import _side
from optimizer.journal import Journal
from optimizer.model.entry import Entry, EntryKind
from optimizer.report.journal_view import setting_document
from optimizer.report.prose import _judged

STUDY = Path(__file__).parents[3] / "runs/recorded/h200-7b-mtp-low"


@pytest.fixture(scope="module")
def recorded() -> list[Entry]:
    with Journal.open(STUDY / "journal.db", write=False) as journal:
        return list(journal.read())


def before_the_verdict(recorded: list[Entry], version: int) -> State:
    judged = next(entry.seq for entry in recorded if entry.kind == EntryKind.JUDGED)
    spec = {**recorded[0].body["spec"], "policy_version": version}
    opened = recorded[0].model_copy(update={"body": {**recorded[0].body, "spec": spec}})
    return fold([opened, *recorded[1 : judged - 1]])


def test_too_few_pieces_at_one_request_are_said_where_the_loads_are_compared(recorded: list[Entry]) -> None:
    judged = next(entry for entry in recorded if entry.kind == EntryKind.JUDGED)
    told = {}
    for version in (SIDE_VALIDITY_SAID, SIDE_VALIDITY_SAID - 1):
        state = before_the_verdict(recorded, version)
        candidate = next(arm for arm in state.arms.values() if arm.results and arm is not state.base_arm)
        told[version] = _side(state, candidate, state.base_arm)
    assert told[SIDE_VALIDITY_SAID - 1] == judged.body["side"]
    loaded, alone = told[SIDE_VALIDITY_SAID]
    assert "invalid" not in loaded and alone == {**judged.body["side"][1], "invalid": ["too_few_requests"]}
    assert "at c=1 213.3 -> 205.5 tok/s (×0.96, not valid)" in _judged({**judged.body, "side": [loaded, alone]})
    entries = [entry.model_copy(update={"body": {**entry.body, "side": [loaded, alone]}}) if entry is judged else entry for entry in recorded]
    assert "no interval; not valid: too_few_requests; entry" in setting_document(entries, "speculative_algorithm")["text"]
    assert "not valid" not in setting_document(recorded, "speculative_algorithm")["text"]
