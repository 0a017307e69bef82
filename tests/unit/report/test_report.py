"""The report of a real study (one H200, recorded): the answer first, complete, self-contained, and safe whatever its texts say."""

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from markupsafe import escape

from optimizer.cli import main
from optimizer.core.plan import Plan
from optimizer.journal import Journal
from optimizer.report.asking_view import facts_text
from optimizer.report.both_sides import both_sides, both_sides_markdown
from optimizer.report.charts import COLOURS, ink_on
from optimizer.report.document import study_document
from optimizer.report.page import report_html
from optimizer.report.prose import number, result_text
from optimizer.wiring.reporting import report_of

ROOT = Path(__file__).parents[3]
H200 = ROOT / "tests/histories/h200-7b-eager"


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    found: dict[str, object] = json.loads(report_of(H200, "json"))
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return report_of(H200, "html")


class Outline(HTMLParser):
    """Tags, ids and what is fetched from elsewhere; unbalanced tags are an error."""

    VOID = ("meta", "br", "img", "hr", "link", "input", "path", "use", "rect", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.anchors: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and value:
                (self.anchors if value.startswith("#") else self.fetched).append(value)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    return found


def test_the_answer_comes_first_with_launches_and_interval(page: str) -> None:
    top = re.sub(r"<[^>]+>", " ", page[page.index("<h1>") : page.index('id="changes"')])
    assert "target met" in top and "2,540 tok/s" in top and "205.8" in top
    assert re.search(r"2,540 tok/s \[[\d,.]+, [\d,.]+\] \(1 launch, a fresh confirmation", top)
    assert "Intervals are 95 % over launches where nothing else is said" in top


def test_each_changed_setting_is_explained(document: dict[str, object]) -> None:
    changes = document["changes"]
    assert isinstance(changes, list)
    told = {name for change in changes for name in change["changes"]}
    assert {"disable_cuda_graph", "max_running_requests"} <= told
    for change in changes:
        assert change["causes"] and all(cause["claim"] for cause in change["causes"])
        assert re.search(r"×[\d.]+ \[[\d.]+, [\d.]+\]", change["measured"])


def test_nothing_is_fetched_and_every_link_has_its_place(page: str) -> None:
    found = outline(page)
    assert found.fetched == []
    assert len(found.ids) == len(set(found.ids)), [name for name in found.ids if found.ids.count(name) > 1][:5]
    assert {anchor[1:] for anchor in found.anchors} <= set(found.ids)
    assert "<script" not in page and "@import" not in page and not re.search(r"url\((?!#)", page)


def test_every_plot_is_there_with_words_for_who_cannot_see_it(page: str) -> None:
    plots = re.findall(r'<svg[^>]*role="img"[^>]*aria-labelledby="([\w-]+)-title [\w-]+-description"', page)
    assert plots == [f"{name}{width}" for name in ("waterfall", "trials", "levels", "beliefs") for width in ("", "-phone")]
    for name in plots:
        description = re.search(rf'<desc id="{name}-description">([^<]+)</desc>', page)
        assert description is not None and len(description[1]) > 20
    assert page.count("<table>") == page.count("</table>") >= 5 and 'scope="col"' in page


def test_the_belief_of_what_was_cured_ends_as_the_table_has_it(document: dict[str, object], page: str) -> None:
    """Also of a companion, which no later ranking names."""
    result, history = document["result"], document["beliefs"]
    assert isinstance(result, dict) and isinstance(history, dict)
    cured = [row for row in result["hypotheses"] if row["detail"] in ("supported", "kept")]
    assert len(cured) >= 2
    said = re.search(r'<desc id="beliefs-description">([^<]+)</desc>', page)
    assert said is not None
    for row in cured:
        assert history[row["id"]][-1][1] == row["probability"]
        assert f"{row['id']} from {history[row['id']][0][1]:.2f} to {row['probability']:.2f}" in said[1]


def test_what_is_left_and_how_to_reproduce_it_is_in_every_form(document: dict[str, object], page: str) -> None:
    markdown, left, reproduce = report_of(H200, "md"), document["left"], document["reproduce"]
    assert isinstance(left, list) and left and isinstance(reproduce, list)
    section = markdown.partition("## What is left on the table")[2].partition("\n## ")[0]
    for part in left:
        assert f"{100 * part['share']:.1f} % of the time in {part['bucket']}" in section and part["who"] in section
    commands = [item["command"] for item in reproduce]
    assert any(command.startswith("optimize bench --host ") and "--concurrency 16,1 " in command and "--prompt-tokens" in command for command in commands), commands
    for command in commands:
        assert command in markdown and str(escape(command)) in page


def test_the_same_study_gives_the_same_bytes(page: str) -> None:
    assert report_of(H200, "html") == page


def test_every_cause_has_its_evidence_on_both_sides(document: dict[str, object], page: str) -> None:
    with Journal.open(H200 / "journal.db", write=False) as journal:
        rankings = [entry for entry in journal.read() if entry.kind == "ranked"]
    sides, result = document["both_sides"], document["result"]
    assert isinstance(sides, list) and isinstance(result, dict)
    assert [row["id"] for row in sides] == [row["id"] for row in result["hypotheses"]]
    section = page[page.index('id="both-sides"') : page.index('id="flips"')]
    assert section.count("<details>") == len(sides) and section.count("<li>against: ") >= len(sides)
    markdown = report_of(H200, "md")
    against = 0
    for row in sides:
        assert row["claim"]
        for view in row["seen"]:
            ranked = next(item for entry in rankings if entry.seq == view["entry"] for item in entry.body["hypotheses"] if item["id"] == row["id"])
            assert (view["for"], view["against"], view["probability"]) == (ranked["for"], ranked["against"], ranked["probability"])
            for text in facts_text([*view["for"], *view["against"]]):
                assert str(escape(text)) in section and text in markdown
            against += len(view["against"])
    assert against >= 2


def test_a_cause_that_was_cured_shows_its_evidence_before_and_after() -> None:
    with Journal.open(H200 / "journal.db", write=False) as journal:
        before = next(entry for entry in journal.read() if entry.kind == "ranked")
    row = next(row for row in before.body["hypotheses"] if row["id"] == "cuda-graph-disabled")
    cured = {**row, "probability": 0.1, "for": [], "against": [{"fact": "decode.graph_off_share", "value": 0.0, "db": -14.0, "source": "server.log", "line": 9}]}
    after = before.model_copy(update={"seq": 30, "body": {"hypotheses": [cured]}})
    elsewhere = before.model_copy(update={"seq": 20, "body": {"hypotheses": [{**row, "for": [{**item, "line": 77} for item in row["for"]]}]}})
    ids = [{"id": "cuda-graph-disabled"}, {"id": "never-ranked"}]
    found = both_sides([before, elsewhere, after], ids, Plan())
    assert [view["entry"] for view in found[0]["seen"]] == [before.seq, 30] and found[0]["seen"][1]["against"] == cured["against"]
    assert len(both_sides([before, elsewhere], ids, Plan())[0]["seen"]) == 1  # the same, read from another launch's log
    text = "\n".join(both_sides_markdown(found))
    assert "against: decode.graph_off_share = 0.0 (-14 db, server.log line 9)" in text and "no ranking names it" in text


def test_every_form_holds_the_same_figures(document: dict[str, object], page: str) -> None:
    """Each launch, each mean and each interval: in the JSON, to the last digit in the CSV, and as people read them in Markdown and HTML."""
    rows = list(csv.DictReader(io.StringIO(report_of(H200, "csv"))))
    trials, result = document["trials"], document["result"]
    assert isinstance(trials, list) and isinstance(result, dict) and len(trials) > 1
    texts = {"md": report_of(H200, "md"), "html": re.sub(r"<[^>]+>", " ", page)}
    launches = [(trial, item) for trial in trials for item in trial["launches"]]
    valid = [row for row in rows if row["state"] == "valid"]
    assert [(row["settings"], row["launch"], float(row["value"])) for row in valid] == [(trial["text"], item["launch"], item["value"]) for trial, item in launches]
    for row, (trial, _) in zip(valid, launches, strict=True):
        assert (float(row["mean_of_launches"]), [float(row["interval_low"]), float(row["interval_high"])]) == (trial["value"], trial["interval"])
        assert (row["unit"], int(row["launches"])) == (trial["unit"], len(trial["launches"]))
    for form, text in texts.items():
        for trial, item in launches:
            for value in (trial["value"], *trial["interval"]):
                assert number(value) in text, (form, value)
            assert form == "html" or number(item["value"]) in text, (form, item)  # there the launches are points of a plot
        for figure in ("baseline", "best"):
            assert result_text(result[figure]) in text, (form, figure)
        for change in document["changes"]:  # type: ignore[attr-defined]
            assert change["measured"] in text, (form, change)
    assert sum(len(trial["invalid"]) + bool(trial["crashed"]) for trial in trials) == len(rows) - len(valid)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_label_on_a_bar_can_be_read(colour: str) -> None:
    def light(text: str) -> float:
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light(colour), light(ink_on(colour))), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_texts_of_a_study_are_text(document: dict[str, object]) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    poisoned = json.loads(json.dumps(document))
    poisoned |= {"reason": evil, "host": evil, "study": evil}
    poisoned["journal"][0]["text"] = poisoned["result"]["hypotheses"][0]["reason"] = poisoned["changes"][0]["causes"][0]["claim"] = evil
    poisoned["trials"][0]["text"] = evil
    poisoned["waterfalls"][0]["lost"][0]["bucket"] = evil
    page = report_html(poisoned)
    assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page


