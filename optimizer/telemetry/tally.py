"""The numbers of the metrics page, counted from entries as they are committed. Holds no history beyond its counts, knows nothing of
the exposition format, and may be read from another thread than the one that counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from optimizer import __version__
from optimizer.core.closing import figures
from optimizer.core.phase import phase_of
from optimizer.core.state import State
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.measurement import LoadPoint
from optimizer.model.target import unit_of

Kind = Literal["gauge", "counter", "histogram"]
Labels = tuple[tuple[str, str], ...]

# Upper bounds in seconds: from a cached start to the load of hundreds of GiB of weights.
BUCKETS_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)


class Family(NamedTuple):
    """A metric of the page. ``labels``: beside ``study``, and ``box`` where a study has several and the number is one box's."""

    kind: Kind
    labels: tuple[str, ...]
    meaning: str


# A counter's name gets ``_total`` on the page. docs/telemetry.md lists the same, and a test compares them.
FAMILIES: dict[str, Family] = {
    "optimize_study_info": Family("gauge", ("host", "engine", "engine_version", "target", "workload", "release"), "1; the labels say what is tuned, where, for which target, by which release."),
    "optimize_study_phase": Family("gauge", ("phase",), "1 for the phase that the study, or the box, is in."),
    "optimize_study_opened_timestamp_seconds": Family("gauge", (), "When the study was opened, Unix time."),
    "optimize_study_closed": Family("gauge", ("ending",), "1 once the study is closed; the label says how it ended."),
    "optimize_last_entry_timestamp_seconds": Family("gauge", (), "When the last journal entry was written, Unix time: a study that stands still shows here."),
    "optimize_entries": Family("counter", ("kind",), "Journal entries by kind."),
    "optimize_budget_launches": Family("gauge", (), "Launches that the study may use."),
    "optimize_budget_seconds": Family("gauge", (), "Seconds of the server's clock that each box may use."),
    "optimize_launches": Family("counter", (), "Launches that count against the budget."),
    "optimize_spent_seconds": Family("gauge", (), "Seconds of the server's clock that the box was used for."),
    "optimize_steps": Family("counter", ("step", "status"), "Effects on the box that ended, by kind and status (done, failed, unknown)."),
    "optimize_step_failures": Family("counter", ("step", "cause"), "Effects that failed, by cause."),
    "optimize_step_duration_seconds": Family("histogram", ("step",), "How long effects took, by kind, on the server's clock."),
    "optimize_invalid_loads": Family("counter", ("reason",), "Measured loads that may not be used, by reason."),
    "optimize_verdicts": Family("counter", ("verdict",), "Judgements of candidates, by verdict."),
    "optimize_hypothesis_probability": Family("gauge", ("hypothesis",), "Probability of each cause in the latest ranking."),
    "optimize_measured_tokens_per_second": Family("gauge", ("concurrency",), "Output tokens per second of the latest valid measurement at each load."),
    "optimize_measured_ttft_seconds": Family("gauge", ("concurrency", "quantile"), "Time to the first token in the latest valid measurement at each load, by quantile."),
    "optimize_measured_tpot_seconds": Family("gauge", ("concurrency", "quantile"), "Time per output token after the first, likewise."),
    "optimize_target": Family("gauge", ("metric", "unit", "direction"), "What the target asks of its main metric, in the unit of the label."),
    "optimize_baseline": Family("gauge", ("metric", "unit"), "The server as it was found: geometric mean over its launches, in the target's main metric."),
    "optimize_baseline_low": Family("gauge", ("metric", "unit"), "Lower end of its 95 % interval."),
    "optimize_baseline_high": Family("gauge", ("metric", "unit"), "Upper end of its 95 % interval."),
    "optimize_baseline_launches": Family("gauge", ("metric", "unit"), "Launches behind it."),
    "optimize_best": Family("gauge", ("metric", "unit"), "The best that is kept so far (the baseline until something is), likewise."),
    "optimize_best_low": Family("gauge", ("metric", "unit"), "Lower end of its 95 % interval."),
    "optimize_best_high": Family("gauge", ("metric", "unit"), "Upper end of its 95 % interval."),
    "optimize_best_launches": Family("gauge", ("metric", "unit"), "Launches behind it."),
}

QUANTILES = {"p50": "0.5", "p90": "0.9", "p95": "0.95", "p99": "0.99"}


@dataclass
class Durations:
    """A histogram: how many were at most each bound, how many there were, and their sum in seconds."""

    at_most: list[int] = field(default_factory=lambda: [0] * len(BUCKETS_S))
    count: int = 0
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        for index, bound in enumerate(BUCKETS_S):
            self.at_most[index] += seconds <= bound
        self.count += 1
        self.sum_s += seconds


Value = float | Durations


