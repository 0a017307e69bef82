"""The server that was there before us, and the guard that brings it back: recording it, arming the guard, orders to the
guard, starting the original again. Runs on the box. Credentials of the original go from its process to the guard's
memory and nowhere else."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from typing import Any, Dict, List, Tuple

from optimizer.box.plain import guarded, launch, look, procfs, redact, spawn, store, supervised, sweep
from optimizer.box.plain.procfs import Refused
from optimizer.box.plain.store import Folder

GUARD_KEY = "guard"


def _record(wanted: dict[str, Any], root: str) -> dict[str, Any]:
    """Everything needed to start this process again, credentials included: it stays on the box, in memory. ``wanted``: pid and
    start_time; a program that has overwritten its own command line and environment also needs argv and env, as described."""
    pid, start_time = int(wanted["pid"]), int(wanted["start_time"])
    if not procfs.same(pid, start_time):
        raise Refused("original_gone", "Process %d is not the server that was found before; look again." % pid)
    pairs = procfs.environ(pid)
    directory, program = procfs.link("/proc/%d/cwd" % pid), procfs.link("/proc/%d/exe" % pid)
    if pairs is None or directory is None or program is None:
        raise Refused("unreadable", "The environment of process %d cannot be read, so it could not be started again as it was. "
                      "Run the tool as the user who started it." % pid)  # fmt: skip
    uid, gid, groups = look.status_ids(pid)
    if uid != os.geteuid() and os.geteuid() != 0:
        raise Refused("foreign_user", "Process %d belongs to another user (uid %d); only that user or root may stop and restart it."
                      % (pid, uid))  # fmt: skip
    supervisor, control = look.supervisor_of(pid), supervised.control_of(pid)
    if supervisor is not None and control is None:
        raise Refused("supervised", "Process %d is run by %s, which would start it again or keeps it apart from us. Stop it there "
                      "(systemctl stop, docker stop) and describe it with --launch instead." % (pid, supervisor))  # fmt: skip
    processes = procfs.table()
    members = procfs.descendants([pid], processes) | {pid}
    seen = procfs.listeners()
    sockets = {one.inode: one.port for one in seen}
    owners = procfs.socket_owners(set(sockets))
    theirs = {inode for inode, pids in owners.items() if set(pids) & members}
    family = {sockets[inode] for inode in theirs}
    own = {sockets[inode] for inode, pids in owners.items() if pid in pids}
    shown = guarded.shown_of(pid)
    words = list(wanted.get("argv") or shown)
    ports = sorted(serving_ports(words, own, family, _drawn_ports()))
    return {
        "pid": pid,
        "start_time": start_time,
        "argv": words,
        "exe": procfs.text(program),
        "cwd": procfs.text(directory),
        "outputs": look.output_files(pid),
        "silent": procfs.link("/proc/%d/fd/1" % pid) == b"/dev/null",
        "identity": {"uid": uid, "gid": gid, "groups": groups},
        "around": spawn.surroundings(pid),
        "ports": ports,
        "addresses": {str(port): sorted({one.address for one in seen if one.port == port and one.inode in theirs}) for port in ports},
        "beside": sorted(one.inode for one in seen if one.port in ports and one.inode not in theirs),
        "launch_id": procfs.launch_id(pid, root),
        "control": control,
        "shown": shown if words != shown else None,
    }


def serving_ports(argv: list[str], own: set[int], family: set[int], drawn: tuple[int, int]) -> set[int]:
    """Of the ports that a server listens on, those it will listen on again after a restart. Engines also listen on ports
    that they draw anew at every start (rendezvous of their workers): who waits for one of these waits for ever.

    ``own`` are those of the main process, ``family`` also its children's, ``drawn`` the range the kernel draws from."""
    values = [argv[index + 1] for index, word in enumerate(argv[:-1]) if word == "--port"]
    values += [word[len("--port=") :] for word in argv if word.startswith("--port=")]
    named = {int(value) for value in values if value.isdigit()} & family
    fixed = {port for port in own if not drawn[0] <= port <= drawn[1]}
    return named or fixed or own or {port for port in family if not drawn[0] <= port <= drawn[1]} or family


