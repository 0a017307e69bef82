"""What a study knows, folded from its journal. ``apply`` is total and pure: the same entries give the same state on
every machine, which is what resume and replay rest on. It never decides anything; that is ``decide``'s business."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from optimizer.core import boxes, goodput, since
from optimizer.core.whole_space import overlay
from optimizer.errors import JournalCorrupt, JournalTooNew
from optimizer.model.answers import AnswerPass
from optimizer.model.base import Value
from optimizer.model.entry import Entry
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.measurement import LoadPoint, Measurement, ValidityCode
from optimizer.model.outcome import INFEASIBLE, Done, Failed, Outcome, Unknown
from optimizer.model.replaced import replace
from optimizer.model.settings import Settings
from optimizer.model.space import ARM
from optimizer.model.step import (
    ORIGINAL,
    STEP,
    AwaitReady,
    Check,
    Launch,
    Measure,
    Observe,
    Propose,
    Restore,
    Secure,
    Step,
    Stop,
)
from optimizer.model.study import StudySpec
from optimizer.model.target import percentile_of
from optimizer.model.verdict import Arm, Judgement
from optimizer.stats.tail import requests_needed

OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)


@dataclass(frozen=True)
class LaunchResult:
    """The valid measurement of one launch. ``ln`` is ln(metric), negated for metrics where less is better; of goodput it is what
    launches are compared by (``core.goodput``)."""

    launch: str
    entry: int
    value: float
    ln: float
    points: tuple[LoadPoint, ...]
    purpose: str = ""


def mean_ln(results: Sequence[LaunchResult]) -> float:
    """What launches are compared by, of several of one setting."""
    return math.fsum(result.ln for result in results) / len(results)


@dataclass(frozen=True)
class ArmState:
    """All launches of one setting since the last drift."""

    settings: Settings
    results: tuple[LaunchResult, ...] = ()
    invalid: tuple[tuple[str, str], ...] = ()  # (launch, why) of every run that was not used
    crashed: str | None = None  # cause and message of the crash that made it infeasible
    given_up: str = ""  # why it was stopped after its start, unmeasured
    evidence: Evidence = Evidence()
    evidence_entry: int = 0
    evidence_before: Evidence = Evidence()  # of the launch before the latest one, since the last drift
    effective: Mapping[str, Value] = field(default_factory=dict)
    confirmed: LaunchResult | None = None  # the mean of ``confirmations``, with the points of the latest
    confirmations: tuple[LaunchResult, ...] = ()
    earlier: tuple[LaunchResult, ...] = ()  # from before the box drifted: shown, and never compared with what came after
    checked: tuple[str, ...] = ()  # cheap tests that were made on it, or that could not be made
    checked_evidence: Evidence = Evidence()
    answers: tuple[AnswerPass, ...] = ()  # to the greedy probes, of every launch that was asked

    def arm(self) -> Arm:
        return Arm(
            fingerprint=self.settings.digest,
            ln_values=tuple(result.ln for result in self.results),
            entries=tuple(result.entry for result in self.results),
        )


@dataclass(frozen=True)
class Server:
    """What of ours runs on the box, as far as the journal knows."""

    key: str
    settings: Settings
    purpose: str
    port: int
    served_name: str | None
    status: str = "launched"  # launched, ready, measured, failed
    runs: int = 0
    startup: Evidence = Evidence()  # what its log said while it started


@dataclass(frozen=True)
class Belief:
    """What has become of a hypothesis beyond its evidence."""

    status: str = "open"  # open, supported, kept, pruned, stale, deferred, refused, handed_over
    measured_db: float = 0.0
    tried: tuple[str, ...] = ()  # digests of the settings launched for it
    verdict: str = ""
    final_db: float | None = None  # what it scored when it was tested, with the verdict: the evidence of the cured server says less
    gained: float = 1.0  # ratio that its kept changes brought
    searched: bool = False  # of one that paid off: nothing further is to be had for it
    baseline: str = ""  # the comparator under which the status holds
    reason: str = ""
    entry: int = 0


@dataclass(frozen=True)
class Test:
    """The candidate under test."""

    hypothesis: str
    entry: int
    changes: Mapping[str, Value]
    settings: Settings | None  # None until the sampler has answered
    ratio: tuple[float, float] | None
    space: str | None = None
    space_params: tuple[str, ...] = ()
    fixed: Mapping[str, Value] = field(default_factory=dict)
    grids: Mapping[str, Any] = field(default_factory=dict)  # what is left of a parameter's values
    point: Mapping[str, Value] = field(default_factory=dict)  # of a control arm: what its sampler asked for, word for word
    rejected: tuple[Mapping[str, Any], ...] = ()  # proposals that a rule refused: params, and whether they cannot run
    score_db: Mapping[str, float] = field(default_factory=dict)  # of each hypothesis that is tested, before the test
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # that each of several predicts by itself
    rest: tuple[str, ...] = ()  # changed parameters that belong to the cure of none of ``cures``
    bundle: tuple[str, ...] = ()  # further hypotheses whose cures are launched together with this one
    cures: tuple[str, ...] = ()  # causes that the same settings cure: named if the test pays off, untouched if it does not
    look: tuple[int, int] | None = None  # (candidate, baseline) launches of the last judged look
    judgement: Judgement | None = None


@dataclass(frozen=True)
class Closing:
    ending: str
    reason: str
    entry: int


@dataclass(frozen=True)
class State:
    """Everything ``decide`` may look at."""

    seq: int = 0
    spec: StudySpec | None = None
    last_hash: str = ""
    box: str = ""  # of a study on several boxes: whose part of it this is; empty for the whole
    boxes: Mapping[str, State] = field(default_factory=dict)  # of the whole: the part of each box, in the order they were named
    peers: tuple[State, ...] = ()  # of a part: those of the other boxes, for as long as something is decided about it
    adopted: bool = False  # the baseline was promoted on another box: nothing was measured of it here before
    lost: str = ""  # why the box is given up; its intent stays open
    last_try: bool = False  # a lost box was tried again to bring it into its end state
    open: Step | None = None
    open_failures: int = 0

    survey: Mapping[str, Any] | None = None
    survey_failure: Failed | None = None
    survey_evidence: Evidence = Evidence()
    flags: FlagTable = FlagTable(known=False)
    given: Mapping[str, Value] = field(default_factory=dict)  # parameters on the original command line
    original_running: bool = False
    original_found: bool = False
    original_touched: bool = False  # a stop of it was begun: it may be down even if that stop failed

    armed: bool = False
    calibrated: Mapping[str, Any] | None = None

    baseline: Settings = Settings()
    arms: Mapping[str, ArmState] = field(default_factory=dict)
    server: Server | None = None
    failures: Mapping[str, int] = field(default_factory=dict)  # retryable failures in a row, by fingerprint
    last_failure: Failed | None = None

    beliefs: Mapping[str, Belief] = field(default_factory=dict)
    test: Test | None = None
    points: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)  # of a control arm: what was asked for, by digest of what was launched
    refusals: tuple[Mapping[str, Any], ...] = ()
    flips: tuple[Mapping[str, Any], ...] = ()
    ceiling: Mapping[str, Any] | None = None
    ceiling_entry: int = 0
    ranked: tuple[Mapping[str, Any], ...] = ()
    ruled_out: tuple[Mapping[str, Any], ...] = ()
    ranked_version: tuple[int, int] = (0, 0)
    belief_version: int = 0
    provisional: Mapping[str, Any] | None = None  # a promotion that its confirmation still has to bear out
    bundle_failed: bool = False  # causes are tested one by one from then on
    dead_checked: bool = False
    flips_checked: tuple[str, ...] = ()
    promoted: tuple[Mapping[str, Value], ...] = ()
    promotions: tuple[int, ...] = ()
    reach: str = "none"  # none, configuration or hard
    out_of_reach: str = ""
    drifts: int = 0

    launches_baseline: int = 0
    launches_after: int = 0
    launch_count: int = 0
    runs: int = 0
    duration_s: float = 0.0
    launch_durations_s: tuple[float, ...] = ()

    closing: Closing | None = None
    disarmed: bool = False
    restored: bool = False
    closing_failures: int = 0
    closed: Mapping[str, Any] | None = None

    # ---- views ------------------------------------------------------------------------------------------------

    def arm(self, settings: Settings) -> ArmState:
        return self.arms.get(settings.digest) or ArmState(settings=settings)

    def spoilt_launches(self, settings: Settings) -> int:
        """Launches of a setting that gave nothing usable although their run was repeated."""
        arm = self.arm(settings)
        runs: dict[str, int] = {}
        for launch, _ in arm.invalid:
            runs[launch] = runs.get(launch, 0) + 1
        return sum(1 for launch, count in runs.items() if count >= self.runs_of(settings, launch) and all(result.launch != launch for result in arm.results))

    def runs_of(self, settings: Settings, launch: str) -> int:
        """How often this launch may be measured until a run is usable: twice; three times where nothing was wrong but a rate that did not
        settle, which more patience may cure and another launch would not. Once a setting: a box that never settles ends the study."""
        if not since.decides_by(self.spec, since.THIRD_RUN):
            return 2
        runs: dict[str, list[str]] = {}
        for known, why in self.arm(settings).invalid:
            runs.setdefault(known, []).append(why)
        patient = next((known for known, whys in runs.items() if len(whys) >= 2 and all(map(_unsteady, whys[:2]))), None)
        return 3 if launch == patient else 2

    @property
    def base_arm(self) -> ArmState:
        return self.arm(self.baseline)

    @property
    def first_arm(self) -> ArmState:
        return self.arm(Settings())

    @property
    def evidence(self) -> Evidence:
        """What is known of the current baseline: the box, cheap tests on it, then its latest launch."""
        return self.survey_evidence.merged(self.base_arm.checked_evidence).merged(self.base_arm.evidence)

    @property
    def effective(self) -> dict[str, Value]:
        """Effective settings of the current baseline: asked for, overlaid by what the server reported."""
        return {**self.given, **self.baseline.values, **self.base_arm.effective}

    @property
    def minutes(self) -> float:
        return self.duration_s / 60.0


def metric_value(point: LoadPoint, metric: str) -> float | None:
    """The value of a target metric at one load point; None when the run does not support it."""
    if metric == "error_rate":
        total = point.requests_ok + point.requests_failed
        return point.requests_failed / total if total else None
    return point.metrics.get(metric)


def _unsteady(why: str) -> bool:
    return all(item.startswith(f"{ValidityCode.NEVER_STEADY}: ") for item in why.split("; "))


def log_value(value: float, direction: str) -> float:
    """ln of a metric, oriented so that more is better. Zero throughput counts as a thousandth."""
    logged = math.log(max(value, 1e-3))
    return logged if direction == "at_least" else -logged


def fold(entries: Iterable[Entry]) -> State:
    """The state after these entries."""
    state = State()
    for entry in entries:
        state = apply(state, entry)
    return state


def apply(state: State, entry: Entry) -> State:
    """The state after one more entry. Raises JournalTooNew for a kind that this release does not know."""
    if entry.seq != state.seq + 1:
        raise JournalCorrupt(f"Entry {entry.seq} follows entry {state.seq}: the journal has a gap.")
    handler = _HANDLERS.get(str(entry.kind))
    if handler is None:
        raise JournalTooNew(f"Entry {entry.seq} has the kind {entry.kind!r}, which this release does not know.",
                            hint="Open the study with the release that wrote it, or a newer one.")  # fmt: skip
    try:
        folded: State = boxes.folded(state, entry, handler) if state.boxes else handler(state, entry)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # pydantic's error is a ValueError
        raise JournalCorrupt(f"Entry {entry.seq} ({entry.kind}) does not have the fields that this kind has: {type(error).__name__}: {str(error)[:300]}",
                             why="The file was edited, or written by another program: what it says cannot be trusted.") from error  # fmt: skip
    return replace(folded, seq=entry.seq, last_hash=entry.hash)


def _opened(state: State, entry: Entry) -> State:
    spec = StudySpec.model_validate(entry.body["spec"])
    parts = {one.name: State(box=one.name, spec=spec.on(one.name), seq=entry.seq) for one in spec.boxes}
    return replace(state, spec=spec, boxes=parts)


def _intent(state: State, entry: Entry) -> State:
    step = STEP.validate_python(entry.body["step"])
    state = replace(state, open=step, open_failures=0)
    if isinstance(step, Launch):
        baseline = step.purpose == "baseline"
        if state.test is not None and state.test.hypothesis == ARM:
            state = replace(state, points={**state.points, step.settings.digest: state.test.point})
        counted = step.attempt == 0 and step.purpose != "final"
        return replace(
            state,
            server=Server(key=step.key, settings=step.settings, purpose=step.purpose, port=step.port, served_name=step.served_name),
            launch_count=state.launch_count + 1,
            launches_baseline=state.launches_baseline + (counted and baseline and len(state.base_arm.results) < 3 and not state.promoted),
            launches_after=state.launches_after + (counted and not (baseline and len(state.base_arm.results) < 3 and not state.promoted)),
        )  # fmt: skip
    if isinstance(step, Measure | Check):
        return replace(state, runs=state.runs + 1)
    if isinstance(step, Stop) and step.launch == ORIGINAL:
        return replace(state, original_touched=True)
    return state


def _outcome(state: State, entry: Entry) -> State:
    step, outcome = state.open, OUTCOME.validate_python(entry.body["outcome"])
    if step is None:
        raise JournalCorrupt(f"Entry {entry.seq} is an outcome without an open intent.")
    if isinstance(outcome, Unknown):
        return replace(state, open_failures=state.open_failures + 1, duration_s=state.duration_s + outcome.duration_s)
    state = replace(state, open=None, open_failures=0, duration_s=state.duration_s + outcome.duration_s)
    if isinstance(outcome, Failed):
        return _failed(replace(state, last_failure=outcome), step, outcome, entry)
    return _done(state, step, outcome, entry)


def _done(state: State, step: Step, outcome: Done, entry: Entry) -> State:
    body = outcome.body
    match step:
        case Observe():
            return replace(
                state,
                survey=body.get("box", {}),
                survey_evidence=Evidence.model_validate(body.get("evidence", {})),
                flags=FlagTable.model_validate(body["flags"]) if body.get("flags") else FlagTable(known=False),
                given=body.get("given", {}),
                original_running=bool(body.get("original")),
                original_found=bool(body.get("original")),
            )
        case Secure(op="arm"):
            return replace(state, armed=True)
        case Secure():
            state = replace(state, armed=False, disarmed=True)
            if body.get("original_restarted"):
                return replace(state, original_running=True)
            return replace(state, server=None, original_running=state.original_found) if body.get("guard_restored") else state
        case Launch():
            return state
        case AwaitReady():
            return _with_server(state, step.launch, status="ready", startup=Evidence.model_validate(body.get("startup", {})))
        case Measure():
            return _measured(state, step, body, entry)
        case Check():
            return _checked(state, step, Evidence.model_validate(body.get("evidence", {})))
        case Stop():
            state = replace(state, failures={**state.failures, step.kind: 0})
            if step.launch == ORIGINAL:
                return replace(state, original_running=False)
            return replace(state, server=None)
        case Restore():
            return replace(state, restored=True, original_running=True, original_touched=False)
        case Propose():
            return _proposed(state, body)
        case _:
            return replace(state, calibrated=body)


def _proposed(state: State, body: Mapping[str, Any]) -> State:
    test = state.test
    if test is None:
        return state
    changes = {**test.fixed, **body["params"]}
    if test.hypothesis == ARM and body["params"]:  # an empty answer says that no point is left
        changes = overlay({**state.given, **state.baseline.values}, test.space_params, body["params"])
        test = replace(test, point=body["params"])
    return replace(state, test=replace(test, changes=changes, settings=state.baseline.merged(changes)))


def _measured(state: State, step: Measure, body: Mapping[str, Any], entry: Entry) -> State:
    assert state.spec is not None
    settings = Settings() if step.launch == ORIGINAL else (state.server.settings if state.server else Settings())
    arm = state.arm(settings)
    measurement = Measurement.model_validate(body["measurement"])
    again = bool(arm.results) and arm.results[-1].launch != step.launch  # a repeated run on one launch is no other start
    arm = replace(
        arm,
        evidence_before=arm.evidence if again else arm.evidence_before,
        evidence=Evidence.model_validate(body.get("evidence", {})),
        evidence_entry=entry.seq,
        effective=body.get("effective", {}),
        answers=(*arm.answers, *(AnswerPass.model_validate(one) for one in body.get("answers", ()))),
    )
    primary = state.spec.target.primary
    metric = primary.metric if primary else "output_tokens_per_s"
    direction = primary.direction if primary else "at_least"
    value = metric_value(measurement.points[0], metric) if measurement.points else None
    if value == 0 and metric in ("requests_per_s", goodput.METRIC) and not measurement.points[0].requests_ok:
        value = None  # none ended: how many would have been good is not known
    if measurement.invalid or value is None:
        why = "; ".join(f"{item.code}: {item.detail}" for item in measurement.invalid) or _why_no(metric, measurement)
        arm = replace(arm, invalid=(*arm.invalid, (step.launch, why)))
    else:
        by = goodput.compared(measurement.points[0], value) if metric == goodput.METRIC else value
        result = LaunchResult(step.launch, entry.seq, value, log_value(by, direction), measurement.points, step.purpose)
        if step.purpose == "confirm":
            fresh = (*(known for known in arm.confirmations if known.launch != step.launch), result)
            arm = replace(arm, confirmations=fresh, confirmed=_mean_of(fresh))
        known = [known for known in arm.results if known.launch != step.launch]  # a repeated run replaces its launch's first
        arm = replace(arm, results=(*known, result))
    state = replace(state, arms={**state.arms, settings.digest: arm})
    state = replace(state, failures={**state.failures, settings.digest: 0})
    if step.launch == ORIGINAL:
        return replace(state, server=state.server)
    return _with_server(state, step.launch, status="measured")


def _mean_of(results: tuple[LaunchResult, ...]) -> LaunchResult | None:
    """One result of several launches: their geometric mean, everything else of the latest."""
    if len(results) < 2:
        return results[0] if results else None
    ln = mean_ln(results)
    value = math.exp(math.fsum(math.log(max(result.value, 1e-3)) for result in results) / len(results))
    return replace(results[-1], value=value, ln=ln)


def _why_no(metric: str, measurement: Measurement) -> str:
    """Why a valid run has no value for the target's metric, and what would give one."""
    ok = measurement.points[0].requests_ok if measurement.points else 0
    percentile = percentile_of(metric)
    if percentile is not None and percentile > 50:
        return (
            f"{ok} requests ended in the window, which carry no {metric}: that claim needs at least {requests_needed(percentile)}. Give a longer window_s "
            "(workload file), a higher concurrency or a lower percentile"
        )
    return f"the run gives no {metric} ({ok} requests ended in the window)"