class Tally:
    """``take`` every entry of one study in order, with the state after it (of earlier entries, any later one does)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = State()
        self._opened_s = self._last_s = 0.0
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name, family in FAMILIES.items() if family.kind == "counter"}
        self._durations: dict[Labels, Durations] = {}
        self._points: dict[tuple[str, int], LoadPoint] = {}  # (box, concurrency) -> the latest valid one
        self._figures: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None

    def take(self, state: State, entry: Entry) -> None:
        with self._lock:
            self._state, self._last_s = state, seconds_of(entry.at_utc)
            self._counts["optimize_entries"][(("kind", entry.kind.value),)] += 1
            match entry.kind:
                case EntryKind.OPENED:
                    self._opened_s = self._last_s
                case EntryKind.OUTCOME:
                    self._ended(entry)
                case EntryKind.JUDGED:
                    self._counts["optimize_verdicts"][_at(entry.box, verdict=str(entry.body["judgement"]["verdict"]))] += 1
            if entry.kind in (EntryKind.OUTCOME, EntryKind.PROMOTED, EntryKind.ROLLED_BACK, EntryKind.DRIFTED, EntryKind.CLOSED):
                known = state.spec is not None and (state.first_arm.results or state.first_arm.earlier)
                self._figures = figures(state) if known else None

    def _ended(self, entry: Entry) -> None:
        step, outcome = str(entry.body["step"]), entry.body["outcome"]
        self._counts["optimize_steps"][_at(entry.box, step=step, status=outcome["status"])] += 1
        self._durations.setdefault(_at(entry.box, step=step), Durations()).add(float(outcome.get("duration_s", 0.0)))
        if outcome["status"] == "failed":
            self._counts["optimize_step_failures"][_at(entry.box, step=step, cause=outcome["cause"])] += 1
        for raw in outcome.get("body", {}).get("measurement", {}).get("points", ()):
            point = LoadPoint.model_validate(raw)
            for item in point.invalid:
                self._counts["optimize_invalid_loads"][_at(entry.box, reason=item.code.value)] += 1
            if not point.invalid:
                self._points[entry.box, point.concurrency] = point

    # ---- reading ---------------------------------------------------------------------------------------------------

    def samples(self) -> Iterator[tuple[str, Labels, Value]]:
        """(name of ``FAMILIES``, labels, value), all of one moment; every row has the label ``study``. Nothing before the first entry."""
        with self._lock:
            rows = list(self._rows())
            study = (("study", self._state.spec.study),) if self._state.spec is not None else ()
        yield from ((name, study + labels, value) for name, labels, value in rows)

    def _rows(self) -> Iterator[tuple[str, Labels, Value]]:
        state = self._state
        if state.spec is None:
            return
        spec, survey = state.spec, (next(iter(state.boxes.values())) if state.boxes else state).survey or {}
        yield "optimize_study_info", _labels(
            host=spec.host.name, target=spec.target.text, workload=spec.workload.text, release=__version__,
            engine=str(survey.get("engine") or spec.engine or ""), engine_version=str(survey.get("engine_version") or ""),
        ), 1.0  # fmt: skip
        yield "optimize_study_opened_timestamp_seconds", (), self._opened_s
        yield "optimize_last_entry_timestamp_seconds", (), self._last_s
        yield "optimize_budget_launches", (), float(spec.budget.launches)
        yield "optimize_budget_seconds", (), spec.budget.minutes * 60.0
        for part in tuple(state.boxes.values()) or (state,):
            yield "optimize_study_phase", _at(part.box, phase=phase_of(part) if state.closed is None else "closed"), 1.0
            yield "optimize_launches", _at(part.box), float(part.launches_baseline + part.launches_after)
            yield "optimize_spent_seconds", _at(part.box), part.duration_s
        if state.closed is not None:
            yield "optimize_study_closed", _labels(ending=str(state.closed["ending"])), 1.0
        for name, counts in self._counts.items():
            yield from ((name, labels, float(count)) for labels, count in counts.items())
        yield from (("optimize_step_duration_seconds", labels, Durations(list(one.at_most), one.count, one.sum_s)) for labels, one in self._durations.items())
        ranked = [(part.box, row) for part in (state, *state.boxes.values()) for row in part.ranked]
        yield from (("optimize_hypothesis_probability", _at(box, hypothesis=str(row["id"])), float(row["probability"])) for box, row in ranked)
        for (box, concurrency), point in self._points.items():
            yield from _measured(_at(box, concurrency=str(concurrency)), point)
        yield from self._results()

    def _results(self) -> Iterator[tuple[str, Labels, Value]]:
        assert self._state.spec is not None
        if (primary := self._state.spec.target.primary) is not None:
            yield "optimize_target", _labels(metric=primary.metric, unit=unit_of(primary.metric), direction=primary.direction), primary.value
        for name, found in zip(("optimize_baseline", "optimize_best"), self._figures or (), strict=False):
            labels = _labels(metric=str(found["metric"]), unit=str(found["unit"]))
            if found["value"] is not None:
                yield name, labels, float(found["value"])
                yield f"{name}_low", labels, float(found["interval"][0])
                yield f"{name}_high", labels, float(found["interval"][1])
                yield f"{name}_launches", labels, float(found["launches"])


def _measured(labels: Labels, point: LoadPoint) -> Iterator[tuple[str, Labels, Value]]:
    if (rate := point.metrics.get("output_tokens_per_s")) is not None:
        yield "optimize_measured_tokens_per_second", labels, rate
    for short in ("ttft", "tpot"):
        for percentile, quantile in QUANTILES.items():
            if (value := point.metrics.get(f"{short}_{percentile}_ms")) is not None:
                yield f"optimize_measured_{short}_seconds", (*labels, ("quantile", quantile)), value / 1000.0


def _labels(**named: str) -> Labels:
    return tuple(named.items())


def _at(box: str, **named: str) -> Labels:
    """The labels, with the box where the study has several."""
    return (("box", box), *named.items()) if box else tuple(named.items())


def seconds_of(at_utc: str) -> float:
    """Unix time of an entry's stamp; 0 for one that is no time."""
    try:
        return datetime.fromisoformat(at_utc.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
