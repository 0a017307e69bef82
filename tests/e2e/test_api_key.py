"""A server that asks its clients for an API key is tuned like any other, on the fast box. The key comes from the server's own
command line and is then nowhere to be found: not in the journal, the attachments, the logs, the reports, on the screen or in the spans
that a collector gets."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest

from tests.unit.telemetry.collector import Collector, attributes

from .fastbox import FastBox, entries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KEY = "canary-0f4b-key-of-the-server"
COLLECTOR_KEY = "canary-77aa-key-of-the-collector"


def holding(folder: Path, word: bytes) -> list[str]:
    """Files that hold a word, plainly or compressed."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for opened in (bytes, gzip.decompress, zlib.decompress):
                try:
                    if word in opened(data):
                        found.append(f"{path} ({opened.__name__})")
                except (OSError, zlib.error, EOFError):
                    continue
    return found


def check_spans(collector: Collector, box: FastBox) -> None:
    """What went over the wire, decoded: one trace of the study, every effect below the server that it is about, with the journal's own
    numbers under names that say the unit, and neither key."""
    assert all(head["content-encoding"] == "gzip" and head["x-key"] == COLLECTOR_KEY for head in collector.heads) and collector.heads
    assert not any(key.encode() in body for body in collector.bodies for key in (KEY, COLLECTOR_KEY))
    read, spans = {entry.seq: entry for entry in entries(box.runs / "keyed")}, collector.spans
    by_id = {span.span_id: span for span in spans}
    [root] = [span for span in spans if not span.parent_span_id]
    assert root.name == "optimize.study" and {span.trace_id for span in spans} == {root.trace_id} and len(by_id) == len(spans)
    servers = {attributes(span)["optimize.launch"]: span for span in spans if span.name == "optimize.server"}
    effects = [span for span in spans if span.name not in ("optimize.study", "optimize.server")]
    assert all(span.parent_span_id == root.span_id for span in servers.values()) and servers
    assert len(effects) == sum(entry.kind == "intent" for entry in read.values())
    for span in effects:
        told = attributes(span)
        step, outcome = read[told["optimize.seq"]].body["step"], read[told["optimize.outcome.seq"]].body["outcome"]
        assert span.name == f"optimize.{step['kind']}" and told["optimize.server_seconds"] == outcome["duration_s"]
        about = servers.get(told.get("optimize.launch", ""), root)  # the owner's own server was not launched by the study
        assert by_id[span.parent_span_id] is about, (span.name, told)
        if step["kind"] == "measure":
            points = outcome["body"]["measurement"]["points"]
            assert [event.name for event in span.events] == ["load"] * len(points)
            metrics = {f"optimize.{name}": value for name, value in points[0]["metrics"].items()}
            assert metrics.items() <= told.items() and told["optimize.concurrency"] == 8
            without = {name for name in metrics if not name.endswith(("_ms", "_per_s", "_per_s_per_user"))}  # parts of one, which have no unit
            assert without <= {f"optimize.{name}" for name in ("engine_tokens_ratio", "error_rate", "output_repeat_share", "output_tokens_per_s_rel_se")}, without
            assert told["optimize.output_tokens_per_s"] > 10 and 1 < told["optimize.ttft_p50_ms"] < 60_000
    study = attributes(root)
    assert study["optimize.best.low"] < study["optimize.best"] < study["optimize.best.high"] and study["optimize.best.unit"] == "tok/s"
    assert study["optimize.ending"] == "met" and study["optimize.host"] == "localhost"


def test_a_server_that_runs_with_a_key(box: FastBox) -> None:
    box.argv = (*box.argv, "--api-key", KEY)
    box.serve()
    collector = Collector()
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={COLLECTOR_KEY}"}
    try:
        done = box(*box.study("keyed", launch=False), **asked)
    finally:
        collector.close()
    assert done.json["ending"] == "met", done.err
    assert KEY not in done.out + done.err and COLLECTOR_KEY not in done.out + done.err
    check_spans(collector, box)
    assert KEY not in box("journal", "keyed", "--json").out
    assert holding(box.runs, KEY.encode()) == holding(box.runs, COLLECTOR_KEY.encode()) == []
    assert box("replay", "keyed", "--verify").exit == 0
    assert all(KEY in argv for argv in box.serving_argv())  # what serves in the end asks for it as before


def test_a_launch_that_names_its_key(box: FastBox) -> None:
    (box.here / "launch.json").write_text(json.dumps({"argv": [*box.argv, "--api-key", KEY], "cwd": str(box.home)}))
    done = box(*box.study("described"))
    assert done.json["ending"] == "met", done.err
    assert KEY not in done.out + done.err and holding(box.runs, KEY.encode()) == []