def _checked(state: State, step: Check, found: Evidence) -> State:
    """A cheap test has answered, or cannot be made here: either way it is not made again on this baseline."""
    settings = Settings() if step.launch == ORIGINAL or state.server is None else state.server.settings
    arm = state.arm(settings)
    name = step.test if step.around is None else f"{step.test}@{step.around}"
    arm = replace(arm, checked=(*arm.checked, name), checked_evidence=arm.checked_evidence.merged(found))
    return replace(state, arms={**state.arms, settings.digest: arm}, belief_version=state.belief_version + 1)


def _failed(state: State, step: Step, outcome: Failed, entry: Entry) -> State:
    if isinstance(step, Check):
        return _checked(state, step, Evidence())
    if isinstance(step, Observe):
        return replace(state, survey_failure=outcome)
    if state.closing is not None and not isinstance(step, Launch | AwaitReady | Measure):
        return replace(state, closing_failures=state.closing_failures + 1)
    if isinstance(step, Propose):
        return replace(state, test=None, beliefs=_set(state, step.hypothesis, status="refused", reason=outcome.message, entry=entry.seq),
                       belief_version=state.belief_version + 1)  # fmt: skip
    if isinstance(step, Launch | AwaitReady | Measure):
        return _launch_failed(state, step, outcome)
    return replace(state, failures=_counted(state, step.kind))


