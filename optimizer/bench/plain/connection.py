"""One keep-alive connection and the request that is in flight on it. Runs on the box."""

import asyncio
import time

from optimizer.bench.plain.response import UNTIL_CLOSE
from optimizer.bench.plain.wires import READ_BYTES


class Connection(asyncio.Protocol):
    """One keep-alive connection and the request that is in flight on it."""

    __slots__ = ("clock", "failures", "generator", "opening", "request", "response", "served", "session", "transport")

    def __init__(self, generator):
        self.generator, self.clock = generator, generator.clock
        self.transport = self.request = self.response = self.session = None
        self.served, self.failures, self.opening = 0, 0, False

    def connection_made(self, transport):
        self.transport, self.served = transport, 0
        if hasattr(transport, "max_size"):  # asyncio's own: 256 KiB are set aside and given back for every read
            transport.max_size = READ_BYTES

    def send(self, request):
        self.request, self.response = request, self.generator.reader(self.generator.dialect)
        self.response.kept = self.generator.kept_body(request)
        message = self.generator.message(request)
        request.sent = time.monotonic()
        self.transport.write(message)

    def data_received(self, data):
        self.received(data, self.clock())

    def received(self, data, now):
        response = self.response
        if response is None:
            self.transport.abort()  # bytes without a request: the connection cannot be trusted any more
            return
        response.feed(data, now)
        if response.finished:
            self._finish(now)

    def eof_received(self):
        return False

    def connection_lost(self, error):
        self.transport = None
        response, request = self.response, self.request
        if response is None:
            self.generator.lost(self)
            return
        now = self.clock()
        if self.served and not response.status and not response.buffer and not request.retried:
            # The server closed an idle connection just as we wrote to it: not the server's failure, and seen before
            # any byte came.
            request.retried = True
            self.request = self.response = None
            self.generator.again(self, request)
            return
        if error is not None and response.state != UNTIL_CLOSE:
            response.fail("reset", str(error))
        else:
            response.eof(now)
        self._finish(now)

    def expire(self, failure, detail):
        self.response.fail(failure, detail)
        self._finish(self.clock())

    def _finish(self, now):
        request, response = self.request, self.response
        self.request = self.response = None
        self.served += 1
        if not response.keep_alive and self.transport is not None:
            transport, self.transport = self.transport, None
            transport.set_protocol(asyncio.Protocol())  # what still arrives there belongs to nobody
            transport.abort()
        self.generator.finished(self, request, response, now)
