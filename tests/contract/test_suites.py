"""A target of the Makefile that looks for its tests in one folder must not miss one elsewhere."""

import re
from pathlib import Path

from tests.longest import SECONDS

ROOT = Path(__file__).parents[2]


def test_tests_of_real_engines_lie_where_they_are_looked_for() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    runs = re.findall(r"pytest .*-m '(engines [^']*)'(.*)", makefile)
    assert [re.findall(r"tests/\S+", rest) for _, rest in runs] == [["tests/engines"]] * 2
    # Between them they run every such test.
    assert [marks for marks, _ in runs] == ["engines and not measures", "engines and measures"]
    marked = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py") if "mark.engines" in path.read_text(encoding="utf-8")}
    marked.discard(Path(__file__).relative_to(ROOT).as_posix())
    assert marked and all(name.startswith("tests/engines/") for name in marked)


def test_the_longest_tests_exist() -> None:
    for name in SECONDS:
        file, _, function = name.partition("[")[0].partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name
