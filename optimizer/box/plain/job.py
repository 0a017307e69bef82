"""Runs one Python job on the box (the load generator, a probe) as a marked child, streams its output back, and ends it
with its whole family when the time is over or the connection is gone. Runs on the box."""

from __future__ import annotations

import base64
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

from optimizer.box.plain import look, procfs, store, sweep
from optimizer.box.plain.procfs import Refused

ERROR_TAIL_BYTES = 1 << 16


def run_job(request: dict[str, Any]) -> dict[str, Any]:
    """Request: launch_id, source and stdin (base64), args, python (None: the shim's own), affinity (CPU numbers or
    None), env changes, timeout_s, max_bytes of stdout. Answers exit, stderr tail, timed_out, truncated."""
    store.launch_parts(request["launch_id"])
    environment = dict(os.environb)
    for name, value in (request.get("env") or {}).items():
        if value is None:
            environment.pop(procfs.raw(name), None)
        else:
            environment[procfs.raw(name)] = procfs.raw(value)
    environment[procfs.MARKER] = procfs.raw(request["launch_id"])
    environment[procfs.ROOT_MARKER] = procfs.raw(request["root"])
    source = base64.b64decode(request["source"])
    feed = memoryview(b"%d\n" % len(source) + source + base64.b64decode(request["stdin"]))
    program = [request.get("python") or sys.executable, "-I", "-u", "-c", request["bootstrap"]]
    try:
        child = subprocess.Popen(
            [procfs.raw(word) for word in program + list(request.get("args") or [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, start_new_session=True, bufsize=0,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise Refused("exec_failed", "The job could not be started on the box: %s." % error)
    try:
        if request.get("affinity"):
            os.sched_setaffinity(child.pid, request["affinity"])
        return _pump(child, feed, request)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        # No grace: a job holds nothing that needs saving, and the box must be quiet when this call returns.
        sweep.end_all(lambda: procfs.family(request["launch_id"], request["root"], sessions=[child.pid]), 0.0, 5.0)


def _pump(child: subprocess.Popen[bytes], feed: memoryview, request: dict[str, Any]) -> dict[str, Any]:
    errors, sent, timed_out, truncated = bytearray(), 0, False, False
    end = time.monotonic() + float(request["timeout_s"])
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    with selectors.DefaultSelector() as streams:
        os.set_blocking(child.stdin.fileno(), False)
        streams.register(child.stdin, selectors.EVENT_WRITE)
        streams.register(child.stdout, selectors.EVENT_READ)
        streams.register(child.stderr, selectors.EVENT_READ)
        while child.stdout in streams.get_map() or child.stderr in streams.get_map():
            left = end - time.monotonic()
            if left <= 0:
                timed_out = True
                break
            if request["link_lost"]():
                raise Refused("link_lost", "The connection was lost while the job ran; the job was ended.")
            ready = streams.select(min(left, 0.25))
            if not ready and child.poll() is not None:
                break
            for key, _ in ready:
                if key.fileobj is child.stdin:
                    try:
                        feed = feed[os.write(child.stdin.fileno(), feed[: 1 << 16]) :]
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:
                        feed = feed[len(feed) :]
                    if not feed:
                        streams.unregister(child.stdin)
                        child.stdin.close()
                    continue
                data = os.read(key.fd, 1 << 16)
                if not data:
                    streams.unregister(key.fileobj)
                elif key.fileobj is child.stderr:
                    errors = (errors + data)[-ERROR_TAIL_BYTES:]
                else:
                    sent += len(data)
                    if sent > int(request["max_bytes"]):
                        truncated = True
                        break
                    request["emit"](data)
            if truncated:
                break
    if not timed_out and not truncated:
        try:
            child.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
    code = child.poll()
    return {
        "exit": None if timed_out or truncated else code,
        "signal": signal.Signals(-code).name if code is not None and code < 0 and not timed_out else None,
        "stderr": look.encode(bytes(errors)),
        "timed_out": timed_out,
        "truncated": truncated,
    }
