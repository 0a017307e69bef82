"""A deployment of which one process does not serve as the others: what was measured is another deployment."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from optimizer.box.box import Box
from optimizer.engines.registry import engine
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import Invalidity, ValidityCode
from optimizer.runner.context import Served, Session, Worker
from optimizer.runner.measure import _members_serve, member_invalidities
from optimizer.transport.local import LocalTransport


@contextmanager
def answering(pages: dict[str, tuple[int, Any]]) -> Iterator[int]:
    """A server of these pages on its own port."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

        def do_GET(self) -> None:
            status, page = pages.get(self.path, (404, {}))
            body = json.dumps(page).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def lost(tmp_path: Path, *statuses: int, healthy: tuple[bool, ...]) -> list[Invalidity]:
    """What is found where the workers answer with these statuses and the router lists them as healthy or not."""
    rows = [{"url": f"http://10.0.0.{at}:30000", "is_healthy": is_healthy} for at, is_healthy in enumerate(healthy)]
    with answering({"/workers": (200, {"workers": rows})}) as router, answering({"/health_generate": (statuses[0], {})}) as first, \
            answering({"/health_generate": (statuses[1], {})}) as second:  # fmt: skip
        workers = tuple(Worker(name=name, role=name, port=port, argv=(), env={}) for name, port in (("prefill", first), ("decode", second)))
        box = Box(LocalTransport(env={"HOME": str(tmp_path)}, home=tmp_path))
        try:
            return await _members_serve(box, engine("sglang"), Served(port=router, model="m", workers=workers))
        finally:
            await box.close()


async def test_a_worker_that_does_not_answer_and_one_that_the_router_dropped(tmp_path: Path) -> None:
    assert await lost(tmp_path, 200, 200, healthy=(True, True)) == []
    (silent,) = await lost(tmp_path, 200, 503, healthy=(True, True))
    assert silent.code == ValidityCode.MEMBER_LOST and "decode" in silent.detail and "503" in silent.detail
    (dropped,) = await lost(tmp_path, 200, 200, healthy=(True, False))
    assert dropped.code == ValidityCode.MEMBER_LOST and "10.0.0.1" in dropped.detail


def test_a_member_that_falls_back_for_something_new() -> None:
    def seen(*reasons: str) -> Evidence:
        return Evidence(facts=tuple(Fact(name="startup.fallback", value=reason, source="server log") for reason in reasons))

    session = Session()
    assert member_invalidities(session, "decode", seen("moe kernel"), ours=True) == ()  # as it was first measured
    assert member_invalidities(session, "decode", seen("moe kernel"), ours=True) == ()
    (other,) = member_invalidities(session, "decode", seen("moe kernel", "attention"), ours=True)
    assert other.code == ValidityCode.MEMBER_LOST and "attention" in other.detail and "moe kernel" not in other.detail
