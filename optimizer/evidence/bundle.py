"""An evidence bundle: a folder of recorded files, one case file, or files just collected from a live box. Reads
exactly the allowed
files and keys, bounded in size, and merges what the parsers found. ``read_bundle`` is the only place here that opens
files."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from optimizer.errors import EvidenceError
from optimizer.evidence.case import case_parts
from optimizer.evidence.derived import derived_facts
from optimizer.evidence.gather import Launch, gather
from optimizer.evidence.lines import Piece
from optimizer.evidence.literal import strict_json
from optimizer.evidence.log_alone import launch_of_log
from optimizer.model.base import Frozen, Value
from optimizer.model.canonical import sha256_hex
from optimizer.model.evidence import Evidence, Missing

LOG_HEAD_BYTES = 16 * 1024 * 1024  # a longer log keeps its start (start-up facts) and its end (steady state, exit)
LOG_TAIL_BYTES = 48 * 1024 * 1024
FILE_BYTES = 32 * 1024 * 1024
FOLDER_FILES = (
    "launch.json",
    "server.log",
    "help.txt",
    "metrics.txt",
    "metrics_before.txt",
    "metrics_load.txt",
    "server_info.json",
    "version.json",
    "models.json",
    "gpu.csv",
    "topo.txt",
    "nvidia-smi-q.txt",
    "gpu_driver.csv",
    "bench.json",
    "config.json",
    "nccl.log",
    "host.json",
    "gpu_processes.csv",
    "topo_p2p.txt",
    "conf_compute.txt",
    "rocm-smi.json",
    "amd-smi-static.json",
    "amd-smi-metric.json",
    "lspci.txt",
    "exit.json",
)
SHARED_FILES = ("help.txt", "topo.txt", "topo_p2p.txt", "conf_compute.txt", "nvidia-smi-q.txt")
LAUNCH_KEYS = (
    "name",
    "engine",
    "engine_version",
    "gpu",
    "gpu_count",
    "interconnect",
    "model",
    "argv",
    "env",
    "ready",
    "start_s",
    "roles",
)
CASE_KEYS = (
    "engine",
    "engine_version",
    "date",
    "gpu",
    "gpu_count",
    "interconnect",
    "model",
    "argv",
    "known_flags",
    "env",
    "log_lines",
    "facts",
    "tests",
)


class Bundle(Frozen):
    """One launch (or case) with everything that was read from it. ``evidence`` includes derived facts."""

    engine: str
    engine_version: str = ""
    name: str = ""
    gpu: str = ""
    gpu_count: int | None = None
    interconnect: str = ""
    model: str = ""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    ready: bool | None = None
    start_s: float | None = None
    evidence: Evidence = Evidence()
    bench: tuple[dict[str, Value], ...] = ()
    model_config_json: dict[str, Value] | None = None
    help_text: str = ""
    server_info: dict[str, Value] = Field(default_factory=dict)
    files_digest: str = ""
    files: tuple[str, ...] = ()  # names of what was there to read
    kind: str = "launch"  # launch, case or live


def read_bundle(path: Path) -> Bundle:
    """Reads a folder or a case file. Raises EvidenceError, with what to do, when it is neither."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise EvidenceError(
            f"The evidence {str(path)!r} cannot be read: {error.strerror or error}.", hint=_SHAPE
        ) from error
    if stat.S_ISDIR(mode):
        files, shared, notes, called = _folder(path)
        return bundle_from_files(files, shared, notes, name=called)
    if not stat.S_ISREG(mode):
        raise EvidenceError(f"The evidence {str(path)!r} is neither a folder nor a regular file.", hint=_SHAPE)
    with path.open("rb") as handle:
        start = handle.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start.startswith(b"{"):  # a case is an object; a log line may begin with its time in brackets
        log = _read(path, "server.log")
        if launch_of_log(_log_pieces(log)) is not None:
            return bundle_from_files(log, name=path.name)
    if path.stat().st_size > FILE_BYTES:
        raise EvidenceError(f"The case file {str(path)!r} has more than {FILE_BYTES} bytes.", hint=_SHAPE)
    return bundle_from_case(path.read_bytes(), str(path))


