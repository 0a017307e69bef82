"""What a person reads where a measurement contradicts its roofline, where facts are missing, and where drafts are even."""

import json
import shutil

import pytest
from recorded import ROOT

from optimizer.evidence.bundle import read_bundle
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.report.diagnosis_view import diagnosis_text
from optimizer.runner.diagnose import diagnose

RECORDINGS = ROOT / "tests" / "recordings" / "sglang-0.5.12-h200"


@pytest.fixture(scope="module")
def library():
    return load_library(find_knowledge())


def copied(name, tmp_path, change):
    folder = tmp_path / name
    shutil.copytree(RECORDINGS / name, folder)
    for path in folder.iterdir():
        text = path.read_text()
        path.write_text(change(path.name, text))
    return read_bundle(folder)


def a_hundredfold(name, text):
    if name != "bench.json":
        return text
    rows = json.loads(text)
    for row in rows if isinstance(rows, list) else rows["rows"]:
        row["output_tps"] *= 100
    return json.dumps(rows)


def smaller_gpu(name, text):
    return text.replace("NVIDIA H200", "NVIDIA L4")


@pytest.mark.parametrize("change", [a_hundredfold, smaller_gpu])
def test_a_contradiction_is_said_and_nothing_rests_on_it(change, tmp_path, library):
    found = diagnose(copied("tp1-7b-graph32-b", tmp_path, change), library)
    assert found.ceilings and all(level.unknown.startswith("contradiction") and level.contradicts for level in found.ceilings)
    # Recorded, this launch is healthy; faster than its GPU can be, it is no statement of any GPU.
    assert (found.verdict, found.reason) == ("cannot-tell", "evidence_missing")
    assert "more than this GPU can give" in (found.next_step or "") and "Cost: none" in (found.next_step or "")
    assert not any(fact.fact.startswith(("roofline.", "waterfall.")) for fact in found.facts)
    assert not any(item.predicts.computed for item in found.hypotheses)
    text = diagnosis_text(found)
    assert "healthy" not in text.split("\n\n")[0]
    assert text.count("contradiction") == 1 and "2 more level(s) alike" in text and "Where the time goes" not in text


@pytest.mark.parametrize(
    ("name", "start"), [("tp2-27b-nccl-shm", "collectives (here over nccl_shm)"), ("tp1-7b-nooverlap", "host:")]
)
def test_what_could_not_be_told_from_kernels_is_said(name, start, library):
    text = diagnosis_text(diagnose(read_bundle(RECORDINGS / name), library))
    assert f"  note: {start}" in text


def test_drafts_within_the_models_error_are_even(library):
    """Recorded without drafts: 119 and 1,620 tok/s at 1 and 16, with them 215 and 1,705."""
    lines = diagnosis_text(diagnose(read_bundle(RECORDINGS / "tp2-27b-nextn3"), library)).splitlines()
    rows = {int(line.split()[1].rstrip(":")): line for line in lines if line.startswith("  at ")}
    assert "about even without drafts" in rows[16] and "best" not in rows[16].replace("better", "")
    assert "about even without drafts" not in rows[1] and "without drafts, best" in rows[64]


def test_every_measured_level_of_a_drafting_launch_is_below_its_roofline(library):
    for level in diagnose(read_bundle(RECORDINGS / "tp2-27b-nextn3"), library).ceilings:
        assert level.measured_tokens_per_s < level.ceiling_tokens_per_s
