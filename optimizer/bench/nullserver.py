#!/usr/bin/env python3
"""The null server: streams tokens on an exact clock and does nothing else (stdlib only, Python 3.8 or later). The
load generator is calibrated against it, because its true rate and true times are known from its arguments. Faults of
real servers can be switched on per server, so the tests see each of them from a real socket. It is no model of an
engine; those are the simulated boxes.

A fault is chosen for the whole server by ``--fault``, or by the client with a base URL that ends in ``/fault/NAME``.

The first line on stdout is ``{"port": N}``; SIGTERM ends it. ``GET /stats`` tells what it sent: requests, tokens,
aborted requests and its own CPU seconds. ``GET /metrics`` tells the tokens as vLLM does, counted as they are made, or with
``--count-at-end`` as SGLang does, when a request ends.
"""

import argparse
import asyncio
import gzip
import json
import signal
import socket
import struct
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value):
    return b"data: " + json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n\n"


# The timers of an event loop are a millisecond coarse: beats closer than this would come in bunches of two and three, and the
# client would be blamed for that. The clock is watched instead, at the price of a core.
SPIN_BELOW_S = 0.002


class Stats:
    requests = tokens = aborted = open = finished_tokens = prompt_tokens = 0


class Pace:
    """All streams with the same gap share one timer: n streams cost one wake-up per token, as with an engine that
    steps a batch."""

    def __init__(self, loop, gap_s):
        self.loop, self.gap, self.streams, self.due, self.timer = loop, gap_s, [], 0.0, None

    def add(self, stream):
        self.streams.append(stream)
        if self.timer is None:
            self.due = time.monotonic()  # the loop's own clock may go by the millisecond
            self._arm()

    def _arm(self):
        self.due += self.gap
        if self.gap < SPIN_BELOW_S:
            self.timer = self.loop.call_soon(self._watch)
        else:
            self.timer = self.loop.call_later(max(0.0, self.due - time.monotonic()), self._step)

    def _watch(self):
        if time.monotonic() >= self.due:
            self._step()
        else:
            self.timer = self.loop.call_soon(self._watch)

    def _step(self):
        self.timer = None
        self.streams = [stream for stream in self.streams if stream.step()]
        if self.streams:
            self._arm()


class Stream:
    """One response in the making."""

    def __init__(self, server, wire, body):
        self.server, self.wire = server, wire
        options = server.options
        self.chat, self.generate, self.llama = "messages" in body, "sampling_params" in body, "n_predict" in body
        params = body.get("sampling_params") or {}
        asked = params.get("max_new_tokens") or body.get("max_tokens") or body.get("n_predict") or 16
        self.total = max(1, asked - options.fewer)
        self.sent = 0
        text = body.get("text") or body.get("prompt") or json.dumps(body.get("messages"))
        self.prompt_tokens = len(text.split()) if " " in text and text != text.upper() else len(text)
        self.usage = bool((body.get("stream_options") or {}).get("include_usage")) and options.usage
        if self.generate:
            piece = {"text": "abc", "output_ids": [7], "meta_info": {"id": "x", "prompt_tokens": self.prompt_tokens}}
        elif self.llama:
            piece = {"index": 0, "content": "abc ", "tokens": [7], "stop": False, "id_slot": -1, "tokens_predicted": 1}
        elif self.chat:
            piece = {
                "id": "x",
                "object": "chat.completion.chunk",
                "model": "null",
                "choices": [{"index": 0, "delta": {"content": "abc "}}],
            }
        else:
            piece = {
                "id": "x",
                "object": "text_completion",
                "model": "null",
                "choices": [{"index": 0, "text": "abc "}],
                "usage": None,
            }
        self.piece = chunk(event(piece))
        self.stamped, self.place = None, Stats.requests
        if options.stamp:
            self.stamped = dict(piece, stamp="1" + "0" * 18)  # the chunk's size holds for every stamp
            self.stamped = chunk(event(self.stamped)).replace(b"1" + b"0" * 18, b"%019d")

    def start(self):
        self.wire.write(HEAD)
        Stats.prompt_tokens += self.prompt_tokens
        if self.chat:
            delta = {"role": "assistant", "content": ""}
            self.wire.write(chunk(event({"id": "x", "choices": [{"index": 0, "delta": delta}]})))

    def step(self):
        """Send the next chunk; False when the stream is over."""
        if self.wire.is_closing():
            return False
        options = self.server.options
        count = min(options.tokens_per_chunk, self.total - self.sent)
        self.sent += count
        Stats.tokens += count
        if self.sent < self.total or not self.generate:  # the last event of /generate carries its last token itself
            stamped = self.stamped if (self.sent + self.place) % options.stamp_every == 0 else None
            self.wire.write(self.piece if stamped is None else stamped % time.monotonic_ns())
        if self.sent >= self.total:
            self.end()
            return False
        return True

    def burst(self, chunks):
        """As fast as the socket takes them, ``chunks`` in one write."""
        while not self.wire.is_closing() and self.sent < self.total:
            count = min(chunks, self.total - self.sent)
            self.sent += count
            Stats.tokens += count
            self.wire.write(self.piece * count)
            if self.server.paused:
                return False
        return True

    def end(self):
        tail = []
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.sent,
            "total_tokens": self.prompt_tokens + self.sent,
        }
        if self.server.options.cached >= 0:
            usage["prompt_tokens_details"] = {"cached_tokens": int(self.prompt_tokens * self.server.options.cached)}
        if self.generate:
            tail.append(event({"text": "abc", "meta_info": dict(usage, finish_reason={"type": "length"}, id="x")}))
        elif self.llama:
            last = {"index": 0, "content": "", "stop": True, "tokens_predicted": self.sent, "tokens_evaluated": self.prompt_tokens}
            tail.append(event(dict(last, timings={"cache_n": 0, "prompt_n": self.prompt_tokens})))
        else:
            choice = {"index": 0, "finish_reason": "length"}
            choice.update({"delta": {}} if self.chat else {"text": ""})
            tail.append(event({"id": "x", "choices": [choice]}))
            if self.usage:
                tail.append(event({"id": "x", "choices": [], "usage": usage}))
        if not self.llama:
            tail.append(b"data: [DONE]\n\n")
        Stats.finished_tokens += self.sent
        self.wire.write(b"".join(chunk(part) for part in tail) + b"0\r\n\r\n")
        self.server.stream_ended(self)


