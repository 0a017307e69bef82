"""A server is started exactly once under its launch id, whatever dies in between, with exactly the given arguments and
environment."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.results import LaunchState, PortTaken, ShimRefused
from optimizer.errors import LinkLost

from .conftest import alive, until

Server = Callable[..., list[str]]


async def said(box: Box, study: str, key: str) -> dict:
    """The line that the test server prints when it is up."""
    for _ in range(500):
        data, _ = await box.read_log(study, key)
        if data.endswith(b"}\n"):
            return json.loads(data)
        await asyncio.sleep(0.02)
    raise AssertionError(f"the server never came up: {data!r}")


async def test_launch_is_detached_and_found_again(box: Box, server: Server, free_port: int) -> None:
    launched = await box.launch("s1", "1", server(free_port), port=free_port)
    assert launched.launched and launched.alive
    report = await said(box, "s1", "1")
    assert report["pid"] == launched.pid
    assert report["env"]["OPTIMIZER_LAUNCH_ID"] == "s1:1"
    assert report["fds"] == ["0", "1", "2", "3", "4"] or len(report["fds"]) <= 5  # 3: the socket, 4: the listing itself
    assert report["pipe"] == "SIG_IGN"  # Python's own choice; the signal itself arrived with its default
    assert os.getsid(launched.pid) == launched.pid != os.getsid(0)
    state = await box.state("s1", "1")
    assert (state.state, state.pid, state.start_time) == ("alive", launched.pid, launched.start_time)
    assert (await box.state("s1", "2")).state == "not_claimed"


async def test_the_same_key_is_started_once_even_when_asked_at_once(box: Box, server: Server, free_port: int) -> None:
    answers = await asyncio.gather(*(box.launch("s1", "1", server(0), port=free_port) for _ in range(4)))
    assert sum(answer.launched for answer in answers) == 1
    assert len({answer.pid for answer in answers}) == 1
    assert (await box.state("s1", "1")).pids == (answers[0].pid,)
    await box.sweep("s1", term_s=1)
    again = await box.launch("s1", "1", server(0), port=free_port)
    assert not again.launched and again.state == "dead"


@pytest.mark.fault("F23")
async def test_a_taken_port_refuses_and_claims_nothing(
    box: Box, server: Server, free_port: int, spawn: Callable
) -> None:
    foreign = spawn(server(free_port), stdout=-3)
    while await box.port_free(free_port):
        await asyncio.sleep(0.02)
    with pytest.raises(PortTaken, match=str(foreign.pid)):
        await box.launch("s1", "1", server(free_port), port=free_port)
    with pytest.raises(PortTaken):
        await box.launch("s1", "1", server(0), side_ports=[free_port])
    assert (await box.state("s1", "1")).state == "not_claimed"
    assert foreign.poll() is None


HOSTILE = [
    "; rm -rf ~", "$(id)", "`id`", "two\nlines", "-leading", "--", "'single' \"double\" `back`", "back\\slash!", "%s %(x)s {0}",
    "«secret»", "tab\there", "", " ", "*", "~", "ünï", "\x1b[31m", "bad \udcff byte", "x" * 100_000,
]  # fmt: skip


@pytest.mark.fault("H13", "H14", "H15", "H16", "H17", "H19")
async def test_hostile_values_arrive_unchanged(box: Box, server: Server) -> None:
    env = {f"H{number}": value for number, value in enumerate(HOSTILE)}
    await box.launch("s1", "1", [*server(0), *HOSTILE], env)
    report = await said(box, "s1", "1")
    assert report["argv"][2:] == HOSTILE
    assert {name: report["env"][name] for name in env} == env


@pytest.mark.fault("H18")
async def test_a_value_too_long_for_the_kernel_is_refused_by_name(box: Box, server: Server) -> None:
    with pytest.raises(ShimRefused, match="Argument list too long") as caught:
        await box.launch("s1", "1", server(0), {"LONG": "x" * 200_000})
    assert caught.value.kind == "exec_failed"


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
async def test_an_impossible_variable_is_refused(box: Box, server: Server, name: str) -> None:
    with pytest.raises(ShimRefused) as caught:
        await box.launch("s1", "1", server(0), {name: "x"})
    assert caught.value.kind == "bad_request"


@pytest.mark.fault("H22")
@pytest.mark.parametrize("study", ["../../x", "", "a/b", ".", "..", "a b", "-x", "x\n"])
async def test_a_study_id_that_is_a_path_is_refused(box: Box, server: Server, home: Path, study: str) -> None:
    with pytest.raises(ShimRefused) as caught:
        await box.launch(study, "1", server(0))
    assert caught.value.kind == "bad_request"
    assert not (home / ".optimizer" / "runs").exists()


async def test_environment_changes(make_box: Callable[..., Box], server: Server) -> None:
    box = make_box(KEEP="1", DROP="2", CHANGE="3")
    await box.launch("s1", "1", server(0), {"DROP": None, "CHANGE": "4", "NEW": "5"})
    env = (await said(box, "s1", "1"))["env"]
    assert (env["KEEP"], env["CHANGE"], env["NEW"]) == ("1", "4", "5")
    assert "DROP" not in env


async def test_directory_and_affinity(box: Box, server: Server, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    await box.launch("s1", "1", server(0), cwd=str(tmp_path), affinity=[cpu])
    report = await said(box, "s1", "1")
    assert report["cwd"] == str(tmp_path)
    assert report["affinity"] == [cpu]


@pytest.mark.parametrize(
    ("argv", "cwd", "says"),
    [
        (["/no/such/program"], None, "No such file"),
        (["/etc/passwd"], None, "Permission denied"),
        ([sys.executable], "/no/such/folder", "directory /no/such/folder"),
    ],
)
async def test_what_cannot_be_started_says_why(box: Box, argv: list[str], cwd: str | None, says: str) -> None:
    with pytest.raises(ShimRefused, match=says) as caught:
        await box.launch("s1", "1", argv, cwd=cwd)
    assert caught.value.kind == "exec_failed"
    state = await box.state("s1", "1")
    assert state.state == "dead" and state.pids == () and says.split()[0] in (state.exit_reason or "")


@pytest.mark.parametrize(
    ("code", "exit_code", "exit_signal"),
    [("raise SystemExit(7)", 7, None), ("import os; os.kill(os.getpid(), 9)", None, 9), ("", 0, None)],
)
async def test_how_a_server_ended_is_known(box: Box, code: str, exit_code: int | None, exit_signal: int | None) -> None:
    await box.launch("s1", "1", [sys.executable, "-c", code])
    for _ in range(200):
        state = await box.state("s1", "1")
        if state.state == "dead" and (state.exit_code, state.exit_signal) != (None, None):
            break
        await asyncio.sleep(0.02)
    assert (state.exit_code, state.exit_signal) == (exit_code, exit_signal)


async def test_workers_that_outlive_their_server_are_not_a_living_server(box: Box, server: Server) -> None:
    await box.launch("s1", "1", server(0, "setsid", "leave-workers"))
    for _ in range(200):
        state = await box.state("s1", "1")
        if state.state == "dead":
            break
        await asyncio.sleep(0.02)
    assert state.state == "dead" and len(state.pids) == 1 and state.exit_code == 3


@pytest.mark.fault("F4")
@pytest.mark.parametrize(
    ("point", "expected"), [("claimed", "dead"), ("before_spawn", "dead"), ("spawned", "alive"), ("recorded", "alive")]
)
async def test_killed_shim_leaves_a_launch_that_can_be_reconciled(
    make_box: Callable[..., Box], server: Server, free_port: int, point: str, expected: str
) -> None:
    with pytest.raises(LinkLost):
        await make_box(OPTIMIZER_CRASH_AT=point).launch("s1", "1", server(free_port), port=free_port)
    box = make_box()
    state = await box.state("s1", "1")
    assert state.state == expected
    again = await box.launch("s1", "1", server(free_port), port=free_port)
    assert not again.launched and again.state == expected and again.pid == state.pid
    assert len(again.pids) == (1 if expected == "alive" else 0)


@pytest.mark.fault("F4")
@pytest.mark.parametrize("point", ["claimed", "before_spawn", "spawned"])
async def test_a_link_that_drops_in_mid_launch_is_waited_for(
    make_box: Callable[..., Box], server: Server, point: str
) -> None:
    """The dangerous order: claim, link lost, reconcile asks, process appears. Reconcile must not hear "dead"."""
    slow = make_box(OPTIMIZER_PAUSE_AT=point, OPTIMIZER_PAUSE_S="0.7")
    call = asyncio.ensure_future(slow.launch("s1", "1", server(0)))
    claim = Path(slow.transport.env["HOME"]) / ".optimizer/runs/s1/1"  # type: ignore[attr-defined]
    await until(claim.exists)
    call.cancel()
    state = await make_box().state("s1", "1")
    assert state.state == "alive"
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.fault("F45")
async def test_a_record_from_before_a_reboot_is_dead(box: Box, server: Server, home: Path) -> None:
    launched = await box.launch("s1", "1", server(0))
    claim = home / ".optimizer/runs/s1/1"
    for name in ("claim.json", "started.json"):
        record = json.loads((claim / name).read_text())
        (claim / name).write_text(json.dumps({**record, "boot_id": "another"}))
    os.kill(launched.pid, signal.SIGKILL)
    await until(lambda: not alive(launched.pid))
    state = await box.state("s1", "1")
    assert state.state == "dead" and state.rebooted


async def test_log_is_read_on_from_its_offset(box: Box) -> None:
    code = "import time\nfor n in range(3): print('line', n, flush=True); time.sleep(0.1)"
    await box.launch("s1", "1", [sys.executable, "-c", code])
    text, offset = b"", 0
    for _ in range(300):
        part, offset = await box.read_log("s1", "1", offset, max_bytes=4)
        text += part
        if text.endswith(b"line 2\n"):
            break
    assert text == b"line 0\nline 1\nline 2\n"
    assert await box.read_log("s1", "other") == (b"", 0)


@pytest.mark.fault("F11")
async def test_read_only_home_is_named(box: Box, server: Server, home: Path) -> None:
    (home / ".optimizer").write_text("a file where the folder should be")
    with pytest.raises(ShimRefused, match="Cannot write") as caught:
        await box.launch("s1", "1", server(0))
    assert caught.value.kind == "unwritable"


def test_launch_state_knows_alive() -> None:
    fields = {"state": "alive", "pid": 1, "start_time": 1, "pids": (1,), "exit_code": None, "exit_signal": None,
              "exit_reason": None, "log": None, "ports": (), "rebooted": False}  # fmt: skip
    assert LaunchState.model_validate(fields).alive