def test_csv_has_one_row_per_launch(document: dict[str, object]) -> None:
    rows = list(csv.DictReader(io.StringIO(report_of(H200, "csv"))))
    trials = document["trials"]
    assert isinstance(trials, list)
    assert len(rows) == sum(len(trial["launches"]) + len(trial["invalid"]) + bool(trial["crashed"]) for trial in trials) >= 3
    assert all(row["unit"] == "tok/s" and float(row["interval_low"]) < float(row["value"]) < float(row["interval_high"]) for row in rows if row["state"] == "valid")


def test_the_waterfall_adds_up(document: dict[str, object]) -> None:
    waterfalls = document["waterfalls"]
    assert isinstance(waterfalls, list) and waterfalls
    for row in waterfalls:
        assert row["roofline_ms"] + sum(part["ms"] for part in row["lost"]) == pytest.approx(row["step_ms"])


def test_the_command_writes_beside_the_journal_and_to_stdout(tmp_path: Path) -> None:
    shutil.copytree(H200, tmp_path / "s")
    done = CliRunner().invoke(main, ["--runs", str(tmp_path), "report", "s"])
    assert done.exit_code == 0 and str(tmp_path / "s/report.html") in done.output
    assert (tmp_path / "s/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    printed = CliRunner().invoke(main, ["--runs", str(tmp_path), "report", "s", "--format", "md", "--output", "-"])
    assert printed.output.startswith("# Study ")
    unknown = CliRunner().invoke(main, ["--runs", str(tmp_path), "report", "nope"])
    assert unknown.exit_code == 2 and "nope" in unknown.output


def test_a_study_that_has_just_been_opened_has_a_report_too(document: dict[str, object]) -> None:
    from optimizer.core.state import fold
    from optimizer.journal import Journal
    from optimizer.wiring import pinned_library, plan_of

    with Journal.open(H200 / "journal.db", write=False) as journal:
        entries = journal.read()
        plan = plan_of(pinned_library(journal, entries))
    for upto in (1, 3, 8, 14, len(entries) // 2, len(entries) - 1):
        page = report_html(study_document(entries[:upto], fold(entries[:upto]), plan))
        assert "<h1>" in page


def test_what_concerns_a_companion_includes_the_verdict_on_the_launch_of_both() -> None:
    """Chosen and judged under the name of another cause, in one launch with it."""
    with Journal.open(H200 / "journal.db", write=False) as journal:
        chosen = next(entry for entry in journal.read() if entry.kind == "chosen" and entry.body.get("companions"))
    name = chosen.body["companions"][0]["hypothesis"]
    found = json.loads(CliRunner().invoke(main, ["journal", str(H200), "--hypothesis", name, "--json"]).stdout)["entries"]
    kinds = {(row["kind"], row["body"].get("hypothesis")) for row in found}
    assert {("chosen", chosen.body["hypothesis"]), ("judged", chosen.body["hypothesis"]), ("promoted", chosen.body["hypothesis"])} <= kinds


def test_who_follows_a_journal_gets_every_entry_as_a_line_or_an_object() -> None:
    plain = CliRunner().invoke(main, ["journal", str(H200), "--follow"])
    rows = [json.loads(line) for line in CliRunner().invoke(main, ["journal", str(H200), "--follow", "--json"]).stdout.splitlines()]
    assert [row["seq"] for row in rows] == [int(line.split()[0]) for line in plain.stdout.splitlines()] == list(range(1, 45))
    assert rows[-1]["kind"] == "closed" and all(row["text"] and isinstance(row["body"], dict) for row in rows)
    assert CliRunner().invoke(main, ["journal", str(H200), "--follow", "--why", "3"]).exit_code == 2
