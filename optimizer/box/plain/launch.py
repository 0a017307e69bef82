"""Launches a server under a launch id, exactly once: claim folder, marker in the environment, identity on disk. Runs on
the box. It never launches twice under one id, and never beside somebody else's listener."""

from __future__ import annotations

import base64
import json
import os
import time
from typing import Any, NamedTuple

from optimizer.box.plain import family, guarded, holder, look, procfs, redact, spawn, store, supervised
from optimizer.box.plain.procfs import Refused
from optimizer.box.plain.store import Folder

SECRET_ARGUMENT = b"OPTIMIZER_SECRET_"
# The environments of the other members of a deployment, beside the entry's own in the guard's: prefix, number, underscore, name.
MEMBER_VARIABLE = b"OPTIMIZER_MEMBER_"


def without_markers(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    return {
        name: value for name, value in pairs
        if name not in (procfs.MARKER, procfs.ROOT_MARKER) and not name.startswith((SECRET_ARGUMENT, MEMBER_VARIABLE))
    }  # fmt: skip


def member_variables(number: int, pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Of the guard's environment, what belongs to the member that started as number ``number`` (0 is the first)."""
    prefix = MEMBER_VARIABLE + b"%d_" % number
    return [(name[len(prefix) :], value) for name, value in pairs if name.startswith(prefix)]


class _Base(NamedTuple):
    """What a launch starts from. ``identity``: of the user whose server the original is, None where it is ours."""

    env: dict[bytes, bytes]
    secrets: dict[str, str]
    around: dict[str, Any]
    identity: dict[str, Any] | None


def _base(folder: Folder, study: str, base: str) -> _Base:
    """The login's, or the guard's, which is the original server's. ``guard:1`` is that of the second member of a deployment."""
    if base == "login":
        return _Base(without_markers(list(os.environb.items())), {}, {}, None)
    guard = guarded.guard_identity(folder, study)
    pairs = procfs.environ(guard["pid"]) if guard else None
    if guard is None or pairs is None:
        raise Refused("guard_gone", "The guard of study %s is not running, and only it knows the environment of the original "
                      "server. Nothing was launched." % study)  # fmt: skip
    around, part = None, guard.get("original") or {}
    if base.startswith("guard:"):
        number = int(base[len("guard:") :])
        pairs = member_variables(number, pairs)
        part = (part.get("before") or [])[number]
        around = part["around"]
    secrets = {
        procfs.text(name[len(SECRET_ARGUMENT) :]): procfs.text(value)
        for name, value in pairs if name.startswith(SECRET_ARGUMENT)
    }  # fmt: skip
    # As that user, or its caches would hold files afterwards that the original cannot write. Not in a container: its users are others.
    identity = None if supervised.apart(part.get("control")) else part.get("identity")
    return _Base(without_markers(pairs), secrets, around or spawn.surroundings(guard["pid"]), identity)


class _Start(NamedTuple):
    """What is needed to start one process."""

    arguments: list[bytes]
    env: dict[bytes, bytes]
    around: dict[str, Any]
    stdin: bytes | None = None
    identity: dict[str, Any] | None = None


def _start_of(request: dict[str, Any], folder: Folder, study: str, identifier: str) -> _Start:
    """``request`` has argv, env, base and affinity: of the launch, or of one member."""
    env, secrets, around, identity = _base(folder, study, request["base"])
    arguments = _arguments(request["argv"], secrets)
    if not arguments or not arguments[0]:
        raise Refused("bad_request", "The command to launch is empty.")
    for name, value in (request.get("env") or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in (value or ""):
            raise Refused("bad_request", "%r cannot be an environment variable." % name)
        if value is None:
            env.pop(procfs.raw(name), None)
        else:
            env[procfs.raw(name)] = procfs.raw(value)
    env[procfs.MARKER] = procfs.raw(identifier)
    env[procfs.ROOT_MARKER] = procfs.raw(folder.root)
    if request.get("affinity"):
        around = dict(around, affinity=request["affinity"])
    return _Start(arguments, env, around, identity=identity)


def _conducted(request: dict[str, Any], starts: list[_Start], claim: str, logs: dict[str, str]) -> _Start:
    """The conductor that starts these members. What they may hold of secrets goes through a pipe into its memory."""
    members = []
    for one, start in zip(request["members"], starts):
        members.append({
            "name": one["name"], "role": one["role"], "port": int(one["port"]), "paths": one["paths"], "timeout_s": one["timeout_s"],
            "cwd": one.get("cwd"), "log": logs[one["name"]], "around": start.around, "identity": start.identity,
            "argv": [word.decode("latin-1") for word in start.arguments],
            "env": {name.decode("latin-1"): value.decode("latin-1") for name, value in start.env.items()},
        })  # fmt: skip
    config = {"claim": claim, "term_s": request["term_s"], "members": members}
    source = base64.b64decode(request["program"])
    own = without_markers(list(os.environb.items()))
    own.update({name: starts[0].env[name] for name in (procfs.MARKER, procfs.ROOT_MARKER)})
    return _Start([procfs.raw(request["python"]), b"-I", b"-c", procfs.raw(request["bootstrap"])], own, {},
                  b"%d\n" % len(source) + source + json.dumps(config).encode("ascii"))  # fmt: skip


def _arguments(words: list[str], secrets: dict[str, str]) -> list[bytes]:
    try:
        return [procfs.raw(redact.reveal(word, secrets)) for word in words]
    except KeyError as error:
        raise Refused("secret_missing", "The command line holds a credential (number %s) that only the original server's guard "
                      "knows, and this launch does not start from it." % error.args[0])  # fmt: skip


def launch(request: dict[str, Any]) -> dict[str, Any]:
    """Starts ``argv`` as ``study:key`` and answers with its state; a key that was claimed before is not started again.

    Request: study, key, epoch, argv, env (name -> value, None removes), cwd, ports (refused when one of them has a
    listener), base ("login" or "guard"), keep_log (its log outlives the study), affinity (CPU numbers or None). A deployment
    has ``members`` instead of argv, env and base: each with these and name, role, port, paths (of its health) and timeout_s; with
    them come program and bootstrap of the conductor that starts them, and term_s, how long a member may take to end."""
    folder, study, key = Folder(request["root"]), request["study"], request["key"]
    identifier = "%s:%s" % (study, key)
    claim = folder.claim(study, key)
    with store.Lock(folder, request["lock_wait_s"]):
        if os.path.isdir(claim):
            return dict(_state(folder, identifier), launched=False)
        guarded.refuse_fenced(folder, study, int(request["epoch"]))
        holder.refuse_others(folder, study)
        guarded.refuse_restarted(folder, study)
        members = request.get("members") or []
        starts = [_start_of(one, folder, study, identifier) for one in members or [request]]
        for port in request["ports"]:
            refuse_taken(int(port), guarded.recorded(folder, study))
        log = folder.kept_log(study) if request.get("keep_log") else os.path.join(claim, "server.log")
        folder.make(os.path.dirname(claim))
        try:
            os.mkdir(claim, 0o700)
        except OSError as error:
            raise store.unwritable(claim, error)
        request["crash_point"]("claimed")
        logs = {one["name"]: _member_log(log, one["name"]) for one in members}
        store.write_record(os.path.join(claim, "claim.json"), {
            "launch_id": identifier,
            "boot_id": procfs.boot_id(),
            "ports": list(store.numbers(request["ports"])),
            "log": log,
            "member_logs": logs,
            "gpu_memory_mib": look.gpu_memory_mib(),
            "claimed_unix_s": time.time(),
        })  # fmt: skip
        output = open_log(folder, log)
        start = _conducted(request, starts, claim, logs) if members else starts[0]
        request["crash_point"]("before_spawn")
        try:
            begun = spawn.start(start.arguments, start.env, request.get("cwd"), (output, output), keeper=os.path.join(claim, "exit.json"),
                                stdin=start.stdin, around=start.around, identity=start.identity)  # fmt: skip
        except Refused as refused:
            store.write_record(os.path.join(claim, "refused.json"), {"reason": refused.message})
            raise
        finally:
            os.close(output)
        request["crash_point"]("spawned")
        store.write_record(os.path.join(claim, "started.json"), dict(begun, boot_id=procfs.boot_id()))
        request["crash_point"]("recorded")
        return dict(_state(folder, identifier), launched=True)


def _member_log(log: str, name: str) -> str:
    return "%s.%s.log" % (log[: -len(".log")], store.checked(name, "member name"))


def open_log(folder: Folder, path: str) -> int:
    folder.make(os.path.dirname(path))
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise store.unwritable(path, error)


def refuse_taken(port: int, originals: list[dict[str, Any]]) -> None:
    """Refuses a port that somebody holds. ``originals``: records of the servers that were here, which may have had company on theirs."""
    sockets = guarded.takers(port, originals)
    if sockets:
        owners = procfs.socket_owners({one.inode for one in sockets})
        pids = sorted({pid for held in owners.values() for pid in held})
        names = ["%d (%s)" % (pid, os.path.basename(procfs.text((procfs.argv(pid) or [b"?"])[0]))) for pid in pids]
        raise Refused("port_busy", "Port %d on the box is taken by %s. Nothing was launched: stop it, or choose another port."
                      % (port, "process " + ", ".join(names) if names else "a process of another user"),
                      port=port, pids=pids)  # fmt: skip


def state(request: dict[str, Any]) -> dict[str, Any]:
    """What became of ``study:key``. Waits for a launch that is in progress, so "dead" is final."""
    folder = Folder(request["root"])
    identifier = "%s:%s" % (checked_id(request)[0], request["key"])
    if not os.path.isdir(folder.root):
        return _not_claimed()
    with store.Lock(folder, request["lock_wait_s"]):
        return _state(folder, identifier)


def checked_id(request: dict[str, Any]) -> tuple[str, str]:
    return store.checked(request["study"], "study id"), store.checked(request["key"], "launch key")


def _not_claimed() -> dict[str, Any]:
    return {"state": "not_claimed", "pid": None, "start_time": None, "pids": [], "exit_code": None, "exit_signal": None,
            "exit_reason": None, "log": None, "ports": [], "rebooted": False, "members": []}  # fmt: skip


def _state(folder: Folder, identifier: str) -> dict[str, Any]:
    """``alive`` means the main process lives; ``dead`` with pids means that only workers are left."""
    study, key = store.launch_parts(identifier)
    claim = folder.claim(study, key)
    answer = _not_claimed()
    if not os.path.isdir(claim):
        return answer
    record = store.read_record(os.path.join(claim, "claim.json")) or {}
    started = store.read_record(os.path.join(claim, "started.json"))
    ended = store.read_record(os.path.join(claim, "exit.json"))
    living = family.family_of(folder, identifier)
    if started is None and ended is None and not living and not os.path.exists(os.path.join(claim, "refused.json")):
        # The shim died around the spawn. A process that is just being executed shows no environment for a moment.
        time.sleep(0.2)
        living = family.family_of(folder, identifier)
    # A nested id (`study:7:router` below `study:7`) is a launch of its own.
    living = {pid: one for pid, one in living.items() if procfs.launch_id(pid, folder.root) in (None, identifier)}
    if started is None and living:  # the shim died between spawn and record: the process itself is the record
        leaders = [one for pid, one in living.items() if one.session == pid]
        if leaders:
            main = min(leaders, key=lambda one: one.start_time)
            started = {"pid": main.pid, "start_time": main.start_time, "keeper": None, "boot_id": procfs.boot_id()}
            store.write_record(os.path.join(claim, "started.json"), started)
    alive = (
        started is not None
        and started["boot_id"] == procfs.boot_id()
        and started["pid"] in living
        and (living[started["pid"]].start_time == started["start_time"])
    )
    if ended is None and started is not None and not alive:
        ended = _end_of(claim, started)
    ended = ended or {}
    started = started or {}
    answer.update(
        state="alive" if alive else "dead",
        pid=started["pid"] if started else None,
        start_time=started["start_time"] if started else None,
        pids=sorted(living),
        exit_code=ended.get("code"),
        exit_signal=ended.get("signal"),
        exit_reason=(store.read_record(os.path.join(claim, "refused.json")) or {}).get("reason"),
        log=record.get("log"),
        ports=record.get("ports") or [],
        rebooted=record.get("boot_id") not in (None, procfs.boot_id()),
        members=(store.read_record(os.path.join(claim, "members.json")) or {}).get("members") or [],
    )
    return answer


def _end_of(claim: str, started: dict[str, Any]) -> dict[str, Any] | None:
    """How a server ended that was alive a moment ago: its keeper is just writing it down."""
    path, keeper = os.path.join(claim, "exit.json"), started.get("keeper")
    end = time.monotonic() + 2.0
    while keeper and not os.path.exists(path) and procfs.same(*keeper) and time.monotonic() < end:
        time.sleep(0.01)
    return store.read_record(path)


def read_log(request: dict[str, Any]) -> dict[str, Any]:
    """The launch's own log from ``offset`` on, or that of its ``member``; nothing while it was never claimed."""
    folder = Folder(request["root"])
    record = store.read_record(os.path.join(folder.claim(*checked_id(request)), "claim.json")) or {}
    log = (record.get("member_logs") or {}).get(request["member"]) if request.get("member") else record.get("log")
    if log is None or not os.path.exists(log):
        return {"inode": 0, "size": 0, "offset": 0, "data": ""}
    guard = guarded.guard_identity(folder, request["study"])
    part = {"path": log, "offset": request["offset"], "max_bytes": request["max_bytes"]}
    return look.read_file(dict(part, secrets_of=[guard["pid"]] if guard else []))
