#!/usr/bin/env python3
"""The load generator: one stdlib-only file (Python 3.8 or later, uvloop when it can be imported) that offers a
streaming load and reports what came back. A job comes in on stdin as one JSON object, progress and results go out on
stdout as JSON lines. It decides when the warm-up is over (no gap may open between warm-up and window), stamps every
chunk on a monotonic clock and never parses a chunk as JSON while it streams. It judges nothing: what makes a result
invalid is said by ``run.py``, which reads these lines.

What is asked comes with the job (see ``workload.py``): fixed lengths, a list of lengths, a trace with times, or
conversations. Where it runs beside the server it can also look at it: which API key it asks for, which CPUs it leaves
alone, how many tokens it has counted itself.

Times inside are seconds of this machine's monotonic clock. A simulated server may run ``time_scale`` times faster
than real time: waits given in server seconds are divided by it, and every time that leaves this file is multiplied by
it, so that all output is in server seconds. Exceptions say so in their names: ``cpu_share`` and all
with ``_real_``.
"""

import asyncio
import collections
import json
import math
import os
import random
import re
import select
import selectors
import signal
import socket
import ssl
import struct
import sys
import time
import urllib.parse

VERSION = 1
MAX_HEAD_BYTES = 65536
MAX_EVENT_BYTES = 8 << 20
READ_BYTES, FIRST_READ_BYTES = 32768, 4096
SUB_WINDOWS = 20
ITL_STEP = 1.02  # bins of the inter-chunk histogram grow by 2 %: a percentile read from it is within 1 %
TICK_S = 0.02
SLICE = 128  # pieces of an ended answer that are counted between two looks at the sockets
DRAIN_S = 0.5  # after the cut, until a server's own counters have taken in what was aborted
KEPT_ANSWERS = 16  # answers whose text is kept and looked at after the run
MIN_PIECES = 16  # of text, that an answer must have for a statement about repetition

# ----------------------------------------------------------------------------------------------------------- prompts

# Ordinary words that common BPE vocabularies hold as one token when a space precedes them.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy music market sense "
    "nation plan college interest death experience effect use class control field development role effort rate "
    "heart drug show leader light voice wife police mind price report decision son view relationship town road "
    "arm difference value building action season society tax director position player record paper space ground "
    "form event matter center couple site project activity star table need court oil situation cost industry "
    "figure street image phone data picture practice piece land product doctor wall patient worker news test "
    "movie north love support technology step baby computer type attention film tree source hair window culture "
    "chance energy period course summer plant opportunity term letter condition choice rule south husband floor "
    "campaign material population call economy hospital church risk fire future bank west sport board subject "
    "officer rest behavior performance fight top goal second bed order author blood agency nature color store "
    "sound movement page race concern series language response animal factor decade article east artist scene "
    "stock career treatment approach size dog fund media sign thought list individual quality pressure answer "
    "resource meeting disease success cup amount ability staff character growth loss degree attack region "
    "television box training trade deal election feeling standard bill message analysis benefit sex lawyer "
    "section glass skill sister professor operation crime stage authority "
).split()
# The ASCII test models hold pairs of lower-case letters as one token; capitals, digits and the space are one token
# each.
ASCII = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
HEAD_TOKENS = 24


class Prompts:
    """Unique prompts of a stated number of tokens, made from seeds alone.

    shared prefix (one of ``prefix_groups``; differs by salt) + unique head (differs by seed, salt and index) + body
    (differs by seed and index only). The salt names the launch, so nothing that an earlier run left in a cache matches;
    bodies are equal in every arm. A prompt given as blocks (a trace with ``hash_ids``) shares exactly the blocks whose
    ids, and all ids before them, were seen before in the same lap of the trace.
    """

    def __init__(
        self, seed, salt, vocabulary, prompt_tokens, shared_prefix_tokens=0, prefix_groups=1, longest=None, block_tokens=512
    ):
        self.seed, self.salt = str(seed), str(salt)
        self.words = WORDS if vocabulary == "words" else ASCII
        self.joint = " " if vocabulary == "words" else ""
        self.tokens, self.block_tokens = prompt_tokens, block_tokens
        longest = max(prompt_tokens, longest or 0)
        shared = min(shared_prefix_tokens, longest)
        self.shared = [self._draw("shared/%s/%s" % (self.seed, self.salt), shared)]
        for group in range(1, prefix_groups):
            self.shared.append(self._draw("shared/%s/%s/%d" % (self.seed, self.salt, group), shared))
        self.pool = []
        if longest > HEAD_TOKENS:
            self.pool = self._draw("pool/%s" % self.seed, max(8192, 4 * longest))

    def _draw(self, seed, count):
        return random.Random(seed).choices(self.words, k=count)

    def _unique(self, name, body, tokens):
        """``tokens`` tokens: a head that depends on ``name`` and the salt, then a slice that depends on ``body`` alone."""
        head = self._draw("head/%s/%s/%s" % (self.seed, self.salt, name), min(HEAD_TOKENS, tokens))
        left = tokens - len(head)
        if not left:
            return head
        start = int(random.Random("body/%s/%s" % (self.seed, body)).random() * (len(self.pool) - left))
        return head + self.pool[start : start + left]

    def text(self, index, tokens=None, blocks=None, lap=0, opening=True):
        """The prompt of request ``index``. ``opening`` is false for the later turns of a conversation: what is shared
        stands at its beginning already."""
        tokens = self.tokens if tokens is None else tokens
        parts = []
        if blocks:
            for place, block in enumerate(blocks):
                size = min(self.block_tokens, tokens - place * self.block_tokens)
                if size <= 0:
                    break
                parts += self._unique("block/%d/%d" % (lap, block), "block/%d" % block, size)
            left = tokens - len(parts)
            return self.joint.join(parts + (self._unique(str(index), str(index), left) if left > 0 else []))
        if opening:
            parts = self.shared[index % len(self.shared)][:tokens]
        return self.joint.join(parts + self._unique(str(index), str(index), tokens - len(parts)))


# ------------------------------------------------------------------------------------------------------ steady state