def _launch_failed(state: State, step: Launch | AwaitReady | Measure, outcome: Failed) -> State:
    on_original = isinstance(step, Measure) and step.launch == ORIGINAL
    settings = Settings() if on_original or state.server is None else state.server.settings
    arm = state.arm(settings)
    keeps_serving = isinstance(step, Measure) and outcome.cause in ("interrupted", "bench_failed", "never_steady", "client_bound")
    if outcome.cause in INFEASIBLE and not outcome.retryable:
        found = Evidence.model_validate(outcome.body.get("evidence", {}))
        arm = replace(arm, crashed=f"{outcome.cause}: {outcome.message}", evidence=arm.evidence if arm.results else found)
        state = replace(state, arms={**state.arms, settings.digest: arm})
    elif outcome.cause != "interrupted":  # our own death says nothing about the settings
        state = replace(state, failures=_counted(state, settings.digest))
    if isinstance(step, Launch) and not outcome.body.get("spawned", False):
        return replace(state, server=None)
    if state.server is not None and not keeps_serving:
        return _with_server(state, state.server.key, status="failed")
    return state


def _counted(state: State, key: str) -> dict[str, int]:
    return {**state.failures, key: state.failures.get(key, 0) + 1}


def _with_server(state: State, key: str, *, status: str, startup: Evidence | None = None) -> State:
    if state.server is None or state.server.key != key:
        return state
    return replace(state, server=replace(state.server, status=status, startup=startup if startup is not None else state.server.startup))


