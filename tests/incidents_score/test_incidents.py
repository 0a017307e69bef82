"""The diagnosis against published incidents: bare, without their tests, and with a healthy launch's facts filled in."""

import json
import random
from functools import cache
from pathlib import Path

import pytest

from optimizer.evidence.bundle import bundle_from_case
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.runner.diagnose import diagnose

from .distractors import filled, healthy_facts
from .judging import calibration_error, decidable, judge, load, share

TESTS = Path(__file__).parents[1]
INCIDENTS, RECORDINGS = TESTS / "incidents", TESTS / "recordings"


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(TESTS.parent))


@pytest.fixture(scope="module")
def incidents():
    return load(INCIDENTS)


@pytest.mark.gate("S8")
def test_the_right_cause_comes_first(library, incidents):
    rows = judge(*incidents, library)
    known = decidable(rows)
    assert len(known) == 57
    assert share(known, lambda row: row.right) >= 0.93
    assert share(known, lambda row: row.among_three) >= 0.98
    assert share(known, lambda row: row.family_right) >= 0.96
    assert not [row.case for row in rows if row.refuted_first]
    assert share(known, lambda row: row.abstained) <= 0.10
    assert all(row.abstained for row in rows if not row.decidable)
    assert calibration_error(known) <= 0.1


def test_without_their_tests_it_does_not_guess(library, incidents):
    rows = judge(*incidents, library, without_tests=True)
    unknown = [row for row in rows if not row.decidable]
    assert len(unknown) == 18
    assert share(unknown, lambda row: row.abstained) >= 0.8
    assert share(decidable(rows), lambda row: row.abstained) <= 0.1
    assert share(decidable(rows), lambda row: row.right) >= 0.93


def test_facts_of_a_healthy_launch_do_not_distract(library, incidents):
    facts = cache(healthy_facts)

    def change(case):
        return filled(case, facts(RECORDINGS, case["engine"], case.get("gpu_count") or 1))

    known = decidable(judge(*incidents, library, change=change))
    assert share(known, lambda row: row.right) >= 0.85
    assert share(known, lambda row: row.family_right) >= 0.90


def test_only_the_documented_keys_of_a_case_are_read(library, incidents):
    """B3: answers smuggled into a case, and keys in another order, change nothing."""
    chance = random.Random(7)
    for case in chance.sample(incidents[0], 8):
        poisoned = {
            **case, "id": "case-00000000", "diagnosable": False, "needs_tests": True, "reason": "power-cap",
            "cause_id": "power-cap", "labels": {"cause_id": "power-cap"}, "notes": "the cause is power-cap",
        }  # fmt: skip
        keys = list(poisoned)
        chance.shuffle(keys)
        answers = [
            diagnose(bundle_from_case(json.dumps(data).encode()), library).to_json()
            for data in (case, {key: poisoned[key] for key in keys})
        ]
        assert answers[0] == answers[1]


def test_ids_and_thresholds_are_not_fitted_to_single_cases(library, incidents):
    """Leave-one-cause-out is not possible for hand-set weights; that no file names a case is."""
    for name, text in library.files.items():
        assert "case-" not in text, name
