"""The state machine: from a state to the next step, conclusion or the end. Pure; every rule that spends a launch is here
or in ``economy``. Conclusions are recomputable, and are recorded so that people can read them and replay can check them."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.core import (
    boxes,
    checks,
    closing,
    control,
    drift,
    early,
    picture,
    prior,
    rank,
    sampling,
    tradeoff,
    verdicts,
)
from optimizer.core.decision import BoxesDecision, Decision, PartDecision, Waiting
from optimizer.core.decision import Conclude as Conclude
from optimizer.core.decision import Finished as Finished
from optimizer.core.plan import Plan
from optimizer.core.since import ARM_NEEDS_A_POINT, decides_by
from optimizer.core.state import State, Test
from optimizer.core.turns import next_turn
from optimizer.errors import OptimizerError
from optimizer.model.canonical import derived_seed
from optimizer.model.settings import Settings
from optimizer.model.step import (
    ORIGINAL,
    AwaitReady,
    Calibrate,
    Launch,
    Level,
    Measure,
    Observe,
    Propose,
    Purpose,
    Secure,
    Step,
    Stop,
)

MAX_SPOILT = 2  # launches of the baseline that may give nothing usable


def decide(state: State, plan: Plan) -> Decision:
    """What comes next on the one box of a study. Total on every state that ``fold`` can produce."""
    decision = _decide(state, plan)
    if isinstance(decision, Waiting):
        raise OptimizerError(f"A box without others waits ({decision.why}): this is a defect of the state machine.")
    return decision


def decide_boxes(state: State, plan: Plan) -> BoxesDecision:
    """What comes next on one of the several boxes of a study."""
    return Finished() if state.closed is not None else next_turn(state, plan, _decide)


def _decide(state: State, plan: Plan) -> PartDecision:
    if state.closed is not None:
        return Finished()
    if state.spec is None:
        raise OptimizerError("The journal holds no opened study.")
    plan = prior.extended(state, plan)
    if state.closing is not None:
        return _closing(state, plan)
    for rule in _RULES_OF_AN_ARM if control.is_arm(state) else _RULES:
        if (decision := rule(state, plan)) is not None:
            return decision
    raise OptimizerError("No rule applies: this is a defect of the state machine.")


# ---- before the first launch ------------------------------------------------------------------------------------


def _survey(state: State, plan: Plan) -> PartDecision | None:
    if state.survey_failure is not None:
        return _close("unfit", state.survey_failure.message)
    if state.survey is None:
        return Observe(key=_key(state))
    if state.armed or not state.peers:
        return None
    model = boxes.model_of_class(state)
    if model is None:
        return Waiting(f"{state.box} waits until it is known whether all boxes are of one class")
    if differences := boxes.differences(model, state):
        return _close("unfit", f"{state.box} is of another class than {model.box}, so one says nothing about the other: {'; '.join(differences)}. "
                      "Tune it in a study of its own.")  # fmt: skip
    return None


def _has_a_point(state: State, plan: Plan) -> Decision | None:
    """A control arm whose parameters this build or this box does not have ends before its baseline is paid for."""
    if not control.is_arm(state) or state.armed or state.base_arm.results or not decides_by(state.spec, ARM_NEEDS_A_POINT):
        return None
    why = control.without_a_point(state, plan, rank.view(state, plan), rank.ground(state, plan))
    return _close("nothing_to_tune", why) if why else None


def _stuck(state: State, plan: Plan) -> Decision | None:
    """A server that does not end: nothing can be launched beside it, and asking again for ever frees no box."""
    if state.failures.get("stop", 0) > closing.MAX_RETRIES and state.last_failure is not None:
        return _close("needs_operator", f"A server could not be stopped: {state.last_failure.message}")
    return None


def _secure(state: State, plan: Plan) -> Decision | None:
    assert state.spec is not None
    if state.armed:
        return None
    tried, last = state.failures.get("secure", 0), state.last_failure
    if last is not None and (tried > closing.MAX_RETRIES or (tried and not last.retryable)):  # a box that is held stays held
        return _close("unfit", f"The box could not be secured: {last.message}")
    return Secure(key=_key(state), op="arm", minutes=state.spec.guard_minutes)


def _calibrate(state: State, plan: Plan) -> Decision | None:
    assert state.spec is not None
    if state.calibrated is not None:
        return None
    if state.failures.get("calibrate", 0) > 0 and state.last_failure is not None:
        return _close("unfit", state.last_failure.message)
    primary = state.spec.target.primary
    wanted = primary.value if primary and primary.metric == "output_tokens_per_s" else 1000.0
    # A simulated box sends several tokens in one chunk once its clock runs faster, so chunks do not multiply with it.
    return Calibrate(key=_key(state), tokens_per_s=wanted, concurrency=state.spec.workload.concurrency)


def _baseline(state: State, plan: Plan) -> PartDecision | None:
    """At least one valid measurement of the server as found, or as launched from its original command line."""
    if state.base_arm.results or (state.promoted and not state.adopted and not state.base_arm.earlier):
        return None
    if state.adopted and (why := _no_need_to_follow(state)):
        return Waiting(why)
    arm = state.base_arm
    if arm.crashed is not None:
        which = "what another box promoted" if state.adopted else "its original command line"
        return _close("unfit", f"The server does not start with {which} ({arm.crashed}).")
    if state.spoilt_launches(arm.settings) >= MAX_SPOILT:
        return _close("unfit", f"The baseline could not be measured: {arm.invalid[-1][1]}")
    if state.failures.get(arm.settings.digest, 0) > closing.MAX_RETRIES and state.last_failure is not None:
        return _close("unfit", f"The baseline could not be measured: {state.last_failure.message}")
    if not boxes.is_leading(state) and closing.over_budget(state, reserve=2 - bool(state.promoted)):
        return Waiting(f"{state.box} waits: the budget has no launch for a baseline here beside a candidate and its confirmation")
    if closing.over_budget(state, reserve=0) and not state.original_running:
        return _close("not_met", "The budget was spent before the baseline could be measured.")
    if state.original_running and not state.adopted and sum(1 for launch, _ in arm.invalid if launch == ORIGINAL) < state.runs_of(arm.settings, ORIGINAL):
        return _measure(state, ORIGINAL, "baseline")
    return _bring_up(state, state.baseline, "baseline")


def _no_need_to_follow(state: State) -> str:
    """Why the baseline that another box promoted is not measured here: nothing is left that would be compared with it, or the study is
    about to end. Empty when there is need."""
    if boxes.is_leading(state):
        return ""
    leader = boxes.leading(boxes.ordered(state))
    if verdicts.meets_target(leader, leader.base_arm):
        return f"{state.box} waits for the confirmation on {leader.box}"
    left = [row for row in leader.ranked if row["testable"] and row["id"] not in boxes.pending(state)]
    return "" if left else f"{state.box} has nothing to test that {leader.box} does not test"


def _drift(state: State, plan: Plan) -> Decision | None:
    """The baseline no longer gives what it gave: said before anything is compared with it."""
    body = drift.found(state)
    return Conclude("drifted", body, state.base_arm.evidence_entry) if body is not None else None


# ---- ranking ----------------------------------------------------------------------------------------------------


def _test(state: State, plan: Plan) -> Decision | None:
    """The candidate under test: launch it, look, settle."""
    if state.test is None:
        return None
    test = state.test
    if test.settings is None:
        return _propose(state, plan, test)
    if test.space is not None and sampling.screens(state):
        base = rank.ground(state, plan)
        if (refused := sampling.refused_proposal(state, test, base, rank.tried_digests(state, base))) is not None:
            return Conclude("refused", refused, test.entry)
    decision: Decision = verdicts.next_of_test(state, plan, test, bring_up=_bring_up, conclude=Conclude)
    return decision


def _facts_of_the_box(state: State, plan: Plan) -> Decision | None:
    """The ceiling of the current baseline, and the settings on its command line that do nothing."""
    if state.ceiling_entry != state.base_arm.evidence_entry:
        return Conclude("ceiling", picture.ceiling_body(state, plan), state.base_arm.evidence_entry)
    if not state.dead_checked:
        refusals = rank.dead_on_command_line(state, plan)
        known = {tuple(sorted(item["params"])) for item in state.refusals if item.get("about") == "command_line"}
        for index, refusal in enumerate(refusals):
            if tuple(sorted(refusal.params)) not in known:
                last = index == len(refusals) - 1
                return Conclude("refused", {**refusal.plain(), "about": "command_line", "last": last}, state.base_arm.evidence_entry)
        return Conclude("note", {"dead_checked": True, "text": "No setting on the command line is known to do nothing."})
    return None


def _provisional(state: State, plan: Plan) -> PartDecision | None:
    """A provisional promotion is settled by its confirmation before anything else is looked at."""
    settled = verdicts.settle_provisional(state, plan)
    if settled is not None:
        return Conclude(settled[0], settled[1], state.base_arm.evidence_entry or None)
    if state.provisional is None or state.base_arm.confirmed is not None:
        return None
    step = _confirm(state, plan, then=None)
    if step is not None and not isinstance(step, Conclude):
        return step
    why = "Its confirmation, which had to decide, is not to be had: "
    why += verdicts.unmeasurable(state, state.base_arm) or closing.BUDGET_SPENT
    body = {"hypothesis": state.provisional["hypothesis"], "settings": dict(state.provisional["before"]), "why": why}
    return Conclude("rolled_back", body, state.base_arm.evidence_entry or None)


def _target_shown(state: State, plan: Plan) -> PartDecision | None:
    """Where the current baseline meets the target: confirm a promotion by a fresh launch, or end."""
    assert state.spec is not None
    if tradeoff.wanted(state):
        return None  # the target is no reason to stop while the front still grows
    return _shown(state, plan)


def _shown(state: State, plan: Plan) -> PartDecision | None:
    assert state.spec is not None
    shown = state.promoted and verdicts.confirmation_meets_target(state)
    if not shown and not verdicts.meets_target(state, state.base_arm):
        return None
    if not state.promoted:
        runs = len(state.base_arm.results)
        if runs == 1 and verdicts.target_within_interval(state, state.base_arm) and not closing.over_budget(state, reserve=0):
            return _bring_up(state, state.baseline, "baseline")  # one launch this close to the target shows nothing yet
        return _close(
            "met",
            f"The server meets the target as it was found, by {runs} launch{'es' if runs != 1 else ''}; nothing was changed and nothing was "
            "launched to confirm it.",
        )
    return _confirm(state, plan, then="met")


def _rank(state: State, plan: Plan) -> Decision | None:
    if state.ranked_version != (state.base_arm.evidence_entry, state.belief_version):
        known = picture.ceiling_body(state, plan)
        if state.ceiling is not None and picture.is_revised(state.ceiling, known):
            return Conclude("ceiling", known, state.base_arm.evidence_entry)
        return Conclude("ranked", rank.ranked_body(state, plan), state.ceiling_entry or None)
    return None


def _beyond_hardware(state: State, plan: Plan) -> Decision | None:
    """The target exceeds what the hardware could do with everything right: said before a candidate launch is spent."""
    assert state.spec is not None
    if state.reach == "hard" and not state.spec.best_effort and not state.promoted:
        return _close("unreachable_by_configuration", f"{state.out_of_reach} (--best-effort tunes it all the same.)")
    return None


def _check(state: State, plan: Plan) -> Decision | None:
    """Seconds before launches: a test on the running server that may save more minutes than it costs."""
    if closing.over_budget(state, reserve=1) or checks.running_baseline(state) is None:
        return None
    return checks.next_check(state, plan, rank.view(state, plan), rank.scored(state, plan), key=_key(state))


def _choose(state: State, plan: Plan) -> Decision | None:
    choice = rank.choose(state, plan)
    if choice is None:
        return None
    kind, body = choice
    confirming = state.server is not None and state.server.purpose == "confirm" and state.server.status in ("launched", "ready")
    if kind == "chosen" and (confirming or closing.over_budget(state, reserve=1)):
        return None  # a confirmation that is paid for is measured, and nothing is chosen that cannot be launched; the ending says what was left
    return Conclude(kind, body, state.base_arm.evidence_entry or None)


def _explore(state: State, plan: Plan) -> Decision | None:
    """One more point of the front, once no cause is worth a launch any more."""
    body = tradeoff.chosen(state, plan, rank.view(state, plan), rank.ground(state, plan), rank.scored(state, plan))
    return Conclude("chosen", body, state.base_arm.evidence_entry or None) if body is not None else None


def _sample(state: State, plan: Plan) -> PartDecision | None:
    """Of a control arm: one more point of the whole space, until the launches are spent; then the best of them is confirmed."""
    cause = state.base_arm.evidence_entry or None
    if control.searching(state):
        return Conclude("chosen", control.chosen(state, plan, rank.view(state, plan), rank.ground(state, plan)), cause)
    best = control.best(state)
    return Conclude("promoted", best, cause) if best is not None else _shown(state, plan)


def _front_is_known(state: State, plan: Plan) -> PartDecision | None:
    """The target was left aside while the front was searched: it is looked at when no space has a point left."""
    return _shown(state, plan) if tradeoff.wanted(state) and tradeoff.TRADEOFF not in boxes.pending(state) else None


def _nothing_left(state: State, plan: Plan) -> PartDecision | None:
    """No hypothesis is worth a launch any more: confirm what was promoted, then say how it ends."""
    if boxes.pending(state):
        return Waiting(f"{state.box} has nothing to test that another box does not test now")
    if state.promoted and (step := _confirm(state, plan, then=None)) is not None:
        return step
    if state.promoted and boxes.is_leading(state) and verdicts.missed_by_noise(state) and not closing.over_budget(state, reserve=0):
        return _bring_up(state, state.baseline, "confirm")
    ending, reason = ("not_met", control.ending(state)) if control.is_arm(state) else closing.ending_of(state, plan)
    return _close(ending, reason)


def _confirm(state: State, plan: Plan, then: str | None) -> PartDecision | None:
    """One fresh launch of the final settings; only its number is reported as the result."""
    assert state.spec is not None
    arm = state.base_arm
    if arm.confirmed is not None:
        if then and verdicts.confirmation_meets_target(state):
            fresh = "a fresh launch" if len(arm.confirmations) < 2 else "the mean of two fresh launches"
            return _close(then, f"The target is met by {fresh} of the promoted settings.")
        return None
    if not boxes.is_leading(state):
        return Waiting(f"{state.box} waits for the confirmation on the box that leads")
    if state.spoilt_launches(arm.settings) or state.failures.get(arm.settings.digest, 0) > closing.MAX_RETRIES or arm.crashed:
        why = arm.crashed or (arm.invalid[-1][1] if arm.invalid else state.last_failure.message if state.last_failure else "")
        return _close("not_met", f"The promoted settings could not be confirmed by a fresh launch: {why}")
    if closing.over_budget(state, reserve=0):
        return None
    return _bring_up(state, state.baseline, "confirm")


# ---- steps ------------------------------------------------------------------------------------------------------


def _propose(state: State, plan: Plan, test: Test) -> Step:
    assert state.spec is not None
    return Propose(
        key=_key(state),
        hypothesis=test.hypothesis,
        space=test.space or "",
        params=test.space_params,
        fixed=sampling.held(state, plan, test),
        history=sampling.history(state, plan, test),
        seed=derived_seed(state.spec.study, "propose", state.launch_count, *((len(test.rejected),) if control.is_arm(state) else ())),
        pending=sampling.pending_points(state, plan, test),
        sampler=state.spec.policy if state.spec.policy != "evidence" else state.spec.sampler if sampling.screens(state) else "tpe",
        grids=dict(test.grids),
        try_first=sampling.try_first(state, plan, test),
        rejected=sampling.rejected_points(test),
        tradeoff=test.hypothesis == tradeoff.TRADEOFF,
    )


def _bring_up(state: State, settings: Settings, purpose: Purpose) -> Decision:
    """The next step towards one more measured launch of ``settings``: stop what runs, launch, wait, measure."""
    assert state.spec is not None
    server = state.server
    if state.original_running:
        return Stop(key=_key(state), launch=ORIGINAL)
    if server is not None:
        pending = server.status in ("launched", "ready") and server.settings == settings and server.purpose == purpose
        again = server.status == "measured" and server.settings == settings and _invalid_on(state, server.key)
        if not pending and not again:
            return Stop(key=_key(state), launch=server.key)
        if server.status == "launched":
            return AwaitReady(key=_key(state), launch=server.key, deadline_s=state.spec.ready_deadline_s)
        return _measure(state, server.key, purpose)
    key = _key(state)
    return Launch(
        key=key,
        settings=settings,
        purpose=purpose,
        port=_port(state),
        served_name=None if purpose == "final" else f"{state.spec.study}-{key}",
        attempt=state.failures.get(settings.digest, 0),
    )


def _invalid_on(state: State, launch: str) -> bool:
    """No run on this launch was usable yet, and another one may still be."""
    assert state.server is not None
    return 0 < _invalid_runs(state, launch, state.server.settings) < state.runs_of(state.server.settings, launch)


def _invalid_runs(state: State, launch: str, settings: Settings) -> int:
    arm = state.arm(settings)
    if any(result.launch == launch for result in arm.results):
        return 0
    return sum(1 for known, _ in arm.invalid if known == launch)


def _measure(state: State, launch: str, purpose: Purpose) -> Measure:
    assert state.spec is not None
    load = state.spec.workload
    window = load.confirm_window_s if purpose == "confirm" else load.window_s
    settings = Settings() if launch == ORIGINAL or state.server is None else state.server.settings
    # A run that was not usable is repeated for twice as long, and the one after it for three times: a window costs far less than a launch.
    patience = 1 + _invalid_runs(state, launch, settings)
    target = Level(
        concurrency=load.concurrency, warmup_min_s=load.warmup_min_s, warmup_max_s=load.warmup_max_s * patience, window_s=window * patience
    )
    sides = tuple(
        Level(concurrency=level, warmup_min_s=load.warmup_min_s / 6, warmup_max_s=load.warmup_min_s / 3, window_s=load.side_window_s)
        for level in load.side_levels
        if level != load.concurrency
    )
    hopeless = early.stop_below(state) if purpose == "candidate" else None
    return Measure(key=_key(state), launch=launch, purpose=purpose, levels=(target, *sides), run_index=state.runs, stop_below=hopeless)


def _port(state: State) -> int:
    """From the study's own range, a new one for every launch: a socket in TIME_WAIT or a leak never meets the next launch."""
    assert state.spec is not None
    start = 20000 + derived_seed(state.spec.study, "ports") % 10000
    return start + state.launch_count