def bundle_from_case(data: bytes, where: str = "case") -> Bundle:
    """A case file's bytes as a bundle. Only ``CASE_KEYS`` are looked at: a case may carry its own answer."""
    try:
        raw = strict_json(data, FILE_BYTES)
    except ValueError as error:
        raise EvidenceError(
            f"{where!r} is no log of a known engine, and as a case it is not JSON: {_reason(error)}.", hint=_SHAPE
        ) from error
    if not isinstance(raw, dict) or not any(key in raw for key in ("engine", "facts", "log_lines", "argv")):
        raise EvidenceError(f"The case {where!r} has none of the keys engine, facts, log_lines, argv.", hint=_SHAPE)
    case = {key: raw[key] for key in CASE_KEYS if key in raw}
    try:
        launch, evidence = case_parts(case)
    except ValueError as error:
        raise EvidenceError(f"The case {where!r} is malformed: {_reason(error)}.", hint=_SHAPE) from error
    evidence = evidence.merged(derived_facts(evidence, launch.engine, None))
    digest = sha256_hex(json.dumps(case, sort_keys=True, ensure_ascii=False, default=str))
    return _bundle(launch, evidence, kind="case", files_digest=digest)


def bundle_from_files(
    files: Mapping[str, bytes],
    shared: frozenset[str] = frozenset(),
    notes: tuple[Missing, ...] = (),
    *,
    name: str = "server.log",
) -> Bundle:
    """Files by their bundle name (the executor collects them from a live box). A log that was read in two parts comes
    as ``server.log``
    and ``server.log@OFFSET``. ``shared`` names files that describe the box rather than this launch."""
    launch, remarks = _launched(files, name)
    gathered = gather(launch, files, shared, _log_pieces(files))
    told = (*remarks, *(note.reason for note in notes))
    evidence = Evidence(missing=notes, notes=told).merged(gathered.evidence)
    evidence = evidence.merged(derived_facts(evidence, launch.engine, gathered.config))
    digest = sha256_hex("".join(f"{name}\0{sha256_hex(files[name])}\n" for name in sorted(files)))
    return _bundle(
        launch.with_version(evidence),
        evidence,
        files_digest=digest,
        files=tuple(sorted(files)),
        bench=gathered.bench,
        model_config_json=gathered.config,
        help_text=files.get("help.txt", b"").decode("utf-8", "replace"),
        server_info=gathered.info,
    )


def _launched(files: Mapping[str, bytes], name: str) -> tuple[Launch, tuple[str, ...]]:
    """The launch by launch.json, else as far as the log tells it (``name`` is what the log is called), with what that
    leaves open."""
    if "launch.json" not in files:
        told = launch_of_log(_log_pieces(files), name) if "server.log" in files else None
        if told is None:
            said = f", and {name} is no log of a known engine" if "server.log" in files else " and no server.log"
            raise EvidenceError(f"The evidence has no launch.json{said}: neither engine nor arguments are known.", hint=_SHAPE)
        return told
    try:
        return _launch(strict_json(files["launch.json"], FILE_BYTES)), ()
    except ValueError as error:
        raise EvidenceError(f"launch.json cannot be read: {_reason(error)}.", hint=_SHAPE) from error


def _bundle(launch: Launch, evidence: Evidence, **rest: Any) -> Bundle:
    return Bundle(
        engine=launch.engine,
        engine_version=launch.engine_version,
        name=launch.name,
        gpu=launch.gpu,
        gpu_count=launch.gpu_count,
        interconnect=launch.interconnect,
        model=launch.model,
        argv=launch.argv,
        env=dict(launch.env),
        ready=launch.ready,
        start_s=launch.start_s,
        evidence=evidence,
        **rest,
    )


_SHAPE = (
    "Give a folder with at least launch.json (keys name, engine, engine_version, gpu, gpu_count, interconnect, model, "
    "argv, env, ready), usually with server.log, metrics.txt, server_info.json and bench.json beside it, "
    "or a case file with engine, facts and log_lines, or a server log of SGLang, vLLM or llama.cpp alone."
)


