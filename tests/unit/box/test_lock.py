"""One study holds a box; a holder is replaced only with proof that it is gone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.box.plain import holder
from optimizer.box.plain.procfs import Refused
from optimizer.box.program import BOOTSTRAP
from optimizer.box.results import BoxLocked, ShimRefused
from optimizer.runner.doctor import _basics

from .conftest import alive, until
from .test_launch import Server

ANOTHER = """
import asyncio, sys, time
from pathlib import Path
from optimizer.box.box import Box
from optimizer.transport.local import LocalTransport
async def main():
    box = Box(LocalTransport(home=Path(sys.argv[1])))
    await box.lock("other")
    if "secure" in sys.argv:
        await box.secure("other")
    print("held", flush=True)
    time.sleep(60)
asyncio.run(main())
"""


async def another_coordinator(home: Path, *options: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", ANOTHER, str(home), *options], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


@pytest.mark.fault("F46")
async def test_second_coordinator_is_refused_and_told_who_holds_the_box(box: Box, home: Path) -> None:
    other = await another_coordinator(home)
    try:
        with pytest.raises(BoxLocked, match=f"study other.*{os.uname().nodename}"):
            await box.lock("mine")
        with pytest.raises(BoxLocked):
            await box.lock("other")  # the same study from a second coordinator
        holder = await box.holder()
        assert holder is not None and (holder.study, holder.gone) == ("other", False)
        assert not await box.unlock("mine")
    finally:
        other.kill()
        other.wait()
    found = await box.holder()
    assert found is not None and found.gone
    await box.lock("mine")
    assert (await box.holder()).study == "mine"  # type: ignore[union-attr]


async def test_a_dead_coordinator_with_a_living_guard_still_holds_the_box(box: Box, home: Path) -> None:
    other = await another_coordinator(home, "secure")
    other.kill()
    other.wait()
    with pytest.raises(BoxLocked):
        await box.lock("mine")
    await box.lock("other")  # its own study may resume
    await box.disarm("other")
    await box.unlock("other")
    await box.lock("mine")


async def test_a_dead_coordinator_with_a_living_server_still_holds_the_box(
    box: Box, home: Path, server: Server
) -> None:
    other = await another_coordinator(home)
    launched = await box.launch("other", "1", server(0))
    other.kill()
    other.wait()
    with pytest.raises(BoxLocked):
        await box.lock("mine")
    await box.sweep("other", term_s=1)
    assert not alive(launched.pid)
    await box.lock("mine")


async def test_a_holder_on_another_machine_needs_silence(box: Box, home: Path) -> None:
    await box.lock("other")
    record = home / ".optimizer/box.lock/holder.json"
    elsewhere = {**json.loads(record.read_text()), "coordinator_boot_id": "another", "coordinator_name": "laptop"}
    record.write_text(json.dumps(elsewhere))
    with pytest.raises(BoxLocked, match="laptop"):
        await box.lock("mine")
    record.write_text(json.dumps({**elsewhere, "monotonic_s": elsewhere["monotonic_s"] - 1000}))
    await box.lock("mine", patience_s=900)


async def test_a_holder_that_an_older_version_wrote_down_is_judged_by_its_file(box: Box, home: Path) -> None:
    await box.lock("other")
    record = home / ".optimizer/box.lock/holder.json"
    old = {**json.loads(record.read_text()), "coordinator_boot_id": "another"}
    del old["monotonic_s"]
    record.write_text(json.dumps(old))
    with pytest.raises(BoxLocked):
        await box.lock("mine")
    os.utime(record, (1, 1))
    await box.lock("mine", patience_s=900)


async def test_another_machine_of_the_same_name_is_another_coordinator(box: Box, home: Path) -> None:
    """Two clones of one image, and both call their study the same."""
    await box.lock("mine")
    record = home / ".optimizer/box.lock/holder.json"
    held = json.loads(record.read_text())
    elsewhere = {**held, "coordinator_boot_id": "another", "coordinator_machine": "0123456789abcdef"}
    record.write_text(json.dumps(elsewhere))
    if "coordinator_machine" in held:
        with pytest.raises(BoxLocked, match="held by study mine"):
            await box.lock("mine")
    else:
        pytest.skip("this machine has no number of its own")
    record.write_text(json.dumps({**elsewhere, "monotonic_s": held["monotonic_s"] - 1000}))
    await box.lock("mine", patience_s=900)  # it has been silent for long


@pytest.mark.fault("F45")
async def test_a_lock_from_before_a_reboot_is_free(box: Box, home: Path) -> None:
    await box.lock("other")
    record = home / ".optimizer/box.lock/holder.json"
    record.write_text(
        json.dumps({**json.loads(record.read_text()), "boot_id": "before", "coordinator_boot_id": "before"})
    )
    await box.lock("mine")


async def test_lock_and_unlock_leave_nothing(box: Box, home: Path) -> None:
    await box.lock("mine")
    await box.lock("mine")
    assert await box.unlock("mine")
    assert not await box.unlock("mine")
    assert not (home / ".optimizer").exists()
    assert await box.holder() is None


async def test_cleanup_refuses_while_something_runs(box: Box, home: Path, server: Server) -> None:
    launched = await box.launch("s1", "1", server(0))
    with pytest.raises(ShimRefused, match=str(launched.pid)) as caught:
        await box.cleanup("s1")
    assert caught.value.kind == "still_running"
    # A server that is left running on purpose writes to the log that is kept.
    left = await box.launch("s1", "2", server(0), keep_log=True)
    await box.sweep("s1:1", term_s=1)
    cleaned = await box.cleanup("s1", leave_running=True)
    assert cleaned.kept == (str(home / ".optimizer/kept/s1.log"),) == (left.log,)
    assert not (home / ".optimizer/runs").exists() and alive(left.pid)
    os.kill(left.pid, signal.SIGKILL)
    await until(lambda: not alive(left.pid))
    assert not (home / ".optimizer/runs").exists()  # its keeper wrote nothing back


async def test_studies_do_not_touch_each_other(make_box: Callable[..., Box], server: Server) -> None:
    box = make_box()
    await box.launch("s1", "1", server(0))
    await box.launch("s2", "1", server(0))
    await box.sweep("s1", term_s=1)
    await box.cleanup("s1")
    assert (await box.state("s2", "1")).alive


async def test_a_home_that_machines_share_is_held_by_one_of_them(box: Box, home: Path) -> None:
    """Its records name processes of the other machine, whose numbers mean others here."""
    await box.lock("mine")
    path = home / ".optimizer/box.lock/holder.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hostname": "node-7", "boot_id": "of node-7"}))
    for study in ("mine", "other"):
        with pytest.raises(BoxLocked, match="at work on node-7, whose home directory this one shares"):
            await box.lock(study)
    holder = await box.holder(patience_s=0)
    assert holder is not None and holder.elsewhere == "node-7" and not holder.gone


async def test_a_study_inside_a_container_is_not_touched_from_outside(box: Box, home: Path, server: Server) -> None:
    await box.lock("mine")
    launched = await box.launch("mine", "1", server(0))
    path = home / ".optimizer/box.lock/holder.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid_namespace": "pid:[1]"}))
    with pytest.raises(BoxLocked, match="in another container"):
        await box.lock("mine")
    assert alive(launched.pid)


async def test_what_an_earlier_study_of_the_name_left_is_seen(box: Box) -> None:
    assert not await box.left_by("mine")
    await box.secure("mine", None, poll_s=0.1)
    assert await box.left_by("mine") and not await box.left_by("min")
    await box.disarm("mine")
    await box.cleanup("mine")
    assert not await box.left_by("mine")


async def test_a_lock_whose_writing_was_broken_off_is_nobodys(box: Box, home: Path) -> None:
    folder = home / ".optimizer/box.lock"
    folder.mkdir(parents=True)
    (folder / "holder.json.4711.new").write_text("{")
    assert await box.holder() is None
    assert await box.unlock("restore")
    assert not (home / ".optimizer").exists()
    await box.lock("mine")
    assert not await box.unlock("restore"), "a whole one is its study's"


@pytest.mark.parametrize(("damage", "said"), [
    (lambda root: root.write_text(""), "is no folder"),
    (lambda root: (root.mkdir(), root.chmod(0o777)), "can be written by others \\(mode 777\\)"),
    (lambda root: root.symlink_to("/tmp"), "is no folder"),
    (lambda root: (root.mkdir(0o700), os.chown(root, 65534, 65534)), "belongs to another user \\(uid 65534\\)"),
])  # fmt: skip
async def test_records_that_others_may_write_are_not_used(box: Box, home: Path, damage: Callable[[Path], object], said: str) -> None:
    """What lies there decides what is started as us: a study is refused before it begins, and doctor says so."""
    try:
        damage(home / ".optimizer")
    except PermissionError:
        pytest.skip("only root gives a folder away")
    with pytest.raises(ShimRefused, match=said):
        await box.lock("mine")
    hello = await box.hello()
    assert hello.root_fault is not None and any(one.check == "records" and one.level == "problem" for one in _basics(hello))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
def test_a_study_of_another_user_is_seen_whatever_its_home(tmp_path: Path) -> None:
    """Its folder may be closed to us; the command line of its guard is the tool's own. One of our own user is judged by its folder."""
    ours = subprocess.Popen([sys.executable, "-I", "-c", BOOTSTRAP], stdin=subprocess.PIPE)
    theirs = subprocess.Popen([sys.executable, "-I", "-c", BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert theirs.stdin is not None and theirs.stdout is not None
        source = b"import os, time; os.setuid(65534); print('begun', flush=True); time.sleep(600)"
        theirs.stdin.write(b"%d\n" % len(source) + source)
        theirs.stdin.flush()
        assert theirs.stdout.readline() == b"begun\n"
        assert {"pid": theirs.pid, "uid": 65534} in holder.strangers(BOOTSTRAP, 0.0)
        assert ours.pid not in [one["pid"] for one in holder.strangers(BOOTSTRAP, 0.0)]
        assert theirs.pid not in [one["pid"] for one in holder.strangers(BOOTSTRAP, 3600.0)], "a call that looks is no study"
        request = {"root": str(tmp_path / "r"), "study": "s", "coordinator": {}, "lock_wait_s": 1, "patience_s": 900, "bootstrap": BOOTSTRAP, "stranger_s": 0.0}
        with pytest.raises(Refused, match="another user \\(uid 65534\\)"):
            holder.lock_box(request)
    finally:
        for one in (ours, theirs):
            one.kill()
            one.wait()