# Two-sided 95 % quantiles of Student's t for the degrees of freedom that the detector uses (8 = 10 windows, 18 = 20).
T_95 = {8: 2.306, 18: 2.101}
STEADY_WINDOWS, LEVEL_WINDOWS = 10, 20
STEADY_COV, STEADY_CHANGE, LEVEL_CHANGE = 0.02, 0.01, 0.10


def trend(series):
    """(relative change by least squares, its standard error, coefficient of variation); the mean must be positive."""
    n = len(series)
    mean = math.fsum(series) / n
    middle = (n - 1) / 2.0
    sxx = n * (n * n - 1) / 12.0
    slope = math.fsum((i - middle) * y for i, y in enumerate(series)) / sxx
    spread = math.fsum((y - mean) ** 2 for y in series)
    left = max(0.0, spread - slope * slope * sxx)
    error = math.sqrt(left / (n - 2) / sxx)
    return slope * (n - 1) / mean, error * (n - 1) / mean, math.sqrt(spread / (n - 1)) / mean


def steadiness(series):
    """'steady', 'level' or '' for a series of rates in equal windows. A copy of the rule in ``optimizer.stats.steady``
    (this file must stand alone); a test compares them.

    steady: the last 10 windows vary by less than 2 % and have no slope. level: they vary more, but the last 20 windows
    show that the rate did not change by more than 10 % over their span (the whole 95 % interval of the fitted change
    lies inside).
    """
    last = series[-STEADY_WINDOWS:]
    if len(last) == STEADY_WINDOWS and math.fsum(last) > 0:
        change, error, cov = trend(last)
        if cov < STEADY_COV and (abs(change) <= STEADY_CHANGE or abs(change) <= T_95[STEADY_WINDOWS - 2] * error):
            return "steady"
    last = series[-LEVEL_WINDOWS:]
    if len(last) == LEVEL_WINDOWS and math.fsum(last) > 0:
        change, error, _ = trend(last)
        if abs(change) + T_95[LEVEL_WINDOWS - 2] * error <= LEVEL_CHANGE:
            return "level"
    return ""


# ------------------------------------------------------------------------------------------------------- HTTP and SSE

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


def pieces_of(body):
    """The text of each event of a kept body, in order: about one token each."""
    pieces = []
    for event in body.replace(b"\r", b"").split(b"\n\n"):
        try:
            value = json.loads(event[5:].decode("utf-8"))
            choice = value["choices"][0] if "choices" in value else {"text": value.get("content")}
            piece = choice.get("text") or (choice.get("delta") or {}).get("content")
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # [DONE], usage, an event that holds no text
        if isinstance(piece, str) and piece:
            pieces.append(piece)
    return pieces


def repeat_share(pieces):
    """How often the piece that followed the last three where they were seen before in the same answer comes again: what
    drafting from the answer's own text could get right. None for an answer too short to tell."""
    if len(pieces) < MIN_PIECES:
        return None
    followed, right = {}, 0
    for at in range(3, len(pieces)):
        head = tuple(pieces[at - 3 : at])
        right += followed.get(head) == pieces[at]
        followed[head] = pieces[at]
    return right / float(len(pieces) - 3)


def _count(value):
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# --------------------------------------------------------------------------------------------------- beside the server

KEY_FLAGS, KEY_VARIABLES = (b"--api-key",), (b"VLLM_API_KEY", b"LLAMA_API_KEY", b"SGLANG_API_KEY")
COUNTER = re.compile(
    rb"^(?:vllm|sglang|llamacpp)[:_](prompt_tokens|generation_tokens|tokens_predicted)_total(?:\{[^}]*\})? ([0-9.eE+]+)", re.M
)


