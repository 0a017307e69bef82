"""The door to OpenTelemetry: spans to a collector over OTLP/HTTP, configured by its standard variables."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from optimizer import __version__, log
from optimizer.telemetry.spans import Event, Span


class _ToOurLog(logging.Handler):
    """What the exporter says of a collector that fails: for the study's log file, not for the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        log.get(record.name).warning(record.getMessage())


class Exporter:
    """Sends spans, and counts what was taken. The variables are read once, when it is made."""

    def __init__(self) -> None:
        theirs = logging.getLogger("opentelemetry")
        if not any(isinstance(handler, _ToOurLog) for handler in theirs.handlers):
            theirs.addHandler(_ToOurLog())
            theirs.propagate = False
        self.sent = self.refused = 0
        self._inner = OTLPSpanExporter()
        self._resource = Resource.create({"service.version": __version__})  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(self._resource.attributes["service.name"]).startswith("unknown_service"):
            self._resource = self._resource.merge(Resource({"service.name": "optimize"}))

    def send(self, spans: Sequence[Span]) -> None:
        """Blocks until the collector has answered, or for as long as OTEL_EXPORTER_OTLP_TIMEOUT (10 s) says."""
        if self._inner.export([self._readable(span) for span in spans]) == SpanExportResult.SUCCESS:
            self.sent += len(spans)
        else:
            self.refused += len(spans)

    def close(self) -> None:
        """Breaks off what is being retried."""
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id is not None else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            events=[_event(event) for event in span.events],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.OK),
            start_time=_ns(span.start_s),
            end_time=_ns(span.end_s),
            instrumentation_scope=InstrumentationScope("optimize", __version__),
        )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _event(event: Event) -> SdkEvent:
    return SdkEvent(event.name, dict(event.attributes), _ns(event.at_s))


def _ns(seconds: float) -> int:
    """Whole milliseconds, as the journal has them."""
    return round(seconds * 1000) * 1_000_000
