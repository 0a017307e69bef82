"""Servers whose answers cannot be believed, measured by the product's own load generator: kept, and invalid or told truly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from optimizer.bench.run import summarise
from optimizer.model.measurement import ValidityCode
from optimizer.model.workload import Workload
from tests.unit.bench.conftest import Ran, run_load, running_null_server

WORKLOAD = Workload(concurrency=4, prompt_tokens=32, output_tokens=16, warmup_min_s=0.1, warmup_max_s=0.2, window_s=0.6, vocabulary="words")
TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'


@contextmanager
def serving(gap_s: Callable[[float], float], usage: bytes, tokens: int = 16) -> Iterator[str]:
    """Streams ``tokens`` tokens, ``gap_s`` (of the seconds since it began) apart, and then ``usage``."""
    began = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            end = b'data: {"choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % usage
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(TOKEN) * tokens + len(end)))
            self.end_headers()
            for _ in range(tokens):
                self.wfile.write(TOKEN)
                time.sleep(gap_s(time.monotonic() - began))
            self.wfile.write(end)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.fault("F34")
def test_a_rate_that_never_settles() -> None:
    """Slower with every second, as a server that runs out of something: its mean is no property of the setting."""
    usage = b'{"prompt_tokens":32,"completion_tokens":40}'
    with serving(lambda elapsed: 0.002 + 0.03 * elapsed, usage, tokens=40) as url:
        ran = run_load(url, output_tokens=40, warmup_min_s=0.4, warmup_max_s=0.8, window_s=1.5)
    point = summarise(ran.lines, WORKLOAD.model_copy(update={"output_tokens": 40}), 4)
    assert ValidityCode.NEVER_STEADY in {item.code for item in point.invalid}, point
    assert point.metrics["output_tokens_per_s"] > 0  # kept and shown


@pytest.mark.slow
@pytest.mark.fault("F30")
def test_five_of_a_hundred_requests_fail() -> None:
    with running_null_server("--fault", "http_503", "--fault-every", "20", "--gap-ms", "1") as url:
        point = summarise(run_load(url, concurrency=8, window_s=1.2).lines, WORKLOAD, 8)
    assert ValidityCode.ERRORS in {item.code for item in point.invalid}
    assert 0.01 < point.metrics["error_rate"] < 0.1 and point.requests_ok > 0


BILLS = [
    b'{"prompt_tokens":32,"completion_tokens":NaN}', b'{"prompt_tokens":-5,"completion_tokens":-16}', b'{"prompt_tokens":1e999,"completion_tokens":1e999}',
    b'{"prompt_tokens":"x","completion_tokens":[1]}', b'{"prompt_tokens":32,"completion_tokens":99999999999999999999999}',
    b'{"prompt_tokens":NaN,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":-Infinity}}',
]  # fmt: skip


@pytest.fixture(scope="module")
def billed() -> dict[bytes, Ran]:
    """One run against every bill, all at a time: most of it is waiting."""

    def run(usage: bytes) -> Ran:
        with serving(lambda _: 0.02, usage) as url:
            return run_load(url)

    with ThreadPoolExecutor(len(BILLS)) as pool:
        return dict(zip(BILLS, pool.map(run, BILLS), strict=True))


@pytest.mark.fault("F48")
@pytest.mark.parametrize("usage", BILLS)
def test_what_it_bills_is_no_number_of_tokens(billed: dict[bytes, Ran], usage: bytes) -> None:
    """Counted from what came, or invalid; never an infinite rate, never an exception."""
    ran = billed[usage]
    point = summarise(ran.lines, WORKLOAD, 4)
    assert not ran.stderr and point.requests_ok > 0
    assert all(value >= 0 for value in point.metrics.values())
    truth = 4 / 0.02
    believed = not {item.code for item in point.invalid} - {ValidityCode.NEVER_STEADY, ValidityCode.CLIENT_BOUND}
    assert not believed or point.metrics["output_tokens_per_s"] < 1.05 * truth, point
