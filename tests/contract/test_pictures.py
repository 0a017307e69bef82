"""The README's pictures: there, small, fetched from nowhere, and drawn from what a screen shows."""

import importlib.util
import re
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


def test_the_readme_shows_pictures_that_are_small_and_have_words() -> None:
    shown = re.findall(r"!\[([^\]]+)\]\((docs/pictures/[^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {ROOT / path for _, path in shown} == set(PICTURES.iterdir()) and all(len(words) > 40 for words, _ in shown)
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) < 300_000


def test_the_terminal_of_the_readme_is_the_live_view() -> None:
    text = (PICTURES / "terminal.svg").read_text(encoding="utf-8")
    words = " ".join(re.sub(r"<[^>]+>", " ", text).replace("&#160;", " ").split())
    for part in ("phase", "ends in", "budget", "mean so far", "if this candidate meets the target", "▲ from 0."):
        assert part in words, part
    assert not re.search(r"url\((?!#)|@import|@font-face|href=.http", text)


def test_a_screen_becomes_a_picture_with_its_colours() -> None:
    pytest.importorskip("PIL")
    spec = importlib.util.spec_from_file_location("screenshots", ROOT / "scripts/docs/screenshots.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    screen = pyte.Screen(40, 6)
    pyte.Stream(screen).feed("plain \x1b[1;31mred\x1b[0m\r\n\x1b[38;5;198mbar <&>\x1b[0m")
    lines = script.drawn(screen)
    assert [line.plain for line in lines] == ["plain red", "bar <&>"]
    picture = script.svg_of(lines, "a title", 40)
    assert "#ff7b72" in picture and "font-weight: bold" in picture and "bar&#160;&lt;&amp;&gt;" in picture and "a title" in picture.replace("&#160;", " ")
    assert not re.search(r"url\((?!#)|@font-face", picture)
