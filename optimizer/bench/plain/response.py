"""One streamed answer, read from pieces cut at any byte, without parsing a chunk as JSON while it streams. Runs on the box."""

import json
import re

MAX_HEAD_BYTES = 65536
MAX_EVENT_BYTES = 8 << 20
HEAD, CHUNKED, LENGTH, UNTIL_CLOSE, TRAILERS = range(5)
# A text that is not empty; this is what counts as the arrival of a token.
TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)":\s*"(?!")')
STAMP = re.compile(rb'"stamp":"(\d+)')
STOP = re.compile(rb'"stop":\s*true')
INTERIM = re.compile(rb"HTTP/1\.[01] 1[0-9][0-9][ \r]")
HEX = re.compile(rb"[0-9a-fA-F]{1,15}[ \t]*(?:;.*)?")


class Dialect:
    """How a non-empty and an empty text look in this run's events, byte for byte; lets whole reads be counted in C."""

    def __init__(self, api):
        name = b"content" if api in ("chat", "llamacpp") else b"text"
        self.some = b'"' + name + b'":"'
        self.none = self.some + b'"'
        self.spaced = b'"' + name + b'": "'
        self.done = STOP if api == "llamacpp" else None  # what ends a stream that has no [DONE]
        self.sizes = {}  # chunk-size lines seen, to their value
        self.delays = []  # calibration: seconds from the null server's write to our time stamp
        self.texts = 0  # events with text so far, of all responses: what the steady-state detector looks at

    def learn(self, event):
        """The server writes a space behind colons (plain ``json.dumps``)."""
        if self.some not in event and self.spaced in event:
            self.some, self.none = self.spaced, self.spaced + b'"'


class Response:
    """Reads one HTTP/1.1 response with an SSE body from pieces cut at any byte.

    ``times``/``counts``: when events with text came and how many at once. ``other``: data of events without text, kept
    for ``usage`` and errors. ``finished`` is true when the body ended; ``failure`` names the class of what went wrong,
    else it is None.
    """

    __slots__ = (
        "buffer",
        "content_type",
        "counts",
        "detail",
        "dialect",
        "done",
        "failure",
        "finished",
        "keep_alive",
        "kept",
        "last",
        "left",
        "other",
        "other_dropped",
        "other_times",
        "state",
        "status",
        "tail",
        "times",
    )

    def __init__(self, dialect):
        self.dialect = dialect
        self.state, self.status, self.content_type, self.keep_alive = HEAD, 0, b"", True
        self.buffer, self.tail, self.last = b"", b"", b""
        self.left = 0
        self.times, self.counts, self.other, self.other_times, self.other_dropped = [], [], [], [], 0
        self.done = self.finished = False
        self.kept = None  # the body, for the few answers whose text is looked at afterwards
        self.failure, self.detail = None, ""

    def fail(self, failure, detail=""):
        if self.failure is None:
            self.failure, self.detail = failure, detail
        self.finished, self.keep_alive = True, False

    def feed(self, data, now):
        """Take the next bytes of the connection, received at ``now``."""
        if self.buffer:
            data = self.buffer + data
            self.buffer = b""
        state = self.state
        if state == CHUNKED:
            self._chunks(data, now)
        elif state == HEAD:
            self._head(data, now)
        elif state == LENGTH:
            self.left -= len(data)
            if self.left < 0:
                data = data[: self.left]
                self.keep_alive = False  # bytes that nobody asked for follow the body
            self._sse(data, now)
            if self.left <= 0:
                self._end(now)
        elif state == UNTIL_CLOSE:
            self._sse(data, now)
        else:
            self._trailers(data, now)

    def heard(self, sent):
        """When the server last did something for this request that was sent at ``sent``: an event came. Bytes that only
        keep a connection open, and a head that never ends, are nothing."""
        return max(sent, self.times[-1] if self.times else 0.0, self.other_times[-1] if self.other_times else 0.0)

    def eof(self, now):
        """The peer closed the connection."""
        if self.finished:
            return
        self.keep_alive = False
        if self.state == UNTIL_CLOSE:
            self._end(now)
        elif self.state == HEAD:
            self.fail(
                "reset" if not self.buffer else "truncated", "the connection closed before the response head ended"
            )
        else:
            self.fail("truncated", "the connection closed in the middle of the body")

    def _head(self, data, now):
        stop = data.find(b"\r\n\r\n")
        while stop >= 0 and INTERIM.match(data):  # 100 Continue, 103 Early Hints: heads before the head
            data = data[stop + 4 :]
            stop = data.find(b"\r\n\r\n")
        if stop < 0:
            if len(data) > MAX_HEAD_BYTES:
                self.fail("bad_http", "response head over 64 KiB")
            elif not b"HTTP/1.".startswith(data[:7]):
                self.fail("bad_http", "not an HTTP/1 response: %r" % data[:40])
            else:
                self.buffer = data
            return
        lines = data[:stop].split(b"\r\n")
        rest = data[stop + 4 :]
        match = re.match(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |$)", lines[0])
        if not match:
            self.fail("bad_http", "not an HTTP/1 response: %r" % lines[0][:40])
            return
        self.status = int(match.group(2))
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon:
                self.fail("bad_http", "header line without a colon: %r" % line[:40])
                return
            headers[name.strip().lower()] = value.strip()
        connection = headers.get(b"connection", b"").lower()
        self.keep_alive = connection != b"close" if match.group(1) == b"1" else connection == b"keep-alive"
        self.content_type = headers.get(b"content-type", b"").lower()
        if self.status != 200:
            self.fail("http_%d" % self.status, rest[:200].decode("utf-8", "replace"))
            return
        encoding = headers.get(b"content-encoding", b"identity").lower()
        if encoding not in (b"", b"identity"):
            self.fail(
                "bad_encoding",
                "the response is %s although identity was asked for" % encoding.decode("ascii", "replace"),
            )
            return
        if not self.content_type.startswith(b"text/event-stream"):
            self.fail("bad_sse", "content type %r: %r" % (self.content_type[:60], rest[:120]))
            return
        if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
            self.state = CHUNKED
        elif b"content-length" in headers:
            length = headers[b"content-length"]
            if not length.isdigit() or len(length) > 15:
                self.fail("bad_http", "content-length %r" % length[:40])
                return
            self.state, self.left = LENGTH, int(length)
            if not self.left:
                self._end(now)
                return
        else:
            self.state, self.keep_alive = UNTIL_CLOSE, False
        if rest:
            self.feed(rest, now)

    def _chunks(self, data, now):
        pos, end, left = 0, len(data), self.left  # left: bytes of the open chunk still to come, its CRLF included
        sizes = self.dialect.sizes
        if not left:
            stop = data.find(b"\r\n")
            if sizes.get(data[:stop]) == end - stop - 4 > 0 and data.endswith(b"\r\n"):  # one whole chunk, as most reads are
                self._sse(data[stop + 2 : -2], now)
                return
        parts = []
        while pos < end:
            if left > 2:
                stop = pos + left - 2
                if stop > end:
                    parts.append(data[pos:])
                    left -= end - pos
                    pos = end
                    break
                parts.append(data[pos:stop])
                pos, left = stop, 2
            if left:
                if end - pos < 2:
                    break
                if data[pos : pos + 2] != b"\r\n":
                    self.fail("bad_http", "a chunk does not end where its size says")
                    break
                pos, left = pos + 2, 0
                continue
            stop = data.find(b"\r\n", pos)
            if stop < 0:
                if end - pos > 256:
                    self.fail("bad_http", "no chunk size: %r" % data[pos : pos + 40])
                break
            line = data[pos:stop]
            size = sizes.get(line)
            if size is None:
                if not HEX.fullmatch(line):
                    self.fail("bad_http", "chunk size %r" % line[:40])
                    break
                size = int(line.split(b";")[0], 16)
                if len(sizes) < 4096:
                    sizes[line] = size
            pos = stop + 2
            if not size:
                self.state = TRAILERS
                break
            left = size + 2
        self.left = left
        if parts:
            self._sse(parts[0] if len(parts) == 1 else b"".join(parts), now)
        if self.finished:
            return
        if self.state == TRAILERS:
            self._trailers(data[pos:], now)
        elif pos < end:
            self.buffer = data[pos:]

    def _trailers(self, data, now):
        while True:
            stop = data.find(b"\r\n")
            if stop < 0:
                if len(data) > MAX_HEAD_BYTES:
                    self.fail("bad_http", "trailers without end")
                self.buffer = data
                return
            line, data = data[:stop], data[stop + 2 :]
            if not line:
                if data:
                    self.keep_alive = False
                self._end(now)
                return

    def _sse(self, data, now):
        if self.kept is not None:
            self.kept.append(data)
        if self.tail:
            data = self.tail + data
            self.tail = b""
        if data.endswith(b"\n\n") and data.startswith(b"data:"):
            dialect = self.dialect
            texts = data.count(dialect.some) - data.count(dialect.none)
            if texts == data.count(b"\n\n"):  # every event carries text: nothing to look at one by one
                self.times.append(now)
                self.counts.append(texts)
                self.last = data
                dialect.texts += texts
                return
        self._events(data, now)

    def _events(self, data, now):
        if b"\r" in data:
            held = data.endswith(b"\r")
            data = (data[:-1] if held else data).replace(b"\r\n", b"\n")
            cut = data.rfind(b"\n\n")
            self.tail = data[cut + 2 if cut >= 0 else 0 :] + (b"\r" if held else b"")
        else:
            cut = data.rfind(b"\n\n")
            self.tail = data[cut + 2 if cut >= 0 else 0 :]
        if len(self.tail) > MAX_EVENT_BYTES:
            self.fail("bad_sse", "an event over 8 MiB")
        if cut < 0:
            return
        texts = 0
        for event in data[:cut].split(b"\n\n"):
            texts += self._event(event, now)
            if self.failure:
                break
        if texts:
            self.times.append(now)
            self.counts.append(texts)
            self.dialect.texts += texts

    def _event(self, event, now):
        """1 if the event carries text, else 0."""
        event = event.strip(b"\n")
        lines = event.split(b"\n")
        parts = []
        for line in lines:
            if line.startswith(b"data:"):
                parts.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line and line[:1] != b":" and line.partition(b":")[0] not in (b"event", b"id", b"retry", b"data"):
                self.fail("bad_sse", "not an SSE field: %r" % line[:60])
                return 0
        if not parts:
            return 0
        data = b"\n".join(parts)
        if data.strip() == b"[DONE]":
            self.done = True
            return 0
        if TEXT.search(data):
            if not self.last:
                self.dialect.learn(data)
            self.last = b"data: " + data
            return 1
        if len(self.other) < 20000:
            self.other.append(data)
            self.other_times.append(now)
        else:
            self.other_dropped += 1
        return 0

    def _end(self, now):
        self.finished = True
        tail = self.tail.strip()
        if tail and not self.failure:  # a last event without its blank line
            self.tail = b""
            if self._event(tail, now):
                self.times.append(now)
                self.counts.append(1)
        if not self.failure and not self.done:
            mark = self.dialect.done
            if mark is None:
                self.fail("truncated", "the stream ended without [DONE]")
            elif not mark.search(self.other[-1] if self.other else b"") and not mark.search(self.last):
                self.fail("truncated", "the stream ended without an event that says stop")

    def usage(self):
        """(prompt_tokens, completion_tokens, cached_tokens), each int or None; sets ``failure`` where an event holds
        an error."""
        found = (None, None, None)  # of several, the one that counts most tokens: a server may tell in every event how far it is
        events = self.other if len(self.other) <= 24 else self.other[:4] + self.other[-20:]
        if self.last:
            at = self.last.rfind(b"\ndata:")  # at the beginning of a line: a text may well contain the word
            events = [self.last[at + 6 if at >= 0 else 5 :], *events]
        for event in events:
            try:
                value = json.loads(event.decode("utf-8"))
            except ValueError:
                self.fail("bad_sse", "an event is not JSON: %r" % event[:60])
                return (None, None, None)
            if not isinstance(value, dict):
                self.fail("bad_sse", "an event is not an object: %r" % event[:60])
                return (None, None, None)
            if value.get("error") or value.get("object") == "error" or _aborted(value):
                self.fail("stream_error", json.dumps(value.get("error") or value)[:200])
                return (None, None, None)
            usage = value.get("usage")
            if isinstance(usage, dict):
                details = usage.get("prompt_tokens_details") or {}
                cached = details.get("cached_tokens") if isinstance(details, dict) else None
                found = _later(found, (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached)))
            if _count(value.get("tokens_predicted")) is not None and "tokens_evaluated" in value:  # llama.cpp
                timings = value.get("timings") or {}
                cached = _count(timings.get("cache_n")) if isinstance(timings, dict) else None
                found = _later(found, (_count(value["tokens_evaluated"]), _count(value["tokens_predicted"]), cached))
            meta = value.get("meta_info")
            if isinstance(meta, dict):
                found = _later(found, tuple(_count(meta.get(name)) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")))
        return found


class StampedResponse(Response):
    """For calibration only: the null server writes into each event when it sent it, on the same machine's clock."""

    __slots__ = ()

    def _sse(self, data, now):
        for stamp in STAMP.findall(data):
            self.dialect.delays.append(now - int(stamp) / 1e9)
        Response._sse(self, data, now)


def _later(one, other):
    """Of two states of one request's count the later one."""
    return other if one[1] is None or (other[1] is not None and other[1] >= one[1]) else one


def _aborted(value):
    """Whether an event says that the server gave this request up: it ends properly, and is no answer."""
    choices, meta = value.get("choices"), value.get("meta_info")
    ends = [one.get("finish_reason") for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    ends += [meta.get("finish_reason")] if isinstance(meta, dict) else []
    return any((end.get("type") if isinstance(end, dict) else end) in ("abort", "error") for end in ends)


def _count(value):
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