class Server(asyncio.Protocol):
    def __init__(self, options, pace):
        self.options, self.pace = options, pace
        self.buffer, self.stream, self.paused = b"", None, False

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 18)

    def connection_lost(self, error):
        if self.stream is not None:
            Stats.aborted += 1
            Stats.open -= 1
            self.stream = None

    def pause_writing(self):
        self.paused = True

    def resume_writing(self):
        self.paused = False
        if self.stream is not None and self.options.burst:
            asyncio.get_running_loop().call_soon(self._burst)

    def _burst(self):
        stream = self.stream
        if stream is not None and not self.paused and stream.burst(self.options.burst):
            stream.end()

    def stream_ended(self, stream):
        self.stream = None
        Stats.open -= 1

    def data_received(self, data):
        self.buffer += data
        stop = self.buffer.find(b"\r\n\r\n")
        if stop < 0:
            return
        head = self.buffer[:stop].decode("latin-1")
        length = 0
        for line in head.split("\r\n")[1:]:
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        if len(self.buffer) < stop + 4 + length:
            return
        body = self.buffer[stop + 4 : stop + 4 + length]
        self.buffer = self.buffer[stop + 4 + length :]
        if self.options.api_key and "\r\nauthorization: bearer %s\r\n" % self.options.api_key not in head.lower() + "\r\n":
            self.refuse(b"401 Unauthorized", body=b'{"error":"%s is not the key"}' % head.encode("latin-1")[:1000].replace(b'"', b""))
        elif head.startswith("GET"):
            self._get(head.split(" ")[1], head)
        else:
            try:
                asked = json.loads(body.decode("utf-8")) if body else None
            except ValueError:
                asked = None
            if isinstance(asked, dict):
                self._post(head.split(" ")[1], asked)
            else:  # something that other clients ask for before they begin
                self.refuse(b"404 Not Found")

    def _get(self, path, head):
        stats = {"requests": Stats.requests, "tokens": Stats.tokens, "aborted": Stats.aborted, "open": Stats.open}
        stats["cpu_s"] = time.process_time()
        answers = {"/stats": stats, "/v1/models": {"object": "list", "data": [{"id": "null", "object": "model"}]}}
        data = json.dumps(answers.get(path, {"status": "ok"})).encode("ascii")
        if path == "/metrics":
            made = Stats.finished_tokens if self.options.count_at_end else Stats.tokens
            label = b'{model_name="null"}'
            data = b"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total%s %d.0\n" % (label, made)
            data += b"vllm:prompt_tokens_total%s %d.0\n" % (label, Stats.prompt_tokens)
        kind = b"text/plain" if path == "/metrics" else b"application/json"
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(data), data)
        )
        if "\r\nconnection: close" in head.lower():
            self.transport.close()

    def _post(self, path, body):
        Stats.requests += 1
        fault = self.options.fault
        if path.startswith("/fault/"):
            fault = path.split("/")[2]
        if fault and Stats.requests % self.options.fault_every == 0:
            return FAULTS[fault](self, body)
        loop = asyncio.get_running_loop()
        Stats.open += 1
        self.stream = stream = Stream(self, self.transport, body)

        def begin():
            if self.stream is not stream:
                return
            stream.start()
            if self.options.burst:
                self._burst()
            else:
                self.pace.add(stream) if stream.step() else None

        if self.options.ttft_ms > 0:
            loop.call_later(self.options.ttft_ms / 1000.0, begin)
        else:
            begin()
        return None

    # -- faults

    def refuse(self, status, extra=b"", body=b'{"error":"no"}'):
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n" % (
            status,
            extra,
            len(body),
        )
        self.transport.write(head + body)


