"""The door to prometheus_client: a tally as the metrics page of a small HTTP server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from optimizer.errors import UsageError
from optimizer.redact import printable
from optimizer.telemetry.tally import BUCKETS_S, FAMILIES, Durations, Tally


class _Collected(Collector):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterable[Metric]:
        rows = list(self._tally.samples())
        for name, family in FAMILIES.items():
            own = [(dict(labels), value) for known, labels, value in rows if known == name]
            if own:
                yield _family(name, family.kind, family.meaning, own)


def _family(name: str, kind: str, meaning: str, rows: list[tuple[dict[str, str], Any]]) -> Metric:
    names = list(dict.fromkeys(label for labels, _ in rows for label in labels))
    made: Any = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}[kind](name, meaning, labels=names)
    for labels, value in rows:
        values = [printable(labels.get(label, "")) for label in names]
        if isinstance(value, Durations):
            buckets = [(str(bound), float(count)) for bound, count in zip(BUCKETS_S, value.at_most, strict=True)]
            made.add_metric(values, [*buckets, ("+Inf", float(value.count))], value.sum_s)
        else:
            made.add_metric(values, value)
    found: Metric = made
    return found


@dataclass
class Page:
    """A metrics page that is being served. ``url``: where."""

    url: str
    _server: Any

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def served(tally: Tally, host: str, port: int) -> Page:
    """Serve it from now on, in threads of their own; port 0: any that is free. Raises UsageError where the address cannot be had."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(tally))
    try:
        server, _ = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"The metrics page cannot be served on {host}:{port}: {getattr(error, 'strerror', None) or error}.",
            hint="Another study may serve its own there: give another port, or 0 for any free one (--metrics 0).",
        ) from error
    shown = f"[{host}]" if ":" in host else host
    return Page(f"http://{shown}:{server.server_port}/metrics", server)
