"""The report in a real browser: it renders, says nothing on the console, shows its plots, and fits a phone, a page and a dark room."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from optimizer.wiring.reporting import report_of

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
H200 = Path(__file__).parents[1] / "histories/h200-7b-eager"
# Put into the page under test only: what a person would see, read back through the document's title.
PROBE = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".wide,pre,details") && e.getBoundingClientRect().right > innerWidth + 1);
  document.title = "probe " + JSON.stringify({
    width: innerWidth, page: document.documentElement.scrollWidth, wide: wide.slice(0, 3).map(e => e.outerHTML.slice(0, 80)),
    plots: [...document.querySelectorAll("svg[role=img]")].map(e => { const box = e.getBoundingClientRect(); return [box.width, box.height]; }),
    ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
    text: getComputedStyle(document.querySelector("svg text")).fill});
});</script>"""

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_of(H200, "html").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    return path


def browse(page: Path, *options: str) -> tuple[str, str]:
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    return done.stdout, done.stderr


def seen(page: Path, width: int, *options: str) -> dict[str, object]:
    dom, said = browse(page, f"--window-size={width},1400", "--dump-dom", *options)
    assert "CONSOLE" not in said, said
    found = re.search(r"<title>probe (\{.*?\})</title>", dom)
    assert found is not None, dom[:500]
    result: dict[str, object] = json.loads(found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return result


@pytest.mark.parametrize("width", [500, 1200])  # 500 is the narrowest window that headless Chromium opens
def test_it_fits_the_window_and_shows_its_plots(page: Path, width: int) -> None:
    found = seen(page, width)
    assert found["wide"] == [] and found["page"] <= found["width"], found  # type: ignore[operator]
    plots = found["plots"]
    assert isinstance(plots, list) and len(plots) == 4
    assert all(box[0] > 300 and box[1] > 80 for box in plots), plots


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two rgb() colours."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("options", [(), ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")])
def test_text_can_be_read_in_the_light_and_in_the_dark(page: Path, options: tuple[str, ...]) -> None:
    found = seen(page, 1200, *options)
    assert contrast(str(found["ink"]), str(found["paper"])) > 7
    assert contrast(str(found["text"]), str(found["paper"])) > 7
    dark = contrast(str(found["paper"]), "rgb(0, 0, 0)") < 3
    assert dark == bool(options)


def test_it_prints(page: Path) -> None:
    browse(page, f"--print-to-pdf={page.parent / 'report.pdf'}", "--no-pdf-header-footer")
    data = (page.parent / "report.pdf").read_bytes()
    pages = [int(found) for found in re.findall(rb"/Count (\d+)", data)]
    assert data.startswith(b"%PDF") and 2 <= max(pages) <= 20, pages
