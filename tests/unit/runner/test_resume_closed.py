"""A study that died between its last entry and its report gets the report from the knowledge that it pinned."""

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from optimizer import wiring
from optimizer.cli import main
from optimizer.errors import KnowledgeChanged
from optimizer.journal import Journal
from optimizer.runner.execute import knowledge_blob
from tests.unit.core.model_box import spec

ROOT = Path(__file__).parents[3]


def edited(folder: Path) -> Path:
    for name in ("playbooks", "search_spaces"):
        shutil.copytree(ROOT / name, folder / name)
    path = folder / "playbooks/facts.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "\n# another day\n", encoding="utf-8")
    return folder


def test_the_report_of_a_closed_study_needs_no_adoption_of_new_knowledge(tmp_path: Path) -> None:
    (tmp_path / "runs/s").mkdir(parents=True)
    shutil.copy(ROOT / "tests/histories/h200-7b-eager/journal.db", tmp_path / "runs/s/journal.db")
    roots = wiring.Roots(runs=tmp_path / "runs", knowledge=edited(tmp_path / "knowledge"))
    state, _, folder = asyncio.run(wiring.resume_study("s", roots))
    assert state.closed is not None and state.closed["ending"] == "met"
    assert "target met" in (folder / "report.md").read_text(encoding="utf-8").splitlines()[0]
    assert "--disable-cuda-graph" not in (folder / "launch.sh").read_text(encoding="utf-8").split("exec", 1)[1]
    assert "-  --disable-cuda-graph" in (folder / "changes.diff").read_text(encoding="utf-8")
    with Journal.open(tmp_path / "runs/s", write=False) as journal:  # closed is its last entry, whoever writes its files
        assert journal.read()[-1].kind == "closed"


def test_who_has_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    """Neither `resume` nor `stop` of a closed study: no lease, no time of change, no word of closing."""
    (tmp_path / "s").mkdir()
    shutil.copy(ROOT / "tests/histories/h200-7b-eager/journal.db", tmp_path / "s/journal.db")
    (tmp_path / "s/report.md").write_text("there already", encoding="utf-8")
    before = (tmp_path / "s/journal.db").read_bytes()
    for command, said in (("resume", "Target met."), ("stop", "Study s had ended before: target met. Nothing was done.")):
        done = CliRunner().invoke(main, ["--runs", str(tmp_path), command, "s"])
        assert done.exit_code == 0 and said in done.output and "Closing" not in done.output, done.output
    assert (tmp_path / "s/journal.db").read_bytes() == before and (tmp_path / "s/report.md").read_text(encoding="utf-8") == "there already"


@pytest.mark.fault("F43")
def test_an_open_study_does(tmp_path: Path) -> None:
    known = wiring.library(wiring.Roots(runs=tmp_path))
    with Journal.create(tmp_path / "s" / "journal.db") as journal:
        journal.append("opened", wiring.opened_body(spec(study="s"), known), expect=journal.last_seq, blobs={"knowledge.json": knowledge_blob(known)})
    roots = wiring.Roots(runs=tmp_path, knowledge=edited(tmp_path / "knowledge"))
    with pytest.raises(KnowledgeChanged, match=r"facts\.yaml"):
        asyncio.run(wiring.resume_study("s", roots))
