"""Recorded launches of real servers that nobody disturbed: the validity rules accuse none of them."""

from pathlib import Path

from optimizer.evidence.bundle import read_bundle
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.runner.diagnose import contamination

RECORDED = Path(__file__).parents[2] / "recordings"


def test_no_undisturbed_launch_is_accused() -> None:
    library = load_library(find_knowledge())
    folders = [path.parent for path in sorted(RECORDED.glob("*/*/launch.json"))]
    accused = {str(folder): found for folder in folders if (found := contamination(read_bundle(folder), library))}
    assert len(folders) >= 20 and accused == {}
