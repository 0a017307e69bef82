"""The load generator as a process against real sockets: true rates, every class of broken server, no hang, no wrong rate."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from optimizer.bench.run import build_job, facts, progress, summarise
from optimizer.errors import UsageError
from optimizer.model.measurement import LoadPoint, ValidityCode
from optimizer.model.workload import Workload

from .conftest import BENCH, Ran, run_load, running_null_server

WORKLOAD = Workload(
    concurrency=4,
    prompt_tokens=32,
    output_tokens=16,
    warmup_min_s=0.1,
    warmup_max_s=0.2,
    window_s=0.6,
    vocabulary="words",
)


def stats(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url + "/stats", timeout=5) as answer:
        return json.loads(answer.read())  # type: ignore[no-any-return]


def codes(point: LoadPoint) -> set[ValidityCode]:
    """What is wrong, but for a rate that was not steady: such short warm-ups and windows cannot promise it on a busy machine."""
    return {item.code for item in point.invalid} - {ValidityCode.NEVER_STEADY}


@pytest.mark.parametrize(("api", "per_chunk"), [("completions", 1), ("chat", 1), ("generate", 1), ("llamacpp", 1), ("completions", 4)])
def test_rate_within_one_percent_of_the_null_servers(null_server: Any, load: Any, api: str, per_chunk: int) -> None:
    url = null_server("--gap-ms", "5", "--tokens-per-chunk", str(per_chunk))
    tokens = 200 * per_chunk
    ran = load(url, api=api, concurrency=8, output_tokens=tokens, window_s=1.5, warmup_max_s=5)
    point = summarise(ran.lines, WORKLOAD.model_copy(update={"output_tokens": tokens}), 8)
    assert not point.invalid, point.invalid
    true_rate = 8 * tokens / (199 * 0.005)  # the first chunk comes at once
    assert point.metrics["output_tokens_per_s"] == pytest.approx(true_rate, rel=0.01)
    assert point.metrics["tpot_p50_ms"] == pytest.approx(5 / per_chunk, rel=0.02)
    # What the server still sent before it noticed the end: up to a tenth of a second on a busy machine.
    unread = stats(url)["tokens"] - ran.summary["chunks_total"] * per_chunk
    assert 0 <= unread <= 8 * 20 * per_chunk


def test_time_scale_gives_server_time(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "5", "--ttft-ms", "20")
    job: dict[str, Any] = {"concurrency": 4, "output_tokens": 40, "warmup_min_s": 4, "warmup_max_s": 6, "window_s": 10}
    began = time.monotonic()
    ran = load(url, time_scale=10.0, **job)
    assert time.monotonic() - began < 4
    point = summarise(ran.lines, WORKLOAD.model_copy(update={"output_tokens": 40}), 4)
    assert point.metrics["tpot_p50_ms"] == pytest.approx(50, rel=0.1)
    assert 190 < point.metrics["ttft_p50_ms"] < 300
    assert point.window_s == pytest.approx(10, rel=1e-3)
    assert point.metrics["output_tokens_per_s"] == pytest.approx(4 * 40 / (0.2 + 39 * 0.05), rel=0.06)


FAULTS = {
    "garbage": "bad_sse",
    "bad_json": "bad_sse",
    "reset": "reset",
    "truncate": "truncated",
    "no_done": "truncated",
    "gzip": "bad_encoding",
    "endless_head": "bad_http",
    "stall": "timeout",
    "stall_midway": "timeout",
    "http_429": "http_429",
    "http_503": "http_503",
    "http_400": "http_400",
    "redirect": "http_307",
    "json_body": "bad_sse",
    "stream_error": "stream_error",
    "not_http": "bad_http",
    "bad_chunk": "bad_http",
    "drip_head": "timeout",
    "pings": "timeout",
    "early_hints": "timeout",
    "half_close": "truncated",
    "unasked": "bad_sse",
    "wrong_length": "bad_http",
}


@pytest.fixture(scope="module")
def broken() -> Iterator[dict[str, tuple[Ran, float]]]:
    """One run against every fault, several at a time: most of it is waiting."""
    with running_null_server("--gap-ms", "2") as url, ThreadPoolExecutor(6) as pool:

        def run(fault: str) -> tuple[Ran, float]:
            began = time.monotonic()
            return run_load(f"{url}/fault/{fault}", stall_s=0.3, window_s=0.5), time.monotonic() - began

        yield dict(zip(sorted(FAULTS), pool.map(run, sorted(FAULTS)), strict=True))


@pytest.mark.fault("F31", "H33")
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_has_its_class_and_ends(broken: dict[str, tuple[Ran, float]], fault: str) -> None:
    ran, took_s = broken[fault]
    assert took_s < 40  # the window, its deadlines and a busy machine; one that hangs takes for ever
    expected = FAULTS[fault]
    assert ran.summary["errors"] and not ran.stderr, ran.summary
    assert set(ran.summary["errors"]) <= set(expected if isinstance(expected, tuple) else (expected,)), ran.summary
    point = summarise(ran.lines, WORKLOAD, 4)
    assert ValidityCode.ERRORS in codes(point)
    assert point.requests_ok == 0
    # What a stream carried before it broke is at most its one chunk.
    assert ran.summary["chunks_window"] <= sum(ran.summary["errors"].values()) + 4


@pytest.mark.fault("F30")
def test_some_failures_among_many_successes_are_counted_and_said(null_server: Any, load: Any) -> None:
    url = null_server("--fault", "http_503", "--fault-every", "5", "--gap-ms", "2")
    ran = load(url, window_s=1.0)
    point = summarise(ran.lines, WORKLOAD, 4)
    assert codes(point) == {ValidityCode.ERRORS}
    assert point.requests_ok > 20 and 2 < point.requests_failed < point.requests_ok
    assert point.metrics["error_rate"] == pytest.approx(
        point.requests_failed / (point.requests_ok + point.requests_failed)
    )


@pytest.mark.fault("F31")
def test_streams_that_hang_are_counted_although_the_window_ends_before_their_deadline(null_server: Any, load: Any) -> None:
    """Every twentieth answer stops after its first piece: one user after the other waits for ever, and none of their deadlines comes."""
    url = null_server("--fault", "stall_midway", "--fault-every", "20", "--gap-ms", "2")
    ran = load(url, concurrency=8, warmup_min_s=0.3, warmup_max_s=0.3, window_s=4.0)
    point = summarise(ran.lines, WORKLOAD, 8)
    assert not ran.summary["errors"] and point.errors["stalled"] == point.requests_failed > 0
    (found,) = [item for item in point.invalid if item.code == ValidityCode.ERRORS]
    assert "stalled" in found.detail and point.metrics["error_rate"] > 0


def test_of_several_addresses_of_a_name_the_one_that_answers_is_taken(null_server: Any) -> None:
    """As where localhost means ::1 first, and the server listens on 127.0.0.1 alone."""
    url = null_server("--gap-ms", "2").replace("127.0.0.1", "server.example")
    twist = """
