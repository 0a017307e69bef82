"""HTTP/1.1 as the simulated engine serves it: one ``asyncio.Protocol`` per connection, keep-alive, chunked server-sent
events. Responsible for bytes in and bytes out; what a request costs is the scheduler's business. Text is made of
precomputed pieces: no JSON is built per token."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
import zlib
from collections.abc import Callable
from typing import Any

from .scheduler import BLOCK_TOKENS, Request

# A long stream of made-up words: an answer is a stretch of it, so that its text does not repeat itself as an answer made of
# a few fixed phrases would (drafts from a text's own past would then look worth while).
_RANDOM = random.Random(20261)
_WORDS = [
    (" " + "".join(_RANDOM.choice("bdfgklmnprst") + _RANDOM.choice("aeiou") for _ in range(_RANDOM.randint(1, 3)))).encode() for _ in range(800)
]
_STREAM = [_RANDOM.choice(_WORDS) for _ in range(1 << 15)]
LONGEST_WORD = 10  # characters of one token here; longer words cost more
TEMPLATE_TOKENS = 13  # what the chat template puts before every conversation
MAX_BODY = 64 << 20
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def text_of(tokens: int, start: int = 0) -> bytes:
    """A text of that many tokens from place ``start`` of the stream, JSON-safe."""
    place = start % len(_STREAM)
    pieces = _STREAM[place : place + tokens]
    while len(pieces) < tokens:
        pieces += _STREAM[: tokens - len(pieces)]
    return b"".join(pieces)


class Wording:
    """What a server answers: greedy decoding gives one prompt one text, as long as weights, KV cache and kernels are what
    they were. ``lossy`` names what about this launch is not (a quantised KV cache); nine prompts of ten are answered
    differently then, from some token on. ``chance`` of a request to take the other way where the model is undecided, which
    about one token in thirty is; ``kernels`` names what computes the last bits, and decides those ties otherwise."""

    def __init__(self, lossy: str = "", kernels: str = "", chance: float = 0.0) -> None:
        self.lossy, self.kernels, self.chance = lossy, kernels, chance
        self._random = random.Random(f"{lossy}/{kernels}")

    def pieces(self, prompt: str, tokens: int) -> list[bytes]:
        place = zlib.crc32(prompt.encode()) % len(_STREAM)
        leaves = self._leaves(prompt, tokens)
        found: list[bytes] = []
        for index in range(tokens):
            if index in leaves:
                place = self._other(place, leaves[index])
            found.append(_STREAM[(place + index) % len(_STREAM)])
        return found

    def runners_up(self, prompt: str, tokens: int) -> list[bytes]:
        """The second choice at each place of the text that the exact model gives."""
        place = zlib.crc32(prompt.encode()) % len(_STREAM)
        return [_STREAM[(self._other(place, "tie") + index) % len(_STREAM)] for index in range(tokens)]

    @staticmethod
    def _other(place: int, why: str) -> int:
        return (place + 1 + zlib.crc32(f"{why}/{place}".encode())) % len(_STREAM)

    def _leaves(self, prompt: str, tokens: int) -> dict[int, str]:
        """Where the answer leaves the text that the exact model gives, and what for."""
        leaves: dict[int, str] = {}
        if self.lossy:
            drawn = zlib.crc32(f"{self.lossy}/{prompt}".encode())
            if drawn % 10:
                leaves[2 + drawn // 10 % 20] = self.lossy
        for index in range(tokens):
            if self.margin(prompt, index) < TIE_NATS:
                other = self.kernels and zlib.crc32(f"{self.kernels}/{prompt}/{index}".encode()) % 2
                if other or (self.chance and self._random.random() < self.chance):
                    leaves.setdefault(index, "tie")
        return leaves

    @staticmethod
    def margin(prompt: str, index: int) -> float:
        """Nats between the chosen token and the next one."""
        drawn = zlib.crc32(f"margin/{prompt}/{index}".encode()) % 6000
        return drawn / 1000.0


TIE_NATS = 0.2


def tokenize(prompt: Any) -> tuple[int, list[int]]:
    """(tokens, hashes of successive blocks). A prompt is text or a list of token ids."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        units: list[Any] = prompt
    else:
        if isinstance(prompt, list):
            prompt = " ".join(str(part) for part in prompt)
        units = []
        for word in str(prompt).split():
            if len(word) <= LONGEST_WORD:
                units.append(word)
            else:
                units.extend(word[i : i + LONGEST_WORD] for i in range(0, len(word), LONGEST_WORD))
    blocks: list[int] = []
    state = 0
    for start in range(0, len(units) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        state = hash((state, *units[start : start + BLOCK_TOKENS]))
        blocks.append(state)
    return max(1, len(units)), blocks


class Stream:
    """The answer to one generation request: gathers tokens and turns them into events when it is flushed."""

    __slots__ = ("api", "cached_details", "connection", "continuous", "created", "done", "head", "identity", "include_usage",
                 "interval", "logprobs", "model", "pending", "place", "prompt", "request", "room", "started", "streaming", "tail", "total", "wants_text", "wording")  # fmt: skip

    def __init__(
        self, connection: Connection, api: str, body: dict[str, Any], model: str, interval: int, cache_report: bool
    ) -> None:
        self.connection, self.api, self.model = connection, api, model
        self.identity, self.created = uuid.uuid4().hex, int(time.time())
        self.place = int(self.identity[:8], 16)
        # Streams of load take any stretch of the words: working an answer out per token would cost the clock too much.
        self.prompt, self.wording = "", Wording()
        self.logprobs = api == "completions" and bool(body.get("logprobs"))
        options = body.get("stream_options") or {}
        self.streaming = bool(body.get("stream"))
        self.include_usage = bool(options.get("include_usage"))
        self.continuous = bool(options.get("continuous_usage_stats"))
        self.interval, self.cached_details = interval, cache_report
        self.pending = self.total = 0
        self.started = self.done = False
        self.request: Request | None = None
        self.room: int | None = None  # of a split: where the other side fetches the KV cache
        name = json.dumps(model)
        kind = "chat.completion.chunk" if api == "chat" else "text_completion"
        opening = '"delta":{"role":null,"content":"' if api == "chat" else '"text":"'
        closing = '","reasoning_content":null,"tool_calls":null}' if api == "chat" else '"'
        self.head = (
            f'data: {{"id":"{self.identity}","object":"{kind}","created":{self.created},"model":{name},"choices":[{{"index":0,{opening}'
        ).encode()
        self.tail = (closing + ',"logprobs":null,"finish_reason":').encode()

    def usage(self) -> dict[str, Any]:
        request = self.request
        assert request is not None
        details = {"cached_tokens": request.cached} if self.cached_details else None
        return {
            "prompt_tokens": request.prompt_tokens,
            "total_tokens": request.prompt_tokens + self.total,
            "completion_tokens": self.total,
            "prompt_tokens_details": details,
            "reasoning_tokens": 0,
        }

    def flush(self) -> None:
        """Write what is due. Called at most once per tick."""
        if not self.streaming:
            if self.done:
                self.connection.answer(200, self.whole())
            return
        if self.pending < self.interval and not self.done:
            return
        parts: list[bytes] = []
        if not self.started:
            self.started = True
            self.connection.begin_stream()
            if self.api == "chat":
                role = self.head.replace(b'"role":null', b'"role":"assistant"')
                parts.append(role + self.tail + b'null,"matched_stop":null}],"usage":null}\n\n')
        self.total += self.pending
        if self.api == "generate":
            parts.append(b"data: " + json.dumps(self.native()).encode() + b"\n\n")
        elif self.pending or self.done:
            end = b'null,"matched_stop":null}],"usage":'
            if self.done:
                end = f'"{self.reason()}","matched_stop":null}}],"usage":'.encode()
            usage = json.dumps(self.usage(), separators=(",", ":")).encode() if self.continuous else b"null"
            text = text_of(self.pending, self.place + self.total - self.pending)
            parts.append(self.head + text + self.tail + end + usage + b"}\n\n")
        self.pending = 0
        if self.done:
            if self.include_usage and self.api != "generate":
                kind = "chat.completion.chunk" if self.api == "chat" else "text_completion"
                last = {
                    "id": self.identity,
                    "object": kind,
                    "created": self.created,
                    "model": self.model,
                    "choices": [],
                    "usage": self.usage(),
                }
                parts.append(b"data: " + json.dumps(last, separators=(",", ":")).encode() + b"\n\n")
            parts.append(b"data: [DONE]\n\n")
        self.connection.stream_bytes(b"".join(parts), self.done)

    def reason(self) -> str:
        request = self.request
        return "stop" if request and request.stop_after and request.stop_after < request.max_tokens else "length"

    def native(self) -> dict[str, Any]:
        request = self.request
        assert request is not None
        kind = self.reason()
        finish = {"type": kind, "length": self.total} if kind == "length" else {"type": kind, "matched": 0}
        return {
            "text": text_of(self.total, self.place).decode(),
            "output_ids": [],
            "meta_info": {
                "id": self.identity,
                "finish_reason": finish if self.done else None,
                "prompt_tokens": request.prompt_tokens,
                "weight_version": "default",
                "completion_tokens": self.total,
                "cached_tokens": request.cached,
                "e2e_latency": max(0.0, request.finished_s - request.arrival_s) if self.done else None,
            },
        }

    def whole(self) -> dict[str, Any]:
        self.total += self.pending
        self.pending = 0
        if self.api == "generate":
            return self.native()
        reason = self.reason()
        pieces = [piece.decode() for piece in self.wording.pieces(self.prompt, self.total)]
        text = "".join(pieces)
        base = {
            "id": self.identity,
            "created": self.created,
            "model": self.model,
            "usage": self.usage(),
            "metadata": {"weight_version": "default"},
        }
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason, "matched_stop": None}
        if self.api == "chat":
            message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
            return {**base, "object": "chat.completion", "choices": [{**choice, "message": message}]}
        if self.logprobs:
            margins = [self.wording.margin(self.prompt, index) for index in range(self.total)]
            others = [piece.decode() for piece in self.wording.runners_up(self.prompt, self.total)]
            choice["logprobs"] = {
                "tokens": pieces, "token_logprobs": [-0.05] * self.total, "text_offset": [0] * self.total,
                "top_logprobs": [{other: -0.05 - margin, piece: -0.05} for piece, other, margin in zip(pieces, others, margins, strict=True)],
            }  # fmt: skip
        return {**base, "object": "text_completion", "choices": [{**choice, "text": text}]}


