"""The rule of one open intent, in a study on several boxes: one of each, and the file itself enforces it."""

from pathlib import Path

import pytest

from optimizer.errors import JournalCorrupt, JournalError
from optimizer.journal import Journal


def intent(journal: Journal, key: str, box: str) -> None:
    journal.append("intent", {"step": {"kind": "stop", "key": key, "launch": "1"}, "box": box}, key=key, expect=journal.last_seq)


def outcome(journal: Journal, key: str, box: str, status: str = "done") -> None:
    journal.append("outcome", {"step": "stop", "outcome": {"status": status}, "box": box}, key=key, expect=journal.last_seq)


def test_each_box_has_one_open_intent(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db") as journal:
        intent(journal, "1", "a")
        intent(journal, "2", "b")
        with pytest.raises(JournalError, match="open"):
            intent(journal, "3", "a")
        outcome(journal, "2", "b")
        intent(journal, "3", "b")
        with pytest.raises(JournalError, match="open"):
            intent(journal, "4", "a")
        outcome(journal, "1", "a", "unknown")
        outcome(journal, "1", "a")
        intent(journal, "4", "a")
        assert journal.verify() == 7


def test_an_outcome_on_another_box_is_found(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db") as journal:
        intent(journal, "1", "a")
        outcome(journal, "1", "b")
        with pytest.raises(JournalCorrupt, match="not open"):
            journal.verify()