import json, socket, sys
from optimizer.bench import loadgen
port = int(sys.argv[1])
socket.getaddrinfo = lambda *a, **k: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
sys.exit(loadgen.main())
"""
    job = {"base_url": url, "model": "m", "concurrency": 2, "output_tokens": 8, "warmup_min_s": 0.1, "warmup_max_s": 0.1, "window_s": 0.4}
    job["prompts"] = {"seed": "7", "salt": "a", "vocabulary": "words", "prompt_tokens": 32}
    command = [sys.executable, "-c", twist, url.rpartition(":")[2]]
    done = subprocess.run(command, input=json.dumps(job).encode() + b"\n", capture_output=True, timeout=30, check=False)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["finished_ok"] > 0 and not summary["errors"], (summary, done.stderr)


def test_nobody_listens(load: Any) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ran = load(f"http://127.0.0.1:{port}", warmup_max_s=60, warmup_min_s=30, window_s=60)
    assert ran.status == 1
    assert set(ran.summary["errors"]) == {"refused"}
    assert "every request fails" in ran.summary["gave_up"]
    assert codes(summarise(ran.lines, WORKLOAD, 4)) >= {ValidityCode.ERRORS}


def test_a_half_open_connection_is_a_timeout(load: Any) -> None:
    with socket.socket() as s:  # accepts by the kernel, never answers
        s.bind(("127.0.0.1", 0))
        s.listen(64)
        ran = load(f"http://127.0.0.1:{s.getsockname()[1]}", stall_s=0.3)
    assert set(ran.summary["errors"]) == {"timeout"}


@pytest.mark.fault("F32")
def test_missing_usage_is_flagged_and_counted(null_server: Any, load: Any) -> None:
    url = null_server("--no-usage", "--gap-ms", "5")
    point = summarise(load(url, window_s=1.0).lines, WORKLOAD, 4)
    assert codes(point) == {ValidityCode.USAGE_MISSING}
    assert point.metrics["output_tokens_per_s"] == pytest.approx(4 * 16 / 0.075, rel=0.1)


@pytest.mark.fault("F33")
def test_fewer_tokens_than_asked_are_another_workload(null_server: Any, load: Any) -> None:
    url = null_server("--fewer", "3", "--gap-ms", "5")
    point = summarise(load(url, window_s=1.0).lines, WORKLOAD, 4)
    assert codes(point) == {ValidityCode.OUTPUT_LENGTH}
    assert point.mean_output_tokens == 13


def test_answers_that_may_end_by_themselves_never_count_more_than_they_may_have(null_server: Any, load: Any) -> None:
    url = null_server("--tokens-per-chunk", "4", "--gap-ms", "5")
    ran, free = load(url, window_s=0.6), WORKLOAD.model_copy(update={"ignore_eos": False})
    assert ValidityCode.OUTPUT_LENGTH not in codes(summarise(ran.lines, free, 4))
    told = [line.replace(b",16,32,", b",1600,32,") if json.loads(line)["t"] == "r" else line for line in ran.lines]  # of 16 that were asked for
    assert told != ran.lines
    (found,) = [item for item in summarise(told, free, 4).invalid if item.code == ValidityCode.OUTPUT_LENGTH]
    assert "up to 1,600 of 16" in found.detail


@pytest.mark.fault("F37")
@pytest.mark.parametrize(
    ("share", "shared_tokens", "invalid"), [("0.5", 0, True), ("0.0", 0, False), ("0.5", 16, False), ("0.0", 16, False)]
)
def test_cached_prefix_is_held_against_the_declared_share(
    null_server: Any, load: Any, share: str, shared_tokens: int, invalid: bool
) -> None:
    url = null_server("--cached", share, "--gap-ms", "5")
    workload = WORKLOAD.model_copy(update={"shared_prefix_tokens": shared_tokens})
    point = summarise(load(url, window_s=0.8).lines, workload, 4)
    assert (ValidityCode.CACHED_PREFIX in codes(point)) is invalid
    assert bool(point.notes and "although" in " ".join(point.notes)) is (share == "0.0" and shared_tokens > 0)


def test_requests_that_outlast_the_window_still_give_a_rate(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "10")
    ran = load(url, concurrency=8, output_tokens=100000, warmup_min_s=0.2, warmup_max_s=0.2, window_s=1.0)
    point = summarise(ran.lines, WORKLOAD.model_copy(update={"output_tokens": 100000}), 8)
    assert not point.invalid
    assert point.metrics["output_tokens_per_s"] == pytest.approx(800, rel=0.03)
    assert point.metrics["tpot_p50_ms"] == pytest.approx(10, rel=0.02)
    assert any("no request finished" in note for note in point.notes)
    deadline = time.monotonic() + 3
    while stats(url)["open"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stats(url)["open"] == 0 and stats(url)["aborted"] == 8


def test_a_handful_of_chunks_is_no_rate(null_server: Any, load: Any) -> None:
    """One stream of two chunks a second: its count is known to a fifth at best, and one chunk more would be another rate."""
    point = summarise(load(null_server("--gap-ms", "400"), concurrency=1, output_tokens=100, window_s=1.2).lines, WORKLOAD, 1)
    (too_few,) = [item for item in point.invalid if item.code == ValidityCode.TOO_FEW_REQUESTS]
    assert "needed 25" in too_few.detail and point.metrics["output_tokens_per_s"] > 0  # kept and shown


def test_two_thousand_streams_without_loss(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "150")
    ran = load(url, concurrency=2000, output_tokens=8, warmup_min_s=0.5, warmup_max_s=0.5, window_s=2.5)
    assert not ran.summary["errors"]
    assert ran.summary["finished_ok"] >= 500 and ran.summary["cut"] > 1900  # slow machines finish fewer, lose none
    assert ran.summary["tokens_per_chunk"] == 1.0  # every token that a finished request was billed for came as a chunk


def test_open_loop_counts_from_the_scheduled_time(null_server: Any, load: Any) -> None:
    url = null_server("--gap-ms", "5")
    job: dict[str, Any] = {"rate_per_s": 200, "output_tokens": 8, "window_s": 0.8, "concurrency": 1}
    ran, again = load(url, **job), load(url, **job)
    assert ran.summary["sent"] == pytest.approx(200, rel=0.25)
    assert abs(again.summary["sent"] - ran.summary["sent"]) <= 8  # the same seed gives the same arrivals
    assert not ran.summary["errors"]
    assert ValidityCode.OVER_SATURATED not in codes(
        summarise(ran.lines, WORKLOAD.model_copy(update={"output_tokens": 8}), 1)
    )


def test_an_idle_close_by_the_server_is_no_error(load: Any) -> None:
    """Servers close keep-alive connections at will; the request that met the closing is sent again on a fresh one."""
    answer = b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(answer)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        length = int(request.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(head + answer)
        writer.close()

    started, stop, port = threading.Event(), asyncio.Event(), 0
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        nonlocal port
        server = await asyncio.start_server(one, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait()
    try:
        ran = load(f"http://127.0.0.1:{port}", output_tokens=1)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
    assert not ran.summary["errors"], ran.summary
    assert ran.summary["finished_ok"] > 20


def test_a_refused_job_says_why(load: Any) -> None:
    for changes in (
        {"base_url": "127.0.0.1:80"},
        {"base_url": "http://127.0.0.1:1", "api_key_env": "NO_SUCH_VARIABLE"},
    ):
        ran = load(changes.pop("base_url"), **changes)
        assert ran.status == 2 and not ran.stderr
        with pytest.raises(UsageError, match="refused its job"):
            summarise(ran.lines, WORKLOAD, 4)


def test_the_api_key_is_sent_and_never_printed(load: Any) -> None:
    seen = []

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(64)

        def answer() -> None:
            while True:
                try:
                    connection, _ = s.accept()
                except OSError:
                    return
                seen.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        ran = load(
            f"http://127.0.0.1:{s.getsockname()[1]}",
            api_key_env="KEY_OF_TEST",
            env={**os.environ, "KEY_OF_TEST": "s3cret-canary"},
        )
        s.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert b"Authorization: Bearer s3cret-canary\r\n" in seen[0]
    assert b"s3cret-canary" not in b"".join(ran.lines) and set(ran.summary["errors"]) == {"http_401"}


def test_a_signal_ends_the_run_with_what_was_measured(null_server: Any) -> None:
    url = null_server("--gap-ms", "5")
    workload = WORKLOAD.model_copy(update={"window_s": 60.0})
    job = build_job(workload, concurrency=4, window_s=60, base_url=url, model="m", seed=1, salt="x")
    process = subprocess.Popen(
        [sys.executable, str(BENCH / "loadgen.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(job).encode() + b"\n")
    process.stdin.flush()
    first = process.stdout.readline()
    assert progress(first) is not None
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=5)
    point = summarise([first, *out.splitlines()], workload, 4)
    assert ValidityCode.INTERRUPTED in codes(point) and ValidityCode.ERRORS not in codes(point) and not point.errors
    assert point.metrics["output_tokens_per_s"] == pytest.approx(4 * 16 / 0.075, rel=0.2)


def test_a_reader_that_goes_away_ends_the_load(null_server: Any) -> None:
    url = null_server("--gap-ms", "5")
    job = build_job(WORKLOAD, concurrency=4, window_s=600, base_url=url, model="m", seed=1, salt="x")
    process = subprocess.Popen(
        [sys.executable, str(BENCH / "loadgen.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(json.dumps(job).encode() + b"\n")
    process.stdin.close()
    process.stdout.close()
    assert process.wait(5) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_facts_use_the_vocabularys_names(null_server: Any, load: Any, vocabulary: set[str]) -> None:
    url = null_server("--gap-ms", "2")
    point = summarise(load(url, window_s=1.0).lines, WORKLOAD, 4)
    found = {fact.name: fact for fact in facts(point)}
    assert found["client.output_tps"].labels == {"concurrency": 4}
    assert {"client.ttft_ms_p50", "client.itl_ms_p50", "client.e2e_ms_p50", "client.served_share"} <= set(found)
    assert set(found) <= vocabulary


def test_a_run_without_a_result_is_invalid_not_an_exception() -> None:
    point = summarise([b'{"t":"progress"}', b'{"t":"summ'], WORKLOAD, 4)
    assert codes(point) == {ValidityCode.ERRORS} and not point.metrics