def _drawn_ports() -> tuple[int, int]:
    words = (procfs.read("/proc/sys/net/ipv4/ip_local_port_range") or b"").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else (32768, 60999)


def secure(request: dict[str, Any]) -> dict[str, Any]:
    """Arms the study's guard, once: a second call answers with the living one. Request: study, epoch, original (pid and
    start_time) or None, minutes, program and guard (base64 sources), bootstrap, ready_wait_s, poll_s, listen_wait_s."""
    folder, study = Folder(request["root"]), store.checked(request["study"], "study id")
    epoch = int(request["epoch"])
    with store.Lock(folder, request["lock_wait_s"]):
        living = guarded.guard_identity(folder, study)
        if living is not None and int(living["epoch"]) == epoch:
            return {"guard": living, "armed": False}
        if living is not None:
            raise Refused("guard_alive", "An older guard of study %s still runs; disarm it first." % study)
        guarded.refuse_fenced(folder, study, epoch)
        home = folder.make(folder.study(study))
        claim = folder.make(folder.claim(study, GUARD_KEY))
        wanted = request.get("original")
        record = _record(wanted, folder.root) if wanted else None
        others = [_record(one, folder.root) for one in (wanted or {}).get("before") or []]
        parts = [*others, record] if record else []
        kept = [_kept(one, asked) for one, asked in zip(parts, [*((wanted or {}).get("before") or []), wanted])]
        env = kept[-1][1] if kept else launch.without_markers(list(os.environb.items()))
        if record:
            _write_redacted(home, parts, kept)
            env = {**env, **kept[-1][2]}
            record["before"] = others
        for number, (_, theirs, hidden) in enumerate(kept[:-1]):
            for name, value in [*theirs.items(), *hidden.items()]:
                env[launch.MEMBER_VARIABLE + b"%d_" % number + name] = value
        env[procfs.MARKER] = procfs.raw("%s:%s" % (study, GUARD_KEY))
        env[procfs.ROOT_MARKER] = procfs.raw(folder.root)
        for stale in ("order.json", "fired.json", "guard.json", "heartbeat", "answer.json"):
            if os.path.exists(os.path.join(home, stale)):
                os.unlink(os.path.join(home, stale))
        for told in ("order.json", "heartbeat", "fired.json", "fenced.json"):  # these must get through when the disk is full
            store.reserve(os.path.join(home, told))
        config = {
            "root": folder.root, "study": study, "epoch": epoch, "home": home, "original": record,
            "limit_s": float(request["minutes"]) * 60.0, "poll_s": float(request["poll_s"]),
            "listen_wait_s": float(request["listen_wait_s"]), "program": request["program"],
            "bootstrap": request["bootstrap"], "boot_id": procfs.boot_id(),
        }  # fmt: skip
        source = base64.b64decode(request["guard"])
        payload = b"%d\n" % len(source) + source + json.dumps(config).encode("ascii")
        log = launch.open_log(folder, os.path.join(claim, "guard.log"))
        try:
            begun = spawn.start(
                [procfs.raw(request["python"]), b"-I", b"-c", procfs.raw(request["bootstrap"])], env, home, (log, log),
                stdin=payload, around=record["around"] if record and not supervised.apart(record["control"]) else None,
            )  # fmt: skip
        finally:
            os.close(log)
        request["crash_point"]("guard_spawned")
        end = time.monotonic() + float(request["ready_wait_s"])
        while time.monotonic() < end:
            living = guarded.guard_identity(folder, study)
            if living is not None and living["pid"] == begun["pid"]:
                return {"guard": living, "armed": True}
            if not procfs.same(begun["pid"], begun["start_time"]):
                break
            time.sleep(0.02)
        said = procfs.text(procfs.read(os.path.join(claim, "guard.log")) or b"")[-2000:]
        raise Refused(
            "guard_failed", "The guard did not start on the box, so nothing will be changed there. It said: %s" % said
        )


