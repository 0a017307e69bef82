"""The load generator's clockwork: it offers the load, decides when the warm-up is over, and cuts at the end of the window. Runs
on the box."""

import asyncio
import signal
import socket
import ssl
import sys
import time

from optimizer.bench.plain.asking import Arrivals, Asking
from optimizer.bench.plain.connection import Connection
from optimizer.bench.plain.response import Dialect, Response, StampedResponse
from optimizer.bench.plain.steady import steadiness
from optimizer.bench.plain.tally import SUB_WINDOWS, Tally
from optimizer.bench.plain.target import VERSION, Target
from optimizer.bench.plain.wires import Wire, Wires

TICK_S = 0.02
DRAIN_S = 0.5  # after the cut, until a server's own counters have taken in what was aborted


class Generator:
    """Runs one job: warm-up, window, cut. All attributes are in this machine's seconds."""

    def __init__(self, job, emit, clock=time.monotonic):
        self.job, self.emit, self.clock = job, emit, clock
        self.scale = float(job.get("time_scale", 1.0))
        self.concurrency = int(job["concurrency"])
        self.target, self.asking, self.arrivals = Target(job), Asking(job, self.scale), Arrivals(job, self.scale)
        self.tally = Tally(keeps=self.target.api != "generate")
        self.dialect = Dialect(self.target.api)
        self.reader = StampedResponse if job.get("stamped") else Response
        self.warmup_min = float(job["warmup_min_s"]) / self.scale
        self.warmup_max = max(self.warmup_min, float(job["warmup_max_s"]) / self.scale)
        self.window = float(job["window_s"]) / self.scale
        self.stop_below = float(job["stop_below"]) * self.scale if job.get("stop_below") else None
        self.stopped_early, self.interrupted, self.texts_from = "", False, 0
        self.rates, self.sub_from, self.sub_texts = [], 0.0, 0  # of the sub-windows so far, for who watches
        self.stall = float(job.get("stall_s") or max(60.0, float(job["warmup_max_s"]))) / self.scale
        self.connect_timeout = float(job.get("connect_timeout_s", 10.0))
        self.drain = float(job.get("drain_s", 0.0)) / self.scale
        self.max_connections = int(job.get("max_connections", 4096))
        # Windows of 5 s when the warm-up is at least 30 s; a short warm-up is cut into as many.
        self.bin = (
            max(0.05, min(5.0 / self.scale, self.warmup_min / 6.0)) if self.warmup_min else max(0.05, 0.5 / self.scale)
        )
        self.connections, self.idle, self.backlog = [], [], []
        self.series, self.states, self.lags, self.counters = [], [], [], []
        self.silent = []  # of the requests that were cut: seconds since their last event, or since they were sent
        self.cpus, self.closing = job.get("cpus") or [], False
        self.sent = self.sent_window = self.reconnects = self.streak = self.cut = self.in_flight = 0
        self.began = self.last_good = 0.0
        self.steady, self.gave_up = "", ""
        self.tasks = set()
        self.loop = self.done = self.wires = self.address = self.cpu_from = self.clocks_from = None
        self.cpu = self.ended = self.clock_step = 0.0

    # -- offering load

    def message(self, request):
        return self.target.message(self.asking.said(request), request.max_tokens)

    def _give(self, connection, request):
        self.in_flight += 1
        self.sent += 1
        if self.tally.window_from:
            self.sent_window += 1
        if connection.transport is not None and not connection.transport.is_closing():
            connection.send(request)
        else:
            self._open(connection, request)

    def _open(self, connection, request):
        connection.request, connection.opening = request, True
        connection.response = None
        task = asyncio.ensure_future(self._connect(connection, request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _connect(self, connection, request):
        try:
            await asyncio.wait_for(self._opened(connection), self.connect_timeout)
        except ConnectionRefusedError as error:
            failure, detail = "refused", str(error)
        except (asyncio.TimeoutError, TimeoutError):
            failure, detail = "timeout", "no connection within %g s" % self.connect_timeout
        except ConnectionResetError as error:
            failure, detail = "reset", str(error)
        except ssl.SSLError as error:
            failure, detail = "tls", str(error)
        except OSError as error:
            failure, detail = "unreachable", str(error)
        else:
            connection.opening = False
            if not self.done.is_set():
                connection.request = None
                if connection.transport is not None:
                    connection.send(request)
                else:  # closed between the handshake and now
                    self._failed_to_open(connection, request, "reset", "the connection closed as soon as it was open")
            return
        self._failed_to_open(connection, request, failure, detail)

    async def _opened(self, connection):
        if self.target.plain:
            sock = socket.socket(self.address[0], socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                await self.loop.sock_connect(sock, self.address[4])
                Wire(self.wires, sock, connection)
            except BaseException:
                sock.close()
                raise
            return
        await self.loop.create_connection(
            lambda: connection,
            host=self.address[4][0],
            port=self.target.port,
            family=self.address[0],
            ssl=self.target.tls,
            server_hostname=self.target.host if self.target.tls else None,
        )

    def _failed_to_open(self, connection, request, failure, detail):
        connection.opening = False
        connection.request = None
        if not request.sent:
            request.sent = time.monotonic()
        response = Response(self.dialect)
        response.fail(failure, detail)
        self.finished(connection, request, response, time.monotonic())

    def again(self, connection, request):
        self.reconnects += 1
        self._open(connection, request)

    def lost(self, connection):
        """An idle connection went away; the next request opens a new one."""

    def _next(self, connection):
        if self.done.is_set() or self.closing:
            return
        if self.arrivals.rate is None:
            session = connection.session
            if session is None or session.over:
                session = connection.session = self.asking.new_session()
            pause = self.asking.pause(session)
            if pause:
                self.loop.call_later(pause, self._ask_next, connection, session)
            else:
                self._ask_next(connection, session)
        elif self.backlog:
            self._give(connection, self.backlog.pop(0))
        else:
            self.idle.append(connection)

    def _ask_next(self, connection, session):
        if not self.done.is_set() and not self.closing:
            self._give(connection, self.asking.new_request(time.monotonic(), session=session))

    def _arrive(self, at):
        """Open loop: one request is due now; the next one is scheduled by the clock, however late we are."""
        if self.done.is_set() or self.closing:
            return
        self._offer(self.asking.new_request(at, session=self.asking.new_session()))
        due = at + self.arrivals.gap()
        self.loop.call_later(max(0.0, due - time.monotonic()), self._arrive, due)

    def _offer(self, request):
        """Open loop: on an idle connection, on a new one, or when one becomes free."""
        if self.idle:
            self._give(self.idle.pop(), request)
        elif len(self.connections) < self.max_connections:
            connection = Connection(self)
            self.connections.append(connection)
            self._give(connection, request)
        else:
            self.backlog.append(request)

    def _go_on(self, session):
        """Open loop: the next turn of a conversation comes when its user has thought."""
        pause = self.asking.pause(session)
        due = time.monotonic() + pause
        self.loop.call_later(pause, lambda: None if self.done.is_set() or self.closing else self._offer(self.asking.new_request(due, session=session)))

    # -- what came back

    def kept_body(self, request):
        return self.tally.kept_body(request, self.asking.quotes(request))

    def finished(self, connection, request, response, now):
        self.in_flight -= 1
        usage = response.usage() if response.failure is None else (None, None, None)
        if response.failure is None and not response.counts and not usage[1]:
            response.fail("bad_sse", "a stream without any text or usage")
        self.asking.answered(request, response)
        if response.failure is not None:
            self.tally.failed(response.failure, self.target.without_key(response.detail), now)
            connection.failures += 1
            self.streak += 1
            if self.streak >= max(20, 2 * self.concurrency) and now - self.last_good > 2.0:
                self._stop("every request fails: %s" % self.tally.examples.get(response.failure, response.failure))
                return
            # An immediate retry would turn a refusing server into a busy loop, and its refusals into the load.
            pause = min(1.0, 0.02 * 2 ** min(connection.failures, 6))
            self.loop.call_later(pause, self._next, connection)
        else:
            connection.failures = 0
            self.streak, self.last_good = 0, now
        self.tally.account(request, response, now, usage)
        if response.failure is None:
            self._next(connection)
            if self.arrivals.rate is not None and request.session is not None and not request.session.over:
                self._go_on(request.session)

    # -- the clock

    async def run(self):
        self.loop = asyncio.get_running_loop()
        self.done = asyncio.Event()
        self.tally.soon = self.loop.call_soon
        self.wires = Wires(self.loop) if self.target.plain else None
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._interrupt)
        try:
            found = await self.loop.getaddrinfo(self.target.host, self.target.port, type=socket.SOCK_STREAM)
            self.address = await self._answering(found)
        except OSError as error:
            self.gave_up = "the name %s does not resolve: %s" % (self.target.host, error)
            self.tally.errors["unreachable"] = 1
            return self.summary()
        await self._read_counters()
        self.began = self.last_good = time.monotonic()
        if self.arrivals.rate is None:
            for position in range(self.concurrency):
                connection = Connection(self)
                self.connections.append(connection)
                first_wave = position if self.warmup_max else None
                connection.session = self.asking.new_session()
                self._give(connection, self.asking.new_request(self.began, first_wave, connection.session))
        else:
            first = self.began + self.arrivals.first
            self.loop.call_later(max(0.0, first - time.monotonic()), self._arrive, first)
        await self._ticks()
        if self.drain and not self.gave_up:
            await self._drain()
        self._cut()
        if self.counters:
            await asyncio.sleep(DRAIN_S)
            await self._read_counters()
        return self.summary()

    async def _answering(self, found):
        """Of several addresses of one name the first that takes a connection: localhost may mean ::1 first, where nobody listens."""
        for address in found if len(found) > 1 else ():
            sock = socket.socket(address[0], socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                await asyncio.wait_for(self.loop.sock_connect(sock, address[4]), self.connect_timeout)
                return address
            except (OSError, asyncio.TimeoutError, TimeoutError):
                continue
            finally:
                sock.close()
        return found[0]

    async def _drain(self):
        """Offer nothing more, and let what is under way come to its end."""
        self.closing = True
        until = time.monotonic() + self.drain
        while self.in_flight and not self.done.is_set() and time.monotonic() < until:
            await asyncio.sleep(TICK_S)
            self._expire(time.monotonic())

    async def _read_counters(self):
        """The page with the server's own counters, kept as it is: it is read when nothing is measured any more. A server
        without one is asked once."""
        if not self.job.get("metrics_path"):
            return
        try:
            self.counters.append(await asyncio.wait_for(self.target.metrics_page(self.address[4][0]), 5.0))
        except (OSError, asyncio.TimeoutError, TimeoutError, asyncio.IncompleteReadError):
            self.counters = []

    async def _ticks(self):
        """Until the window is over: who looks at the clock, at the warm-up's rates, at requests that hang."""
        tick = max(0.002, min(TICK_S, self.bin / 5.0, self.window / 50.0))
        due = checked = told = bin_from = self.began
        texts_before = told_texts = 0
        tally = self.tally
        if not self.warmup_max:
            self._open_window(self.began, "none")
        while not self.done.is_set():
            due += tick
            if tally.window_from and due > tally.window_to:
                due = tally.window_to
            wait = due - time.monotonic()
            await asyncio.sleep(wait if wait > 0 else 0)
            now = time.monotonic()
            lag = now - due
            if tally.window_from:
                self.lags.append(max(0.0, lag))
                if now >= tally.window_to or self._hopeless(now):
                    return
                if now - self.sub_from >= self.window / SUB_WINDOWS:
                    self.rates.append((self.dialect.texts - self.sub_texts) / (now - self.sub_from))
                    self.sub_from, self.sub_texts = now, self.dialect.texts
            elif now - bin_from >= self.bin:
                self.series.append((self.dialect.texts - texts_before) / (now - bin_from))
                texts_before, bin_from = self.dialect.texts, now
                if not self._warm(now):
                    return
            if lag > tick:
                due = now
            if now - checked >= 0.25:
                checked = now
                self._expire(now)
                self.states.append((now, self.in_flight + len(self.backlog)))
            if now - told >= min(1.0, self.window / 8.0):
                self._tell(now, (self.dialect.texts - told_texts) / (now - told))
                told, told_texts = now, self.dialect.texts

    def _warm(self, now):
        """Open the window where the warm-up is over; False where there is nothing to wait for."""
        elapsed = now - self.began
        if elapsed >= self.warmup_min:
            verdict = steadiness(self.series)
            if verdict or elapsed >= self.warmup_max:
                if not self.dialect.texts and elapsed * self.scale >= 60:
                    self._stop("no text came in %.0f s" % (elapsed * self.scale))
                    return False
                self._open_window(now, verdict or "never")
        return True

    def _tell(self, now, chunks_per_s):
        """One line for who watches. ``chunks_per_s``: since the last one."""
        rate, per_chunk, window_from = chunks_per_s / self.scale, self.tally.per_chunk(), self.tally.window_from
        self.emit(
            {
                "t": "progress",
                "phase": "window" if window_from else "warmup",
                "elapsed_s": round((now - (window_from or self.began)) * self.scale, 2),
                "chunks_per_s": round(rate, 1),
                "tokens_per_s": round(rate * per_chunk, 1),
                "window_s": round(self.window * self.scale, 2),
                "rates": [round(one / self.scale * per_chunk, 2) for one in self.rates],
                "in_flight": self.in_flight,
                "ok": self.tally.finished_ok,
                "failed": sum(self.tally.errors.values()),
            }
        )

    def _hopeless(self, now):
        """Whether the first windows already show a rate that the job calls hopeless. Chunks are tokens only once a request
        has told how many it got, and few of them tell nothing."""
        since = now - self.tally.window_from
        if self.stop_below is None or since < self.window / 3.0 or not self.tally.counted_chunks:
            return False
        texts = self.dialect.texts - self.texts_from
        rate = texts * self.tally.per_chunk() / since
        if texts < 50 or rate >= self.stop_below:
            return False
        self.stopped_early = "%.4g tokens/s, below %.4g" % (rate / self.scale, self.stop_below / self.scale)
        return True

    def _open_window(self, now, verdict):
        self.steady = verdict
        self.texts_from = self.sub_texts = self.dialect.texts
        self.tally.open(now, now + self.window)
        self.sub_from = now
        self.cpu_from = time.process_time()
        del self.dialect.delays[:]
        self.clocks_from = (time.time(), _boot_clock(), now)

    def _expire(self, now):
        for connection in self.connections:
            response = connection.response
            if response is not None and now - response.heard(connection.request.sent) > self.stall:
                connection.expire("timeout", "no token came for %.3g s" % (self.stall * self.scale))

    def _interrupt(self):
        self.interrupted = True
        self._stop("stopped by a signal")

    def _stop(self, reason):
        if not self.gave_up:
            self.gave_up = reason
        self._over()

    def _over(self):
        self.done.set()
        self.tally.over = True

    def _cut(self):
        """End of the window: account for what is in flight and close every connection; a server aborts what nobody
        waits for."""
        self._over()
        now = time.monotonic()
        self.cpu = time.process_time() - self.cpu_from if self.cpu_from is not None else 0.0
        self.ended = now
        if self.clocks_from:
            wall, boot, start = self.clocks_from
            passed = now - start
            self.clock_step = max(abs(time.time() - wall - passed), abs(_boot_clock() - boot - passed))
        for task in list(self.tasks):
            task.cancel()
        for connection in self.connections:
            request, response = connection.request, connection.response
            connection.request = connection.response = None
            if response is not None:
                self.cut += 1
                self.silent.append(now - response.heard(request.sent))
                self.tally.account(request, response, now, (None, None, None), cut=True)
            if connection.transport is not None:
                connection.transport.abort()
        self.tally.count_the_rest()

    # -- the result

    def summary(self):
        """Emit the requests and then the summary; the summary is also returned."""
        scale, w0, w1 = self.scale, self.tally.window_from, self.tally.window_to

        def since(t):
            return None if t is None else round((t - w0) * scale, 6)

        for record in self.tally.records:
            self.emit({"t": "r", "v": [since(t) for t in record[:5]] + list(record[5:])})
        measured = max(1e-9, min(w1, self.ended) - w0) if w0 else 0.0
        lags, delays = sorted(self.lags), sorted(self.dialect.delays)
        passed = self.ended - w0 if w0 else 0.0
        rate = self.arrivals.rate
        out = {
            "t": "summary",
            "version": VERSION,
            "concurrency": self.concurrency,
            "rate_per_s": rate / scale if rate else None,
            "arrival": self.arrivals.kind if rate else "closed",
            "cpus": self.cpus,
            "counters": self.tally.beside(self.counters),
            "time_scale": scale,
            "steady": self.steady,
            "warmup_s": round(((w0 or self.ended) - self.began) * scale, 4),
            "warmup_series": [round(x / scale, 3) for x in self.series[-60:]],
            "warmup_bin_s": self.bin * scale,
            "window_s": round(self.window * scale, 6),
            "measured_s": round(measured * scale, 6),
            "chunks_total": self.dialect.texts,
            "sent": self.sent,
            "sent_window": self.sent_window,
            "cut": self.cut,
            "silent_s": [round(one * scale, 3) for one in sorted(self.silent)],
            "reconnects": self.reconnects,
            "gave_up": self.gave_up,
            "interrupted": self.interrupted,
            "stopped_early": self.stopped_early,
            "cpu_share": round(self.cpu / passed, 4) if passed > 0 else None,
            "lag_mean_real_ms": round(1000 * sum(lags) / len(lags), 4) if lags else None,
            "lag_p99_real_ms": round(1000 * lags[int(0.99 * (len(lags) - 1))], 4) if lags else None,
            "lag_max_real_ms": round(1000 * lags[-1], 4) if lags else None,
            "delay_real_ms": [round(1000 * delays[int(q * (len(delays) - 1))], 4) for q in (0.5, 0.9, 0.99, 1)]
            if delays
            else None,
            "clock_step_real_s": round(self.clock_step, 3),
            "in_flight": [[since(t), n] for t, n in self.states if w0 and t >= w0] if rate else [],
            "stamps": "kernel" if self.wires is not None and self.wires.told else "loop",
            "loop": type(self.loop).__module__.split(".")[0],
            "python": "%d.%d.%d" % sys.version_info[:3],
        }
        out.update(self.tally.figures(scale))
        self.emit(out)
        return out


def _boot_clock():
    """Seconds since boot with suspend included (Linux), so that a sleep in the window shows."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()
