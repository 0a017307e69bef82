"""What Tab offers after the program's own words: the studies, boxes and engines that are there."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from optimizer.cli import main


def offered(words: list[str], incomplete: str = "") -> list[str]:
    return [item.value for item in ShellComplete(main, {}, "optimize", "_OPTIMIZE_COMPLETE").get_completions(words, incomplete)]


def test_studies_boxes_and_engines_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "journal.db").touch()
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts/rack.toml").touch()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host gpu-1 gpu-2\n  User me\nHost *.internal !bad\n  Port 22\nhost lower\n")
    assert set(offered(["journal"])) == {"first", "second"} and offered(["diff", "first"], "s") == ["second"]
    assert offered(["--runs", str(tmp_path / "elsewhere"), "why"]) == []
    assert offered(["run", "--host"])[:5] == ["localhost", "rack", "gpu-1", "gpu-2", "lower"]
    assert "sim:h200-7b" in offered(["doctor", "--host"], "sim:")
    assert offered(["plan", "--engine"], "v") == ["vllm"]