_Kept = Tuple[List[str], Dict[bytes, bytes], Dict[bytes, bytes]]


def _kept(record: dict[str, Any], wanted: dict[str, Any]) -> _Kept:
    """(command line without credentials, environment, the credentials of the command line as variables) of one process. An
    environment that its program has overwritten is the login's, with what the description adds."""
    shown, values = redact.hide_arguments(record["argv"])
    pairs = supervised.base_environment(record["control"], record["pid"]) or []
    if not any(name == b"PATH" or name == b"HOME" for name, _ in pairs) and wanted.get("argv"):
        pairs = list(os.environb.items())
    env = launch.without_markers(pairs)
    env.update({procfs.raw(name): procfs.raw(value) for name, value in (wanted.get("env") or {}).items()})
    return shown, env, {launch.SECRET_ARGUMENT + procfs.raw(number): procfs.raw(value) for number, value in values.items()}


def _write_redacted(home: str, parts: list[dict[str, Any]], kept: list[_Kept]) -> None:
    rows = []
    for record, (arguments, env, _) in zip(parts, kept):
        shown = redact.hide_environment({procfs.text(name): procfs.text(value) for name, value in env.items()})
        rows.append(dict(record, argv=arguments, env=shown, shown=redact.hide_arguments(record["shown"] or [])[0] or None))
    store.write_record(os.path.join(home, "original.json"), dict(rows[-1], before=rows[:-1]))


def guard_status(request: dict[str, Any]) -> dict[str, Any]:
    """What the guard is, did, and answered."""
    folder, study = Folder(request["root"]), store.checked(request["study"], "study id")
    home = folder.study(study)
    recorded = store.read_record(os.path.join(home, "original.json"))
    return {
        "guard": guarded.guard_identity(folder, study),
        "fired": store.read_record(os.path.join(home, "fired.json")),
        "answer": store.read_record(os.path.join(home, "answer.json")),
        "fenced": store.read_record(os.path.join(home, "fenced.json")),
        "recorded": recorded is not None,
        "members": len((recorded or {}).get("before") or []) + 1 if recorded is not None else 0,
    }


def order(request: dict[str, Any]) -> dict[str, Any]:
    """Tells the guard to ``fire`` (bring the original back now) or to ``disarm`` (end). It answers within its poll."""
    folder, study = Folder(request["root"]), store.checked(request["study"], "study id")
    if request["order"] not in ("fire", "disarm"):
        raise Refused("bad_request", "Unknown order %r." % request["order"])
    living = guarded.guard_identity(folder, study)
    if living is not None:
        store.write_record(os.path.join(folder.study(study), "order.json"), {"order": request["order"]})
        one = procfs.process(int(living["pid"]))
        if one is not None and one.state in ("T", "t"):  # somebody stopped it: it would obey never
            sweep.send(one.pid, int(living["start_time"]), signal.SIGCONT)
    return {"guard": living}


def fence(request: dict[str, Any]) -> dict[str, Any]:
    """From here on the coordinator's launches of this epoch are refused."""
    folder, study = Folder(request["root"]), store.checked(request["study"], "study id")
    with store.Lock(folder, request["lock_wait_s"]):
        store.write_record(os.path.join(folder.study(study), "fenced.json"), {"epoch": int(request["epoch"])})
    return {}


