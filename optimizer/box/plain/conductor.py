"""Runs one deployment on the box: starts its members in order, asks each for its health, and ends all of them when one ends.
It is the main process of the launch, so the launch lives exactly as long as all of its members do. It carries the launch's
marker like everything it starts: whoever sweeps the launch needs nothing from it, and if it is killed the marker remains."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Any

from optimizer.box.plain import procfs, spawn, store

POLL_S = 0.1
PROBE_EVERY_S = 0.5
SAY_EVERY_S = 5.0
TAIL_BYTES = 256 << 10
_NOT_SERVED = (404, 405, 501)


class Member:
    """One process: ``config`` has name, role, argv, env (both as bytes in latin-1), cwd, around, log, port, paths, timeout_s."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name = str(config["name"])
        self.process: subprocess.Popen[bytes] | None = None
        self.begun_s = 0.0
        self.ready_s: float | None = None
        self.why_not_started = ""
        self.start_time = 0
        self._asked_s = 0.0
        self._said_s = 0.0
        self._size = 0

    def start(self) -> None:
        config = self.config
        self.begun_s = time.monotonic()
        output = os.open(config["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.process = subprocess.Popen(
                [word.encode("latin-1") for word in config["argv"]],
                env={name.encode("latin-1"): value.encode("latin-1") for name, value in config["env"].items()},
                cwd=procfs.raw(config["cwd"]) if config["cwd"] else None,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                preexec_fn=self._prepared,
            )  # fmt: skip
            one = procfs.process(self.process.pid)
            self.start_time = one.start_time if one else 0
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.why_not_started = str(error)
        finally:
            os.close(output)

    def _prepared(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what we ignore, a child would ignore as well
        spawn.prepare(self.config["around"], self.config.get("identity"))

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def ask(self) -> bool:
        """Whether it says by now that it can serve. The first path that it serves at all is the one that counts."""
        now = time.monotonic()
        if self.ready_s is not None or now - self._asked_s < PROBE_EVERY_S:
            return self.ready_s is not None
        self._asked_s = now
        for path in self.config["paths"]:
            status = _get(int(self.config["port"]), path, float(self.config["timeout_s"]))
            if status is not None and status not in _NOT_SERVED:
                if status == 200:
                    self.ready_s = round(time.monotonic() - self.begun_s, 1)
                break
            if status is None:
                break
        self._asked_s = time.monotonic()
        return self.ready_s is not None

    def news(self) -> str:
        """The last line of its log, at most every few seconds and only when something was added."""
        now = time.monotonic()
        if now - self._said_s < SAY_EVERY_S:
            return ""
        self._said_s = now
        data = self.tail(4096)
        size = os.path.getsize(self.config["log"]) if os.path.exists(self.config["log"]) else 0
        lines = [line for line in data.replace(b"\r", b"\n").split(b"\n") if line.strip()]
        if size == self._size or not lines:
            return ""
        self._size = size
        return procfs.text(lines[-1])[-200:]

    def tail(self, size: int) -> bytes:
        try:
            with open(self.config["log"], "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read(size)
        except OSError:
            return b""


def _get(port: int, path: str, timeout_s: float) -> int | None:
    """Status of a GET on this machine, None when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        answer.read(1 << 16)
        return answer.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Conductor:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.members = [Member(one) for one in config["members"]]
        self.stopped_by = 0

    def say(self, text: str) -> None:
        """Into the launch's own log. A disk that is full must not end a deployment."""
        try:
            os.write(1, procfs.raw(text + "\n"))
        except OSError:
            pass

    def record(self) -> None:
        """Who the members are and which of them are ready, for whoever asks for the state of the launch."""
        rows = [
            {"name": one.name, "role": one.config["role"], "port": one.config["port"], "log": one.config["log"], "ready_s": one.ready_s,
             "pid": one.process.pid if one.process else None, "start_time": one.start_time}
            for one in self.members
        ]  # fmt: skip
        try:
            store.write_record(os.path.join(self.config["claim"], "members.json"), {"members": rows})
        except procfs.Refused as refused:
            self.say("what runs could not be written down: %s" % refused.message)

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._told)
        signal.signal(signal.SIGINT, self._told)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        workers = [one for one in self.members if one.config["role"] != "router"]
        for stage in (workers, [one for one in self.members if one.config["role"] == "router"]):
            if not self._bring_up(stage):
                return self._end()
        self.say("deployment: all members are ready")
        while not self._somebody_ended():
            time.sleep(POLL_S)
        return self._end()

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.stopped_by = number

    def _somebody_ended(self) -> bool:
        return bool(self.stopped_by) or any(one.ended() for one in self.members if one.begun_s)

    def _bring_up(self, stage: list[Member]) -> bool:
        """Starts these in order and waits until all are ready. False when the deployment has to end."""
        for member in stage:
            crash_point("member_" + member.name)
            member.start()
            if member.process is None:
                self.say("deployment: %s could not be started: %s" % (member.name, member.why_not_started))
                return False
            self.say("deployment: %s started as process %d, port %s" % (member.name, member.process.pid, member.config["port"]))
            self.record()
        while not self._somebody_ended():
            for member in stage:
                if member.ready_s is None and member.ask():
                    self.say("deployment: %s is ready after %.1f s" % (member.name, member.ready_s or 0.0))
                    self.record()
                news = member.news() if member.ready_s is None else ""
                if news:
                    self.say("deployment: %s: %s" % (member.name, news))
            if all(member.ready_s is not None for member in stage):
                return True
            time.sleep(POLL_S)
        return False

    def _end(self) -> int:
        """Ends everyone in reverse order of their start, and ends as the member did that ended first: its last lines and its status."""
        first = next((one for one in self.members if one.begun_s and one.ended()), None) if not self.stopped_by else None
        if first is not None and first.process is not None:
            code = first.process.returncode
            self.say("deployment: %s ended %s; the others are ended too. The end of its log:"
                     % (first.name, "by signal %d" % -code if code < 0 else "with code %d" % code))  # fmt: skip
            self.say(procfs.text(first.tail(TAIL_BYTES)))
        living = [one for one in reversed(self.members) if not one.ended()]
        for member in living:
            assert member.process is not None
            member.process.terminate()
        end = time.monotonic() + float(self.config["term_s"])
        while any(not one.ended() for one in living) and time.monotonic() < end:
            time.sleep(POLL_S)
        for member in living:
            if not member.ended():
                assert member.process is not None
                member.process.kill()
                member.process.wait()
        if self.stopped_by:
            return 128 + self.stopped_by
        if first is None or first.process is None:
            return 127
        code = first.process.returncode
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
        return code or 1  # a member that ends, however politely, is a deployment that failed


def crash_point(name: str) -> None:
    """As in the shim: only an environment variable arms one."""
    if os.environ.get("OPTIMIZER_CRASH_AT") == name:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    sys.exit(Conductor(json.loads(sys.stdin.buffer.read())).run())
