"""The control plane against hostile and broken servers: everything is an answer, nothing hangs, nothing is followed."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from optimizer.endpoint.client import BODY_CAP_BYTES, Endpoint

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[Endpoint]]]:
    """serve(handler) -> an endpoint on a raw server whose handler gets the request and writes bytes."""
    servers: list[asyncio.Server] = []
    endpoints: list[Endpoint] = []

    async def start(handler: Handler) -> Endpoint:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    head += await reader.readexactly(int(line.split(b":")[1]))
            try:
                await handler(head, writer)
                await writer.drain()
            except ConnectionError:
                return
            finally:
                writer.close()

        servers.append(await asyncio.start_server(connected, "127.0.0.1", 0))
        endpoints.append(Endpoint(f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}/", timeout_s=2))
        return endpoints[-1]

    yield start
    for endpoint in endpoints:
        await endpoint.close()
    for server in servers:
        server.close()


def reply(body: bytes, status: str = "200 OK", headers: bytes = b"") -> Handler:
    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n" % (status.encode(), len(body), headers) + body)

    return handler


async def test_text_json_and_status(serve: Callable) -> None:
    endpoint = await serve(reply(b'{"a": [1, 2.5, null]}'))
    text = await endpoint.get_text("/metrics")
    assert text.ok and text.status == 200 and text.text == '{"a": [1, 2.5, null]}' and text.duration_s < 2
    assert (await endpoint.get_json("/x")).value == {"a": [1, 2.5, None]}
    endpoint = await serve(reply(b"loading", "503 Service Unavailable"))
    answer = await endpoint.get_text("/health")
    assert (answer.ok, answer.status, answer.text, answer.error) == (False, 503, "loading", None)
    assert (await endpoint.get_json("/health")).value is None


@pytest.mark.fault("H32")
@pytest.mark.parametrize("body", [b"", b"not json", b"{", b"NaN", b'{"a": Infinity}', b"[" * 200_000, b"\xff"])
async def test_what_is_not_json_is_an_error_not_an_exception(serve: Callable, body: bytes) -> None:
    answer = await (await serve(reply(body))).get_json("/server_info")
    assert (answer.ok, answer.status, answer.value, answer.error) == (False, 200, None, "not_json")


async def test_nobody_there() -> None:
    async with Endpoint("http://127.0.0.1:1") as endpoint:
        assert (await endpoint.get_text("/health")).error == "refused"
    async with Endpoint("http://no-such-host.invalid") as endpoint:
        assert (await endpoint.get_text("/health")).error == "refused"
    async with Endpoint("nonsense") as endpoint:
        assert (await endpoint.get_text("/health")).error == "protocol"


@pytest.mark.fault("H33")
async def test_redirects_are_not_followed(serve: Callable) -> None:
    asked: list[bytes] = []

    async def elsewhere(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(head)

    other = await serve(elsewhere)
    answer = await (await serve(reply(b"", "302 Found", b"Location: %s/x\r\n" % other.base_url.encode()))).get_text(
        "/health"
    )
    assert answer.status == 302 and not answer.ok and asked == []


@pytest.mark.fault("H33")
async def test_compression_is_not_asked_for_and_a_bomb_is_not_unpacked(serve: Callable) -> None:
    heads: list[bytes] = []
    bomb = gzip.compress(b"0" * (4 * BODY_CAP_BYTES))

    async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head.lower())
        await reply(bomb, headers=b"Content-Encoding: gzip\r\n")(head, writer)

    answer = await (await serve(handler)).get_text("/metrics")
    assert b"accept-encoding: identity" in heads[0]
    assert len(answer.text) <= len(bomb)


@pytest.mark.fault("H32", "H33")
async def test_endless_body_is_cut(serve: Callable) -> None:
    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    answer = await (await serve(handler)).get_text("/metrics", timeout_s=20)
    assert (answer.error, len(answer.text), answer.ok) == ("too_large", BODY_CAP_BYTES, False)


@pytest.mark.fault("H33")
@pytest.mark.parametrize("drip", [b"x", b"0\r\n"])
async def test_a_trickle_hits_the_deadline(serve: Callable, drip: bytes) -> None:
    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(drip)
            await writer.drain()
            await asyncio.sleep(0.05)

    began = time.monotonic()
    answer = await (await serve(handler)).get_text("/health", timeout_s=0.4)
    assert answer.error == "timeout" and answer.status == 200 and time.monotonic() - began < 2


@pytest.mark.fault("H33")
async def test_headers_without_end_and_silence(serve: Callable) -> None:
    async def headers(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X: " + b"y" * 1000 + b"\r\n")
            await writer.drain()

    assert (await (await serve(headers)).get_text("/health")).error in ("closed", "timeout", "protocol")

    async def silence(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    assert (await (await serve(silence)).get_text("/health", timeout_s=0.3)).error == "timeout"

    async def hang_up(_: bytes, writer: asyncio.StreamWriter) -> None:
        return

    assert (await (await serve(hang_up)).get_text("/health")).error == "closed"

    async def short(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    answer = await (await serve(short)).get_text("/health")
    assert (answer.error, answer.text) == ("closed", "abc")


async def test_proxy_variables_are_ignored(serve: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert (await (await serve(reply(b"fine"))).get_text("/health")).text == "fine"


async def test_a_relaunched_server_is_reached_afresh(serve: Callable) -> None:
    connections = 0

    async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reply(b"x")(head, writer)

    endpoint = await serve(handler)
    for _ in range(3):
        await endpoint.get_text("/health")
    assert connections == 3


def completion(**changes: object) -> bytes:
    body: dict = {
        "model": "tiny", "choices": [{"text": " Paris", "index": 0}], "usage": {"prompt_tokens": 5, "completion_tokens": 4},
    }  # fmt: skip
    return json.dumps({**body, **changes}).encode()


async def test_generation(serve: Callable) -> None:
    asked: list[dict] = []

    async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append({**json.loads(head.split(b"\r\n\r\n", 1)[1]), "auth": b"Bearer key" in head})
        await reply(completion())(head, writer)

    plain = await serve(handler)
    async with Endpoint(plain.base_url, api_key="key") as endpoint:
        done = await endpoint.generate("tiny", "Hello", max_tokens=4)
    assert done.ok and (done.text, done.model, done.prompt_tokens, done.completion_tokens) == (" Paris", "tiny", 5, 4)
    assert asked == [
        {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "temperature": 0, "stream": False, "auth": True}
    ]


@pytest.mark.fault("F27")
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"OK", "not_json"),  # a proxy that answers 200 for everything
        (b"{}", "no_tokens"),
        (b"[]", "no_tokens"),
        (completion(choices=[]), "no_tokens"),
        (completion(choices="x"), "no_tokens"),
        (completion(usage=None), "no_tokens"),
        (completion(usage={"completion_tokens": 0}), "no_tokens"),
        (completion(usage={"completion_tokens": "4"}), "no_tokens"),
        (completion(usage={"completion_tokens": True}), "no_tokens"),
    ],
)
async def test_an_answer_without_tokens_is_no_generation(serve: Callable, body: bytes, error: str) -> None:
    done = await (await serve(reply(body))).generate("tiny")
    assert (done.ok, done.error) == (False, error)


async def test_served_models(serve: Callable) -> None:
    assert await (await serve(reply(b'{"data": [{"id": "s1-3"}, {"x": 1}, 4]}'))).served_models() == ("s1-3",)
    assert await (await serve(reply(b'{"data": null}'))).served_models() is None
    assert await (await serve(reply(b"x", "404 Not Found"))).served_models() is None