def _closing(state: State, plan: Plan) -> Decision:
    step = closing.next_step(state, key=_key(state), port=_port(state))
    if step is not None:
        return step
    assert state.closing is not None
    return Conclude("closed", closing.closed_body(state, plan), state.closing.entry)


def _close(ending: str, reason: str) -> Conclude:
    return Conclude("note", {"closing": ending, "text": reason})


def _key(state: State) -> str:
    """The idempotency key of an effect: the sequence number that its intent is going to have."""
    return str(state.seq + 1)


# Whoever proposes, a study gets to know its box, measures it as found, and ends the test that runs.
_EVERY_STUDY: tuple[Callable[[State, Plan], PartDecision | None], ...] = (_survey, _stuck, _secure, _calibrate, _baseline, _drift, _test)
_RULES: tuple[Callable[[State, Plan], PartDecision | None], ...] = (
    *_EVERY_STUDY,
    _provisional,
    _facts_of_the_box,
    _target_shown,
    _rank,
    _beyond_hardware,
    _check,
    _choose,
    _explore,
    _front_is_known,
    _nothing_left,
)
# No ranking, no cheap tests, no causes: what a plain sampler would do in the same hands.
_RULES_OF_AN_ARM = (_survey, _has_a_point, *_EVERY_STUDY[1:], _facts_of_the_box, _sample, _nothing_left)
