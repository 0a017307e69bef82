"""The dead-man's switch: a silent coordinator loses the box, the original server comes back as it was, and no credential of
it ever touched the coordinator or a disk."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.plain import guarded, look
from optimizer.box.plain import spawn as spawn_
from optimizer.box.results import GuardFired, ServerProcess, ShimRefused
from optimizer.errors import NeedsOperator

from .conftest import alive, until
from .test_launch import Server, said

QUICK = {"poll_s": 0.1, "listen_wait_s": 20.0}
TOKEN = "hf_CanaryCanaryCanaryCanary01"
API_KEY = "canary-api-key-in-argv"


class Original:
    """The user's own server: listens, logs to a file, holds credentials."""

    def __init__(self, argv: list[str], port: int, log: Path, spawn: Callable) -> None:
        self.argv, self.port, self.log = argv, port, log
        env = {**os.environ, "HF_TOKEN": TOKEN, "PLAIN": "visible", "HOME": "/", "OPTIMIZER_OTHER": "kept"}
        self.process: subprocess.Popen[bytes] = spawn(
            argv, stdout=log.open("ab"), stderr=subprocess.STDOUT, env=env, cwd="/"
        )

    def reports(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    async def find(self, box: Box) -> ServerProcess:
        await until(lambda: self.reports())
        found = await box.find_servers(self.port)
        (server,) = (one for one in found.servers if one.pid == self.process.pid)
        return server


@pytest.fixture
def original(server: Server, free_port: int, tmp_path: Path, spawn: Callable) -> Iterator[Original]:
    one = Original([*server(free_port, "setsid"), "--api-key", API_KEY], free_port, tmp_path / "original.log", spawn)
    yield one
    for report in one.reports():
        for pid in (report["pid"], *report["workers"]):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def canaries(folder: Path) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != "server.log"  # what the engine itself says about itself; masked when read
        and (TOKEN.encode() in path.read_bytes() or API_KEY.encode() in path.read_bytes())
    ]


@pytest.mark.fault("H43")
async def test_what_leaves_the_box_about_the_original_holds_no_credential(box: Box, original: Original) -> None:
    seen = await original.find(box)
    assert seen.env["PLAIN"] == "visible" and seen.env["HF_TOKEN"] == "«secret»"
    assert seen.argv[-2:] == ("--api-key", "«secret:0»") and seen.hidden_arguments == 1
    assert TOKEN not in seen.model_dump_json() and API_KEY not in seen.model_dump_json()
    assert seen.logs == (str(original.log),) and seen.cwd == "/" and seen.ports == (original.port,)


@pytest.mark.fault("H43")
async def test_silent_coordinator_loses_the_box_and_the_original_is_back(
    box: Box, home: Path, original: Original
) -> None:
    seen = await original.find(box)
    guard = await box.secure("s1", seen, minutes=4 / 60, **QUICK)
    assert guard.original is not None and guard.original.pid == seen.pid
    assert (await box.secure("s1", seen, minutes=4 / 60, **QUICK)).pid == guard.pid  # armed once
    await box.heartbeat("s1", 1)
    stopped = await box.stop_original("s1", seen, term_s=2)
    assert seen.pid in stopped.stopped and not stopped.remaining and original.process.wait(5)
    assert not alive(original.reports()[0]["workers"][0])
    # Launches start from the original's environment, through the guard.
    changes = {"PLAIN": "changed"}
    launched = await box.launch("s1", "1", seen.argv, changes, cwd=seen.cwd, port=original.port, base="guard")
    shown = await said(box, "s1", "1")
    assert (shown["env"]["HF_TOKEN"], shown["argv"][-1]) == (
        "<secret>".ljust(len(TOKEN), "*"),
        "<secret>".ljust(len(API_KEY), "*"),
    )
    report = json.loads((home / ".optimizer/runs/s1/1/server.log").read_text())
    assert (report["env"]["HF_TOKEN"], report["env"]["PLAIN"], report["env"]["HOME"]) == (TOKEN, "changed", "/")
    assert report["argv"][-1] == API_KEY
    assert not [name for name in report["env"] if name.startswith("OPTIMIZER_SECRET")]
    await box.heartbeat("s1", 2)
    # ... and now the coordinator falls silent.
    await until(lambda: len(original.reports()) == 2)
    await until(lambda: not alive(guard.pid))
    status = await box.guard_status("s1")
    assert status.fired is not None and status.fired.reason == "silent" and status.fired.restored and status.fired.clean
    assert not alive(launched.pid)
    first, second = original.reports()
    assert second["pid"] == status.fired.pid
    for field in ("argv", "cwd", "affinity"):
        assert first[field] == second[field]
    assert second["env"] == first["env"]
    found = await box.find_servers(original.port)
    assert [one.pid for one in found.servers if original.port in one.ports] == [second["pid"]]
    # A coordinator that comes back late changes nothing.
    with pytest.raises(GuardFired):
        await box.launch("s1", "2", seen.argv, port=original.port)
    with pytest.raises(GuardFired):
        await box.stop_original("s1", seen)
    with pytest.raises(ShimRefused):
        await box.heartbeat("s2", 1)
    assert await box.heartbeat("s1", 3) is False
    # It may take the box again under the next epoch.
    again = await box.secure("s1", (await original_now(box, original)), epoch=2, **QUICK)
    assert again.epoch == 2 and again.pid != guard.pid
    await box.disarm("s1")
    assert canaries(home) == []
    await box.cleanup("s1")
    assert not (home / ".optimizer").exists()
    assert alive(second["pid"])


