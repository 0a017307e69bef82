"""Whole studies of a box in memory, watched by other programs as they are in production: a scraped page, and a collector that is a
real HTTP server, well or not."""

import asyncio
import re
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimizer.core.state import State
from optimizer.errors import UsageError
from optimizer.journal import Journal
from optimizer.model.canonical import canonical_json
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.outcome import Failed
from optimizer.model.step import Launch, Step
from optimizer.runner.loop import StopRequest, Watch, drive
from optimizer.telemetry.tally import FAMILIES
from optimizer.wiring import observing
from optimizer.wiring.observing import observed
from tests.unit.core.model_box import PLAN, ModelBox, spec
from tests.unit.telemetry.collector import Collector, attributes, silent_port


@pytest.fixture
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    made = Collector(getattr(request, "param", "takes"))
    yield made
    made.close()


def box(fault: Callable[[Step, int], Failed | None] = lambda step, number: None) -> ModelBox:
    return ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0, fault=fault)


def study(folder: Path, watch: Watch | None, *, name: str = "seen", stop: StopRequest | None = None, executor: ModelBox | None = None) -> State:
    """A study to its end, in a journal of its own; an existing one is gone on with."""
    path = folder / name / "journal.db"
    made = Journal.open(path, write=True) if path.exists() else Journal.create(path)
    with made as journal:
        if not journal.last_seq:
            journal.append("opened", {"spec": spec(study=name).plain()}, expect=0)
        return asyncio.run(drive(journal, executor or box(), PLAN, stop=stop, watch=watch))


def entries(folder: Path, name: str = "seen") -> list[Entry]:
    with Journal.open(folder / name, write=False) as journal:
        return list(journal.read())


def scraped(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }


def watched(folder: Path, environ: dict[str, str], *, metrics: str | None = None, **more: Any) -> tuple[State, list[str], float]:
    """(state, what was said, seconds from the study's end to the end of the watching)"""
    said: list[str] = []
    with observed(None, lambda name: folder / name, metrics=metrics, say=said.append, environ=environ) as watch:
        state = study(folder, watch, **more)
        ended = time.monotonic()
    return state, said, time.monotonic() - ended


# ---- metrics ------------------------------------------------------------------------------------------------------------


def caught_up(url: str, closed: float = 1.0) -> dict[Any, float]:
    """The page once it tells of the study's end; the thread that counts may be a moment behind."""
    for _ in range(200):
        page = scraped(url)
        if any(name == "optimize_study_closed" and value == closed for (name, _), value in page.items()):
            return page
        time.sleep(0.05)
    raise AssertionError("the page never told of the end")


def test_the_page_says_what_the_journal_says(tmp_path: Path) -> None:
    said: list[str] = []
    with observed(None, lambda name: tmp_path / name, metrics="0", say=said.append, environ={}) as watch:
        url = said[0].removeprefix("Metrics: ")
        assert scraped(url) == {}  # before the first entry there is nothing to tell
        state = study(tmp_path, watch)
        page = caught_up(url)
    read = entries(tmp_path)
    own = (("study", "seen"),)
    assert all(("study", "seen") in labels for _, labels in page)
    for kind in {entry.kind for entry in read}:
        assert page["optimize_entries_total", (("kind", kind.value), *own)] == sum(entry.kind == kind for entry in read)
    outcomes = [entry.body for entry in read if entry.kind == EntryKind.OUTCOME]
    measured = [body for body in outcomes if body["step"] == "measure"]
    assert page["optimize_steps_total", (("status", "done"), ("step", "measure"), *own)] == len(measured)
    assert page["optimize_step_duration_seconds_count", (("step", "launch"), *own)] == sum(body["step"] == "launch" for body in outcomes)
    assert page["optimize_step_duration_seconds_bucket", (("le", "30.0"), ("step", "measure"), *own)] == 0
    assert page["optimize_step_duration_seconds_bucket", (("le", "60.0"), ("step", "measure"), *own)] == len(measured)
    assert page["optimize_step_duration_seconds_sum", (("step", "measure"), *own)] == pytest.approx(60.0 * len(measured))
    assert page["optimize_study_closed", (("ending", "met"), *own)] == 1
    assert page["optimize_study_phase", (("phase", "closed"), *own)] == 1
    assert page["optimize_launches_total", own] == state.launches_baseline + state.launches_after
    assert page["optimize_spent_seconds", own] == state.duration_s
    unit = (("metric", "output_tokens_per_s"), *own, ("unit", "tok/s"))
    assert state.closed is not None
    for name in ("baseline", "best"):
        assert page[f"optimize_{name}", unit] == pytest.approx(state.closed[name]["value"])
        assert [page[f"optimize_{name}_{end}", unit] for end in ("low", "high")] == pytest.approx(state.closed[name]["interval"])
        assert page[f"optimize_{name}_launches", unit] == state.closed[name]["launches"]
    assert page["optimize_target", (("direction", "at_least"), *unit)] == 1000
    last = measured[-1]["outcome"]["body"]["measurement"]["points"][0]
    assert page["optimize_measured_tokens_per_second", (("concurrency", "16"), *own)] == pytest.approx(last["metrics"]["output_tokens_per_s"])
    assert page["optimize_hypothesis_probability", (("hypothesis", "cuda-graph-disabled"), *own)] <= 1
    assert page["optimize_verdicts_total", (("study", "seen"), ("verdict", "supported"))] == 1
    assert abs(page["optimize_last_entry_timestamp_seconds", own] - time.time()) < 60
    for name, labels in page:
        family = FAMILIES[re.sub(r"_(total|bucket|count|sum)$", "", name)]
        assert {label for label, _ in labels} - {"study", "box", "le"} == set(family.labels), name


