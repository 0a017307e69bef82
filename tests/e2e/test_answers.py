"""The whole tool on the fast box: a setting that makes the server answer differently is not kept, whatever it gains, unless
that was allowed; the user's own probes are the ones that are asked."""

from __future__ import annotations

import json

import pytest

from .fastbox import FastBox, entries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def lossy(box: FastBox) -> None:
    """On this box, decoding without the flag that switches graphs off gives other answers."""
    path = box.home / "box.json"
    described = json.loads(path.read_text())
    described["effects"] = [
        *described.get("effects", []),
        {"setting": "disable_cuda_graph", "in": [False], "default": True, "kernel_factor": 1.0, "changes_answers": True},
    ]
    path.write_text(json.dumps(described))


def test_a_gain_that_changes_the_answers_is_not_kept(box: FastBox) -> None:
    lossy(box)
    probes = box.here / "probes.jsonl"
    probes.write_text("".join(json.dumps({"prompt": f"Question {index}: what is {index} times {index + 3}? Answer:"}) + "\n" for index in range(10)))
    done = box(*box.study("lossy", "--probes", str(probes), "--launches", "4"))
    assert done.json["ending"] != "met" and done.json["promoted"] == [], done.err
    pruned = [entry.body for entry in entries(box.runs / "lossy") if entry.kind == "pruned"]
    assert [body for body in pruned if body["verdict"] == "lossy" and "of 10 probes are answered differently" in body["why"]]
    assert "--allow-lossy" in box("journal", "lossy").out
    assert "--allow-lossy" in (box.runs / "lossy" / "report.md").read_text()
    assert box("replay", "lossy", "--verify").exit == 0
    box.assert_clean()


def test_it_is_kept_and_said_when_allowed(box: FastBox) -> None:
    lossy(box)
    done = box(*box.study("allowed", "--allow-lossy"))
    assert done.json["ending"] == "met", done.err
    assert done.json["answers"]["verdict"] == "changed"
    assert "## Answers" in (box.runs / "allowed" / "report.md").read_text()
    assert box("replay", "allowed", "--verify").exit == 0


def test_an_ordinary_gain_leaves_the_answers_alone(box: FastBox) -> None:
    done = box(*box.study("plain"))
    assert done.json["ending"] == "met", done.err
    assert done.json["answers"]["verdict"] == "same"
    assert "## Answers" in (box.runs / "plain" / "report.md").read_text()
