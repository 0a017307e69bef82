"""Spans of a study, made from its entries: one for the study, one for each server that was launched (from its launch to its stop),
one for each effect. Ids are digests of the entries, so that a resumed study goes on with its own trace. Knows nothing of how spans
travel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from optimizer.model.entry import Entry, EntryKind
from optimizer.model.study import StudySpec
from optimizer.report.prose import changes_text, sentence
from optimizer.telemetry.tally import seconds_of

Attribute = str | int | float | bool | list[str]
MAX_EVENTS = 500  # of the study's span: the conclusions that are told last
MAX_TEXT = 1000


@dataclass(frozen=True)
class Event:
    name: str
    at_s: float  # Unix time
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True)
class Span:
    """``start_s`` and ``end_s``: Unix time of the entries, with the coordinator's clock. ``failed``: why, where it did."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    start_s: float
    end_s: float
    attributes: Mapping[str, Attribute]
    events: tuple[Event, ...] = ()
    failed: str = ""


@dataclass
class _Server:
    """A launch that was ordered and not yet stopped."""

    intent: Entry
    parent: int
    failed: str = ""
    measured: dict[str, Attribute] = field(default_factory=dict)


class Tracer:
    """``take`` every entry of one study in order; what it returns has ended with that entry."""

    def __init__(self) -> None:
        self._spec: StudySpec | None = None
        self._opened: Entry | None = None
        self._intents: dict[str, Entry] = {}  # those that are open, by key
        self._servers: dict[tuple[str, str], _Server] = {}  # (box, key of the launch)
        self._events: list[Event] = []
        self._trace = self._root = 0

    def take(self, entry: Entry) -> list[Span]:
        match entry.kind:
            case EntryKind.OPENED:
                self._spec, self._opened = StudySpec.model_validate(entry.body["spec"]), entry
                self._trace, self._root = _number(entry, "trace", 16), _number(entry, "study", 8)
                return []
            case EntryKind.INTENT:
                self._intents[str(entry.key)] = entry
                if entry.body["step"]["kind"] == "launch":
                    self._servers[entry.box, str(entry.key)] = _Server(entry, self._root)
                return []
            case EntryKind.OUTCOME:
                return list(self._ended(entry))
        self._events.append(Event(entry.kind.value, seconds_of(entry.at_utc), _told(entry)))
        del self._events[:-MAX_EVENTS]
        return list(self._closed(entry)) if entry.kind == EntryKind.CLOSED else []

    def _ended(self, entry: Entry) -> Iterator[Span]:
        outcome, intent = entry.body["outcome"], self._intents.get(str(entry.key))
        if outcome["status"] == "unknown" or intent is None:
            return  # its intent stays open
        del self._intents[str(entry.key)]
        step = intent.body["step"]
        kind, launch = str(step["kind"]), str(step["key"] if step["kind"] == "launch" else step.get("launch", ""))
        failed = f"{outcome['cause']}: {outcome['message']}" if outcome["status"] == "failed" else ""
        server = self._servers.get((entry.box, launch))
        if server is not None and kind != "check":
            server.failed = server.failed or failed
            server.measured |= {} if kind != "measure" else _target_level(outcome)
        parent = _number(server.intent, "server", 8) if server is not None else self._root
        attributes = self._common(intent) | _about(step) | {"optimize.server_seconds": float(outcome.get("duration_s", 0.0)), "optimize.outcome.seq": entry.seq}
        if failed:
            attributes |= {"error.type": str(outcome["cause"])}
        yield self._span(f"optimize.{kind}", _number(intent, "step", 8), parent, intent, entry, attributes | _target_level(outcome), _loads(entry), failed)
        if server is not None and ((kind == "stop" and not failed) or (kind == "launch" and failed)):
            yield self._served(self._servers.pop((entry.box, launch)), entry)

    def _closed(self, entry: Entry) -> Iterator[Span]:
        for server in self._servers.values():  # left running on purpose, or lost with its box
            yield self._served(server, entry)
        assert self._spec is not None and self._opened is not None
        body, spec = entry.body, self._spec
        attributes: dict[str, Attribute] = {
            "optimize.study": spec.study, "optimize.host": spec.host.name, "optimize.target": spec.target.text, "optimize.workload": spec.workload.text,
            "optimize.ending": str(body["ending"]), "optimize.launches": int(body.get("launches", 0)) + int(body.get("launches_baseline", 0)),
            "optimize.reason": str(body.get("reason", ""))[:MAX_TEXT],
        }  # fmt: skip
        for name in ("baseline", "best"):
            found = body.get(name) or {}
            if found.get("value") is not None:
                attributes |= {f"optimize.{name}": float(found["value"]), f"optimize.{name}.unit": str(found["unit"]), f"optimize.{name}.launches": int(found["launches"]),
                               f"optimize.{name}.low": float(found["interval"][0]), f"optimize.{name}.high": float(found["interval"][1])}  # fmt: skip
        failed = attributes["optimize.reason"] if body["ending"] in ("unfit", "needs_operator", "guard_fired") else ""
        yield self._span("optimize.study", self._root, None, self._opened, entry, attributes, tuple(self._events), str(failed))

    def _served(self, server: _Server, last: Entry) -> Span:
        attributes = self._common(server.intent) | _about(server.intent.body["step"]) | server.measured
        return self._span("optimize.server", _number(server.intent, "server", 8), server.parent, server.intent, last, attributes, (), server.failed)

    def _common(self, entry: Entry) -> dict[str, Attribute]:
        study = self._spec.study if self._spec is not None else ""
        return {"optimize.study": study, "optimize.seq": entry.seq, **({"optimize.box": entry.box} if entry.box else {})}

    def _span(
        self, name: str, span_id: int, parent: int | None, first: Entry, last: Entry, attributes: Mapping[str, Attribute], events: tuple[Event, ...], failed: str
    ) -> Span:
        start_s = seconds_of(first.at_utc)
        end_s = max(start_s, seconds_of(last.at_utc))  # the clock may have been set back in between
        return Span(name, self._trace, span_id, parent, start_s, end_s, attributes, events, failed[:MAX_TEXT])