def test_failures_are_counted_by_cause(tmp_path: Path) -> None:
    def fault(step: Step, number: int) -> Failed | None:
        return Failed(cause="oom_kv", message="out of memory") if isinstance(step, Launch) and step.purpose == "candidate" else None

    said: list[str] = []
    with observed(None, lambda name: tmp_path / name, metrics="0", say=said.append, environ={}) as watch:
        study(tmp_path, watch, executor=box(fault))
        page = caught_up(said[0].removeprefix("Metrics: "))
    causes = {labels: value for (name, labels), value in page.items() if name == "optimize_step_failures_total"}
    assert causes[("cause", "oom_kv"), ("step", "launch"), ("study", "seen")] >= 1


def test_scrapers_that_never_ask_and_never_read_hold_nobody_up(tmp_path: Path) -> None:
    said: list[str] = []
    with ExitStack() as sockets:
        with observed(None, lambda name: tmp_path / name, metrics="0", say=said.append, environ={}) as watch:
            port = int(said[0].rpartition(":")[2].partition("/")[0])
            for asks in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.0\r\n\r\n"):
                one = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
                one.sendall(asks)
            state = study(tmp_path, watch)
            assert caught_up(said[0].removeprefix("Metrics: "))
            ended = time.monotonic()
        assert time.monotonic() - ended < 6
    assert state.closed is not None and state.closed["ending"] == "met"


def test_a_resumed_study_counts_from_its_start(tmp_path: Path) -> None:
    stop = StopRequest()

    def half(state: State, entry: Entry) -> None:
        if entry.kind == EntryKind.RANKED:
            raise KeyboardInterrupt

    executor = box()
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, half, stop=stop, executor=executor)
    said: list[str] = []
    with observed(None, lambda name: tmp_path / name, metrics="0", say=said.append, environ={}) as watch:
        study(tmp_path, watch, executor=executor)
        page = caught_up(said[0].removeprefix("Metrics: "))
    read = entries(tmp_path)
    for kind in (EntryKind.OPENED, EntryKind.INTENT, EntryKind.LEASE_TAKEN, EntryKind.RANKED):
        found = sum(entry.kind == kind for entry in read)
        assert not found or page["optimize_entries_total", (("kind", kind.value), ("study", "seen"))] == found