def _set(state: State, hypothesis: str, **changes: Any) -> dict[str, Belief]:
    known = state.beliefs.get(hypothesis, Belief())
    return {**state.beliefs, hypothesis: replace(known, baseline=state.baseline.digest, **changes)}


def _ceiling(state: State, entry: Entry) -> State:
    return replace(state, ceiling=entry.body, ceiling_entry=state.base_arm.evidence_entry)


def _ranked(state: State, entry: Entry) -> State:
    return replace(
        state,
        ranked=tuple(entry.body["hypotheses"]),
        ruled_out=tuple(entry.body.get("ruled_out", ())),
        ranked_version=(state.base_arm.evidence_entry, state.belief_version),
        reach=entry.body["reach"],
        out_of_reach=entry.body["out_of_reach"],
    )


def _chosen(state: State, entry: Entry) -> State:
    body = entry.body
    changes = body.get("changes")
    ratio = body.get("ratio")
    return replace(
        state,
        test=Test(
            hypothesis=body["hypothesis"],
            entry=entry.seq,
            changes=changes or {},
            settings=state.baseline.merged(changes) if changes is not None else None,
            ratio=(ratio[0], ratio[1]) if ratio else None,
            space=body.get("space"),
            space_params=tuple(body.get("space_params", ())),
            fixed=body.get("fixed", {}),
            grids=body.get("grids", {}),
            bundle=tuple(body.get("bundle", ())),
            score_db={item["hypothesis"]: float(item.get("score_db", 0.0)) for item in (body, *body.get("companions", ()), *body.get("cures", ()))},
            cures=tuple(item["hypothesis"] for item in body.get("cures", ())),
            ratios={name: (float(own[0]), float(own[1])) for name, own in body.get("ratios", {}).items()},
            rest=tuple(body.get("rest", ())),
        ),
    )