def start_original(request: dict[str, Any]) -> dict[str, Any]:
    """Starts the original server again: its arguments, directory, environment and log files, without any marker of
    ours. Does nothing when it runs. ``record`` comes from the guard, or is absent: then the redacted record on disk
    must do, and a credential that it lacks is an error that names it. ``member``: which process of a deployment, in the order of
    their start; None is the last, where clients go, and the only one of a single server."""
    member = request.get("member")
    folder, study = Folder(request["root"]), store.checked(request["study"], "study id")
    with store.Lock(folder, request["lock_wait_s"]):
        record = request.get("record")
        env: dict[bytes, bytes] | None
        if record is not None:
            guard = guarded.guard_identity(folder, study)
            pairs = procfs.environ(guard["pid"]) if guard else None
            if pairs is None:
                raise Refused("guard_gone", "The guard's environment is gone, and with it the original server's.")
            if member is not None:
                record, pairs = record["before"][member], launch.member_variables(member, pairs)
            env = launch.without_markers(pairs)
        else:
            store.refuse_unsafe(folder)
            record = store.read_record(os.path.join(folder.study(study), "original.json"))
            if record is None:
                raise Refused("no_original", "Study %s has recorded no original server on this box." % study)
            record = record if member is None else record["before"][member]
            env = None
        control = record.get("control")
        known = supervised.main_process(control) if control else None
        if known is not None:
            return {"pid": known[0], "start_time": known[1], "started": False, "log": None, "ports": record["ports"]}
        running = guarded.running_already(record)
        if running is not None:
            return {"pid": running.pid, "start_time": running.start_time, "started": False, "log": None, "ports": record["ports"]}
        for port in record["ports"]:
            launch.refuse_taken(int(port), [record])
        if control:
            pid, start_time = supervised.start(control)
            return {"pid": pid, "start_time": start_time, "started": True, "log": None, "ports": record["ports"]}
        if env is None:
            env = _environment_on_disk(record)
        if record.get("launch_id"):  # a server that an earlier study left running on purpose
            env[procfs.MARKER] = procfs.raw(record["launch_id"])
            env[procfs.ROOT_MARKER] = procfs.raw(folder.root)
        handles, kept = _outputs(folder, study, record)
        arguments = [procfs.raw(word) for word in record["argv"]]
        try:
            begun = spawn.start(arguments, env, record["cwd"], (handles[0], handles[1]), around=record["around"],
                                identity=record["identity"])  # fmt: skip
        finally:
            for handle in set(handles):
                os.close(handle)
        return {"pid": begun["pid"], "start_time": begun["start_time"], "started": True, "log": kept, "ports": record["ports"]}


def _environment_on_disk(record: dict[str, Any]) -> dict[bytes, bytes]:
    missing = sorted(name for name, value in record["env"].items() if value == redact.HIDDEN)
    hidden = [word for word in record["argv"] if "«secret:" in word]
    if missing or hidden:
        raise Refused("secret_missing", "The guard is gone, and with it credentials of the original server. Start it by hand in %s: "
                      "%s%s" % (record["cwd"], "".join(name + "=... " for name in missing), " ".join(record["argv"])),
                      names=missing, argv=record["argv"], cwd=record["cwd"])  # fmt: skip
    return {procfs.raw(name): procfs.raw(value) for name, value in record["env"].items()}


def _outputs(folder: Folder, study: str, record: dict[str, Any]) -> Any:
    """Descriptors for stdout and stderr: the same files as before, opened to append; a terminal or pipe that is gone is
    replaced by the kept log."""
    kept = None
    handles: list[int] = []
    for name in ("1", "2"):
        path = record["outputs"].get(name)
        if path is None and record["silent"]:
            handles.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
            continue
        try:
            handles.append(
                os.open(procfs.raw(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644) if path else -1
            )
        except OSError:
            handles.append(-1)
        if handles[-1] < 0:
            kept = folder.kept_log(study)
            handles[-1] = launch.open_log(folder, kept)
    return handles, kept


def listening(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the process (pid, start_time) lives and its family (``pids``) listens on all of ``ports``."""
    pid = int(request["pid"])
    if not procfs.same(pid, int(request["start_time"])):
        return {"alive": False, "listening": False, "pids": []}
    members = procfs.descendants([pid], procfs.table()) | {pid}
    sockets = {one.inode: one.port for one in procfs.listeners()}
    owned = {sockets[inode] for inode, owners in procfs.socket_owners(set(sockets)).items() if set(owners) & members}
    return {"alive": True, "listening": set(store.numbers(request["ports"])) <= owned, "pids": sorted(members)}
