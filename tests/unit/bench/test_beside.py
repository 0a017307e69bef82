"""What the load generator finds out about a server on its own machine, and how it reaches one that wants a key or TLS. The key
goes into the requests and nowhere else."""

import asyncio
import datetime
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.bench.plain import beside
from optimizer.bench.run import summarise
from optimizer.model.workload import Workload

KEY = "sk-canary-0123456789abcdef"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_listener_is_found_by_its_port(null_server: Any) -> None:
    url = null_server()
    (pid,) = beside.listener_of(port_of(url))
    assert b"nullserver.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert beside.listener_of(1) == set()


def test_a_port_without_a_key_has_none(null_server: Any) -> None:
    assert beside.key_of_server(port_of(null_server())) is None


@pytest.mark.parametrize("how", ["argument", "argument=", "environment", "parent"])
def test_the_key_is_read_from_the_server_itself(how: str) -> None:
    listen = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(60)"
    words = {"argument": ["--api-key", KEY], "argument=": [f"--api-key={KEY}"], "environment": [], "parent": ["--api-key", KEY]}[how]
    code = listen if how != "parent" else f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {listen!r}]))"
    env = {**os.environ, **({"VLLM_API_KEY": KEY} if how == "environment" else {})}
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, env=env, start_new_session=True)
    try:
        assert process.stdout is not None
        assert beside.key_of_server(int(process.stdout.readline())) == KEY
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_a_server_with_a_key_is_measured_and_the_key_is_said_nowhere(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "2", "--api-key", KEY)
    ran = load(url, api_key_of_server=True, metrics_path="/metrics")
    assert ran.summary["finished_ok"] > 5 and not ran.summary["errors"] and ran.summary["counters"]["generated"] > 0
    assert KEY.encode() not in b"".join(ran.lines) and KEY not in ran.stderr
    refused = load(url)
    assert set(refused.summary["errors"]) == {"http_401"}


def test_a_server_that_repeats_the_key_in_its_error_does_not_give_it_away(null_server: Any, load: Any) -> None:
    url = null_server("--api-key", "another-key")
    ran = load(url, api_key_env="K", env={**os.environ, "K": KEY})
    assert set(ran.summary["errors"]) == {"http_401"}
    assert KEY.encode() not in b"".join(ran.lines)


def test_cpus_are_chosen_away_from_the_server(null_server: Any, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = null_server("--gap-ms", "2")
    (pid,) = beside.listener_of(port_of(url))
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU leaves nothing to choose")
    os.sched_setaffinity(pid, cpus[:1])
    ran = load(url, cpus="auto")
    assert ran.summary["cpus"] and not set(ran.summary["cpus"]) & set(cpus[:1])
    # Where the server may run anywhere: the quietest core, with all of its threads, the last of equals.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    busy = iter([{0: 0, 1: 0, 2: 0, 3: 0}, {0: 90, 1: 5, 2: 40, 3: 5}])
    monkeypatch.setattr(beside, "_busy", lambda: next(busy))
    monkeypatch.setattr(beside, "_lines", lambda path: [])
    assert beside.cpus_away_from(1, look_s=0.0) == [3]


def test_counters_of_each_engine() -> None:
    page = (
        b"# HELP vllm:generation_tokens_total x\n# TYPE vllm:generation_tokens_total counter\n"
        b'vllm:generation_tokens_total{engine="0",model_name="m"} 12.0\nvllm:generation_tokens_total{engine="1",model_name="m"} 3e2\n'
        b'vllm:prompt_tokens_total{engine="0"} 7.0\nvllm:generation_tokens_created 9\n'
    )
    assert beside.counters_of(page) == (7.0, 312.0)
    assert beside.counters_of(b"llamacpp:prompt_tokens_total 5\nllamacpp:tokens_predicted_total 6\n") == (5.0, 6.0)
    assert beside.counters_of(b"sglang:generation_tokens_total 4.0\n") == (None, 4.0)
    assert beside.counters_of(b"nothing") == (None, None)
    recorded = next((Path(__file__).parents[2] / "recordings/vllm-0.32-cpu").rglob("metrics*.txt"), None)
    if recorded is not None:
        prompt, generated = beside.counters_of(recorded.read_bytes())
        assert prompt is not None and generated is not None and generated > 0


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A streaming https server with a certificate of its own; (URL, the certificate)."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False).sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = tmp_path / "cert.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, tmp_path / "key.pem")
    events = b"".join(b'data: {"choices":[{"text":"a"}]}\n\n' for _ in range(16))
    answer = events + b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":16}}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(answer)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(request.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                writer.write(head + answer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            writer.close()

    loop, ready, port = asyncio.new_event_loop(), threading.Event(), 0
    stop = asyncio.Event()

    async def serve() -> None:
        nonlocal port
        server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    yield f"https://localhost:{port}", pem
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_tls_with_its_certificate_and_a_class_without(tls_server: tuple[str, Path], load: Any) -> None:
    url, pem = tls_server
    ran = load(url, ca_file=str(pem), window_s=0.5)
    assert ran.summary["finished_ok"] > 3 and not ran.summary["errors"], ran.summary
    point = summarise(ran.lines, Workload(output_tokens=16, concurrency=4), 4)
    assert point.metrics["output_tokens_per_s"] > 0
    distrusted = load(url, window_s=0.5)
    assert set(distrusted.summary["errors"]) == {"tls"} and not distrusted.stderr
