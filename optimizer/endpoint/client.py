"""Asks a server for its health, model, settings and metrics, and for one generation (the only importer of httpx).
Proxies, redirects, compression and unbounded bodies are off; a status other than 200 is an answer like any other, and
so is "nobody answered". It measures nothing: load is the load generator's business."""

import asyncio
import json
import ssl
import time
from pathlib import Path
from typing import Any

import httpx

from optimizer.model.base import FiniteFloat, Frozen

BODY_CAP_BYTES = 16 << 20


class Answer(Frozen):
    """``status`` is None when there was no HTTP answer; ``error`` then says why: ``refused``, ``timeout``, ``closed``,
    ``too_large``, ``protocol``. ``text`` is what arrived, decoded with replacement."""

    status: int | None
    text: str
    error: str | None
    duration_s: FiniteFloat

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.error is None


class JsonAnswer(Frozen):
    """``value`` is None unless a 200 carried JSON; ``error`` is ``not_json`` when it carried something else."""

    status: int | None
    value: Any
    error: str | None
    duration_s: FiniteFloat

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.error is None


class Generation(Frozen):
    """One completed request. ``ok`` needs at least one produced token: a reverse proxy that answers 200 for everything
    is no server."""

    ok: bool
    status: int | None
    text: str
    model: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    error: str | None
    duration_s: FiniteFloat


class Endpoint:
    """A server's control plane. ``base_url`` like ``http://127.0.0.1:30000``; ``api_key`` is sent as a bearer token;
    ``ca_file`` holds the certificates that vouch for an https server, where the system's do not."""

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout_s: float = 10, ca_file: str | Path | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        headers = {"accept-encoding": "identity"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        # A fresh connection for each request: after a relaunch a kept one would reach the dead server's socket.
        self._client = httpx.AsyncClient(
            trust_env=False, follow_redirects=False, headers=headers, limits=httpx.Limits(max_keepalive_connections=0),
            verify=ssl.create_default_context(cafile=ca_file) if ca_file else True,
        )  # fmt: skip

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> Answer:
        began = time.monotonic()
        limit_s = timeout_s or self.timeout_s
        status, error = None, None
        received = bytearray()
        try:
            # httpx limits the silence between two bytes; a server that trickles needs a limit for the whole answer.
            async with asyncio.timeout(limit_s):
                content = json.dumps(body).encode("utf-8") if body is not None else None
                kind = {"content-type": "application/json"} if body is not None else {}
                async with self._client.stream(
                    method, self.base_url + path, content=content, headers=kind, timeout=limit_s
                ) as response:
                    status = response.status_code
                    async for piece in response.aiter_raw():
                        received += piece
                        if len(received) > BODY_CAP_BYTES:
                            error = "too_large"
                            break
        except httpx.ConnectError:
            error = "refused"
        except (TimeoutError, httpx.TimeoutException):
            error = "timeout"
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            error = "closed"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            error = "protocol"
        return Answer(
            status=status,
            text=bytes(received[:BODY_CAP_BYTES]).decode("utf-8", "replace"),
            error=error,
            duration_s=time.monotonic() - began,
        )

    async def get_text(self, path: str, timeout_s: float | None = None) -> Answer:
        return await self._send("GET", path, timeout_s=timeout_s)

    async def get_json(self, path: str, timeout_s: float | None = None) -> JsonAnswer:
        return _as_json(await self._send("GET", path, timeout_s=timeout_s))

    async def post_json(self, path: str, body: Any, timeout_s: float | None = None) -> JsonAnswer:
        return _as_json(await self._send("POST", path, body, timeout_s))

    async def served_models(self) -> tuple[str, ...] | None:
        """Names under ``/v1/models``; None when there is no such answer."""
        answer = await self.get_json("/v1/models")
        entries = answer.value.get("data") if answer.ok and isinstance(answer.value, dict) else None
        if not isinstance(entries, list):
            return None
        return tuple(str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry)

    async def generate(
        self, model: str, prompt: str = "The capital of France is", max_tokens: int = 4, timeout_s: float = 60
    ) -> Generation:
        """One greedy, unstreamed completion: the proof that weights are loaded and the engine works."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": False}
        answer = await self.post_json("/v1/completions", body, timeout_s)
        value = answer.value if isinstance(answer.value, dict) else {}
        choices, usage = value.get("choices"), value.get("usage")
        first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        usage = usage if isinstance(usage, dict) else {}
        text = first.get("text") if isinstance(first.get("text"), str) else ""
        completed = _count(usage.get("completion_tokens"))
        produced = bool(first) and (completed or 0) > 0
        return Generation(
            ok=answer.ok and produced,
            status=answer.status,
            text=text or "",
            model=value["model"] if isinstance(value.get("model"), str) else None,
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=completed,
            error=answer.error or (None if produced or answer.status != 200 else "no_tokens"),
            duration_s=answer.duration_s,
        )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _as_json(answer: Answer) -> JsonAnswer:
    value, error = None, answer.error
    if answer.ok:
        try:
            value = json.loads(answer.text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            error = "not_json"
    return JsonAnswer(status=answer.status, value=value, error=error, duration_s=answer.duration_s)
