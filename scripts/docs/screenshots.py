"""Makes the README's pictures from a real study on a simulated box: the terminal while a candidate is measured (the live view as a
person's screen shows it, on a pty) and the first page of the report (in Chromium). Two to five minutes.

    .venv/bin/python scripts/docs/screenshots.py [--host sim:rtx6000x8-k26] [--target 1000tps@32]
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyte
from PIL import Image
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests.e2e.terminal import Terminal  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 132, 44
REPORT_PIXELS = (1000, 1500)
# What the picture of the terminal must show: a candidate under test, its window with the mean so far, and when it ends.
WANTED = ("phase test", "mean so far", "if this candidate meets the target", "from 0.")
THEME = TerminalTheme(
    (13, 17, 23), (230, 237, 243),
    [(48, 54, 61), (255, 123, 114), (63, 185, 80), (210, 153, 34), (121, 192, 255), (210, 168, 255), (86, 211, 219), (177, 186, 196)],
)  # fmt: skip


def drawn(screen: pyte.Screen) -> list[Text]:
    """The screen's lines with their colours, without the empty ones at its end."""
    lines = []
    for row in range(screen.lines):
        line = Text()
        chars = (screen.buffer[row][column] for column in range(screen.columns))
        for (colour, bold), run in itertools.groupby(chars, key=lambda char: (char.fg, char.bold)):
            line.append("".join(char.data for char in run), Style(color=_colour(colour), bold=bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return lines


def _colour(name: str) -> Color | None:
    if name == "default":
        return None
    return Color.parse(f"#{name}") if re.fullmatch("[0-9a-f]{6}", name) else Color.parse({"brown": "yellow"}.get(name, name))


def svg_of(lines: Sequence[Text], title: str, columns: int) -> str:
    """One picture that fetches nothing: rich's, without its web font."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False)
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", crop=True)
    text = console.export_svg(title=title, theme=THEME, unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL).replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace")


def watch(words: Sequence[str], wanted: Sequence[str]) -> list[Text]:
    """Runs the study at a terminal; the last frame of those that show most of what is ``wanted``."""
    terminal = Terminal(words, os.environ, ROOT, columns=COLUMNS, rows=ROWS)
    best: list[Text] = []
    most = 0
    end = time.monotonic() + 900
    try:
        while terminal.read(0.2):
            text = " ".join("\n".join(terminal.screen.display).replace("│", " ").split())
            shown = sum(part in text for part in wanted)
            if shown >= max(1, most) and text.count("╭") == text.count("╯") == 1:  # to its last corner: a frame may come in two reads
                best, most = drawn(terminal.screen), shown
            if time.monotonic() > end:
                sys.exit("The study did not end within 15 minutes.")
        if terminal.process.wait(30) not in (0, 3):
            sys.exit(f"The study failed:\n{terminal.text[-2000:]}")
    finally:
        terminal.close()
    if most < len(wanted) - 1:
        sys.exit(f"No frame showed {', '.join(wanted)}.")
    return best


def photograph(page: Path, target: Path, pixels: tuple[int, int]) -> None:
    """The top of the page as a person sees it, in few colours."""
    chromium = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        sys.exit("There is no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "page.png"
        subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={scratch}/profile",
                        f"--window-size={pixels[0]},{pixels[1]}", f"--screenshot={raw}", page.as_uri()], check=True, capture_output=True, timeout=120)  # fmt: skip
        Image.open(raw).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(target, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the README's pictures.")
    parser.add_argument("--host", default="sim:rtx6000x8-k26")
    parser.add_argument("--target", default="1000tps@32")
    given = parser.parse_args()
    optimize = Path(sys.executable).parent / "optimize"
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch) / "runs"
        lines = watch([str(optimize), "--runs", str(runs), "run", "--host", given.host, "--target", given.target, "--study", "demo", "--yes"], WANTED)
        (PICTURES / "terminal.svg").write_text(svg_of(lines, f"optimize run --host {given.host} --target {given.target}", COLUMNS), encoding="utf-8")
        subprocess.run([optimize, "--runs", runs, "report", "demo", "--output", Path(scratch) / "report.html"], check=True, stdout=subprocess.DEVNULL)
        photograph(Path(scratch) / "report.html", PICTURES / "report.png", REPORT_PIXELS)
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
