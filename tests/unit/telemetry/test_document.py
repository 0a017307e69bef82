"""docs/telemetry.md says what a study really shows: every metric, span and attribute, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

from optimizer.core.state import State, fold
from optimizer.journal import Journal
from optimizer.model.measurement import LoadPoint
from optimizer.telemetry.spans import Span, Tracer
from optimizer.telemetry.tally import FAMILIES, Tally
from tests.unit.core.many_boxes import Driver, several
from tests.unit.core.model_box import ModelBox

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")


def recorded() -> list[Span]:
    """The spans of a recorded study of a real server."""
    with Journal.open(ROOT / "tests/histories/h200-7b-eager", write=False) as journal:
        tracer = Tracer()
        return [span for entry in journal.read() for span in tracer.take(entry)]


def test_the_table_of_metrics_is_the_codes() -> None:
    done = subprocess.run([sys.executable, "scripts/docs/metrics_table.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_span_and_attribute_is_documented() -> None:
    said = set(re.findall(r"`((?:optimize|server|error)\.[\w.]+)`", TEXT))
    with Journal.open(ROOT / "tests/histories/h200-7b-eager", write=False) as journal:
        points = [LoadPoint.model_validate(point) for entry in journal.read() if entry.body.get("step") == "measure" for point in entry.body["outcome"]["body"]["measurement"]["points"]]  # fmt: skip
    metrics = {f"optimize.{name}" for point in points for name in point.metrics}
    spans = recorded()
    assert len(spans) > 15 and {span.name for span in spans} <= said
    results = {f"optimize.{name}.{part}" for name in ("baseline", "best") for part in ("unit", "launches", "low", "high")}
    used = {name for span in spans for attributes in (span.attributes, *(event.attributes for event in span.events)) for name in attributes}
    assert used - said - metrics - results == {"optimize.text"}  # of an event: its sentence
    assert f"each with {', '.join(f'`.{part}`' for part in ('unit', 'launches', 'low', 'high'))}" in TEXT


def test_the_alerts_ask_for_metrics_that_exist() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    rules = [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    shown = {f"{name}_total" if family.kind == "counter" else name for name, family in FAMILIES.items()}
    asked = {name for rule in rules for name in re.findall(r"optimize_\w+", rule["expr"])}
    assert len(rules) == 2 and asked and asked <= shown


def test_several_boxes_are_told_apart() -> None:
    boxes = {name: ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0) for name in ("a", "b")}
    driver = Driver(several(2), boxes)
    driver.run()
    entries = driver.log.read()
    tally, tracer, state = Tally(), Tracer(), fold(entries)
    spans = []
    for entry in entries:
        tally.take(state, entry)
        spans += tracer.take(entry)
    rows = [(name, dict(labels), value) for name, labels, value in tally.samples()]
    for box, part in state.boxes.items():
        assert [value for name, labels, value in rows if name == "optimize_launches" and labels["box"] == box] == [part.launches_baseline + part.launches_after]
        assert [value for name, labels, value in rows if name == "optimize_steps" and labels.get("box") == box and labels["step"] == "launch"]
    assert {span.attributes.get("optimize.box") for span in spans if span.name != "optimize.study"} == {"a", "b"}
    assert len({span.span_id for span in spans}) == len(spans)


def test_nothing_is_shown_of_a_study_that_was_not_opened() -> None:
    assert list(Tally().samples()) == [] and State().spec is None