def _refused(state: State, entry: Entry) -> State:
    state = replace(state, refusals=(*state.refusals, {**entry.body, "entry": entry.seq}))
    if entry.body.get("about") == "command_line":
        return replace(state, dead_checked=state.dead_checked or bool(entry.body.get("last")))
    if entry.body.get("about") == "part":  # what does nothing beside the rest of a sampler's point is left out of it
        if state.test is None:
            return state
        changes = {name: value for name, value in state.test.changes.items() if name not in entry.body["params"]}
        return replace(state, test=replace(state.test, changes=changes, settings=state.baseline.merged(changes)))
    if entry.body.get("about") == "proposal":
        if state.test is None:
            return state
        rejected = {"params": entry.body["params"], "infeasible": entry.body["kind"] == "infeasible", "point": state.test.point}
        return replace(state, test=replace(state.test, changes={}, settings=None, rejected=(*state.test.rejected, rejected)))
    if hypothesis := entry.body.get("hypothesis"):
        status = "handed_over" if entry.body.get("kind") == "hand_over" else "refused"
        if goes_on(state, hypothesis):
            return replace(state, beliefs=_set(state, hypothesis, searched=True), belief_version=state.belief_version + 1, test=None)
        beliefs = _set(state, hypothesis, status=status, reason=entry.body["why"], entry=entry.seq)
        return replace(state, beliefs=beliefs, belief_version=state.belief_version + 1, test=None)
    return state