async def original_now(box: Box, original: Original) -> ServerProcess:
    return next(one for one in (await box.find_servers(original.port)).servers if original.port in one.ports)


async def test_heartbeats_hold_the_guard_off(box: Box, home: Path) -> None:
    guard = await box.secure("s1", None, minutes=1.5 / 60, **QUICK)
    for beat in range(7):
        assert await box.heartbeat("s1", beat)
        await asyncio.sleep(0.3)
    assert alive(guard.pid)
    await until(lambda: not alive(guard.pid), 5)
    fired = (await box.guard_status("s1")).fired
    assert fired is not None and fired.restored is None and fired.clean


async def test_the_same_beat_again_is_silence(box: Box) -> None:
    guard = await box.secure("s1", None, minutes=0.5 / 60, **QUICK)
    for _ in range(20):
        if not alive(guard.pid):
            break
        await box.heartbeat("s1", 7)
        await asyncio.sleep(0.1)
    assert not alive(guard.pid)


async def test_disarm_leaves_nothing(box: Box, home: Path) -> None:
    await box.lock("s1")
    guard = await box.secure("s1", None, **QUICK)
    await box.disarm("s1")
    assert not alive(guard.pid)
    await box.disarm("s1")  # twice is fine
    await box.cleanup("s1")
    await box.unlock("s1")
    assert not (home / ".optimizer").exists()


async def test_restore_on_request(box: Box, original: Original, server: Server) -> None:
    seen = await original.find(box)
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    launched = await box.launch("s1", "1", seen.argv, port=original.port, base="guard")
    restored = await box.restore_original("s1", timeout_s=30)
    assert restored.by_guard and restored.pid == original.reports()[-1]["pid"] != seen.pid
    assert not alive(launched.pid)
    assert (await box.restore_original("s1")).pid == restored.pid  # twice changes nothing


async def test_restore_while_the_original_still_runs_changes_nothing(box: Box, original: Original) -> None:
    seen = await original.find(box)
    await box.secure("s1", seen, **QUICK)
    restored = await box.restore_original("s1", timeout_s=30)
    assert restored.pid == seen.pid and alive(seen.pid) and len(original.reports()) == 1


