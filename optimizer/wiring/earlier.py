"""What earlier studies of a box took, from their journals under the same folder: the source of a plan's durations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from optimizer.core.durations import Earlier
from optimizer.errors import OptimizerError
from optimizer.journal import Journal, Place
from optimizer.model.entry import Entry, EntryKind

MOST_STUDIES = 3  # the newest that fit; older ones may have had another driver or model
MOST_LOOKED_AT = 40


def earlier(folders: Iterable[Place], host: str, engine: str, model: str | None) -> Earlier:
    """Durations of the newest studies of this host with this engine and model. One that cannot be read tells nothing."""
    names: list[str] = []
    seconds: dict[str, list[float]] = {}
    by: dict[str, dict[str, None]] = {}
    for folder in list(folders)[:MOST_LOOKED_AT]:
        try:
            with Journal.open(folder, write=False) as journal:
                entries = journal.read()
        except (OptimizerError, OSError, ValueError):
            continue
        if not _same(entries, host, engine, model):
            continue
        told = list(_seconds(entries))
        if not told:
            continue
        names.append(folder.name)
        for kind, value in told:
            seconds.setdefault(kind, []).append(value)
            by.setdefault(kind, {})[folder.name] = None
        if len(names) == MOST_STUDIES:
            break
    return Earlier(tuple(names), seconds, {kind: tuple(who) for kind, who in by.items()})


def _same(entries: Sequence[Entry], host: str, engine: str, model: str | None) -> bool:
    spec = next((entry.body["spec"] for entry in entries if entry.kind == EntryKind.OPENED), None)
    box = next((body["box"] for body in _done(entries, "observe") if body.get("box")), None)
    if spec is None or box is None or spec["host"]["name"] != host or box["engine"] != engine:
        return False
    return _last_part(box.get("model_path")) == _last_part(model)


def _last_part(model: Any) -> str:
    """A simulated box has its model under another scratch folder each time."""
    return str(model or "").rstrip("/").rpartition("/")[2]


def _done(entries: Iterable[Entry], step: str) -> Iterable[dict[str, Any]]:
    return (entry.body["outcome"]["body"] for entry in entries
            if entry.kind == EntryKind.OUTCOME and entry.body["step"] == step and entry.body["outcome"]["status"] == "done")  # fmt: skip


def _seconds(entries: Iterable[Entry]) -> Iterable[tuple[str, float]]:
    """(kind of step, seconds), for every step that succeeded. Of a start that began under an earlier coordinator only the rest was timed."""
    began: dict[str | None, int] = {}
    for entry in entries:
        if entry.kind == EntryKind.INTENT:
            began[entry.key] = entry.epoch
            if entry.body["step"]["kind"] == "await_ready":
                began[entry.key] = began.get(entry.body["step"]["launch"], entry.epoch)
        if entry.kind != EntryKind.OUTCOME or entry.body["outcome"]["status"] != "done":
            continue
        step, took, body = entry.body["step"], float(entry.body["outcome"].get("duration_s") or 0.0), entry.body["outcome"]["body"]
        if step == "await_ready" and began.get(entry.key) != entry.epoch:
            continue
        if step == "await_ready":
            yield "start", float(body.get("ready_s") or took)
        elif step == "measure" and body["measurement"]["points"]:
            points = body["measurement"]["points"]
            yield "warmup", float(points[0]["warmup_s"])
            yield "around", max(0.0, took - math.fsum(point["warmup_s"] + point["window_s"] for point in points))
        elif step == "secure":
            yield "secure" if body.get("armed") else "disarm", took
        elif step in ("stop", "calibrate", "restore"):
            yield step, took
