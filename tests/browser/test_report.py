"""The report in a real browser: it renders, says nothing on the console, shows its plots, and fits a phone, a page and a dark room."""

import itertools
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
    plots: [...document.querySelectorAll("svg[role=img]")].map(e => e.getBoundingClientRect()).filter(box => box.width).map(box => [box.width, box.height]),
    scrolls: [...document.querySelectorAll("figure,.wide,pre")].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 80)),
    smallest: Math.min(...[...document.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height).filter(Boolean)),
    ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
    text: getComputedStyle(document.querySelector("svg text")).fill,
    headings: [...document.querySelectorAll("h1,h2,h3,h4,h5,h6")].map(e => [Number(e.tagName[1]), e.textContent.trim()]),
    landmarks: document.querySelectorAll("main").length, lang: document.documentElement.lang, pale: pale(),
    nameless: [...document.querySelectorAll("a,summary,th,caption,svg[role=img],svg[role=img] > title,svg[role=img] > desc")]
      .filter(e => !e.textContent.trim()).map(e => e.outerHTML.slice(0, 80)),
    unlabelled: [...document.querySelectorAll("svg[role=img]")].filter(e => !e.getAttribute("aria-labelledby").split(" ").every(id => document.getElementById(id))).length,
    images: document.querySelectorAll("img:not([alt]),svg:not([role=img])").length,
    headless: [...document.querySelectorAll("table")].filter(e => !e.querySelector("th[scope=col]")).length});
});
// Text of less than WCAG's contrast of 4.5 with what lies behind it; in plots only what stands on the page itself (labels on bars have their own test).
function pale() {
  const rgb = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll("body *")].filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && !["SCRIPT", "STYLE", "style", "title", "desc"].includes(e.tagName))
    .map(e => { const style = getComputedStyle(e), drawn = e.closest("svg"), ink = rgb(drawn ? style.fill : style.color), paper = behind(drawn ? drawn.parentElement : e);
      const [high, low] = [light(ink), light(paper)].sort((a, b) => b - a);
      return [(high + 0.05) / (low + 0.05), e.tagName, e.textContent.trim().slice(0, 30), Boolean(drawn)]; })
    .filter(row => row[0] < 4.5 && !(row[3] && / ms$|^[a-z_]+$/.test(row[2]))).slice(0, 5);
}</script>"""

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


def test_it_fits_the_window_and_shows_its_plots(page: Path) -> None:
    found = seen(page, 1200)
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
    assert found["pale"] == []
    dark = contrast(str(found["paper"]), "rgb(0, 0, 0)") < 3
    assert dark == bool(options)


def test_who_cannot_see_it_finds_the_way(page: Path) -> None:
    """Headings without a gap, one main part, a name for every link, table and plot."""
    found = seen(page, 1200)
    headings = found["headings"]
    assert isinstance(headings, list) and [level for level, _ in headings].count(1) == 1 and headings[0][0] == 1
    assert all(later[0] <= earlier[0] + 1 for earlier, later in itertools.pairwise(headings)), headings
    assert all(text for _, text in headings) and len({text for _, text in headings}) == len(headings)
    assert (found["landmarks"], found["lang"], found["nameless"], found["unlabelled"], found["images"], found["headless"]) == (1, "en", [], 0, 0, 0)


def test_it_fits_a_phone(page: Path, tmp_path: Path) -> None:
    """360 pixels, the width of a small phone: narrower than a window of this browser, so that the page lies in a frame."""
    told = '<script>addEventListener("load", () => setTimeout(() => parent.postMessage(document.title, "*"), 0));</script></body>'
    framed, room = tmp_path / "framed.html", tmp_path / "phone.html"
    framed.write_text(page.read_text(encoding="utf-8").replace("</body>", told), encoding="utf-8")
    listens = '<script>addEventListener("message", event => { document.title = event.data; });</script>'
    room.write_text(f'<!doctype html>{listens}<iframe width="360" height="740" src="{framed.as_uri()}"></iframe>', encoding="utf-8")
    found = seen(room, 800, "--virtual-time-budget=5000")
    assert found["width"] == 360 and found["wide"] == [] and found["page"] <= found["width"], found  # type: ignore[operator]
    plots = found["plots"]
    assert isinstance(plots, list) and len(plots) == 4 and all(300 < box[0] <= 360 and box[1] > 80 for box in plots), plots
    assert found["scrolls"] == [] and isinstance(found["smallest"], float | int) and found["smallest"] >= 9, found


def printed(page: Path) -> int:
    """Pages of paper."""
    path = page.with_suffix(".pdf")
    browse(page, f"--print-to-pdf={path}", "--no-pdf-header-footer")
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    return max(int(found) for found in re.findall(rb"/Count (\d+)", data))


def test_it_prints_with_all_that_is_folded_away(page: Path) -> None:
    opened = page.with_name("opened.html")
    opened.write_text(page.read_text(encoding="utf-8").replace("<details>", "<details open>"), encoding="utf-8")
    assert 4 <= printed(page) == printed(opened) <= 20
