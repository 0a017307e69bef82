"""A deployment of several processes is one launch: started in order, alive as long as all of its members, swept as one; and the
user's own is stopped and brought back as one, each process with its own environment, also when nobody is left to ask for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.box.box import Box, MemberLaunch
from optimizer.box.results import LaunchState, PortTaken, ServerProcess
from tests.ports import free_port

from .conftest import alive, until

QUICK: Any = {"poll_s": 0.1, "listen_wait_s": 20.0}
TOKEN = "hf_CanaryCanaryCanaryCanary02"
KEY = "canary-key-of-the-decode-worker"
ROLES = ("prefill", "decode", "router")
# Serves its health after a while; a router ends at once when a worker does not answer, so its being there proves the order.
SERVER = """
import http.server, json, os, sys, time, urllib.request
name, port, after, *rest = sys.argv[1:]
for url in [word for word in rest if word.startswith("http")]:
    urllib.request.urlopen(url + "/health", timeout=2).read()
print(json.dumps({"name": name, "pid": os.getpid(), "argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "at": time.time()}), flush=True)
ready = time.time() + float(after)
if "dies" in rest:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", flush=True)
    sys.exit(7)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/health"
        self.send_response(404 if not known else 200 if time.time() > ready else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.fixture
def ports() -> list[int]:
    return [free_port() for _ in ROLES]


@pytest.fixture
def argv(tmp_path: Path, ports: list[int]) -> Callable[..., list[str]]:
    """argv(role, *options) -> the command line of one member."""
    script = tmp_path / "member.py"
    script.write_text(textwrap.dedent(SERVER))
    asked = [f"http://127.0.0.1:{port}" for port in ports[:2]]

    def made(role: str, *options: str, after: float = 0.3) -> list[str]:
        own = asked if role == "router" else []
        return [sys.executable, str(script), role, str(ports[ROLES.index(role)]), str(0.0 if role == "router" else after), *own, *options]

    return made


@pytest.fixture
def members(argv: Callable[..., list[str]], ports: list[int]) -> Callable[..., list[MemberLaunch]]:
    """members(decode=("dies",)) -> the three, with further options for some; ``bases`` names where each takes its environment from."""

    def made(bases: tuple[str, ...] = ("login",) * 3, **options: tuple[str, ...]) -> list[MemberLaunch]:
        return [
            MemberLaunch(name=role, role=role, port=port, argv=argv(role, *options.get(role, ())), env={"ROLE": role}, cwd="/", base=base,
                         paths=("/nowhere", "/health"), timeout_s=2.0)
            for role, port, base in zip(ROLES, ports, bases, strict=True)
        ]  # fmt: skip

    return made


async def started(box: Box, key: str = "1") -> LaunchState:
    """The state once all members are ready, or once the launch is dead."""
    end = time.monotonic() + 20
    while True:
        state = await box.state("s1", key)
        if not state.alive or (len(state.members) == 3 and all(one.ready_s is not None for one in state.members)):
            return state
        assert time.monotonic() < end, state
        await asyncio.sleep(0.05)


async def test_members_start_in_order_and_are_one_launch(box: Box, home: Path, members: Callable[..., list[MemberLaunch]], ports: list[int]) -> None:
    launched = await box.launch_deployment("s1", "1", members())
    assert launched.launched and launched.alive
    assert not (await box.launch_deployment("s1", "1", members())).launched  # one key, one start
    state = await started(box)
    assert [one.name for one in state.members] == list(ROLES) and state.ports == tuple(ports)
    for one in state.members:
        listeners = await box.listeners(one.port, "s1:1")
        assert listeners.only_ours and listeners.listeners[0].pids == (one.pid,)
    reports = {one.name: json.loads((await box.read_log("s1", "1", member=one.name))[0].splitlines()[0]) for one in state.members}
    assert {name: report["env"]["ROLE"] for name, report in reports.items()} == {role: role for role in ROLES}
    assert {report["cwd"] for report in reports.values()} == {"/"} and {report["env"]["OPTIMIZER_LAUNCH_ID"] for report in reports.values()} == {"s1:1"}
    # The router came up although it ends where a worker does not answer, and not before the slower of them was ready.
    assert reports["router"]["at"] >= max(reports[name]["at"] for name in ("prefill", "decode")) + 0.3
    said = (await box.read_log("s1", "1"))[0].decode()
    assert said.index("decode is ready") < said.index("router started") < said.index("all members are ready")
    swept = await box.sweep("s1:1", term_s=5)
    assert swept.clean and {one.pid for one in state.members} <= set(swept.swept)
    assert [await box.port_free(port) for port in ports] == [True] * 3
    await box.cleanup("s1")
    assert not (home / ".optimizer").exists()


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
async def test_one_that_fails_to_start_ends_all_and_says_why(box: Box, members: Callable[..., list[MemberLaunch]], role: str) -> None:
    await box.launch_deployment("s1", "1", members(**{role: ("dies",)}))
    state = await started(box)
    assert (state.state, state.exit_code, state.pids) == ("dead", 7, ())
    said = (await box.read_log("s1", "1"))[0].decode()
    assert f"{role} ended with code 7" in said and "CUDA out of memory" in said
    assert (await box.sweep("s1")).clean


@pytest.mark.slow
@pytest.mark.fault("G7")
@pytest.mark.parametrize("role", ROLES)
async def test_one_that_dies_later_ends_all(box: Box, members: Callable[..., list[MemberLaunch]], role: str, ports: list[int]) -> None:
    await box.launch_deployment("s1", "1", members())
    state = await started(box)
    victim = next(one for one in state.members if one.name == role)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    while (end := await box.state("s1", "1")).alive:
        await asyncio.sleep(0.05)
    assert (end.exit_signal, end.pids) == (9, ()) and not any(alive(one.pid or 0) for one in state.members)
    assert f"{role} ended by signal 9" in (await box.read_log("s1", "1"))[0].decode()
    assert [await box.port_free(port) for port in ports] == [True] * 3


async def test_killed_conductor_leaves_nothing_that_a_sweep_does_not_find(box: Box, members: Callable[..., list[MemberLaunch]]) -> None:
    await box.launch_deployment("s1", "1", members())
    state = await started(box)
    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)
    await until(lambda: not alive(state.pid or 0))
    left = await box.state("s1", "1")
    assert left.state == "dead" and set(left.pids) == {one.pid for one in state.members}
    assert (await box.sweep("s1:1", term_s=5)).clean and not any(alive(one.pid or 0) for one in state.members)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["claimed", "before_spawn", "spawned", "recorded", "member_prefill", "member_decode", "member_router"])
async def test_killed_between_two_steps_of_a_launch(
    make_box: Callable[..., Box], members: Callable[..., list[MemberLaunch]], ports: list[int], point: str
) -> None:
    """C12: whoever starts it dies at each boundary; what is there afterwards is dead or whole, and a sweep leaves nothing."""
    box = make_box(OPTIMIZER_CRASH_AT=point)
    try:
        await box.launch_deployment("s1", "1", members())
    except Exception as lost:  # the shim died, so nobody answered
        assert "lost" in str(lost), lost
    quiet = make_box()
    state = await started(quiet)
    whole = state.alive and len(state.members) == 3
    assert whole == (point in ("spawned", "recorded"))
    again = await quiet.launch_deployment("s1", "1", members())
    assert not again.launched and again.state == ("alive" if whole else "dead")
    assert (await quiet.sweep("s1:1", term_s=5)).clean
    assert [await quiet.port_free(port) for port in ports] == [True] * 3


async def test_nothing_is_launched_where_one_port_is_taken(box: Box, home: Path, members: Callable[..., list[MemberLaunch]], ports: list[int]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[1]))
        taken.listen()
        with pytest.raises(PortTaken, match=str(ports[1])):
            await box.launch_deployment("s1", "1", members())
    assert (await box.state("s1", "1")).state == "not_claimed"


class Theirs:
    """The user's own deployment: three processes that know nothing of one another, each with its own environment."""

    def __init__(self, argv: Callable[..., list[str]], ports: list[int], folder: Path, spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
        self.logs = {role: folder / f"{role}.log" for role in ROLES}
        self.ports = ports
        self.argv = {role: argv(role, *(("--api-key", KEY) if role == "decode" else ()), after=0.0) for role in ROLES}
        for role in ROLES:
            extra = {"HF_TOKEN": TOKEN} if role == "decode" else {}
            env = {**os.environ, "ROLE": f"their {role}", **extra}
            spawn(self.argv[role], stdout=self.logs[role].open("ab"), stderr=subprocess.STDOUT, env=env, cwd="/")
            self.wait(role, 1)

    def reports(self, role: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.logs[role].read_text().splitlines() if line.startswith("{")]

    def wait(self, role: str, count: int) -> None:
        end = time.monotonic() + 10
        while len(self.reports(role)) < count or not _answers(self.ports[ROLES.index(role)]):
            assert time.monotonic() < end, role
            time.sleep(0.02)

    async def found(self, box: Box) -> list[ServerProcess]:
        servers = []
        for role, port in zip(ROLES, self.ports, strict=True):
            answer = await box.find_servers(port)
            servers.append(next(one for one in answer.servers if one.pid == self.reports(role)[-1]["pid"]))
        return servers


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def theirs(argv: Callable[..., list[str]], ports: list[int], tmp_path: Path, spawn: Callable[..., subprocess.Popen[bytes]]) -> Theirs:
    return Theirs(argv, ports, tmp_path, spawn)


async def restored_as_it_was(theirs: Theirs) -> None:
    for role in ROLES:
        theirs.wait(role, 2)
        first, second = theirs.reports(role)
        assert {key: first[key] for key in ("argv", "env", "cwd")} == {key: second[key] for key in ("argv", "env", "cwd")}
        assert alive(second["pid"])
    assert theirs.reports("router")[1]["at"] >= max(theirs.reports(role)[1]["at"] for role in ("prefill", "decode"))


@pytest.mark.slow
@pytest.mark.fault("H43")
async def test_their_deployment_is_stopped_and_comes_back_as_one(box: Box, home: Path, theirs: Theirs, members: Callable[..., list[MemberLaunch]]) -> None:
    *workers, entry = await theirs.found(box)
    assert workers[1].env["HF_TOKEN"] == "«secret»" and workers[1].argv[-1] == "«secret:0»"
    guard = await box.secure("s1", entry.model_copy(update={"before": tuple(workers)}), minutes=6 / 60, **QUICK)
    assert guard.original is not None and [one.pid for one in guard.original.before] == [one.pid for one in workers]
    await box.heartbeat("s1", 1)
    stopped = await box.stop_original("s1", entry, term_s=5)
    assert {entry.pid, *(one.pid for one in workers)} <= set(stopped.stopped) and not stopped.remaining
    assert (await box.stop_original("s1", entry, term_s=5)).stopped == ()  # once more changes nothing
    await box.heartbeat("s1", 2)
    # A launch takes each member's environment from the process that has the same part; their own words stay hidden.
    ours = [one._replace(base=base, argv=server.argv) for one, base, server in zip(members(), ("guard:0", "guard:1", "guard"), (*workers, entry), strict=True)]
    await box.launch_deployment("s1", "1", ours)
    state = await started(box)
    assert state.alive and await box.heartbeat("s1", 3)
    seen = {role: json.loads(Path(next(one.log or "" for one in state.members if one.name == role)).read_text().splitlines()[0]) for role in ROLES}
    assert [seen[role]["env"].get("HF_TOKEN") for role in ROLES] == [None, TOKEN, None] and seen["decode"]["argv"][-1] == KEY
    assert seen["decode"]["env"]["ROLE"] == "decode" and not [name for name in seen["decode"]["env"] if name.startswith("OPTIMIZER_MEMBER")]
    shown = (await box.read_log("s1", "1", member="decode"))[0]
    assert TOKEN.encode() not in shown and KEY.encode() not in shown
    # ... and the coordinator falls silent.
    await until(lambda: not alive(guard.pid), 40)
    status = await box.guard_status("s1")
    assert status.fired is not None and status.fired.restored and status.fired.clean and status.members == 3
    await restored_as_it_was(theirs)
    texts = [path.read_bytes() for path in (home / ".optimizer").rglob("*") if path.is_file() and path.name != "server.decode.log"]
    assert not any(TOKEN.encode() in text or KEY.encode() in text for text in texts)


@pytest.mark.slow
async def test_without_a_guard_it_comes_back_by_the_record(
    box: Box, argv: Callable[..., list[str]], ports: list[int], tmp_path: Path, spawn: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "KEY", "plain")
    monkeypatch.setitem(globals(), "TOKEN", "")
    theirs = Theirs(lambda role, *_, **given: argv(role, **given), ports, tmp_path, spawn)
    *workers, entry = await theirs.found(box)
    guard = await box.secure("s1", entry.model_copy(update={"before": tuple(workers)}), minutes=10, **QUICK)
    await box.stop_original("s1", entry, term_s=5)
    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not alive(guard.pid))
    restored = await box.restore_original("s1", 30)
    await restored_as_it_was(theirs)
    assert not restored.by_guard and restored.pid == theirs.reports("router")[-1]["pid"]


@pytest.mark.slow
async def test_a_router_that_hides_its_command_line_comes_back_as_described(
    box: Box, theirs: Theirs, argv: Callable[..., list[str]], ports: list[int], tmp_path: Path, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """SGLang's router writes a title over its arguments and zeros over its environment: what was described is what is started."""
    *workers, real = await theirs.found(box)
    os.kill(real.pid, signal.SIGKILL)
    titled = spawn(["sglang::router", *argv("router")[1:]], executable=sys.executable, stdout=theirs.logs["router"].open("ab"), cwd="/",
                   env={"PYTHONHOME": sys.base_prefix})  # fmt: skip
    theirs.wait("router", 2)
    entry = next(one for one in (await box.find_servers(ports[2])).servers if one.pid == titled.pid)
    assert entry.engine == "sglang-router"
    known = {"described": True, "argv": tuple(argv("router")), "env": {"ROLE": "as described", "SPAWNED_IN": str(tmp_path)}}
    await box.secure("s1", entry.model_copy(update={**known, "before": tuple(workers)}), minutes=10, **QUICK)
    await box.stop_original("s1", entry, term_s=5)
    assert (await box.restore_original("s1", 30)).by_guard
    again = theirs.reports("router")[-1]
    assert again["pid"] != titled.pid and again["argv"] == argv("router")[1:] and alive(again["pid"])
    assert again["env"]["ROLE"] == "as described" and again["env"]["PATH"] == os.environ["PATH"]
