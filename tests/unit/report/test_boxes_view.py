"""What people see of a study on several boxes: the live panel, the report."""

import io

from rich.console import Console

from optimizer.report.progress import Progress
from optimizer.report.study import report_markdown
from tests.unit.core.many_boxes import Driver, several
from tests.unit.core.model_box import PLAN
from tests.unit.core.test_boxes import boxes_of


def test_the_panel_has_a_row_for_each_box() -> None:
    driver, view = Driver(several(2), boxes_of(2)), Progress(io.StringIO())
    for _ in range(50):
        driver.step()
        view.watch(driver.state, driver.log.read()[-1])
    screen = io.StringIO()
    Console(file=screen, width=160).print(view._panel())
    rows = [line.strip("│ ").split() for line in screen.getvalue().splitlines()]
    assert [row[:2] for row in rows if row and row[0] in ("a", "b")] == [["a", "test"], ["b", "test"]]


def test_the_report_says_what_each_box_did() -> None:
    driver = Driver(several(2), boxes_of(2))
    state = driver.run()
    text = report_markdown(driver.log.read(), state, PLAN)
    section = text.split("## Boxes")[1].split("## ")[0]
    assert "| a |" in section and "| b |" in section and "The best settings serve on b now" in section
    assert "[b] Launching (baseline)" in text