PROXY = """import socket, sys
one = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
one.bind((sys.argv[1], int(sys.argv[2])))
one.listen()
print("up", flush=True)
sys.stdin.read()"""


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
async def test_a_service_on_the_same_port_of_another_address_is_in_nobodys_way(box: Box, original: Original, spawn: Callable, address: str) -> None:
    """A proxy on the public address, say: it was there before, and it may be started again at any time."""

    def proxy() -> subprocess.Popen[bytes]:
        one: subprocess.Popen[bytes] = spawn([sys.executable, "-c", PROXY, address, str(original.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert one.stdout is not None
        if one.stdout.readline() != b"up\n":
            pytest.skip(f"{address} is no address here")
        return one

    before = proxy()
    seen = await original.find(box)
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    before.kill()
    before.wait()
    proxy()
    launched = await box.launch("s1", "1", seen.argv, port=original.port, base="guard")
    await said(box, "s1", "1")
    assert (await box.listeners(original.port, "s1:1")).only_ours
    restored = await box.restore_original("s1", timeout_s=30)
    assert restored.pid == original.reports()[-1]["pid"] != seen.pid and not alive(launched.pid)


async def test_a_service_at_the_originals_own_address_is_in_its_way(box: Box, original: Original, server: Server, spawn: Callable) -> None:
    seen = await original.find(box)
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    taker = spawn(server(original.port))
    while await box.port_free(original.port):
        await asyncio.sleep(0.02)
    with pytest.raises(NeedsOperator, match=f"{original.port} on the box is taken by process {taker.pid}"):
        await box.restore_original("s1", timeout_s=30)
    taker.kill()
    taker.wait()
    assert (await box.restore_original("s1", timeout_s=30)).pid != seen.pid


def given_groups_and_memory() -> None:
    """In the child: as a login of other groups, and as ``numactl --membind 0``, would start it."""
    if os.geteuid() == 0:
        os.setgroups([4, 27])
    spawn_._place_memory("bind", [0])


def groups_and_memory(pid: int) -> tuple[list[int], list | None]:
    return sorted(look.status_ids(pid)[2]), spawn_._memory_policy(pid)


@pytest.mark.parametrize(
    ("line", "policy"),
    [
        (b"557fbd692000 default file=/usr/bin/python3 mapped=4", None),
        (b"557fbd692000 bind:0 file=/usr/bin/python3", ["bind", [0]]),
        (b"557fbd692000 interleave:0-2,5 file=/usr/bin/python3", ["interleave", [0, 1, 2, 5]]),
        (b"557fbd692000 prefer (many):1 file=/usr/bin/python3", ["prefer (many)", [1]]),
        (b"557fbd692000 bind=static:1 file=/usr/bin/python3", ["bind", [1]]),
        (b"557fbd692000 local file=/usr/bin/python3", None),
        (None, None),
    ],
)
def test_memory_policies_that_the_kernel_prints(line: bytes | None, policy: list | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn_.procfs, "read", lambda *_: line)
    assert spawn_._memory_policy(1) == policy


async def test_groups_and_memory_policy_are_those_that_the_original_had(
    box: Box, server: Server, free_port: int, tmp_path: Path, spawn: Callable
) -> None:
    process = spawn(server(free_port), stdout=(tmp_path / "log").open("ab"), preexec_fn=given_groups_and_memory)
    while await box.port_free(free_port):
        await asyncio.sleep(0.02)
    had = groups_and_memory(process.pid)
    if os.geteuid() == 0:
        assert had[0] == [4, 27]
    assert had[1] in (["bind", [0]], None)  # None: a kernel without NUMA, or one that lets nobody choose
    seen = next(one for one in (await box.find_servers(free_port)).servers if one.pid == process.pid)
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    launched = await box.launch("s1", "1", seen.argv, port=free_port, base="guard")
    await said(box, "s1", "1")
    assert launched.pid is not None and groups_and_memory(launched.pid) == had
    restored = await box.restore_original("s1", timeout_s=30)
    try:
        assert groups_and_memory(restored.pid) == had
    finally:
        os.kill(restored.pid, signal.SIGKILL)


async def test_an_original_that_wrote_to_a_pipe_writes_to_the_kept_log(
    box: Box, home: Path, server: Server, free_port: int, spawn: Callable
) -> None:
    process = spawn(server(free_port), stdout=subprocess.PIPE)
    while await box.port_free(free_port):
        await asyncio.sleep(0.02)
    seen = next(one for one in (await box.find_servers(free_port)).servers if one.pid == process.pid)
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    restored = await box.restore_original("s1", timeout_s=30)
    try:
        assert restored.log == str(home / ".optimizer/kept/s1.log")
        cleaned = await box.cleanup("s1")
        assert cleaned.kept == (restored.log,)
        assert {path.name for path in (home / ".optimizer").rglob("*") if path.is_file()} == {"s1.log", "lock"}
    finally:
        os.kill(restored.pid, signal.SIGKILL)


async def test_with_a_dead_guard_what_needs_no_secret_comes_back(
    box: Box, server: Server, free_port: int, tmp_path: Path, spawn: Callable
) -> None:
    log = tmp_path / "plain.log"
    process = spawn(server(free_port), stdout=log.open("ab"), env={"PATH": os.environ["PATH"], "PLAIN": "1"}, cwd="/")
    while await box.port_free(free_port):
        await asyncio.sleep(0.02)
    seen = next(one for one in (await box.find_servers(free_port)).servers if one.pid == process.pid)
    guard = await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not alive(guard.pid))
    restored = await box.restore_original("s1")
    try:
        assert not restored.by_guard and alive(restored.pid)
        assert (await box.restore_original("s1")).pid == restored.pid
    finally:
        os.kill(restored.pid, signal.SIGKILL)


async def test_a_guard_whose_folder_is_removed_brings_the_original_back_at_once(box: Box, home: Path, original: Original) -> None:
    """A cleaner of homes, or `rm -rf ~/.optimizer`: what is needed is in the guard's memory, and nobody can reach it any more."""
    seen = await original.find(box)
    guard = await box.secure("s1", seen, **QUICK)  # a lease of many minutes
    await box.stop_original("s1", seen, term_s=2)
    launched = await box.launch("s1", "1", seen.argv, port=original.port, base="guard")
    await said(box, "s1", "1")
    shutil.rmtree(home / ".optimizer")
    await until(lambda: not alive(guard.pid), 60)
    assert not alive(launched.pid) and len(original.reports()) == 2
    fired = (await box.guard_status("s1")).fired
    assert fired is not None and (fired.reason, fired.restored, fired.pid) == ("lost", True, original.reports()[-1]["pid"])
    with pytest.raises(GuardFired):
        await box.launch("s1", "2", seen.argv, port=original.port)
    assert canaries(home) == []


@pytest.mark.fault("G3", "H43")
async def test_with_a_dead_guard_a_missing_secret_is_named(box: Box, home: Path, original: Original) -> None:
    seen = await original.find(box)
    guard = await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not alive(guard.pid))
    with pytest.raises(ShimRefused) as caught:
        await box.launch("s1", "1", seen.argv, base="guard")
    assert caught.value.kind == "guard_gone"
    with pytest.raises(NeedsOperator, match="HF_TOKEN") as needs:
        await box.restore_original("s1")
    assert TOKEN not in str(needs.value) and API_KEY not in str(needs.value)
    assert canaries(home) == []


async def test_the_original_is_not_stopped_before_the_guard_holds_it(box: Box, original: Original) -> None:
    seen = await original.find(box)
    with pytest.raises(ShimRefused) as caught:
        await box.stop_original("s1", seen)
    assert caught.value.kind == "not_secured"
    await box.secure("s1", None, **QUICK)
    with pytest.raises(ShimRefused):
        await box.stop_original("s1", seen)
    assert alive(seen.pid)


async def test_stopping_is_exact(box: Box, original: Original, server: Server, spawn: Callable) -> None:
    """A twin of the original and a reused pid are not touched."""
    twin = spawn(server(0, "setsid"), stdout=-3)
    seen = await original.find(box)
    await box.secure("s1", seen, **QUICK)
    with pytest.raises(ShimRefused):
        await box.stop_original("s1", seen.model_copy(update={"start_time": seen.start_time + 1}))
    assert (await box.stop_original("s1", seen.model_copy(update={"boot_id": "before"}))).stopped == ()
    assert alive(seen.pid)
    assert set((await box.stop_original("s1", seen, term_s=2)).stopped) == {seen.pid, *original.reports()[0]["workers"]}
    assert (await box.stop_original("s1", seen, term_s=2)).stopped == ()
    assert twin.poll() is None


@pytest.mark.fault("G1")
async def test_a_supervisor_that_restarts_the_original_is_noticed_at_every_attempt(
    box: Box, original: Original, server: Server, spawn: Callable
) -> None:
    """Not only by the attempt that stopped it: the next one would otherwise call the box free."""
    seen = await original.find(box)
    await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    again = spawn(server(original.port, "setsid"), stdout=-3)
    await until(lambda: box_listens(original.port))
    with pytest.raises(ShimRefused) as caught:
        await box.stop_original("s1", seen, term_s=2)
    assert caught.value.kind == "restarted"
    assert again.poll() is None


@pytest.mark.fault("G1")
async def test_a_loop_that_starts_the_original_again_is_noticed_before_it_listens(
    box: Box, original: Original, server: Server, spawn: Callable
) -> None:
    """A real server loads for minutes: by then a candidate would be measured beside it, or find no memory."""
    seen = await original.find(box)
    await box.secure("s1", seen, **QUICK)
    assert await box.heartbeat("s1", 1)
    await box.stop_original("s1", seen, term_s=2)
    assert await box.heartbeat("s1", 2)
    again = spawn(original.argv, stdout=-3, cwd="/")
    await until(lambda: API_KEY in guarded.shown_of(again.pid))
    for attempt in (
        lambda: box.heartbeat("s1", 3), lambda: box.launch("s1", "1", server(0), base="guard"), lambda: box.stop_original("s1", seen, term_s=2),
    ):  # fmt: skip
        with pytest.raises(ShimRefused, match=f"process {again.pid} runs its command line again.*left alone") as caught:
            await attempt()
        assert caught.value.kind == "restarted" and API_KEY not in str(caught.value)
    assert again.poll() is None
    assert (await box.restore_original("s1", timeout_s=30)).pid == again.pid


def box_listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_killed_while_arming_can_be_armed_again(make_box: Callable[..., Box]) -> None:
    from optimizer.errors import LinkLost

    with pytest.raises(LinkLost):
        await make_box(OPTIMIZER_CRASH_AT="guard_spawned").secure("s1", None, **QUICK)
    box = make_box()
    guard = await box.secure("s1", None, **QUICK)
    assert (await box.guard_status("s1")).guard == guard
    await box.disarm("s1")


@pytest.mark.fault("G2", "F23")
async def test_a_guard_that_could_not_restore_keeps_the_credentials_and_can_be_asked_again(
    box: Box, home: Path, original: Original, server: Server, spawn: Callable
) -> None:
    seen = await original.find(box)
    guard = await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    squatter = spawn(server(original.port), stdout=-3)
    await until(lambda: box_listens(original.port))
    with pytest.raises(NeedsOperator, match=f"process {squatter.pid}") as needs:
        await box.restore_original("s1", timeout_s=60)
    assert needs.value.hint and "optimize restore --host" in needs.value.hint
    assert (await box.guard_status("s1")).tries == 1 and alive(guard.pid)
    squatter.kill()
    squatter.wait()
    restored = await box.restore_original("s1", timeout_s=60)
    await until(lambda: len(original.reports()) == 2)
    assert restored.by_guard and restored.pid == original.reports()[-1]["pid"]
    assert original.reports()[-1]["env"] == original.reports()[0]["env"]
    await until(lambda: not alive(guard.pid))
    await box.cleanup("s1")
    assert canaries(home) == [] and not (home / ".optimizer").exists()


async def test_a_guard_that_was_stopped_obeys(box: Box, original: Original) -> None:
    seen = await original.find(box)
    guard = await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    os.kill(guard.pid, signal.SIGSTOP)
    assert (await box.restore_original("s1", timeout_s=60)).by_guard


async def test_an_original_that_was_started_by_hand_with_its_secrets_counts(box: Box, original: Original, spawn: Callable) -> None:
    """As the message about the missing ones says; the record on the disk has them not, and need not."""
    seen = await original.find(box)
    guard = await box.secure("s1", seen, **QUICK)
    await box.stop_original("s1", seen, term_s=2)
    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not alive(guard.pid))
    with pytest.raises(NeedsOperator, match="HF_TOKEN"):
        await box.restore_original("s1")
    by_hand = Original(original.argv, original.port, original.log, spawn)
    await until(lambda: box_listens(original.port))
    restored = await box.restore_original("s1", timeout_s=60)
    assert restored.pid == by_hand.process.pid and not restored.by_guard


async def test_a_title_over_a_command_line_is_that_of_every_program_of_its_kind(tmp_path: Path, free_port: int) -> None:
    """Another router in the same directory is neither the original nor one that was started again: it listens elsewhere."""
    code = f"import socket; s = socket.socket(); s.bind(('127.0.0.1', {free_port})); s.listen(); print('up', flush=True); input()"
    with subprocess.Popen(["sglang::router"], executable="/bin/cat", cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as bystander:
        record = {"shown": ["sglang::router"], "argv": ["python", "-m", "sglang_router.launch_router"], "cwd": str(tmp_path), "ports": [free_port]}
        # The kernel shows the new command line a moment after the process has become the program.
        await until(lambda: guarded.shown_of(bystander.pid) == ["sglang::router"])
        assert guarded.running_already(record) is None
        assert guarded.running_already({**record, "shown": None, "argv": ["sglang::router"]}).pid == bystander.pid
        assert bystander.stdin is not None
        bystander.stdin.close()
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None and one.stdin is not None and one.stdout.readline() == b"up\n"
        shown = guarded.shown_of(one.pid)
        assert guarded.running_already({**record, "shown": shown}).pid == one.pid
        one.stdin.close()