def _flipped(state: State, entry: Entry) -> State:
    flips = tuple({**flip, "entry": entry.seq} for flip in entry.body["flips"])
    return replace(state, flips=(*state.flips, *flips), flips_checked=(*state.flips_checked, entry.body["fingerprint"]))


def _judged(state: State, entry: Entry) -> State:
    if state.test is None:
        return _borne_out(state, entry)
    judgement = Judgement.model_validate(entry.body["judgement"])
    return replace(state, test=replace(state.test, judgement=judgement, look=(judgement.n_candidate, judgement.n_baseline)))


def _borne_out(state: State, entry: Entry) -> State:
    """The confirmation of a provisional promotion was judged: its weight is added to the belief."""
    hypothesis = entry.body["hypothesis"]
    judgement = Judgement.model_validate(entry.body["judgement"])
    # Kept because the target is met with it; only an interval makes the claim itself supported.
    status = "supported" if judgement.verdict in ("supported", "partial") else "kept"
    weights = entry.body.get("weights", {hypothesis: judgement.bayes_db})
    beliefs = dict(state.beliefs)
    for name in (hypothesis, *(state.provisional or {}).get("companions", ())):
        known, gained = beliefs.get(name, Belief()), float(weights.get(name, 0.0))
        final_db = None if known.final_db is None else known.final_db + gained
        beliefs[name] = replace(known, status=status, verdict=judgement.verdict, measured_db=known.measured_db + gained, final_db=final_db)
    return replace(state, provisional=None, beliefs=beliefs)


