"""What a person can get wrong with `optimize bench`, and what a server can be that is none: one clear message, the documented exit
code, no traceback, no hang."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from optimizer.cli import main
from tests.ports import free_port


def bench(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words])


def refused(result: Result, code: int, *said: str) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output and len(result.output) < 4000
    assert "pydantic" not in result.output, result.output
    for text in said:
        assert text in result.output, result.output


@pytest.fixture
def closed_port() -> int:
    return free_port()


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://user:secret-word@x", "file:///etc/passwd", "http://x:99999", "http://x?key=1"])
def test_addresses(url: str) -> None:
    result = bench(url)
    refused(result, 2)
    assert "secret-word" not in result.output


@pytest.mark.parametrize(
    "words",
    [("--concurrency", "0"), ("--concurrency", "1,x"), ("--concurrency", "1.5"), ("--concurrency", ""), ("--rate", "-1"), ("--rate", "nan"), ("--rate", "inf"),
     ("--rate", "1", "--concurrency", "1"), ("--knee",), ("--knee", "--target", "1000tps"), ("--target", "fast"), ("--target", "4goodput"), ("--slo", "1000tps"), ("--slo", "ttft.p99<1s"),
     ("--plot", "x.png"), ("--window", "0"), ("--window", "nan"), ("--api", "soap"), ("--workload", "nowhere.toml"), ("--ca", "nowhere.pem"),
     ("--knee", "--against", "http://x", "--target", "1tps"), ("--prompt-tokens", "0"), ("--host", "localhost")],
)  # fmt: skip
def test_options(words: tuple[str, ...]) -> None:
    refused(bench("http://127.0.0.1:1", *words), 2)


def test_neither_address_nor_host() -> None:
    refused(bench(), 2, "--host", "http://")
    refused(bench("--host", "sim:h200-7b"), 2, "simulated")


def test_nobody_answers(closed_port: int) -> None:
    refused(bench(f"http://127.0.0.1:{closed_port}"), 4, "Nobody answers", "refused")


@pytest.fixture
def babbler() -> Iterator[tuple[int, list[bytes]]]:
    """Answers every connection with the bytes that the test puts into the list."""
    said: list[bytes] = []
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(said[0])

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1], said
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


@pytest.mark.parametrize(
    ("answer", "code"),
    [(b"SSH-2.0-OpenSSH_9.2\r\n", 4), (b"", 4), (JSON % (2, b"{}"), 2), (JSON % (3, b"[1]"), 2), (JSON % (5, b"oops!"), 2), (JSON % (11, b'{"data": 7}'), 2),
     (JSON % (37, b'{"data": [{"id": "a"}, {"id": "b"}]} '), 2), (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", 2),
     (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", 2), (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 2)],
)  # fmt: skip
def test_servers_that_are_none(babbler: tuple[int, list[bytes]], answer: bytes, code: int) -> None:
    port, said = babbler
    said.append(answer)
    refused(bench(f"http://127.0.0.1:{port}"), code)


def test_a_server_that_only_knows_its_name_is_measured_and_said_to_be_invalid(babbler: tuple[int, list[bytes]], tmp_path: Path) -> None:
    port, said = babbler
    said.append(JSON % (26, b'{"data": [{"id": "name"}]}'))
    result = bench(f"http://127.0.0.1:{port}", "--window", "0.5", "--warmup", "0.1", "--warmup-max", "0.2", "--csv", str(tmp_path / "x.csv"))
    refused(result, 4, "not valid", "bad_sse")
    assert (tmp_path / "x.csv").read_text().count("\n") == 2


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(closed_port: int, tmp_path: Path) -> None:
    refused(bench(f"http://127.0.0.1:{closed_port}", "--csv", str(tmp_path / "no/x.csv")), 2, "no/x.csv")