def _garbage(server, body):
    server.transport.write(HEAD + chunk(b"<<<< not an event stream >>>>\n\n") + chunk(b"\x00\xff\n\n") + b"0\r\n\r\n")


def _bad_json(server, body):
    server.transport.write(HEAD + chunk(b"data: {oops\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _reset_midway(server, body):
    def reset():
        # Without a pause for what was not sent yet: the peer gets a reset, not an end.
        server.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.transport.abort()

    server.transport.write(HEAD + Stream(server, server.transport, body).piece)
    asyncio.get_running_loop().call_later(0.01, reset)


def _truncate(server, body):
    server.transport.write(HEAD + Stream(server, server.transport, body).piece)
    asyncio.get_running_loop().call_later(0.01, server.transport.close)


def _no_done(server, body):
    server.transport.write(HEAD + Stream(server, server.transport, body).piece + b"0\r\n\r\n")


def _gzip(server, body):
    data = gzip.compress(b"data: [DONE]\n\n")
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        % len(data)
    )
    server.transport.write(head + data)


def _endless_head(server, body):
    def more():
        if not server.transport.is_closing():
            server.transport.write(b"X-Filler: " + b"a" * 4000 + b"\r\n")
            asyncio.get_running_loop().call_later(0.001, more)

    server.transport.write(b"HTTP/1.1 200 OK\r\n")
    more()


def _trickle(first, piece, pause_s=0.02):
    """A fault that never ends and is never silent."""

    def fault(server, body):
        def more():
            if not server.transport.is_closing():
                server.transport.write(piece)
                asyncio.get_running_loop().call_later(pause_s, more)

        server.transport.write(first)
        more()

    return fault


def _half_close(server, body):
    server.transport.write(HEAD + Stream(server, server.transport, body).piece)
    asyncio.get_running_loop().call_later(0.01, server.transport.write_eof)


FAULTS = {
    "drip_head": _trickle(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"),
    "pings": _trickle(HEAD, chunk(b": ping\n\n")),
    "half_close": _half_close,
    "unasked": lambda server, body: server.transport.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 14\r\n\r\ndata: [DONE]\n\nHTTP/1.1 200 OK\r\n\r\n"
    ),
    "wrong_length": lambda server, body: server.transport.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: -5\r\n\r\n"
    ),
    "early_hints": _trickle(b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.005),
    "garbage": _garbage,
    "bad_json": _bad_json,
    "reset": _reset_midway,
    "truncate": _truncate,
    "no_done": _no_done,
    "gzip": _gzip,
    "endless_head": _endless_head,
    "stall": lambda server, body: None,
    "stall_midway": lambda server, body: server.transport.write(HEAD + Stream(server, server.transport, body).piece),
    "http_429": lambda server, body: server.refuse(b"429 Too Many Requests", b"Retry-After: 1\r\n"),
    "http_503": lambda server, body: server.refuse(b"503 Service Unavailable"),
    "http_400": lambda server, body: server.refuse(
        b"400 Bad Request", body=b'{"error":{"message":"max_tokens too large"}}'
    ),
    "redirect": lambda server, body: server.refuse(b"307 Temporary Redirect", b"Location: http://127.0.0.1:1/\r\n"),
    "json_body": lambda server, body: server.refuse(b"200 OK"),
    "stream_error": lambda server, body: server.transport.write(
        HEAD
        + chunk(event({"error": {"message": "out of memory", "code": 500}}))
        + chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    ),
    "not_http": lambda server, body: server.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "bad_chunk": lambda server, body: server.transport.write(HEAD + b"zz\r\nhello\r\n"),
}


async def serve(options):
    loop = asyncio.get_running_loop()
    pace = Pace(loop, options.gap_ms / 1000.0)
    listener = await loop.create_server(lambda: Server(options, pace), options.host, options.port, backlog=4096)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    # Last: whoever reads it may end this process at once.
    print(json.dumps({"port": listener.sockets[0].getsockname()[1]}), flush=True)
    await stop.wait()
    listener.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument(
        "--gap-ms", type=float, default=10.0, help="time from one chunk to the next, all streams in step"
    )
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument(
        "--burst", type=int, default=0, help="no pace: write this many chunks at a time, as fast as they are read"
    )
    parser.add_argument("--fewer", type=int, default=0, help="end each answer this many tokens early")
    parser.add_argument("--no-usage", dest="usage", action="store_false")
    parser.add_argument(
        "--cached", type=float, default=-1.0, help="share of the prompt reported as cached; negative: not reported"
    )
    parser.add_argument("--stamp", action="store_true", help="write the time of sending into every paced event")
    parser.add_argument("--stamp-every", type=int, default=1, help="with --stamp: into every n-th event of a stream only")
    parser.add_argument("--count-at-end", action="store_true", help="the counters of /metrics take in a request when it ends")
    parser.add_argument("--api-key", help="what clients must send; compared without regard to case")
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--fault-every", type=int, default=1)
    options = parser.parse_args()
    try:
        import uvloop

        loop = uvloop.new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    loop.run_until_complete(serve(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
