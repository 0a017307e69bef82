"""The one program that acts on the box. It reads a JSON request from standard input, carries out one operation within
its own deadline, and answers with one framed JSON reply. Standard library only, Python 3.8 syntax; it is sent anew for
every call and installs nothing.

Frame: ``\\n@@<nonce> <kind> <bytes>\\n<payload>\\n`` with kind ``out`` (part of a job's output) or ``reply`` (the end).
The nonce is new for every call and comes with the request, so neither a talkative login script nor a log line can look
like a frame."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

from optimizer.box.plain.procfs import Refused

# Operation -> (module of ``plain``, function). A module is loaded by the first call that needs it: one call needs few.
OPERATIONS = {
    # looking
    "hello": ("look", "hello"),
    "command": ("look", "command"),
    "read_file": ("look", "read_file"),
    "find_servers": ("look", "find_servers"),
    "listeners": ("family", "port_listeners"),
    "server_key": ("look", "server_key"),
    "sample_gpu": ("look", "sample_gpu"),
    "survey": ("machine", "survey"),
    "holder": ("holder", "box_holder"),
    "read_log": ("launch", "read_log"),
    "state": ("launch", "state"),
    "guard_status": ("original", "guard_status"),
    "listening": ("original", "listening"),
    # changing
    "lock": ("holder", "lock_box"),
    "unlock": ("holder", "unlock_box"),
    "heartbeat": ("guarded", "heartbeat"),
    "cleanup": ("holder", "cleanup"),
    "launch": ("launch", "launch"),
    "sweep": ("sweep", "sweep"),
    "stop_original": ("sweep", "stop_original"),
    "secure": ("original", "secure"),
    "order": ("original", "order"),
    "fence": ("original", "fence"),
    "start_original": ("original", "start_original"),
    "run_job": ("job", "run_job"),
}


def _operation(name: str) -> Any:
    module = "optimizer.box.plain." + OPERATIONS[name][0]
    __import__(module)
    return getattr(sys.modules[module], OPERATIONS[name][1])


class DeadlineReached(BaseException):
    """Raised by the alarm; no operation may swallow it."""


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _link_lost() -> bool:
    """True when nobody reads our answer any more: the other end of standard output is closed."""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, events in poll.poll(0))


def _crash_point(name: str) -> None:
    """Named places at which the crash suite kills this program; only an environment variable arms one."""
    if os.environ.get("OPTIMIZER_CRASH_AT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("OPTIMIZER_PAUSE_AT") == name:
        time.sleep(float(os.environ.get("OPTIMIZER_PAUSE_S", "1")))


def main() -> None:
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    nonce = request["nonce"].encode("ascii")

    def frame(kind: bytes, payload: bytes) -> None:
        _write(b"\n@@%s %s %d\n%s\n" % (nonce, kind, len(payload), payload))

    def expired(*_: object) -> None:
        raise DeadlineReached

    # A dropped connection must not end us between a claim and its process: only the deadline and the work itself do.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, float(request["deadline_s"]))
    if not os.path.isabs(os.environ.get("HOME", "")):
        os.environ.pop("HOME", None)  # empty (cron, some containers) or relative: the user's entry says where the home is
    root = os.path.abspath(request.get("root") or os.path.join(os.path.expanduser("~"), ".optimizer"))
    request.setdefault("lock_wait_s", 20.0)
    request.update(root=root, python=sys.executable, crash_point=_crash_point, link_lost=_link_lost)
    request["emit"] = lambda data: frame(b"out", data)
    try:
        if sys.version_info < (3, 8):
            raise Refused(
                "python_too_old", "The box's Python is %d.%d; the tool needs 3.8 or newer." % sys.version_info[:2]
            )
        if request["op"] not in OPERATIONS:
            raise Refused("bad_request", "Unknown operation %r." % request["op"])
        _crash_point("shim.%s.begin" % request["op"])
        answer: dict[str, Any] = {"ok": True, "result": _operation(request["op"])(request)}
        _crash_point("shim.%s.end" % request["op"])
    except Refused as refused:
        answer = {"ok": False, "kind": refused.kind, "message": refused.message, "more": refused.more}
    except DeadlineReached:
        answer = {"ok": False, "kind": "deadline", "more": {}, "message": "The operation %s did not end within its %g s on the box."
                  % (request["op"], request["deadline_s"])}  # fmt: skip
    except BrokenPipeError:
        return  # nobody is listening; what was done stands, and reconciliation will find it
    except OSError as error:
        answer = {
            "ok": False,
            "kind": "os_error",
            "message": "%s failed on the box: %s" % (request["op"], error),
            "more": {},
        }
    except Exception as error:
        import traceback

        # Only the place, not the values: a traceback with locals could carry a credential.
        place = traceback.extract_tb(error.__traceback__)[-1]
        answer = {"ok": False, "kind": "internal", "more": {}, "message": "%s failed on the box: %s at %s:%s"
                  % (request["op"], type(error).__name__, place.filename, place.lineno)}  # fmt: skip
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        frame(b"reply", json.dumps(answer).encode("ascii"))
    except BrokenPipeError:
        return
