"""The slow, obvious reader of a streamed response: it waits for the last byte, then reads from the start, one rule at a time.

It shares no code with the load generator; whatever it says about a response is what the fast reader must say, however the bytes were
cut on their way.
"""

import json
import re
from typing import Any


class Bad(Exception):
    def __init__(self, kind: str) -> None:
        self.kind = kind


def read(raw: bytes, closed: bool) -> dict[str, Any]:
    """failure class or None, number of events with text, usage triple, [DONE] seen, keep-alive."""
    out: dict[str, Any] = {"failure": None, "texts": 0, "usage": (None, None, None)}
    try:
        body = _body(raw, closed)
        events = _events(body)
    except Bad as bad:
        out["failure"] = bad.kind
        return out
    done = False
    first_other = None
    last_text = None
    others = []
    for data in events:
        if data.strip() == b"[DONE]":
            done = True
        elif re.search(rb'"(text|content|reasoning_content|reasoning)":\s*"[^"]', data):
            out["texts"] += 1
            last_text = data
        else:
            others.append(data)
            first_other = first_other or data
    if not done:
        out["failure"] = "truncated"
        return out
    told: list[tuple[Any, ...]] = []
    for data in ([last_text] if last_text else []) + others:
        try:
            value = json.loads(data)
        except ValueError:
            out["failure"] = "bad_sse"
            return out
        if not isinstance(value, dict):
            out["failure"] = "bad_sse"
            return out
        if value.get("error") or value.get("object") == "error":
            out["failure"] = "stream_error"
            return out
        usage = value.get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            told.append((usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens")))
        if value.get("meta_info"):
            meta = value["meta_info"]
            told.append(tuple(meta.get(k) for k in ("prompt_tokens", "completion_tokens", "cached_tokens")))
    if told:
        out["usage"] = sorted(told, key=lambda one: -1 if one[1] is None else one[1])[-1]  # of equals the last
    return out


def _body(raw: bytes, closed: bool) -> bytes:
    while True:
        head, blank, raw = raw.partition(b"\r\n\r\n")
        if not blank:
            # Nothing that could begin a response is bad; the beginning of one, cut off, is truncated.
            raise Bad("bad_http" if head[:7] != b"HTTP/1."[: len(head[:7])] else "truncated" if head else "reset")
        lines = head.decode("latin-1").split("\r\n")
        if not re.match(r"HTTP/1\.[01] [1-5]\d\d( |$)", lines[0]):
            raise Bad("bad_http")
        status = int(lines[0][9:12])
        if any(":" not in line for line in lines[1:]):
            raise Bad("bad_http")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        if status >= 200:
            break
    if status != 200:
        raise Bad(f"http_{status}")
    if headers.get("content-encoding", "identity") not in ("", "identity"):
        raise Bad("bad_encoding")
    if not headers.get("content-type", "").startswith("text/event-stream"):
        raise Bad("bad_sse")
    if "chunked" in headers.get("transfer-encoding", ""):
        return _unchunk(raw)
    if "content-length" in headers:
        if not re.fullmatch(r"\d{1,15}", headers["content-length"]):
            raise Bad("bad_http")
        length = int(headers["content-length"])
        if len(raw) < length:
            _events(raw, partial=True)
            raise Bad("truncated")
        return raw[:length]
    return raw


def _unchunk(raw: bytes) -> bytes:
    body = b""
    while True:
        line, crlf, rest = raw.partition(b"\r\n")
        if not crlf:
            bad = len(raw) > 256
            _events(body, partial=True)
            raise Bad("bad_http" if bad else "truncated")
        if not re.fullmatch(rb"[0-9a-fA-F]{1,15}[ \t]*(;.*)?", line):
            _events(body, partial=True)
            raise Bad("bad_http")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        body += rest[:size]
        if len(rest) < size + 2:
            _events(body, partial=True)
            raise Bad("truncated")
        if rest[size : size + 2] != b"\r\n":
            _events(body, partial=True)
            raise Bad("bad_http")
        raw = rest[size + 2 :]
    while True:
        line, crlf, rest = rest.partition(b"\r\n")
        if not crlf:
            _events(body, partial=True)
            raise Bad("truncated")
        if not line:
            return body


def _events(body: bytes, partial: bool = False) -> list[bytes]:
    body = body.replace(b"\r\n", b"\n")
    if partial:
        body = body[: body.rfind(b"\n\n") + 2] if b"\n\n" in body else b""
    events = []
    for block in re.split(rb"\n\n+", body.strip() if not partial else body):
        data = []
        for line in block.split(b"\n"):
            if not line or line.startswith(b":"):
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                if line == b"data":
                    continue
                data.append(value[1:] if value.startswith(b" ") else value)
            elif field not in (b"event", b"id", b"retry"):
                raise Bad("bad_sse")
        if data:
            events.append(b"\n".join(data))
    return events