def goes_on(state: State, hypothesis: str) -> bool:
    """Whether this cause has paid off and a further point of its space is what was tried."""
    known = state.beliefs.get(hypothesis)
    return known is not None and known.status == "supported" and since.decides_by(state.spec, since.SPACES_SEARCHED)


def _settled(status: str) -> Any:
    def handler(state: State, entry: Entry) -> State:
        body = entry.body
        if body.get("verdict") == "hopeless" and state.test is not None and state.test.settings is not None:
            arm = replace(state.arm(state.test.settings), given_up=str(body.get("why", "")))
            state = replace(state, arms={**state.arms, state.test.settings.digest: arm})
        if body.get("bundle"):
            # Nobody can tell which of them it was: nothing is held against any, and each is tested alone from here on.
            return replace(state, bundle_failed=True, belief_version=state.belief_version + 1, test=None)
        hypothesis = body["hypothesis"]
        known = state.beliefs.get(hypothesis, Belief())
        tried = (*known.tried, body["settings_digest"]) if body.get("settings_digest") else known.tried
        if status != "supported" and goes_on(state, hypothesis):
            # A further point of its space failed, or none was to be had: that is nothing against the one that is kept.
            searched = known.searched or tried == known.tried
            return replace(state, beliefs=_set(state, hypothesis, tried=tried, searched=searched), belief_version=state.belief_version + 1, test=None)
        beliefs = _set(state, hypothesis, status=status, reason=body.get("why", ""), entry=entry.seq, tried=tried, verdict=body.get("verdict", ""),
                       measured_db=known.measured_db + _gained(body, hypothesis))  # fmt: skip
        return replace(state, beliefs=beliefs, belief_version=state.belief_version + 1, test=None)

    return handler


def _gained(body: Mapping[str, Any], name: str) -> float:
    """Decibans that this verdict is worth to one of the causes that it is about: its own share, or in studies of a policy version before
    5 what the launch is worth as a whole."""
    weights: Mapping[str, float] = body.get("weights", {})
    return float(weights.get(name, 0.0) if weights else body.get("bayes_db", 0.0))


def _promoted(state: State, entry: Entry) -> State:
    body = entry.body
    scores = dict(state.test.score_db) if state.test else {}
    gained = _gain_of_test(state)
    state = _settled("supported")(state, entry)
    for companion in body.get("companions", ()):
        before = state.beliefs.get(companion, Belief()).measured_db if "weights" in body else 0.0
        state = replace(state, beliefs=_set(state, companion, status="supported", reason=body["why"], entry=entry.seq,
                                            tried=(body["settings_digest"],), measured_db=before + _gained(body, companion)))  # fmt: skip
    for name in (body["hypothesis"], *body.get("companions", ())):
        known = state.beliefs[name]
        state = replace(state, beliefs={**state.beliefs, name: replace(known, final_db=scores.get(name, 0.0) + _gained(body, name), gained=known.gained * gained)})
    baseline = Settings(values=body["settings"])
    # What was measured against the old baseline is weak evidence about the new one: half its weight, and open again. A harm
    # keeps its weight: what slowed the old baseline beyond doubt rarely helps the new one.
    beliefs = {
        name: replace(belief, status="stale" if belief.status in ("pruned", "deferred", "refused") else belief.status,
                      measured_db=belief.measured_db if belief.status == "supported" or belief.verdict == "harmful" else belief.measured_db / 2)
        for name, belief in state.beliefs.items()
    }  # fmt: skip
    return replace(
        state,
        provisional=body if body.get("provisional") else None,
        baseline=baseline,
        beliefs=beliefs,
        promoted=(*state.promoted, body["changes"]),
        promotions=(*state.promotions, entry.seq),
        ceiling=None,
        reach="none",
        out_of_reach="",
        bundle_failed=False,
    )


def _gain_of_test(state: State) -> float:
    """Mean of the launches under test against those of the baseline, as a ratio; 1 where either is missing."""
    now = state.arm(state.test.settings).results if state.test is not None and state.test.settings is not None else ()
    if not now or not state.base_arm.results:
        return 1.0
    return math.exp(mean_ln(now) - mean_ln(state.base_arm.results))