def test_an_address_that_cannot_be_had_is_said_before_anything_is_done(tmp_path: Path) -> None:
    listener, port = silent_port()
    with listener, pytest.raises(UsageError, match=f"127.0.0.1:{port}") as caught, observed(None, lambda name: tmp_path, metrics=str(port), environ={}):
        raise AssertionError("not reached")
    assert "--metrics 0" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["x", "70000", "1:2:3", "", ":", "http://127.0.0.1:9464"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        observing.address_of(text)


def test_addresses() -> None:
    assert [observing.address_of(text) for text in ("9464", "0.0.0.0:1", "[::1]:2")] == [("127.0.0.1", 9464), ("0.0.0.0", 1), ("::1", 2)]


# ---- spans ----------------------------------------------------------------------------------------------------------------


def test_every_effect_is_a_span_of_one_trace(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=serving")
    state, said, _ = watched(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    assert said == [] and {path for path, _ in collector.requests} == {"/v1/traces"}
    assert collector.resource["service.name"] == "optimize" and collector.resource["team"] == "serving"
    read, spans = entries(tmp_path), collector.spans
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans) and len({span.trace_id for span in spans}) == 1
    steps = [entry.body["step"]["kind"] for entry in read if entry.kind == EntryKind.INTENT]
    names = [span.name for span in spans]
    for kind in set(steps):
        assert names.count(f"optimize.{kind}") == steps.count(kind)
    assert names.count("optimize.server") == steps.count("launch") and names.count("optimize.study") == 1
    root = next(span for span in spans if span.name == "optimize.study")
    assert not root.parent_span_id and attributes(root)["optimize.ending"] == "met" and state.closed is not None
    assert attributes(root)["optimize.best"] == pytest.approx(state.closed["best"]["value"])
    conclusions = [entry for entry in read if entry.kind not in (EntryKind.OPENED, EntryKind.INTENT, EntryKind.OUTCOME)]
    assert [event.name for event in root.events] == [entry.kind.value for entry in conclusions]
    measure = next(span for span in spans if span.name == "optimize.measure")
    server = by_id[measure.parent_span_id]
    assert server.name == "optimize.server" and server.parent_span_id == root.span_id
    told = attributes(measure)
    intent = next(entry for entry in read if entry.seq == told["optimize.seq"])
    assert intent.body["step"]["kind"] == "measure" and told["optimize.output_tokens_per_s"] > 0 and told["optimize.concurrency"] == 16
    outcome = next(entry for entry in read if entry.seq == told["optimize.outcome.seq"])
    stamps = [entry.at_utc for entry in (intent, outcome)]
    assert [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ns // 10**9)) for ns in (measure.start_time_unix_nano, measure.end_time_unix_nano)] == [
        stamp[:19] for stamp in stamps
    ]
    candidate = next(span for span in spans if span.name == "optimize.launch" and attributes(span)["optimize.purpose"] == "candidate")
    assert attributes(candidate)["optimize.settings"] == "without disable_cuda_graph"
    for span in spans:
        inside = by_id.get(span.parent_span_id)
        assert inside is None or inside.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= inside.end_time_unix_nano


def test_a_failed_effect_is_an_error_with_its_cause(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(step: Step, number: int) -> Failed | None:
        return Failed(cause="oom_kv", message="out of memory") if isinstance(step, Launch) and step.purpose == "candidate" else None

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    watched(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, executor=box(fault))
    failed = [span for span in collector.spans if span.name == "optimize.launch" and span.status.code == 2]
    assert failed and failed[0].status.message == "oom_kv: out of memory" and attributes(failed[0])["error.type"] == "oom_kv"


def test_what_the_journal_hides_is_hidden_here_too(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3f"

    def fault(step: Step, number: int) -> Failed | None:
        return Failed(cause="oom_kv", message=f"server said --hf-token {secret}") if isinstance(step, Launch) and step.purpose == "candidate" else None

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    watched(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, executor=box(fault))
    sent = b"".join(request.SerializeToString() for _, request in collector.requests)
    assert b"server said --hf-token" in sent and secret.encode() not in sent


def test_a_resumed_study_goes_on_with_its_trace_and_repeats_nothing(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    environ, executor = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, box()

    def half(state: State, entry: Entry) -> None:
        if entry.kind == EntryKind.RANKED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), observed(half, lambda name: tmp_path / name, environ=environ) as watch:
        study(tmp_path, watch, executor=executor)
    before = {span.span_id for span in collector.spans}
    watched(tmp_path, environ, executor=executor)
    spans = collector.spans
    assert before and len({span.span_id for span in spans}) == len(spans) and len({span.trace_id for span in spans}) == 1
    intents = [entry for entry in entries(tmp_path) if entry.kind == EntryKind.INTENT]
    told = {attributes(span)["optimize.seq"] for span in spans if span.name not in ("optimize.study", "optimize.server")}
    assert told == {entry.seq for entry in intents}


@pytest.mark.parametrize("collector", ["hangs"], indirect=True)
def test_a_collector_that_hangs_costs_the_study_nothing(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one entry differs, and after the end it is waited for a bounded time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setattr(observing, "FLUSH_S", FLUSH_S := 1.0)
    began = time.monotonic()
    alone = study(tmp_path / "alone", None)
    took_alone = time.monotonic() - began
    began = time.monotonic()
    state, said, waited = watched(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    took = time.monotonic() - began - waited
    assert collector.asked.is_set(), "the collector was never asked: nothing was tested"
    assert waited < FLUSH_S + 3 and took < 10 * took_alone + 2  # the exporter itself would wait for 10 s at every effect
    assert "left behind" in said[0] and "not affected" in said[0]
    assert alone.closed is not None and state.closed is not None and state.closed["ending"] == alone.closed["ending"]
    same = [
        [(entry.kind, entry.key, entry.cause, canonical_json(entry.body)) for entry in entries(folder)] for folder in (tmp_path / "alone", tmp_path)
    ]
    assert same[0] == same[1]


@pytest.mark.parametrize("collector", ["refuses"], indirect=True)
def test_a_collector_that_refuses_is_said_once_at_the_end(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    state, said, waited = watched(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    assert state.closed is not None and state.closed["ending"] == "met" and waited < 6
    assert len(said) == 1 and re.search(r"took 0 and not the other \d+", said[0])
    assert "Failed to export" not in capfd.readouterr().err


def test_a_port_where_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, port = silent_port()
    monkeypatch.setattr(observing, "FLUSH_S", 0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:hunter2@127.0.0.1:{port}")
    with listener:
        state, said, waited = watched(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:hunter2@127.0.0.1:{port}"})
    assert state.closed is not None and waited < 4
    assert said and "hunter2" not in said[0]


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/x"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_spans_are_off_unless_the_standard_variables_ask(environ: dict[str, str], asked: bool) -> None:
    assert bool(observing._collector(environ)) == asked


def test_a_protocol_that_is_not_spoken_is_an_error() -> None:
    with pytest.raises(UsageError, match="grpc"):
        observing._collector({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


@pytest.mark.parametrize("endpoint", ["foo", "collector:4318", "grpc://c:4317", "http://"])
def test_what_is_no_address_of_a_collector_is_said_before_anything_starts(endpoint: str) -> None:
    with pytest.raises(UsageError, match="no address of a collector"):
        observing._collector({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})


def test_nothing_asked_nothing_changed_and_nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optimizer.telemetry.page", None)  # importing it would raise
    monkeypatch.setitem(sys.modules, "optimizer.telemetry.otlp", None)

    def own(state: State, entry: Entry) -> None: ...

    with observed(own, lambda name: Path(name), environ={}) as watch:
        assert watch is own


@pytest.mark.parametrize(
    ("package", "module", "metrics", "environ"),
    [
        ("prometheus_client", "page", "0", {}),
        ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otlp", None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}),
    ],
)
def test_what_is_not_installed_is_said(
    package: str, module: str, metrics: str | None, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"optimizer.telemetry.{module}", raising=False)
    import optimizer.telemetry

    monkeypatch.delattr(optimizer.telemetry, module, raising=False)
    with pytest.raises(UsageError) as caught, observed(None, lambda name: tmp_path, metrics=metrics, environ=environ):
        raise AssertionError("not reached")
    assert "pip install 'optimize[telemetry]'" in str(caught.value.hint) and package.partition(".")[0] in caught.value.message


# ---- as a command -----------------------------------------------------------------------------------------------------------


def test_a_taken_address_ends_the_command_before_there_is_a_study(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from optimizer.cli import main

    listener, port = silent_port()
    with listener:
        words = ["--runs", str(tmp_path / "runs"), "run", "--host", "sim:h200-7b", "--target", "1000tps@16", "--yes", "--metrics", str(port)]
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and f":{port}" in done.output and "Nothing was started" in done.output, done.output
    assert not (tmp_path / "runs").exists()