class Connection(asyncio.Protocol):
    """Parses requests, one at a time, and hands them to ``handle(connection, method, path, body)``."""

    def __init__(self, handle: Callable[[Connection, str, str, bytes], None], opened: set[Connection]) -> None:
        self._handle, self._opened = handle, opened
        self._buffer = b""
        self._body_left = -1
        self._method = self._target = ""
        self.headers: dict[str, str] = {}
        self.transport: asyncio.Transport | None = None
        self.peer = "127.0.0.1:0"
        self.busy = False
        self.served = 0
        self.answered = 0.0
        self.prompt: bool | None = None  # does this client send its next request as soon as it has an answer?
        self.close_after = False
        self.stream: Stream | None = None
        self.report: Callable[[Connection, int], None] | None = None
        self.status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        host, port = (transport.get_extra_info("peername") or ("127.0.0.1", 0))[:2]
        self.peer = f"{host}:{port}"
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        self.transport = None
        if self.stream is not None and self.stream.request is not None:
            self.stream.request.aborted = True
            self.stream = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        while not self.busy and self.transport is not None:
            if self._body_left < 0:
                end = self._buffer.find(b"\r\n\r\n")
                if end < 0:
                    if len(self._buffer) > 65536:
                        self.transport.close()
                    return
                lines = self._buffer[:end].decode("latin-1").split("\r\n")
                self._buffer = self._buffer[end + 4 :]
                pieces = lines[0].split(" ")
                if len(pieces) != 3:
                    self.transport.close()
                    return
                self._method, self._target = pieces[0], pieces[1]
                self.headers = {}
                for line in lines[1:]:
                    name, _, value = line.partition(":")
                    self.headers[name.strip().lower()] = value.strip()
                length = self.headers.get("content-length", "0")
                self._body_left = int(length) if length.isdigit() else 0
                if self._body_left > MAX_BODY:
                    self.transport.close()
                    return
                connection = self.headers.get("connection", "").lower()
                self.close_after = connection == "close" or (pieces[2] == "HTTP/1.0" and connection != "keep-alive")
                if self.headers.get("expect", "").lower() == "100-continue":
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if len(self._buffer) < self._body_left:
                return
            body, self._buffer = self._buffer[: self._body_left], self._buffer[self._body_left :]
            self._body_left = -1
            self.busy = True
            self._handle(self, self._method, self._target.split("?")[0], body)

    # --- answers ------------------------------------------------------------------------------------------------

    def answer(self, status: int, body: Any = None, content_type: str = "application/json") -> None:
        data = (
            b""
            if body is None
            else body
            if isinstance(body, bytes)
            else json.dumps(body, separators=(",", ":")).encode()
        )
        self._started(status)
        kind = f"content-type: {content_type}\r\n" if data else ""
        close = "connection: close\r\n" if self.close_after else ""
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\nserver: uvicorn\r\n{kind}{close}content-length: {len(data)}\r\n\r\n"
        if self.transport is not None:
            self.transport.write(head.encode() + data)
        self._finished()

    def begin_stream(self) -> None:
        self._started(200)
        if self.transport is not None:
            close = b"connection: close\r\n" if self.close_after else b""
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                + close
                + b"transfer-encoding: chunked\r\n\r\n"
            )

    def stream_bytes(self, data: bytes, last: bool) -> None:
        if self.transport is not None:
            self.transport.write(b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b""))
        if last:
            self._finished()

    def _started(self, status: int) -> None:
        self.status = status
        if self.report is not None:
            self.report(self, status)

    def _finished(self) -> None:
        self.stream = None
        self.busy = False
        if self.close_after and self.transport is not None:
            self.transport.close()
            return
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._next)

    @property
    def request_line(self) -> tuple[str, str]:
        return self._method, self._target
