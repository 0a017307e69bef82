"""Gathers the files of one launch from the box under the names of an evidence bundle. Interprets nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from optimizer.box.box import Box
from optimizer.box.results import ServerProcess, ShimRefused
from optimizer.endpoint.client import Endpoint
from optimizer.engines.base import Engine

LOG_BYTES = 24 << 20
LOG_HEAD_BYTES = 4 << 20


async def read_log_files(box: Box, paths: Iterable[str], written_by: ServerProcess | None = None) -> dict[str, bytes]:
    """The log of a process; stdout and stderr in one file are read once. A long one is read at both ends, without what lies
    between: its start tells how the server came up, its end what it does now. ``written_by``: whose credentials it may repeat."""
    parts: list[bytes] = []
    known = list(dict.fromkeys(paths))
    for path in known:
        try:
            part = await box.read_file(path, offset=-LOG_BYTES, max_bytes=LOG_BYTES, written_by=written_by)
            if part.offset > 0 and len(known) == 1:
                head = await box.read_file(path, max_bytes=min(LOG_HEAD_BYTES, part.offset), written_by=written_by)
                if head.inode == part.inode:  # else the log was rotated meanwhile, and its start is another story
                    return {"server.log": head.data, f"server.log@{part.offset}": part.data}
            parts.append(part.data)
        except ShimRefused:
            continue
    return {"server.log": b"".join(parts)} if parts else {}


async def launch_log(box: Box, study: str, key: str, member: str | None = None) -> bytes:
    """The log of one of our launches, or of one member of it: all of it, or its end when it is longer than the cap. What lies before
    is not sent."""
    data, offset = await box.read_log(study, key, -LOG_BYTES, member=member)
    chunks = [data]
    total = len(data)
    while data and total < 2 * LOG_BYTES:  # a server that writes faster than we read is not followed for ever
        data, offset = await box.read_log(study, key, offset, member=member)
        chunks.append(data)
        total += len(data)
    return b"".join(chunks)[-LOG_BYTES:]


async def endpoint_files(box: Box, adapter: Engine, port: int) -> dict[str, bytes]:
    """``server_info.json``, ``metrics.txt``, ``version.json`` and ``models.json`` as the server gives them; what it does not
    serve is absent."""
    host, here = await box.forward(port)
    files: dict[str, bytes] = {}
    async with Endpoint(f"http://{host}:{here}", api_key=box.api_key) as endpoint:
        for path in adapter.server_info_paths:
            answer = await endpoint.get_text(path)
            if answer.ok:
                files["server_info.json"] = answer.text.encode()
                break
        answer = await endpoint.get_text(adapter.quirks.metrics_path)
        if answer.ok:
            files["metrics.txt"] = answer.text.encode()
        for name, path in (("version.json", "/version"), ("models.json", "/v1/models")):
            answer = await endpoint.get_text(path)
            if answer.ok:
                files[name] = answer.text.encode()
    return files


def bench_rows(points: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Load points in the shape of a bundle's ``bench.json``."""
    rows: list[Mapping[str, Any]] = []
    for point in points:
        metrics = point.metrics
        requests = max(1, point.requests_ok)
        rows.append({
            "c": point.concurrency,
            "requests": point.requests_ok + point.requests_failed,
            "failed": point.requests_failed,
            "prompt_tokens": round(point.prompt_tokens / requests),
            "out_tokens": round(point.mean_output_tokens) if point.mean_output_tokens else round(point.output_tokens / requests),
            "duration_s": point.window_s,
            "output_tps": metrics.get("output_tokens_per_s"),
            "ttft_p50_ms": metrics.get("ttft_p50_ms"),
            "ttft_p99_ms": metrics.get("ttft_p99_ms", metrics.get("ttft_p95_ms")),
            "tpot_p50_ms": metrics.get("tpot_p50_ms"),
            "repeat_share": metrics.get("output_repeat_share"),
        })  # fmt: skip
    return rows