def listener_of(port):
    """Process ids that listen on a TCP port of this machine (Linux; none where ``/proc`` does not tell)."""
    sockets = set()
    for name in ("tcp", "tcp6"):
        for line in _lines("/proc/net/" + name)[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == b"0A" and int(words[1].rpartition(b":")[2], 16) == port:
                sockets.add("socket:[%s]" % words[9].decode("ascii"))
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc") if sockets else ()):
        try:
            handles = os.listdir("/proc/%s/fd" % pid)
        except OSError:
            continue
        for handle in handles:
            try:
                if os.readlink("/proc/%s/fd/%s" % (pid, handle)) in sockets:
                    found.add(int(pid))
            except OSError:
                continue  # closed while we looked
    return found


def _lines(path):
    try:
        with open(path, "rb") as handle:
            return handle.read().splitlines()
    except OSError:
        return []


def _words(path):
    """The words of ``/proc/PID/cmdline`` or ``environ``."""
    return b"\n".join(_lines(path)).split(b"\0")


def _parent(pid):
    stat = b"".join(_lines("/proc/%d/stat" % pid)).rpartition(b")")[2].split()
    return int(stat[1]) if len(stat) > 1 else 0


def key_of_server(port):
    """The API key that the server on this port of this machine asks for, from its own command line or environment, or that
    of a process above it (workers overwrite their command lines). None where there is none. It goes into the requests and
    nowhere else."""
    for pid in sorted(listener_of(port)):
        while pid > 1:
            words = _words("/proc/%d/cmdline" % pid)
            for at, word in enumerate(words):
                flag, equals, value = word.partition(b"=")
                if flag in KEY_FLAGS:
                    value = value if equals else (words[at + 1] if at + 1 < len(words) else b"")
                    if value:
                        return value.decode("utf-8", "replace")
            for word in _words("/proc/%d/environ" % pid):
                name, _, value = word.partition(b"=")
                if name in KEY_VARIABLES and value:
                    return value.decode("utf-8", "replace")
            pid = _parent(pid)
    return None


def cpus_away_from(port, look_s=0.25):
    """CPUs for this process that the server on this port leaves alone: those outside its affinity, else the quietest core of
    the machine (all hardware threads of it) over ``look_s``. An empty list where the machine is too small to choose."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = os.sched_getaffinity(0)
    servers = set()
    for pid in listener_of(port):
        try:
            servers |= os.sched_getaffinity(pid)
        except OSError:
            continue
    outside = allowed - servers
    if servers and outside:
        return sorted(outside)[-2:]
    if len(allowed) < 4:
        return []
    before = _busy()
    time.sleep(look_s)
    after = _busy()
    cores = {}
    for cpu in allowed:
        siblings = b"".join(_lines("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu)) or b"%d" % cpu
        cores.setdefault(siblings, []).append(cpu)
    load = {name: sum(after.get(cpu, 0) - before.get(cpu, 0) for cpu in cpus) for name, cpus in cores.items()}
    # Of equally quiet ones the last: device interrupts and launchers prefer the first.
    return sorted(min(cores.items(), key=lambda core: (load[core[0]], -max(core[1])))[1])


def _busy():
    """Clock ticks that each CPU was not idle."""
    found = {}
    for line in _lines("/proc/stat"):
        words = line.split()
        if words and re.fullmatch(rb"cpu\d+", words[0]):
            ticks = [int(word) for word in words[1:9]]
            found[int(words[0][3:])] = sum(ticks) - ticks[3] - ticks[4]
    return found


def counters_of(text):
    """(prompt tokens, generated tokens) that a metrics page says were counted since the server started; None for what it does
    not say."""
    sums = {}
    for name, value in COUNTER.findall(text):
        name = b"generation_tokens" if name == b"tokens_predicted" else name
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums.get(b"prompt_tokens"), sums.get(b"generation_tokens")


# ---------------------------------------------------------------------------------------------------------- connections


class Session:
    """One conversation: ``said`` alternates between what was asked and what was answered."""

    __slots__ = ("number", "over", "said", "turn")

    def __init__(self, number):
        self.number, self.turn, self.said, self.over = number, 0, [], False


class Request:
    """``row``: which entry of the job's list this is, and in which lap; None where all are alike."""

    __slots__ = ("first_wave", "index", "lap", "max_tokens", "retried", "row", "said", "sampled", "scheduled", "sent", "session")

    def __init__(self, index, max_tokens, scheduled, first_wave, session=None):
        self.index, self.max_tokens, self.scheduled, self.first_wave = index, max_tokens, scheduled, first_wave
        self.sent, self.retried, self.session, self.sampled = 0.0, False, session, False
        self.row, self.said, self.lap = None, None, 0


# The kernel stamps what it receives (SO_TIMESTAMPNS of Linux, the same number on every 64-bit machine that runs engines).
STAMPNS = 35 if sys.platform == "linux" and struct.calcsize("l") == 8 else None
_timespec = struct.Struct("qq").unpack
POLLS, POLLING_S = 16, 0.0005  # looks at the sockets in one turn of the loop: timers and new connections wait so long


class Wires:
    """All plain connections of a run, watched beside the event loop: it sees one descriptor, and what is readable is read
    here without its bookkeeping, which costs as much as the reading. ``woke``: when the kernel last said what was readable;
    ``wall``: what the wall clock, which the kernel stamps by, is ahead of the monotonic one; ``told``: whether a stamp came."""

    def __init__(self, loop):
        self.loop, self.epoll, self.open, self.told = loop, select.epoll(), {}, False
        self.woke = time.monotonic()
        self.wall = time.time() - self.woke
        loop.add_reader(self.epoll.fileno(), self._turn)

    def _turn(self):
        clock, wires, poll = time.monotonic, self.open, self.epoll.poll
        until = clock() + POLLING_S
        for _ in range(POLLS):
            ready = poll(0)
            if not ready:
                return
            self.woke = clock()
            wall = time.time() - self.woke
            if wall > self.wall + 1e-4:  # put aside between the two clocks, or the wall clock was set: then all say so
                wall = min(wall, min(time.time() - clock() for _ in range(3)))
            self.wall = wall
            for descriptor, _ in ready:
                wire = wires.get(descriptor)
                if wire is not None:  # else closed while the others were read
                    wire.readable()
            if self.woke > until:
                return

    def add(self, wire):
        self.open[wire.sock.fileno()] = wire
        self.epoll.register(wire.sock.fileno(), select.EPOLLIN)

    def remove(self, wire):
        del self.open[wire.sock.fileno()]
        self.epoll.unregister(wire.sock.fileno())

    def close(self):
        self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()


class Wire:
    """A plain TCP connection, read so that each piece has the time at which the kernel received it. On a busy machine
    this process is woken late, by milliseconds where others compete for the CPU, and that lateness would be taken for the
    server's. Where one read brings several pieces it is the time of the last. Has what ``Connection`` needs of a transport.
    """

    __slots__ = ("closed", "connection", "last", "loop", "size", "sock", "unsent", "wires")

    def __init__(self, wires, sock, connection):
        self.wires, self.loop, self.sock, self.connection = wires, wires.loop, sock, connection
        self.unsent, self.closed, self.last = b"", False, time.monotonic()
        self.size = FIRST_READ_BYTES
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.setsockopt(socket.SOL_SOCKET, STAMPNS, 1)
        except OSError:
            pass  # a sandbox's own network does not know it: the time of waking is what is left
        wires.add(self)
        connection.connection_made(self)

    def is_closing(self):
        return self.closed

    def readable(self):
        try:
            data, told, _, _ = self.sock.recvmsg(self.size, 64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if not data:
            self._close(None)
            return
        if len(data) == self.size:
            self.size = READ_BYTES  # the buffer is set aside and given back for every read: large only where it is needed
        wires = self.wires
        at = wires.woke  # it had come by then
        if told and len(told[0][2]) == 16:
            wires.told = True
            seconds, nanoseconds = _timespec(told[0][2])
            received = seconds - wires.wall + nanoseconds * 1e-9
            # Between the last piece and now. A second or more ago is a wall clock that was set meanwhile, not a time of reception.
            if at - 1.0 < received < at:
                at = max(self.last, received)
        self.last = at
        self.connection.received(data, at)

    def write(self, data):
        if self.unsent or self.closed:
            self.unsent += data
            return
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._close(error)
            return
        if sent < len(data):
            self.unsent = data[sent:]
            self.loop.add_writer(self.sock.fileno(), self._writable)

    def _writable(self):
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if not self.unsent:
            self.loop.remove_writer(self.sock.fileno())

    def abort(self):
        self._close(None)

    def set_protocol(self, protocol):
        self.connection = protocol

    def _close(self, error):
        if self.closed:
            return
        self.closed = True
        self.wires.remove(self)
        self.loop.remove_writer(self.sock.fileno())
        self.sock.close()
        self.loop.call_soon(self._gone, error)

    def _gone(self, error):
        self.connection.connection_lost(error)


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


# ------------------------------------------------------------------------------------------------------------ generator


class Generator:
    """Runs one job: warm-up, window, cut. All attributes are in this machine's seconds."""

    def __init__(self, job, emit, clock=time.monotonic):
        self.job, self.emit, self.clock = job, emit, clock
        self.scale = float(job.get("time_scale", 1.0))
        self.concurrency = int(job["concurrency"])
        self.output_tokens = int(job["output_tokens"])
        self.api = job.get("api", "completions")
        self.dialect = Dialect(self.api)
        self.reader = StampedResponse if job.get("stamped") else Response
        self.prompts = Prompts(**job["prompts"])
        self.rows, self.period = job.get("requests") or [], float(job.get("period_s") or 0.0) / self.scale
        self.conversations, self.turns = job.get("conversations") or [], int(job.get("turns", 1))
        self.think = float(job.get("think_s", 0.0)) / self.scale
        self.kind = job.get("arrival", "poisson")
        self.burst = int(job.get("burst_size", 1))
        if self.turns > 1 and not self.conversations and self.api not in ("chat", "completions"):
            raise ValueError("conversations need the chat or completions API, not %s" % self.api)
        self.warmup_min = float(job["warmup_min_s"]) / self.scale
        self.warmup_max = max(self.warmup_min, float(job["warmup_max_s"]) / self.scale)
        self.window = float(job["window_s"]) / self.scale
        self.stop_below = float(job["stop_below"]) * self.scale if job.get("stop_below") else None
        self.stopped_early, self.interrupted, self.texts_from = "", False, 0
        self.rates, self.sub_from, self.sub_texts = [], 0.0, 0  # of the sub-windows so far, for who watches
        self.stall = float(job.get("stall_s") or max(60.0, float(job["warmup_max_s"]))) / self.scale
        self.connect_timeout = float(job.get("connect_timeout_s", 10.0))
        self.rate = float(job["rate_per_s"]) * self.scale if job.get("rate_per_s") else None
        if self.kind == "trace":
            if not self.rows or not self.period > 0:
                raise ValueError("arrivals after a trace need its requests and its period")
            self.rate = len(self.rows) / self.period
        elif self.rate is None and self.kind != "poisson":
            raise ValueError("%s arrivals need a rate" % self.kind)
        self.drain = float(job.get("drain_s", 0.0)) / self.scale
        self.max_connections = int(job.get("max_connections", 4096))
        # Windows of 5 s when the warm-up is at least 30 s; a short warm-up is cut into as many.
        self.bin = (
            max(0.05, min(5.0 / self.scale, self.warmup_min / 6.0)) if self.warmup_min else max(0.05, 0.5 / self.scale)
        )
        self.connections, self.idle, self.backlog = [], [], []
        self.records, self.series, self.states, self.examples = [], [], [], {}
        self.kept, self.granted = [], 0
        self.errors, self.errors_window, self.itl = {}, {}, {}
        self.silent = []  # of the requests that were cut: seconds since their last event, or since they were sent
        self.tokens = [0.0] * SUB_WINDOWS
        self.arrivals = [0] * SUB_WINDOWS
        self.lags = []
        self.arrived = self.sessions = self.tokens_finished = self.prompt_finished = self.chunks_partial = 0
        self.counters = []
        self.cpus, self.closing = job.get("cpus") or [], False
        self.index = self.sent = self.sent_window = self.reconnects = self.streak = self.cut = self.in_flight = 0
        self.usage_missing = self.finished_ok = self.counted_chunks = self.counted_tokens = self.counted_in_window = 0
        self.began = self.window_from = self.window_to = self.last_good = 0.0
        self.steady, self.gave_up = "", ""
        self.tasks = set()
        self.loop = self.done = self.wires = self.address = self.cpu_from = self.clocks_from = None
        self.uncounted, self.counting = collections.deque(), False
        self.cpu = self.ended = self.clock_step = 0.0
        self.arrival = random.Random("arrivals/%s" % job["prompts"]["seed"])
        self._target()

    # -- the target

    def _target(self):
        url = urllib.parse.urlsplit(self.job["base_url"])
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("base_url must look like http://host:port, not %r" % self.job["base_url"])
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = None
        if url.scheme == "https":
            self.tls = ssl.create_default_context(cafile=self.job.get("ca_file"))
        # Inside TLS the kernel cannot tell which of its records holds which event.
        self.plain = STAMPNS is not None and self.tls is None
        base = url.path.rstrip("/")
        if base.endswith("/v1"):
            base = base[:-3]
        paths = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate", "llamacpp": "/completion"}
        if self.api not in paths:
            raise ValueError("there is no API called %s; there are %s" % (self.api, ", ".join(sorted(paths))))
        path = paths[self.api]
        host = "[%s]" % self.host if ":" in self.host else self.host
        lines = [
            "POST %s%s HTTP/1.1" % (base, path),
            "Host: %s:%d" % (host, self.port),
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Accept-Encoding: identity",
            "User-Agent: optimize-loadgen/%d" % VERSION,
        ]
        if self.job.get("keep_alive") is False:
            lines.append("Connection: close")
        self.key = self._key()
        bearer = "Authorization: Bearer %s" % self.key
        if self.key:
            lines.append(bearer)
        self.head = ("\r\n".join(lines) + "\r\nContent-Length: ").encode("ascii")
        asked = ["GET %s%s HTTP/1.1" % (base, self.job.get("metrics_path") or "/metrics"), lines[1], "Accept-Encoding: identity"]
        asked += ["Connection: close"] + ([bearer] if self.key else [])
        self.metrics_request = ("\r\n".join(asked) + "\r\n\r\n").encode("ascii")

    def _key(self):
        """The API key: of the environment variable that the job names, else of the server itself."""
        variable = self.job.get("api_key_env")
        key = os.environ.get(variable, "") if variable else ""
        if not key and self.job.get("api_key_of_server"):
            key = key_of_server(self.port) or ""
            variable = variable if key else None
        if (variable and not key) or any(ord(c) < 33 or ord(c) > 126 for c in key):
            raise ValueError("the environment variable %s holds no usable API key here" % variable)
        return key

    def ask(self, request):
        """What is said in this request; of a conversation also what was said before. A list of texts that alternate between
        user and model, the last one the user's."""
        session, row = request.session, request.row
        lap, tokens, blocks = request.lap, None, None
        if row is not None:
            tokens, blocks = row[0], row[3] if len(row) > 3 else None
        if session is None:
            return [self.prompts.text(request.index, tokens, blocks, lap)]
        if self.conversations:
            text = self.conversations[session.number % len(self.conversations)][session.turn][0]
            if session.turn == 0:  # recorded words are the same in every run: only a head of its own keeps a cache out
                text = self.prompts.text(session.number, HEAD_TOKENS, opening=False) + "\n" + text
        else:
            text = self.prompts.text(request.index, tokens, opening=session.turn == 0)
        return [*session.said, text]

    def message(self, request):
        if request.said is None:  # once: a request may be sent again on a fresh connection
            request.said = self.ask(request)
        said = request.said
        prompt = said[0] if len(said) == 1 else "\n".join(said)
        model = self.job.get("model")
        eos = self.job.get("ignore_eos", True)
        if self.api == "generate":
            body = {
                "text": prompt,
                "sampling_params": {"max_new_tokens": request.max_tokens, "temperature": 0, "ignore_eos": eos},
                "stream": True,
            }
        elif self.api == "llamacpp":
            body = {"prompt": prompt, "n_predict": request.max_tokens, "temperature": 0, "ignore_eos": eos, "stream": True}
        else:
            body = {"model": model} if model else {}
            if self.api == "chat":
                roles = ("user", "assistant")
                body["messages"] = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
            else:
                body["prompt"] = prompt
            body.update(max_tokens=request.max_tokens, temperature=0, stream=True)
            if eos:  # an extension of the engines; a strict server refuses a field that it does not know
                body["ignore_eos"] = True
            body["stream_options"] = {"include_usage": True}
        body.update(self.job.get("extra_body") or {})
        data = json.dumps(body, separators=(",", ":")).encode("ascii")
        return self.head + str(len(data)).encode("ascii") + b"\r\n\r\n" + data

    # -- offering load

    def _new_request(self, scheduled, first_wave=None, session=None):
        tokens, row, lap = self.output_tokens, None, 0
        if self.rows:
            lap, at = divmod(self.index, len(self.rows))
            row = self.rows[at]
            tokens = row[1]
        if session is not None and self.conversations:
            tokens = self.conversations[session.number % len(self.conversations)][session.turn][2]
        asked = tokens
        if first_wave is not None:
            # The first wave is cut to lengths spread over the range, else c requests run in lock-step for ever: all
            # prefill together, all decode together. These requests lie in the warm-up and count for no latency.
            tokens = max(1, round(tokens * (first_wave + 1) / float(self.concurrency)))
        request = Request(self.index, tokens, scheduled, first_wave is not None and tokens != asked, session)
        request.row, request.lap = row, lap
        self.index += 1
        return request

    def _new_session(self):
        """The next conversation; None where requests stand alone."""
        if self.turns <= 1 and not self.conversations:
            return None
        self.sessions += 1
        return Session(self.sessions - 1)

    def _answered(self, request, response):
        """A turn is over: what comes next is asked after what was answered. Recorded answers are taken from the record, so
        that every arm is asked the same."""
        session = request.session
        if session is None:
            return
        session.turn += 1
        turns = self.turns
        if self.conversations:
            turns = len(self.conversations[session.number % len(self.conversations)])
        session.over = response.failure is not None or session.turn >= turns
        if session.over:
            return
        if self.conversations:
            answer = self.conversations[session.number % len(self.conversations)][session.turn - 1][1]
        else:
            answer = "".join(pieces_of(b"".join(response.kept or ())))
        session.said = [*request.said, answer]

    def _pause(self, session):
        """Seconds of thought before the next request: exponential, drawn from the seed and the place in the order of things."""
        if not self.think:
            return 0.0
        place = self.index if session is None else "%d/%d" % (session.number, session.turn)
        return random.Random("think/%s/%s" % (self.prompts.seed, place)).expovariate(1.0 / self.think)

    def _give(self, connection, request):
        self.in_flight += 1
        self.sent += 1
        if self.window_from:
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
        if self.plain:
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
            port=self.port,
            family=self.address[0],
            ssl=self.tls,
            server_hostname=self.host if self.tls else None,
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
        if self.rate is None:
            session = connection.session
            if session is None or session.over:
                session = connection.session = self._new_session()
            pause = self._pause(session)
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
            self._give(connection, self._new_request(time.monotonic(), session=session))

    def _arrive(self, at):
        """Open loop: one request is due now; the next one is scheduled by the clock, however late we are."""
        if self.done.is_set() or self.closing:
            return
        self._offer(self._new_request(at, session=self._new_session()))
        due = at + self._gap()
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

    def _gap(self):
        """Seconds from the last arrival to the next one."""
        self.arrived += 1
        if self.kind == "constant":
            return 1.0 / self.rate
        if self.kind == "burst":
            return self.arrival.expovariate(self.rate / self.burst) if self.arrived % self.burst == 0 else 0.0
        if self.kind == "trace":
            at = self.arrived % len(self.rows)
            wrapped = self.period if at == 0 else 0.0
            return max(0.0, wrapped + (self.rows[at][2] - self.rows[at - 1][2]) / self.scale)
        return self.arrival.expovariate(self.rate)

    def _go_on(self, session):
        """Open loop: the next turn of a conversation comes when its user has thought."""
        pause = self._pause(session)
        due = time.monotonic() + pause
        self.loop.call_later(pause, lambda: None if self.done.is_set() or self.closing else self._offer(self._new_request(due, session=session)))

    # -- what came back

    def finished(self, connection, request, response, now):
        self.in_flight -= 1
        prompt, output, cached = response.usage() if response.failure is None else (None, None, None)
        if response.failure is None and not response.counts and not output:
            response.fail("bad_sse", "a stream without any text or usage")
        if request.sampled and response.kept and response.failure is None:
            self.kept.append(b"".join(response.kept))
        self._answered(request, response)
        inside = self.window_from and now < self.window_to
        if response.failure is not None:
            self._failure(response, inside)
            connection.failures += 1
            self.streak += 1
            if self.streak >= max(20, 2 * self.concurrency) and now - self.last_good > 2.0:
                self._stop("every request fails: %s" % self.examples.get(response.failure, response.failure))
                return
            # An immediate retry would turn a refusing server into a busy loop, and its refusals into the load.
            pause = min(1.0, 0.02 * 2 ** min(connection.failures, 6))
            self.loop.call_later(pause, self._next, connection)
        else:
            connection.failures = 0
            self.streak, self.last_good = 0, now
            self.finished_ok += 1
        self._account(request, response, now, prompt, output, cached)
        if response.failure is None:
            self._next(connection)
            if self.rate is not None and request.session is not None and not request.session.over:
                self._go_on(request.session)

    def kept_body(self, request):
        """A list for the body of one of the first full-length answers; None for all others."""
        request.sampled = self.api != "generate" and not request.first_wave and self.granted < KEPT_ANSWERS
        self.granted += request.sampled
        follows = request.session is not None and not self.conversations  # the next turn quotes this answer
        return [] if request.sampled or follows else None

    def _failure(self, response, inside):
        self.errors[response.failure] = self.errors.get(response.failure, 0) + 1
        if inside:
            self.errors_window[response.failure] = self.errors_window.get(response.failure, 0) + 1
        if len(self.examples) < 20 and response.failure not in self.examples:
            detail = "%s: %s" % (response.failure, response.detail)
            self.examples[response.failure] = (detail.replace(self.key, "<the API key>") if self.key else detail)[:300]

    def _account(self, request, response, now, prompt, output, cached, cut=False):
        """Book one request: finished well, failed, or cut at the end of the window (then its usage is unknown)."""
        times, counts = response.times, response.counts
        if not times and response.other_times and output:
            # Every text was empty (held-back bytes): events stand for tokens, and the time of the first text is
            # unknown.
            times, counts = response.other_times, [1] * len(response.other_times)
        chunks = sum(counts)
        ok = response.failure is None and not cut
        if not ok:
            self.chunks_partial += chunks
        else:
            self.tokens_finished += chunks if output is None else output
            self.prompt_finished += prompt or 0
            if output is None:
                self.usage_missing += 1
            elif chunks:
                self.counted_chunks += chunks
                self.counted_tokens += output
        if not self.window_from:
            return
        w0, w1 = self.window_from, self.window_to
        if chunks and times[-1] >= w0:
            # Text that was streamed counts even if the request failed later or was cut: the server did the work.
            # Tokens per chunk come from this request's own usage, else from the average of the run (see summary).
            share = output / float(chunks) if output is not None and ok else None
            self.uncounted.append((times, counts, share, 0))
            if not self.counting:
                self.counting = True
                self.loop.call_soon(self._count_some)
        first = times[0] if times else None
        if (ok and w0 <= now < w1) or (first is not None and (cut or w0 <= first < w1)):
            last = times[-1] if times else None
            ended = None if cut else now
            state = (int(request.first_wave), int(ok), request.max_tokens)
            self.records.append(
                (request.scheduled, request.sent, first, last, ended, chunks, output, prompt, cached, *state)
            )

    def _count_some(self):
        """Count a slice of what has ended: a whole answer of thousands of pieces at once would hold up all other streams."""
        if self.done.is_set():
            return  # the rest is counted at the end
        self._spread(SLICE)
        if self.uncounted:
            self.loop.call_soon(self._count_some)
        else:
            self.counting = False

    def _spread(self, most):
        """Count the next pieces, at most ``most`` of one answer, into the window's parts and the histogram of gaps."""
        times, counts, share, start = self.uncounted.popleft()
        stop = min(len(times), start + most)
        if stop < len(times):
            self.uncounted.appendleft((times, counts, share, stop))
        w0, w1 = self.window_from, self.window_to
        per_bin = SUB_WINDOWS / (w1 - w0)
        tokens, arrivals, itl = self.tokens, self.arrivals, self.itl
        log, step = math.log, math.log(ITL_STEP)
        before = times[start - 1] if start else None
        for t, n in zip(times[start:stop], counts[start:stop]):
            if w0 <= t < w1:
                at = int((t - w0) * per_bin)
                if at >= SUB_WINDOWS:
                    at = SUB_WINDOWS - 1
                if share is None:
                    arrivals[at] += n
                else:
                    tokens[at] += n * share
                self.counted_in_window += n
                if before is not None:
                    gap = t - before
                    key = int(log(gap) / step) if gap > 1e-6 else int(log(1e-6) / step)
                    itl[key] = itl.get(key, 0) + 1
            before = t

    # -- the clock

    async def run(self):
        self.loop = asyncio.get_running_loop()
        self.done = asyncio.Event()
        self.wires = Wires(self.loop) if self.plain else None
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._interrupt)
        try:
            found = await self.loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            self.address = await self._answering(found)
        except OSError as error:
            self.gave_up = "the name %s does not resolve: %s" % (self.host, error)
            self.errors["unreachable"] = 1
            return self.summary()
        await self._read_counters()
        self.began = self.last_good = time.monotonic()
        if self.rate is None:
            for position in range(self.concurrency):
                connection = Connection(self)
                self.connections.append(connection)
                first_wave = position if self.warmup_max else None
                connection.session = self._new_session()
                self._give(connection, self._new_request(self.began, first_wave, connection.session))
        else:
            first = self.began + (self.rows[0][2] / self.scale if self.kind == "trace" else 0.0)
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
            self.counters.append(await asyncio.wait_for(self._metrics_page(), 5.0))
        except (OSError, asyncio.TimeoutError, TimeoutError, asyncio.IncompleteReadError):
            self.counters = []

    async def _metrics_page(self):
        name = self.host if self.tls else None
        reader, writer = await asyncio.open_connection(self.address[4][0], self.port, ssl=self.tls, server_hostname=name)
        try:
            writer.write(self.metrics_request)
            page = b""
            while len(page) < MAX_EVENT_BYTES:
                data = await reader.read(1 << 16)
                if not data:
                    break
                page += data
            head, _, body = page.partition(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n")[0] + b" ":
                raise OSError("no metrics page")
            return _unchunked(body) if b"transfer-encoding: chunked" in head.lower() else body
        finally:
            writer.close()

    async def _ticks(self):
        tick = max(0.002, min(TICK_S, self.bin / 5.0, self.window / 50.0))
        due = checked = told = bin_from = self.began
        texts_before = told_texts = 0
        if not self.warmup_max:
            self._open_window(self.began, "none")
        while not self.done.is_set():
            due += tick
            if self.window_from and due > self.window_to:
                due = self.window_to
            wait = due - time.monotonic()
            await asyncio.sleep(wait if wait > 0 else 0)
            now = time.monotonic()
            lag = now - due
            if self.window_from:
                self.lags.append(max(0.0, lag))
                if now >= self.window_to or self._hopeless(now):
                    return
                if now - self.sub_from >= self.window / SUB_WINDOWS:
                    self.rates.append((self.dialect.texts - self.sub_texts) / (now - self.sub_from))
                    self.sub_from, self.sub_texts = now, self.dialect.texts
            elif now - bin_from >= self.bin:
                self.series.append((self.dialect.texts - texts_before) / (now - bin_from))
                texts_before, bin_from = self.dialect.texts, now
                elapsed = now - self.began
                if elapsed >= self.warmup_min:
                    verdict = steadiness(self.series)
                    if verdict or elapsed >= self.warmup_max:
                        if not self.dialect.texts and elapsed * self.scale >= 60:
                            self._stop("no text came in %.0f s" % (elapsed * self.scale))
                            return
                        self._open_window(now, verdict or "never")
            if lag > tick:
                due = now
            if now - checked >= 0.25:
                checked = now
                self._expire(now)
                self.states.append((now, self.in_flight + len(self.backlog)))
            if now - told >= min(1.0, self.window / 8.0):
                rate = (self.dialect.texts - told_texts) / (now - told) / self.scale
                told, told_texts = now, self.dialect.texts
                self.emit(
                    {
                        "t": "progress",
                        "phase": "window" if self.window_from else "warmup",
                        "elapsed_s": round((now - (self.window_from or self.began)) * self.scale, 2),
                        "chunks_per_s": round(rate, 1),
                        "tokens_per_s": round(rate * self._per_chunk(), 1),
                        "window_s": round(self.window * self.scale, 2),
                        "rates": [round(one / self.scale * self._per_chunk(), 2) for one in self.rates],
                        "in_flight": self.in_flight,
                        "ok": self.finished_ok,
                        "failed": sum(self.errors.values()),
                    }
                )

    def _hopeless(self, now):
        """Whether the first windows already show a rate that the job calls hopeless. Chunks are tokens only once a request
        has told how many it got, and few of them tell nothing."""
        if self.stop_below is None or now - self.window_from < self.window / 3.0 or not self.counted_chunks:
            return False
        texts = self.dialect.texts - self.texts_from
        rate = texts * self._per_chunk() / (now - self.window_from)
        if texts < 50 or rate >= self.stop_below:
            return False
        self.stopped_early = "%.4g tokens/s, below %.4g" % (rate / self.scale, self.stop_below / self.scale)
        return True

    def _open_window(self, now, verdict):
        self.steady = verdict
        self.texts_from = self.sub_texts = self.dialect.texts
        self.window_from, self.window_to, self.sub_from = now, now + self.window, now
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
        self.done.set()

    def _cut(self):
        """End of the window: account for what is in flight and close every connection; a server aborts what nobody
        waits for."""
        self.done.set()
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
                self._account(request, response, now, None, None, None, cut=True)
            if connection.transport is not None:
                connection.transport.abort()
        while self.uncounted:
            self._spread(1 << 30)

    # -- the result

    def _per_chunk(self):
        """Tokens per chunk of the run so far; 1 until a request has ended."""
        return self.counted_tokens / float(self.counted_chunks) if self.counted_chunks else 1.0

    def counted(self):
        """What the server's own counters say about the whole run, warm-up included, beside what came here: tokens of requests
        that ended, and of those that were cut or failed. None where it has no counters."""
        if len(self.counters) != 2:
            return None
        before, after = counters_of(self.counters[0]), counters_of(self.counters[1])
        if after[1] is None or before[1] is None:
            return None
        prompt = None if before[0] is None or after[0] is None else after[0] - before[0]
        return {
            "generated": after[1] - before[1],
            "prompt": prompt,
            "finished": self.tokens_finished,
            "partial": round(self.chunks_partial * self._per_chunk(), 1),
            "prompt_finished": self.prompt_finished,
        }

    def summary(self):
        """Emit the requests and then the summary; the summary is also returned."""
        scale, w0 = self.scale, self.window_from
        fields = "scheduled sent first last ended chunks output prompt cached first_wave ok asked".split()

        def since(t):
            return None if t is None else round((t - w0) * scale, 6)

        for record in self.records:
            self.emit({"t": "r", "v": [since(t) for t in record[:5]] + list(record[5:])})
        measured = max(1e-9, min(self.window_to, self.ended) - w0) if w0 else 0.0
        per_chunk = self._per_chunk() if self.counted_chunks else None
        tokens = [t + a * (per_chunk or 1.0) for t, a in zip(self.tokens, self.arrivals)]
        lags, delays = sorted(self.lags), sorted(self.dialect.delays)
        passed = self.ended - w0 if w0 else 0.0
        repeats = [share for share in map(repeat_share, map(pieces_of, self.kept)) if share is not None]
        out = {
            "t": "summary",
            "version": VERSION,
            "fields": fields,
            "concurrency": self.concurrency,
            "rate_per_s": self.rate / scale if self.rate else None,
            "arrival": self.kind if self.rate else "closed",
            "cpus": self.cpus,
            "counters": self.counted(),
            "time_scale": scale,
            "steady": self.steady,
            "warmup_s": round(((w0 or self.ended) - self.began) * scale, 4),
            "warmup_series": [round(x / scale, 3) for x in self.series[-60:]],
            "warmup_bin_s": self.bin * scale,
            "window_s": round(self.window * scale, 6),
            "measured_s": round(measured * scale, 6),
            "tokens": [round(x, 4) for x in tokens],
            "chunks_window": self.counted_in_window,
            "tokens_estimated": round(sum(self.arrivals) * (per_chunk or 1.0), 2),
            "tokens_per_chunk": per_chunk,
            "chunks_total": self.dialect.texts,
            "repeat_share": round(sum(repeats) / len(repeats), 4) if repeats else None,
            "usage_missing": self.usage_missing,
            "finished_ok": self.finished_ok,
            "sent": self.sent,
            "sent_window": self.sent_window,
            "cut": self.cut,
            "silent_s": [round(one * scale, 3) for one in sorted(self.silent)],
            "reconnects": self.reconnects,
            "errors": self.errors,
            "errors_window": self.errors_window,
            "examples": list(self.examples.values()),
            "gave_up": self.gave_up,
            "interrupted": self.interrupted,
            "stopped_early": self.stopped_early,
            "itl_step": ITL_STEP,
            "itl_ms": sorted(
                (round(ITL_STEP ** (key + 0.5) * 1000 * scale, 6), count) for key, count in self.itl.items()
            ),
            "cpu_share": round(self.cpu / passed, 4) if passed > 0 else None,
            "lag_mean_real_ms": round(1000 * sum(lags) / len(lags), 4) if lags else None,
            "lag_p99_real_ms": round(1000 * lags[int(0.99 * (len(lags) - 1))], 4) if lags else None,
            "lag_max_real_ms": round(1000 * lags[-1], 4) if lags else None,
            "delay_real_ms": [round(1000 * delays[int(q * (len(delays) - 1))], 4) for q in (0.5, 0.9, 0.99, 1)]
            if delays
            else None,
            "clock_step_real_s": round(self.clock_step, 3),
            "in_flight": [[since(t), n] for t, n in self.states if w0 and t >= w0] if self.rate else [],
            "stamps": "kernel" if self.wires is not None and self.wires.told else "loop",
            "loop": type(self.loop).__module__.split(".")[0],
            "python": "%d.%d.%d" % sys.version_info[:3],
        }
        self.emit(out)
        return out


def _unchunked(body):
    """A body in chunks, put together."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        count = int(size.split(b";")[0] or b"0", 16)
        if not count:
            break
        parts.append(body[:count])
        body = body[count + 2 :]
    return b"".join(parts)


def _boot_clock():
    """Seconds since boot with suspend included (Linux), so that a sleep in the window shows."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


class WakeClock(selectors.DefaultSelector):
    """Remembers when it last returned. What was readable then had come by then: with 64 streams in step the last one
    is read a millisecond later, and that millisecond is ours, not the server's. ``wall``: what the wall clock, which the
    kernel stamps by, is ahead of the monotonic one."""

    def __init__(self):
        super().__init__()
        self.woke, self.wall = time.monotonic(), time.time() - time.monotonic()

    def select(self, timeout=None):
        ready = super().select(timeout)
        self.woke = time.monotonic()
        self.wall = time.time() - self.woke
        return ready

    def __call__(self):
        return self.woke


class BatchClock:
    """The same for a loop whose waiting cannot be watched: the time of the first read of each turn of the loop."""

    def __init__(self, loop):
        self.loop, self.at, self.wall = loop, None, 0.0

    def forget(self):
        self.at = None

    def __call__(self):
        if self.at is None:
            self.at = time.monotonic()
            self.wall = time.time() - self.at
            self.loop.call_soon(self.forget)  # runs after the reads of this turn
        return self.at


def _emit(value):
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    if value["t"] != "r":
        sys.stdout.flush()


def run_job(job, emit=_emit):
    """Run one job to its end and return the summary (also emitted). Raises ValueError for a job that makes no sense."""
    try:
        import uvloop  # faster by half; never required

        loop = uvloop.new_event_loop()
        clock = BatchClock(loop)
    except ImportError:
        clock = WakeClock()
        loop = asyncio.SelectorEventLoop(clock)
    generator = Generator(job, emit, clock)
    if generator.cpus == "auto":
        generator.cpus = cpus_away_from(generator.port)
    if generator.cpus:
        os.sched_setaffinity(0, set(generator.cpus))
    try:
        return loop.run_until_complete(generator.run())
    finally:
        left = asyncio.all_tasks(loop)  # connections that were still being made when the window ended
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if generator.wires is not None:
            generator.wires.close()
        loop.close()


def main():
    import gc

    line = sys.stdin.buffer.readline()
    try:
        try:
            job = json.loads(line.decode("utf-8"))
        except ValueError:
            job = json.loads((line + sys.stdin.buffer.read()).decode("utf-8"))
        gc.disable()  # a collection in the window is a pause in every stream; one run makes little garbage in cycles
        out = run_job(job)
    except (ValueError, KeyError, TypeError) as error:
        _emit({"t": "refused", "why": "%s: %s" % (type(error).__name__, error)})
        return 2
    except BrokenPipeError:  # nobody reads the result any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return 1 if out["gave_up"] else 0


if __name__ == "__main__":
    sys.exit(main())
