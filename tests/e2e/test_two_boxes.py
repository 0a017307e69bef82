"""One study on two boxes behind SSH, with real processes: both are tuned at once, one may die in the middle, the coordinator may be
killed, and in the end every box that lives is as it was found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.model.entry import EntryKind
from tests.e2e.fastbox import FastBox, entries
from tests.unit.transport.conftest import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAMES = ("box-a", "box-b")


class Pair:
    """Two fast boxes, each behind its own SSH server, and one client that knows both."""

    def __init__(self, folder: Path, boxes: tuple[FastBox, FastBox], servers: tuple[Server, Server]) -> None:
        self.boxes, self.servers = boxes, servers
        self.first = boxes[0]
        ssh = folder / "client/.ssh"
        ssh.mkdir(parents=True, mode=0o700)
        self.env = {"HOME": str(folder / "client"), "PYTHONPATH": "", "PATH": "/usr/bin:/bin"}
        hosts = self.first.here / "hosts"
        hosts.mkdir()
        config, known = "", b""
        for name, box, server in zip(NAMES, boxes, servers, strict=True):
            config += f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  User tester\n  IdentityFile {server.key_file}\n"
            config += f"  IdentitiesOnly yes\n  UserKnownHostsFile {ssh}/known_hosts\n"
            known += server.known_hosts.read_bytes()
            argv = ", ".join(json.dumps(word) for word in box.argv)
            (hosts / f"{name}.toml").write_text(f"launch = [{argv}]\ncwd = {json.dumps(str(box.home))}\n")
        (ssh / "config").write_text(config)
        (ssh / "known_hosts").write_bytes(known)

    def words(self, study: str, *more: str) -> list[str]:
        words = self.first.study(study, "--host", NAMES[1], *more, host=NAMES[0])
        at = words.index("--launch")
        return words[:at] + words[at + 2 :]

    def __call__(self, *words: str, **env: str) -> Any:
        return self.first(*words, timeout_s=200, **{**self.env, **env})

    def journal(self, study: str) -> list[Any]:
        return entries(self.first.runs / study)

    def check(self, study: str, *, alive: tuple[int, ...] = (0, 1)) -> None:
        """Every launch has its intent on its own box and was started once; the living boxes are clean; the decisions can be recomputed."""
        intents = {name: set() for name in NAMES}  # type: dict[str, set[str]]
        for entry in self.journal(study):
            if entry.kind == EntryKind.INTENT and entry.body["step"]["kind"] == "launch":
                intents[entry.box].add(str(entry.key))
        for at, (name, box) in enumerate(zip(NAMES, self.boxes, strict=True)):
            started = [start["launch"].rpartition(":")[2] for start in box.starts() if start["launch"]]
            assert len(started) == len(set(started)) and set(started) <= intents[name]
            if at in alive:
                box.assert_clean()
        assert self("replay", study, "--verify", "--json").json["identical"]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    boxes, servers = [], []
    for name in NAMES:
        box = FastBox(tmp_path / name)
        (tmp_path / f"ssh-{name}").mkdir()
        server = Server(tmp_path / f"ssh-{name}")
        server.env = dict(box.env)
        await server.start()
        boxes.append(box)
        servers.append(server)
    yield Pair(tmp_path, (boxes[0], boxes[1]), (servers[0], servers[1]))
    for box, server in zip(boxes, servers, strict=True):
        await server.stop()
        box.close()


async def test_two_boxes_share_one_study(pair: Pair) -> None:
    done = await asyncio.to_thread(pair, *pair.words("two", "--finish", "restore"))
    assert done.exit == 0, done.err
    assert done.json["ending"] == "met"
    assert [row["box"] for row in done.json["boxes"]] == list(NAMES)
    assert all(row["baseline_launches"] for row in done.json["boxes"]), "each has its own baseline"
    await asyncio.to_thread(pair.check, "two")
    journal = pair.journal("two")
    assert {entry.box for entry in journal} == {"", *NAMES}
    shown = (await asyncio.to_thread(pair, "journal", "two")).out
    assert "[box-a] Launching (baseline)" in shown and "[box-b] Launching (baseline)" in shown
    again = await asyncio.to_thread(pair, "replay", "two", "--json")
    assert again.exit == 0 and again.json["identical"] and again.json["ending"] == "met", again.err
    report = (pair.first.runs / "two/report.md").read_text()
    assert "## Boxes" in report and "box-b" in report


async def test_one_box_dies_and_the_coordinator_is_killed(pair: Pair) -> None:
    """The coordinator dies once both have a baseline; when it is resumed, one box no longer answers. The study ends on the other one."""
    killed = await asyncio.to_thread(pair, *pair.words("dies", "--finish", "restore"), OPTIMIZER_CRASH_AT="loop.after_effect:14")
    assert killed.exit == -9, killed.err
    pair.servers[1].drop()
    await pair.servers[1].stop()
    done = await asyncio.to_thread(pair, "resume", "dies", "--json")
    assert done.exit == 5, done.err
    assert done.json["ending_elsewhere"] == "met"
    assert "box-b could not be brought into its end state" in done.json["reason"]
    assert all(row["baseline_launches"] for row in done.json["boxes"])
    assert done.json["boxes"][1]["lost"] and not done.json["boxes"][0]["lost"]
    await asyncio.to_thread(pair.check, "dies", alive=(0,))