def _rolled_back(state: State, entry: Entry) -> State:
    """The confirmation did not bear a provisional promotion out: the settings before it are the baseline again."""
    hypothesis = entry.body["hypothesis"]
    companions = (state.provisional or {}).get("companions", ())
    state = replace(state, baseline=Settings(values=entry.body["settings"]), provisional=None, promoted=state.promoted[:-1],
                    promotions=state.promotions[:-1], belief_version=state.belief_version + 1, ceiling=None)  # fmt: skip
    if companions:  # nobody can tell which of them it was not: all are open again, and each is tested alone
        undone = {name: replace(state.beliefs[name], status="open", verdict="", tried=(), measured_db=0.0, final_db=None, reason=entry.body["why"])
                  for name in (hypothesis, *companions)}  # fmt: skip
        return replace(state, beliefs={**state.beliefs, **undone}, bundle_failed=True)
    measured = state.beliefs.get(hypothesis, Belief()).measured_db + float(entry.body.get("weights", {}).get(hypothesis, 0.0))
    return replace(state, beliefs=_set(state, hypothesis, status="deferred", verdict="unresolved", final_db=None, reason=entry.body["why"], entry=entry.seq,
                                       measured_db=measured))  # fmt: skip


def _drifted(state: State, entry: Entry) -> State:
    """The comparator starts anew with the launch that showed the drift; what was measured before it is kept for people only."""
    since = int(entry.body["entry"])
    arms = {digest: _since(arm, since) for digest, arm in state.arms.items()}
    digest = state.baseline.digest
    arms[digest] = replace(arms[digest], checked=(), checked_evidence=Evidence())
    stale = set(entry.body.get("stale", ()))
    beliefs = {name: replace(belief, status="stale", measured_db=belief.measured_db / 2) if name in stale else belief for name, belief in state.beliefs.items()}
    test = replace(state.test, look=None, judgement=None) if state.test else None
    return replace(state, drifts=state.drifts + 1, arms=arms, beliefs=beliefs, test=test, belief_version=state.belief_version + 1)


def _since(arm: ArmState, since: int) -> ArmState:
    before = tuple(result for result in arm.results if result.entry < since)
    fresh = tuple(result for result in arm.confirmations if result.entry >= since)
    return replace(arm, results=tuple(result for result in arm.results if result.entry >= since), earlier=(*arm.earlier, *before), confirmed=_mean_of(fresh), confirmations=fresh,
                   evidence_before=Evidence())  # fmt: skip


def _note(state: State, entry: Entry) -> State:
    if entry.body.get("stop") and state.closing is None:
        closing = Closing(ending=entry.body["stop"], reason=entry.body.get("text", ""), entry=entry.seq)
        return replace(state, closing=closing, test=None)
    if ending := entry.body.get("closing"):
        return replace(state, closing=Closing(ending=ending, reason=entry.body.get("text", ""), entry=entry.seq), test=None)
    if entry.body.get("dead_checked"):
        return replace(state, dead_checked=True)
    if entry.body.get("lost"):
        return _lost(state, entry)
    if entry.body.get("back"):
        return replace(state, lost="", open_failures=0, last_try=state.closing is not None)
    return state


def _lost(state: State, entry: Entry) -> State:
    """The box no longer answers: its trial is anybody's again, and what it promoted without a confirmation is taken back."""
    if state.provisional is not None:
        name, before = state.provisional["hypothesis"], dict(state.provisional["before"])
        state = _rolled_back(state, entry.model_copy(update={"body": {"hypothesis": name, "settings": before, "why": entry.body["text"]}}))
        state = replace(state, beliefs=_set(state, name, status="open"))
    return replace(state, lost=str(entry.body["text"]), test=None)


def _guard_fired(state: State, entry: Entry) -> State:
    closing = Closing(ending="guard_fired", reason=str(entry.body.get("why", "")), entry=entry.seq)
    return replace(state, server=None, test=None, armed=False, restored=True, closing=closing)


def _closed(state: State, entry: Entry) -> State:
    return replace(state, closed=entry.body)


def _unchanged(state: State, entry: Entry) -> State:
    return state


_HANDLERS: dict[str, Any] = {
    "opened": _opened,
    "intent": _intent,
    "outcome": _outcome,
    "ceiling": _ceiling,
    "ranked": _ranked,
    "chosen": _chosen,
    "refused": _refused,
    "flipped": _flipped,
    "judged": _judged,
    "promoted": _promoted,
    "pruned": _settled("pruned"),
    "deferred": _settled("deferred"),
    "rolled_back": _rolled_back,
    "drifted": _drifted,
    "note": _note,
    "guard_fired": _guard_fired,
    "knowledge_changed": _unchanged,
    "lease_taken": _unchanged,
    "closed": _closed,
}
