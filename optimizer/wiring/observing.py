"""Lets other programs watch a study: the metrics page, and spans for a collector. Off unless asked for; what it derives comes from the
journal, and what fails behind it costs the study nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NoReturn
from urllib.parse import urlsplit

from optimizer import log
from optimizer.core.state import State
from optimizer.errors import OptimizerError, UsageError
from optimizer.journal import Journal, Place
from optimizer.model.entry import Entry
from optimizer.runner.loop import Watch
from optimizer.telemetry.feed import Feed
from optimizer.telemetry.spans import Span, Tracer
from optimizer.telemetry.tally import Tally

VARIABLE = "OPTIMIZE_METRICS"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
FLUSH_S = 3.0  # how long a study that is over waits for its collector
Take = Callable[[State, Entry], None]


@contextmanager
def observed(
    watch: Watch | None, place_of: Callable[[str], Place], *, metrics: str | None = None, say: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Watch | None]:  # fmt: skip
    """A watch that also feeds what was asked for by ``metrics`` ([HOST:]PORT) or the environment; ``watch`` itself where nothing was.

    ``place_of``: name of the study -> its journal, for what was written before this process. Raises UsageError before anything is
    done where a package is missing, or the address cannot be had."""
    environ = os.environ if environ is None else environ
    told = say or (lambda text: None)
    with ExitStack() as stack:
        feeds: list[Feed] = []
        if address := metrics or environ.get(VARIABLE):
            feeds.append(_metrics(stack, address, place_of, told))
        if endpoint := _collector(environ):
            feeds.append(_spans(stack, endpoint, place_of, told))
        yield _beside(watch, feeds) if feeds else watch


def _beside(watch: Watch | None, feeds: list[Feed]) -> Watch:
    def watched(state: State, entry: Entry) -> None:
        for feed in feeds:
            feed.put(state, entry)
        if watch is not None:
            watch(state, entry)

    return watched


# ---- metrics ----------------------------------------------------------------------------------------------------------


def _metrics(stack: ExitStack, address: str, place_of: Callable[[str], Place], say: Callable[[str], None]) -> Feed:
    host, port = address_of(address)
    try:
        from optimizer.telemetry.page import served
    except ModuleNotFoundError as error:
        _missing("The metrics page", "leave --metrics (OPTIMIZE_METRICS) away", error)
    tally = Tally()
    page = served(tally, host, port)
    stack.callback(page.close)
    say(f"Metrics: {page.url}")
    feed = Feed("metrics", _from_the_start(tally.take, place_of))
    stack.callback(feed.close, FLUSH_S)
    return feed


def address_of(text: str) -> tuple[str, int]:
    """``9464``, ``0.0.0.0:9464``, ``[::1]:9464``: host and port. This machine alone unless a host is named."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise UsageError(f"{text!r} is no address for the metrics page.", hint="Examples: --metrics 9464, --metrics 0.0.0.0:9464; 0 takes any free port.")
    return host.strip("[]") or "127.0.0.1", int(port)


# ---- spans --------------------------------------------------------------------------------------------------------------


def _collector(environ: Mapping[str, str]) -> str:
    """Where spans go by OpenTelemetry's own variables; empty where nobody asked. Raises UsageError for a protocol that is not spoken."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    endpoint = next((environ[name] for name in ENDPOINTS if environ.get(name)), "http://localhost:4318" if exporter == "otlp" else "")
    if not endpoint or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter not in ("", "otlp"):
        return ""
    protocol = next((environ[name].strip() for name in PROTOCOLS if environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise UsageError(
            f"Spans are sent by http/protobuf, and the environment asks for {protocol!r}.",
            hint="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf and the collector's HTTP port (usually 4318), or OTEL_TRACES_EXPORTER=none for no spans.",
        )
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{endpoint!r} is no address of a collector.", hint="Example: OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318; OTEL_TRACES_EXPORTER=none sends no spans.")
    return endpoint


def _spans(stack: ExitStack, endpoint: str, place_of: Callable[[str], Place], say: Callable[[str], None]) -> Feed:
    try:
        from optimizer.telemetry.otlp import Exporter
    except ModuleNotFoundError as error:
        _missing(f"{ENDPOINTS[1]} asks for spans, which", "set OTEL_TRACES_EXPORTER=none for none", error)
    try:
        exporter = Exporter()
    except ValueError as error:
        raise UsageError(f"The variables of OpenTelemetry cannot be used: {error}", hint="OTEL_TRACES_EXPORTER=none sends no spans.") from error
    tracer, waiting = Tracer(), list[Span]()

    def take(state: State, entry: Entry) -> None:
        waiting.extend(tracer.take(entry))

    def send() -> None:
        if waiting:
            batch, waiting[:] = list(waiting), []
            exporter.send(batch)

    feed = Feed("spans", _from_the_start(take, place_of, between=tracer.take), send)

    def close() -> None:
        done = feed.close(FLUSH_S)
        exporter.close()
        if not done:
            say(f"Spans: {_shown(endpoint)} had not taken all of them {FLUSH_S:.0f} s after the end and is left behind; it took {exporter.sent}. The study is not affected.")
        elif exporter.refused:
            say(f"Spans: {_shown(endpoint)} took {exporter.sent} and not the other {exporter.refused}; log.jsonl of the study says why. The study is not affected.")

    stack.callback(close)
    return feed


def _shown(endpoint: str) -> str:
    """An address without what may stand before an @ in it, or after a question mark."""
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


# ---- what both need -----------------------------------------------------------------------------------------------------


def _from_the_start(take: Take, place_of: Callable[[str], Place], between: Callable[[Entry], object] | None = None) -> Take:
    """Before the first entry of this process, those that were in the journal already. ``between`` takes them where it is given: what
    has ended before is not told a second time."""
    known = 0

    def taking(state: State, entry: Entry) -> None:
        nonlocal known
        if known < entry.seq - 1 and state.spec is not None:
            for earlier in _earlier(place_of(state.spec.study), known, entry.seq):
                if between is not None:
                    between(earlier)
                else:
                    take(state, earlier)
        known = entry.seq
        take(state, entry)

    return taking


def _earlier(place: Place, after: int, before: int) -> list[Entry]:
    try:
        with Journal.open(place, write=False) as journal:
            return [entry for entry in journal.read(after) if entry.seq < before]
    except OptimizerError as error:
        log.get(__name__).warning("what the journal held before is not shown to other programs", why=error.message)
        return []


def _missing(what: str, else_: str, error: ModuleNotFoundError) -> NoReturn:
    raise UsageError(f"{what} needs a package that is not installed ({error.name}).", hint=f"pip install 'optimize[telemetry]', or {else_}.") from error
