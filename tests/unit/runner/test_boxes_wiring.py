"""Several `--host`: who is named, where a simulated one lives, and what is refused before anything is touched."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.errors import UsageError
from optimizer.report.prose import sentence
from optimizer.runner.recorded import MemoryLog
from optimizer.wiring import Options, Roots
from optimizer.wiring.boxes import MAX_BOXES, prepare


def roots(tmp_path: Path) -> Roots:
    return Roots(runs=tmp_path / "runs")


def test_two_simulated_boxes_have_homes_of_their_own(tmp_path: Path) -> None:
    spec, folder = prepare(Options(host="sim:h200-7b", more_hosts=("sim:h200-7b",), target=("1000tps@16",), study="two"), roots(tmp_path))
    assert [one.name for one in spec.boxes] == ["sim:h200-7b", "sim:h200-7b#2"]
    first, second = (one.launch for one in spec.boxes)
    assert first is not None and second is not None and first.cwd != second.cwd
    assert str(folder) in str(second.cwd)
    assert [spec.on(one.name).study for one in spec.boxes] == ["two.1", "two.2"], "each holds its box under an id of its own"
    assert spec.consent


def test_a_machine_is_named_once_and_not_too_many(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="named twice"):
        prepare(Options(host="gpu", more_hosts=("gpu",), target=("1000tps",)), roots(tmp_path))
    with pytest.raises(UsageError, match="more than one study"):
        prepare(Options(host="gpu", more_hosts=tuple(f"gpu{at}" for at in range(MAX_BOXES)), target=("1000tps",)), roots(tmp_path))


def test_a_plan_is_made_from_one_box() -> None:
    done = CliRunner().invoke(main, ["plan", "--host", "a", "--host", "b", "--target", "1000tps"])
    assert done.exit_code != 0
    assert isinstance(done.exception, UsageError | SystemExit)


def test_a_line_of_the_journal_says_which_box(tmp_path: Path) -> None:
    spec, _ = prepare(Options(host="sim:h200-7b", more_hosts=("sim:h200-7b",), target=("1000tps@16",), study="two"), roots(tmp_path))
    log = MemoryLog()
    assert "on sim:h200-7b, sim:h200-7b#2" in sentence(log.append("opened", {"spec": spec.plain()}, expect=0))
    assert sentence(log.append("note", {"text": "Tried again.", "box": "sim:h200-7b#2"}, expect=1)) == "[sim:h200-7b#2] Tried again."