def _number(entry: Entry, what: str, width: int) -> int:
    """An id of ``width`` bytes that the same entry gives in every process."""
    return int.from_bytes(hashlib.sha256(f"{what}:{entry.hash}".encode()).digest()[:width], "big") or 1


def _about(step: Mapping[str, Any]) -> dict[str, Attribute]:
    """What the effect is about, of the fields that say something to a person."""
    found: dict[str, Attribute] = {"optimize.step": str(step["kind"])}
    if step["kind"] == "launch":
        values = (step.get("settings") or {}).get("values", {})
        found |= {"optimize.launch": str(step["key"]), "optimize.settings": changes_text(values)[:MAX_TEXT], "server.port": int(step["port"])}
    elif step.get("launch"):
        found["optimize.launch"] = str(step["launch"])
    for name in ("purpose", "op", "test", "hypothesis"):
        if step.get(name):
            found[f"optimize.{name}"] = str(step[name])
    return found


def _points(outcome: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(((outcome.get("body") or {}).get("measurement") or {}).get("points", ()))


def _numbers(point: Mapping[str, Any]) -> dict[str, Attribute]:
    metrics = {f"optimize.{name}": float(value) for name, value in sorted(point["metrics"].items())}
    invalid = [str(item["code"]) for item in point.get("invalid", ())]
    return {
        "optimize.concurrency": int(point["concurrency"]), "optimize.window_seconds": float(point["window_s"]), "optimize.requests_ok": int(point["requests_ok"]),
        "optimize.requests_failed": int(point["requests_failed"]), **({"optimize.invalid": invalid} if invalid else {}), **metrics,
    }  # fmt: skip


def _target_level(outcome: Mapping[str, Any]) -> dict[str, Attribute]:
    points = _points(outcome)
    return _numbers(points[0]) if points else {}


def _loads(entry: Entry) -> tuple[Event, ...]:
    """Every load that was measured, the target's first."""
    return tuple(Event("load", seconds_of(entry.at_utc), _numbers(point)) for point in _points(entry.body["outcome"]))


def _told(entry: Entry) -> dict[str, Attribute]:
    box: dict[str, Attribute] = {"optimize.box": entry.box} if entry.box else {}
    return {"optimize.seq": entry.seq, "optimize.text": sentence(entry)[:MAX_TEXT], **box}
