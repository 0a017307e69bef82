"""A server that a supervisor runs: it is stopped and started through that supervisor, never by hand. Runs on the box."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from typing import Any

from optimizer.box.plain import procfs
from optimizer.box.plain.procfs import Refused

_PID_WAIT_S = 30.0
_CONTAINER = re.compile(r"(docker|libpod)[-/]([0-9a-f]{12,64})")


def control_of(pid: int) -> dict[str, Any] | None:
    """How the supervisor of a process is told to stop and start it, and asked for its main process: a systemd unit, or a
    container of docker or podman. None where nobody is known who could be told."""
    theirs = procfs.read("/proc/%d/cgroup" % pid)
    if pid == 1 or not theirs or theirs == procfs.read("/proc/self/cgroup"):
        return None
    for line in procfs.text(theirs).splitlines():
        path = line.split(":", 2)[-1]
        container = _CONTAINER.search(path)
        if container:
            tool = {"docker": "docker", "libpod": "podman"}[container.group(1)]
            program = shutil.which(tool)
            return _container(program, container.group(2)[:12]) if program else None
        if "/kubepods" in path:
            return None
        parts = path.split("/")
        units = [part for part in parts if part.endswith(".service") and not part.startswith("user@")]
        if units:
            user = any(part.startswith("user@") for part in parts)
            program = shutil.which("systemctl")
            return _unit(program, units[-1], user) if program else None
    return None


# Programs are named by their whole path: the guard, which may have to start it, has the server's own search path.
def _unit(program: str, name: str, user: bool) -> dict[str, Any]:
    tool = [program, "--user"] if user else [program]
    return {
        "kind": "systemd", "name": name, "stop": [*tool, "stop", name],
        "start": [*tool, "--no-block", "start", name],  # a unit of Type=notify would keep us until the model is loaded
        "main": [*tool, "show", "--property=MainPID", "--value", name],
    }  # fmt: skip


def _container(tool: str, name: str) -> dict[str, Any]:
    return {
        "kind": "container", "name": name, "stop": [tool, "stop", "--time", "60", name], "start": [tool, "start", name],
        "main": [tool, "inspect", "--format", "{{.State.Pid}}", name],
    }  # fmt: skip


def told(control: dict[str, Any]) -> str:
    """What a person reads before agreeing."""
    return " ".join([os.path.basename(control["stop"][0]), *control["stop"][1:]])


def _run(argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused("supervisor_failed", "`%s` did not work: %s" % (" ".join(argv), error))


def stop(control: dict[str, Any], pid: int, start_time: int, wait_s: float) -> None:
    """Tells the supervisor to stop it, and waits until its main process has gone."""
    done = _run(control["stop"], wait_s)
    end = time.monotonic() + wait_s
    while procfs.same(pid, start_time) and time.monotonic() < end and done.returncode == 0:
        time.sleep(0.1)
    if procfs.same(pid, start_time):
        said = procfs.text(done.stderr or done.stdout).strip()[-300:]
        raise Refused("supervisor_failed", "`%s` did not stop process %d (exit %d). It said: %s"
                      % (" ".join(control["stop"]), pid, done.returncode, said or "nothing"))  # fmt: skip


def start(control: dict[str, Any], wait_s: float = _PID_WAIT_S) -> tuple[int, int]:
    """Tells the supervisor to start it; (pid, start time) of its main process."""
    done = _run(control["start"], wait_s)
    if done.returncode != 0:
        raise Refused("supervisor_failed", "`%s` failed (exit %d): %s" % (
            " ".join(control["start"]), done.returncode, procfs.text(done.stderr or done.stdout).strip()[-300:]))  # fmt: skip
    found = main_process(control, wait_s)
    if found is None:
        raise Refused("supervisor_failed", "`%s` was accepted and no process came of it." % " ".join(control["start"]))
    return found


def main_process(control: dict[str, Any], wait_s: float = 0.0) -> tuple[int, int] | None:
    """The supervisor's own word about the running main process; waits for one up to ``wait_s``."""
    end = time.monotonic() + wait_s
    while True:
        answer = procfs.text(_run(control["main"], 20).stdout).strip()
        if answer.isdigit() and int(answer) > 1:
            one = procfs.table().get(int(answer))
            if one is not None:
                return one.pid, one.start_time
        if time.monotonic() >= end:
            return None
        time.sleep(0.2)


def apart(control: dict[str, Any] | None) -> bool:
    """Whether the server lives in a container: its paths, limits and variables mean nothing outside."""
    return control is not None and control["kind"] == "container"


def base_environment(control: dict[str, Any] | None, pid: int) -> list[tuple[bytes, bytes]] | None:
    """The environment that our launches start from: the server's own, but the login's where it lives in a container, whose paths
    mean nothing out here. None where it cannot be read."""
    if apart(control):
        return list(os.environb.items())
    return procfs.environ(pid)
