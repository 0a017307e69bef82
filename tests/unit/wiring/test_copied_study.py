"""A copied folder of a study that runs names the process that drives the study: it is no way to reach it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.errors import UsageError
from optimizer.wiring import holder_of

DRIVING = """import sys
from pathlib import Path
from optimizer.journal import Journal
with Journal.create(Path(sys.argv[1])) as journal:
    journal.append("note", {}, expect=journal.last_seq)
    print("up", flush=True)
    sys.stdin.read()
"""


def test_stopping_a_copy_does_not_end_the_study_that_it_was_copied_from(tmp_path: Path) -> None:
    study, copy, moved = tmp_path / "study", tmp_path / "copy", tmp_path / "moved"
    study.mkdir()
    with subprocess.Popen([sys.executable, "-c", DRIVING, str(study / "journal.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        shutil.copytree(study, copy)
        holder = holder_of(study)
        assert holder is not None and holder.pid == process.pid
        with pytest.raises(UsageError, match=f"is a copy: the process that its journal names \\({process.pid}\\) drives {study}/journal.db"):
            holder_of(copy)
        study.rename(moved)  # the same file under another name is the study itself
        holder = holder_of(moved)
        assert holder is not None and holder.pid == process.pid
        process.kill()
        process.wait()
    assert holder_of(copy) is None