def _launch(raw: Value) -> Launch:
    if not isinstance(raw, dict):
        raise EvidenceError("launch.json must be a JSON object.", hint=_SHAPE)
    engine = raw.get("engine")
    if not isinstance(engine, str) or not engine:
        raise EvidenceError("launch.json does not say which engine ran (key engine).", hint=_SHAPE)
    try:
        return Launch.read({key: raw[key] for key in LAUNCH_KEYS if key in raw})
    except ValueError as error:
        raise EvidenceError(f"launch.json is malformed: {_reason(error)}.", hint=_SHAPE) from error


def _log_pieces(files: Mapping[str, bytes]) -> tuple[Piece, ...]:
    pieces = [Piece(files["server.log"])] if "server.log" in files else []
    later = sorted(
        (int(name.partition("@")[2]), name)
        for name in files
        if name.startswith("server.log@") and name.partition("@")[2].isdigit()
    )
    pieces.extend(Piece(files[name], offset, None) for offset, name in later)
    return tuple(pieces)


def _folder(path: Path) -> tuple[dict[str, bytes], frozenset[str], tuple[Missing, ...], str]:
    files: dict[str, bytes] = {}
    shared: set[str] = set()
    notes: list[Missing] = []
    for name in FOLDER_FILES:
        target = path / name
        if not os.path.lexists(target) and name in SHARED_FILES:
            target = path.resolve().parent / name
            if os.path.lexists(target):
                shared.add(name)
        if not os.path.lexists(target):
            continue
        reason = _unfit(target, path.resolve().parent if name in shared else path.resolve())
        if reason:
            shared.discard(name)
            notes.append(Missing(name=f"file.{name}", reason=reason))
            continue
        try:
            files.update(_read(target, name))
        except OSError as error:
            notes.append(Missing(name=f"file.{name}", reason=f"{name} cannot be read: {error.strerror or error}"))
    log = "server.log"
    if "launch.json" not in files:
        reasons = "; ".join(note.reason for note in notes if note.name == "file.launch.json")
        if not reasons and "server.log" not in files:
            log = _another_log(path, files)
        if reasons or "server.log" not in files:
            raise EvidenceError(
                f"The folder {str(path)!r} has no readable launch.json{': ' + reasons if reasons else ' and no log'}.",
                hint=_SHAPE,
            )
    return files, frozenset(shared), tuple(notes), log


def _another_log(path: Path, files: dict[str, bytes]) -> str:
    """The one log of a folder that has neither launch.json nor server.log, read as ``server.log``; llama.cpp's ``/props``
    beside it as its server_info. With several logs a person must say which."""
    found = sorted(item.name for item in path.glob("*.log") if item.name != "nccl.log" and not _unfit(item, path.resolve()))
    if len(found) > 1:
        raise EvidenceError(
            f"The folder {str(path)!r} has no launch.json and several logs ({', '.join(found[:5])}).",
            hint="Name one of the logs instead of the folder.",
        )
    for name in found:
        files.update(_read(path / name, "server.log"))
    props = path / "props.json"
    if found and "server_info.json" not in files and props.is_file() and not _unfit(props, path.resolve()):
        files["server_info.json"] = _read(props, "props.json")["props.json"]
    return found[0] if found else "server.log"


def _unfit(target: Path, root: Path) -> str:
    """Why this path is not read, or nothing: only regular files inside the bundle are, and a device could block for
    ever."""
    try:
        real = target.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError) as error:
        return f"{target.name} cannot be read: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(mode):
        return f"{target.name} is not a regular file"
    return "" if real.is_relative_to(root) else f"{target.name} is a link that leaves the folder"


def _read(target: Path, name: str) -> dict[str, bytes]:
    size = target.stat().st_size
    with target.open("rb") as handle:
        if name not in ("server.log", "nccl.log") or size <= LOG_HEAD_BYTES + LOG_TAIL_BYTES:
            return {name: handle.read(FILE_BYTES + 1 if name != "server.log" else LOG_HEAD_BYTES + LOG_TAIL_BYTES)}
        head = handle.read(LOG_HEAD_BYTES)
        handle.seek(size - LOG_TAIL_BYTES)
        return {name: head, f"{name}@{size - LOG_TAIL_BYTES}": handle.read(LOG_TAIL_BYTES)}


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
