"""An OpenTelemetry collector that is one HTTP server of this process: it keeps what it is sent, or behaves badly on purpose."""

import gzip
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """``behaviour``: ``takes``, ``refuses`` (HTTP 400) or ``hangs`` (reads the request and never answers)."""

    def __init__(self, behaviour: str = "takes") -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        self.heads: list[dict[str, str]] = []  # of each request, names in lower case
        self.bodies: list[bytes] = []  # as protobuf
        self.asked, self.release = threading.Event(), threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked.set()
                if behaviour == "hangs":
                    collector.release.wait(60)
                    return
                if behaviour == "takes":
                    assert self.headers["Content-Type"] == "application/x-protobuf"
                    body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                    collector.heads.append({name.lower(): value for name, value in self.headers.items()})
                    collector.bodies.append(body)
                    collector.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200 if behaviour == "takes" else 400)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [span for _, request in self.requests for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]

    @property
    def resource(self) -> dict[str, str]:
        return {pair.key: pair.value.string_value for pair in self.requests[0][1].resource_spans[0].resource.attributes}

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def silent_port() -> tuple[socket.socket, int]:
    """A port where connections are accepted by the kernel and nobody ever reads."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    return listener, listener.getsockname()[1]
