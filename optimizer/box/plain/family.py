"""Which processes are a launch's: those that carry its marker, those of the session that it began, and what its keeper has adopted. Runs
on the box; it only looks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from optimizer.box.plain import procfs, store
from optimizer.box.plain.store import Folder


def sessions_of(claim: str) -> list[int]:
    """Session that this launch created, as long as no other process can have taken its number."""
    started = store.read_record(os.path.join(claim, "started.json"))
    if started is None or started.get("boot_id") != procfs.boot_id():
        return []
    leader = procfs.process(int(started["pid"]))
    if leader is None:
        # A daemon of somebody's may lead, or have led, a session of this number by now. Where the keeper adopts orphans, those of
        # this launch are known without their session.
        return [] if started.get("adopts") else [int(started["pid"])]
    return [int(started["pid"])] if leader.start_time == started["start_time"] else []


def keepers_of(claim: str) -> list[int]:
    """The keeper of this launch, while it lives and adopts what its server leaves behind."""
    started = store.read_record(os.path.join(claim, "started.json"))
    if started is None or started.get("boot_id") != procfs.boot_id() or not started.get("adopts") or not started.get("keeper"):
        return []
    pid, start_time = (int(number) for number in started["keeper"])
    return [pid] if procfs.same(pid, start_time) else []


def family_of(folder: Folder, prefix: str, keep: Iterable[str] = ()) -> dict[int, procfs.Process]:
    """Every living process of the launches under ``prefix``, but not of those under ``keep``."""
    study, kept = store.launch_parts(prefix)[0], list(keep)
    claims = [one for one in folder.claims(prefix) if not any(procfs.matches(study + ":" + os.path.basename(one), name) for name in kept)]
    sessions = [session for claim in claims for session in sessions_of(claim)]
    keepers = [keeper for claim in claims for keeper in keepers_of(claim)]
    return procfs.family(prefix, folder.root, kept, sessions, keepers)


def port_listeners(request: dict[str, Any]) -> dict[str, Any]:
    """Who listens on ``port``; ``ours`` for sockets all of whose visible owners belong to ``launch_id``."""
    sockets = procfs.listeners(int(request["port"]))
    owners = procfs.socket_owners({one.inode for one in sockets})
    ours: set[int] = set()
    if request.get("launch_id") and sockets:
        ours = set(family_of(Folder(request["root"]), request["launch_id"]))
    return {
        "listeners": [
            {
                "port": one.port,
                "address": one.address,
                "inode": one.inode,
                "pids": owners.get(one.inode, []),
                "ours": bool(owners.get(one.inode)) and set(owners[one.inode]) <= ours,
            }
            for one in sockets
        ]
    }
