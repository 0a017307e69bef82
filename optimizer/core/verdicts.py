"""The candidate under test: which launch it needs next, when it is judged, and what a verdict changes. Uses ``judge`` for
the statistics and never looks at anything but measured arms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from optimizer.core import answers, claims, closing, credit, economy, goodput, ledger, since
from optimizer.core.hopeless import hopeless
from optimizer.core.judge import judge
from optimizer.core.plan import Plan
from optimizer.core.state import ArmState, State, Test, goes_on, log_value, metric_value
from optimizer.core.tradeoff import TRADEOFF
from optimizer.model.measurement import LoadPoint
from optimizer.model.settings import Settings
from optimizer.model.space import ARM
from optimizer.model.verdict import ENDING_STAYS, Judgement
from optimizer.stats.interval import half_width

ERROR_RATE_GUARD = 0.0
OUTPUT_LENGTH_TOLERANCE = 0.01
FURTHER_LOOKS = 2  # launches for a point of a space beyond its first one: its second look, and a baseline for it
MISSED_BY_SD = 2.0  # of the launch noise


def next_of_test(state: State, plan: Plan, test: Test, *, bring_up: Callable[..., Any], conclude: Callable[..., Any]) -> Any:
    """The next launch of the test, or the conclusion that ends it."""
    assert test.settings is not None and state.spec is not None
    candidate, baseline = state.arm(test.settings), state.base_arm
    digest = test.settings.digest
    if test.hypothesis == TRADEOFF and test.judgement is not None and test.judgement.verdict not in ("supported", "partial"):
        return conclude("deferred", _body(test, test.judgement.verdict, _front_point(state, candidate, baseline, test.judgement)), test.entry)
    if test.hypothesis == ARM and test.judgement is not None:
        return conclude("deferred", _body(test, test.judgement.verdict, f"measured: ×{test.judgement.ratio:.3f} of the server as found; the sampler goes on"), test.entry)
    if test.judgement is not None and test.judgement.final:
        return conclude(*_settle(state, test, test.judgement))
    if candidate.crashed is not None:
        return conclude("pruned", _body(test, "infeasible", f"It does not run: {candidate.crashed}"), test.entry)
    if state.spoilt_launches(test.settings):
        return conclude("deferred", _body(test, "invalid", f"No valid measurement: {candidate.invalid[-1][1]}"), test.entry)
    if state.failures.get(digest, 0) > closing.MAX_RETRIES and state.last_failure is not None:
        return conclude("deferred", _body(test, "invalid", f"It could not be measured: {state.last_failure.message}"), test.entry)
    if not candidate.results:
        if test.hypothesis != ARM and (why := _hopeless(state, plan, test)):
            return conclude("pruned", _body(test, "hopeless", f"Stopped before it was measured: {why}."), test.entry)
        if test.hypothesis != ARM and _pair_first(state, plan, test):
            return bring_up(state, state.baseline, "baseline")
        if closing.over_budget(state, reserve=1):
            return conclude("deferred", {**_body(test, "deferred", closing.BUDGET_SPENT), "settings_digest": None}, test.entry)
        return bring_up(state, test.settings, "candidate")
    flips = _flips(state, plan, test)
    if flips is not None:
        return conclude("flipped", flips, candidate.evidence_entry)
    counts = (len(candidate.results), len(baseline.results))
    if test.look != counts:
        judgement = _judged(state, plan, test)
        body = {"hypothesis": test.hypothesis, "changes": dict(test.changes), "judgement": judgement.plain(),
                "side": _side(state, candidate, baseline)}  # fmt: skip
        if (compared := answers.compare(state.first_arm.answers, candidate.answers)) is not None:
            body["answers"] = compared.plain()
        if judgement.final:
            body |= credit.of_test(state, test, judgement)
        return conclude("judged", body, candidate.evidence_entry)
    assert test.judgement is not None
    if _worth_confirming(state, candidate, baseline, test.judgement):
        why = (
            f"×{test.judgement.ratio:.3f} after {counts[0]} launch(es), not decided by itself; but it meets the target, so its next launch is "
            "the fresh confirmation, which decides both."
        ) + _answers_said(state, test)
        promoted: dict[str, Any] = {**_body(test, "unresolved", why), "provisional": True, "settings": test.settings.values, "before": state.baseline.values,
                "companions": [*test.bundle, *test.cures], "ratio": list(test.ratio) if test.ratio else None, **credit.to_confirm(state, test)}  # fmt: skip
        promoted.pop("bundle", None)
        return conclude("promoted", promoted, test.entry)
    purpose = "candidate" if test.judgement.next_arm == "candidate" else "baseline"
    why_not = unmeasurable(state, baseline) if purpose == "baseline" else ""
    if not why_not and closing.over_budget(state, reserve=1):
        why_not = closing.BUDGET_SPENT
    if why_not:
        said = f"×{test.judgement.ratio:.3f} [{test.judgement.low:.3f}, {test.judgement.high:.3f}] after {counts[0]} launch(es) decides nothing yet, "
        given_up = {**_body(test, "unresolved", f"{said}and another launch of the {purpose} is not to be had: {why_not}"), "bayes_db": test.judgement.bayes_db, **credit.of_test(state, test, test.judgement)}
        return conclude("deferred", given_up, test.entry)
    return bring_up(state, test.settings if purpose == "candidate" else state.baseline, purpose)


def _front_point(state: State, candidate: ArmState, baseline: ArmState, judgement: Judgement) -> str:
    """What one launch showed of a point of the front: slower is no harm there, where its latency is smaller."""
    assert state.spec is not None
    now, was = (arm.results[-1].points[0].metrics.get(state.spec.tradeoff) if arm.results else None for arm in (candidate, baseline))
    delay = f", {state.spec.tradeoff} {now:.4g} ms against {was:.4g} ms" if now is not None and was is not None else ""
    return f"measured for the front: ×{judgement.ratio:.3f}{delay}; {judgement.reason or 'not decided'}"


def _hopeless(state: State, plan: Plan, test: Test) -> str:
    """Why the candidate that has just started is not worth a measurement; empty when it is."""
    server = state.server
    if server is None or server.status != "ready" or server.purpose != "candidate" or server.settings != test.settings or state.spec is None:
        return ""
    load = state.spec.workload
    before = Settings(values={**state.given, **state.baseline.values})
    after = Settings(values={**state.given, **server.settings.values})
    declared = {param.name: param.flips for space in plan.spaces for param in space.params}
    return hopeless(
        state.base_arm.evidence, server.startup, after.changed_from(before), declared,
        tokens_needed=load.concurrency * float(load.prompt_tokens + load.output_tokens),
    )  # fmt: skip


def unmeasurable(state: State, arm: ArmState) -> str:
    """Why one more launch of this setting would give nothing: it crashed, its runs were invalid, or it failed too often. Else empty."""
    if arm.crashed is not None:
        return f"it does not run ({arm.crashed})"
    if state.spoilt_launches(arm.settings):
        return f"no valid measurement ({arm.invalid[-1][1]})"
    if state.failures.get(arm.settings.digest, 0) > closing.MAX_RETRIES and state.last_failure is not None:
        return f"it could not be measured ({state.last_failure.message})"
    return ""


def _worth_confirming(state: State, candidate: ArmState, baseline: ArmState, judgement: Judgement) -> bool:
    """An effect beyond 3 sd that meets the target: another launch of it is needed anyway, so it may as well be the confirmation."""
    if not candidate.results or broken_guard(state, candidate, baseline):
        return False
    return math.log(judgement.ratio) > closing.policy(state).top_up_within_sd * judgement.sd and meets_target(state, candidate)


def settle_provisional(state: State, plan: Plan) -> tuple[str, dict[str, Any]] | None:
    """After the confirmation of a provisional promotion: its verdict from all its launches, or the way back. None: nothing open."""
    waiting, confirmed = state.provisional, state.base_arm.confirmed
    if waiting is None or confirmed is None:
        return None
    before = state.arm(Settings(values=dict(waiting["before"])))
    if not before.results:
        why = "The box drifted: there is nothing to compare it with any more."
        return "rolled_back", {"hypothesis": waiting["hypothesis"], "settings": dict(waiting["before"]), "why": why}
    ratio = waiting.get("ratio")
    judgement = judge(state.base_arm.arm(), before.arm(), closing.pooled(state), (ratio[0], ratio[1]) if ratio else None, closing.policy(state), 0)
    better = judgement.verdict in ("supported", "partial")
    if better or point_meets_target(state, confirmed.points):
        body = {"hypothesis": waiting["hypothesis"], "changes": dict(waiting["changes"]), "judgement": judgement.plain(),
                "side": _side(state, state.base_arm, before), "after_confirmation": True, **credit.of_confirmation(state, waiting, judgement)}  # fmt: skip
        return "judged", body
    why = f"The confirmation did not bear it out: ×{judgement.ratio:.3f} [{judgement.low:.3f}, {judgement.high:.3f}] over {judgement.n_candidate} launches."
    credited = {} if waiting.get("companions") else credit.of_confirmation(state, waiting, judgement)  # of several, each is tested alone again
    if credited:
        why += f" {credited['weighed']}."
    return "rolled_back", {"hypothesis": waiting["hypothesis"], "settings": dict(waiting["before"]), "why": why, **credited}


def _pair_first(state: State, plan: Plan, test: Test) -> bool:
    """E2: a small predicted effect needs the baseline's pair first; a large one goes ahead with its candidate."""
    launches = [result.ln for result in state.base_arm.results]
    if state.promoted or (len(launches) >= 2 and not economy.needs_third_baseline(launches, closing.policy(state))):
        return False
    if closing.over_budget(state, reserve=2):  # the candidate and its confirmation come first
        return False
    if unmeasurable(state, state.base_arm):
        return False
    if test.ratio is None:
        return True
    if _one_launch_each(state):
        return False
    middle = economy.typical_ratio(test.ratio)
    return economy.needs_second_baseline((middle, middle), closing.pooled(state).sd, closing.policy(state).quick_exit_sd)


def _one_launch_each(state: State) -> bool:
    """Nothing can reach the target any more: an idea gets one launch and no further look. Whoever asked for the best all the same gets it."""
    assert state.spec is not None
    return state.reach != "none" and not (state.spec.best_effort and since.decides_by(state.spec, since.BEST_EFFORT_LOOKS))


def _judged(state: State, plan: Plan, test: Test) -> Judgement:
    assert test.settings is not None and state.spec is not None
    candidate, baseline = state.arm(test.settings), state.base_arm
    left = closing.launches_left(state, reserve=1)
    if _one_launch_each(state):
        left = 0
    if test.space is not None and goes_on(state, test.hypothesis):
        left = min(left, FURTHER_LOOKS)  # of a cause that is cured already: a small gain is worth less than the next point
    judgement = judge(candidate.arm(), baseline.arm(), closing.pooled(state), test.ratio, closing.policy(state), left)
    if state.spec.target.primary is not None and state.spec.target.primary.metric == goodput.METRIC:
        by = goodput.said(candidate.results[-1].points[0], baseline.results[-1].points[0])
        judgement = judgement.model_copy(update={"reason": judgement.reason + by})
    broken = broken_guard(state, candidate, baseline)
    if broken and judgement.verdict in ("supported", "partial"):
        weighed = {"bayes_db": 0.0, "degrees_of_freedom": None} if since.decides_by(state.spec, since.SHARED_CREDIT) else {}  # other work says nothing of a cause
        return judgement.model_copy(update={"verdict": "harmful", "final": True, "next_arm": None, "reason": broken, **weighed})
    if (lossy := _lossy(state, plan, test)) and (not judgement.final or judgement.verdict in ("supported", "partial")):
        return judgement.model_copy(update={"verdict": "lossy", "final": True, "next_arm": None, "expected_launches": None, "reason": lossy})
    if not judgement.final and _claim_excluded(test, judgement) and _target_excluded(state, judgement):
        # What is left of it could at most be a small gain: the launches of its further looks are worth more to the next idea.
        return judgement.model_copy(update={"final": True, "next_arm": None, "expected_launches": None, "reason": "no further look is worth a launch"})
    return judgement


def broken_guard(state: State, candidate: ArmState, baseline: ArmState) -> str:
    """Errors, or fewer output tokens than the baseline's: never a gain, whatever the rate says."""
    point, before = candidate.results[-1].points[0], baseline.results[-1].points[0]
    if point.requests_failed:
        return f"{point.requests_failed} of {point.requests_failed + point.requests_ok} requests failed"
    if point.mean_output_tokens and before.mean_output_tokens:
        ratio = point.mean_output_tokens / before.mean_output_tokens
        if abs(math.log(ratio)) > OUTPUT_LENGTH_TOLERANCE:
            return f"mean output tokens changed by a factor {ratio:.3f}: not the same work"
    assert state.spec is not None
    for guard in state.spec.target.guards:
        value, was = metric_value(point, guard.metric), metric_value(before, guard.metric)
        if value is not None and not guard.holds(value) and (was is None or guard.holds(was)):
            return f"it breaks the guard {guard.text}: {value:.4g}"
    return ""


def _lossy(state: State, plan: Plan, test: Test) -> str:
    """Why the setting may not be kept however fast it is: the model answers differently with it. Empty where that is allowed, not
    shown, or the change takes a declared loss back."""
    assert test.settings is not None and state.spec is not None
    if state.spec.allow_lossy:
        return ""
    compared = answers.compare(state.first_arm.answers, state.arm(test.settings).answers)
    if compared is None or compared.verdict != "changed":
        return ""
    lossy = {param.name for space in plan.spaces for param in space.params if param.lossy}
    if test.changes and all(name in lossy and value is None for name, value in test.changes.items()):
        return ""
    return f"it changes what the model answers: {compared.why}; it is kept only with --allow-lossy"


def _answers_said(state: State, test: Test) -> str:
    assert test.settings is not None
    compared = answers.compare(state.first_arm.answers, state.arm(test.settings).answers)
    if compared is None:
        return ""
    word = {"same": "unchanged", "changed": "changed (lossy, allowed)", "cannot_tell": "cannot tell"}[compared.verdict]
    return f" Answers {word}: {compared.why}."


def _settle(state: State, test: Test, judgement: Judgement) -> tuple[str, Mapping[str, Any], int]:
    """What a final verdict changes: (entry kind, body, cause)."""
    assert test.settings is not None
    said = f"×{judgement.ratio:.3f} [{judgement.low:.3f}, {judgement.high:.3f}], {judgement.n_candidate} against {judgement.n_baseline} launches; {judgement.reason}"
    credited = credit.of_test(state, test, judgement)
    weighed = f"; {credited['weighed']}" if credited else ""
    body = {**_body(test, judgement.verdict, f"{said}{weighed}"), "bayes_db": judgement.bayes_db, **credited}
    if judgement.verdict in ("supported", "partial"):
        body.pop("bundle", None)
        body["why"] += ("." if credited else "") + _answers_said(state, test)
        return "promoted", {**body, "companions": [*test.bundle, *test.cures], "settings": test.settings.values, "before": state.baseline.values}, test.entry
    if judgement.verdict in ("unresolved", "deferred"):
        if (short := _too_small_for_the_target(state, test, judgement)) is not None:
            if not since.decides_by(state.spec, since.WEIGHED_WITH_NOISE):
                # What was ruled out as too small led the ranking for having been predicted small. Its weight is now that of its interval.
                body["bayes_db"] = min(judgement.bayes_db, 0.0)
            return "pruned", {**body, "why": f"{said}{weighed}; {short}"}, test.entry
        excluded = f"not seen in {judgement.n_candidate} launch(es); an effect above {100 * (judgement.high - 1):+.1f} % is excluded"
        return "deferred", {**body, "why": f"{said}; {excluded}{weighed}"}, test.entry
    return "pruned", body, test.entry


def _too_small_for_the_target(state: State, test: Test, judgement: Judgement) -> str | None:
    """Why an undecided effect is ruled out all the same: its claim, or the target, lies beyond its whole interval."""
    if test.ratio is not None and _claim_excluded(test, judgement):
        return f"the predicted ×{test.ratio[0]:.2f} is excluded: it is not what limits this server"
    if state.reach == "none" or not (wanted := _target_excluded(state, judgement)):
        return None
    return f"the target needs ×{wanted:.2f} and an effect above ×{judgement.high:.2f} is excluded: {ENDING_STAYS}"


def _claim_excluded(test: Test, judgement: Judgement) -> bool:
    return test.ratio is not None and judgement.high < test.ratio[0]


def _target_excluded(state: State, judgement: Judgement) -> float | None:
    """The ratio that the target needs, where the whole interval of the effect lies below it."""
    assert state.spec is not None
    primary = state.spec.target.primary
    if primary is None or primary.direction != "at_least":
        return None
    by = [result.value if primary.metric != goodput.METRIC else math.exp(result.ln) for result in state.base_arm.results]
    wanted = primary.value / max(*by, 1e-3)
    return wanted if judgement.high < wanted else None


def _body(test: Test, verdict: str, why: str) -> dict[str, Any]:
    assert test.settings is not None
    body: dict[str, Any] = {
        "hypothesis": test.hypothesis,
        "changes": dict(test.changes),
        "settings_digest": test.settings.digest,
        "verdict": verdict,
        "why": why,
    }
    if test.bundle:
        body["bundle"] = list(test.bundle)
    return body


def _flips(state: State, plan: Plan, test: Test) -> Mapping[str, Any] | None:
    """Start-up facts of the candidate's first launch against the baseline's, said once per setting."""
    assert test.settings is not None
    candidate, baseline = state.arm(test.settings), state.base_arm
    if test.settings.digest in state.flips_checked:
        return None
    declared = {param.name: param.flips for space in plan.spaces for param in space.params}
    # Against what the command line really said: a removed flag is a change although neither overlay holds a value for it.
    before = Settings(values={**state.given, **state.baseline.values})
    after = Settings(values={**state.given, **test.settings.values})
    found = ledger.flips(baseline.evidence, candidate.evidence, after.changed_from(before), declared)
    return {"fingerprint": test.settings.digest, "hypothesis": test.hypothesis, "flips": [flip.plain() for flip in found]}


def _side(state: State, candidate: ArmState, baseline: ArmState) -> list[dict[str, Any]]:
    """Output tokens/s at every level of the last launches, for people: a gain at one load may be a loss at another. ``invalid``: the
    codes of why one of the two is not to be relied on; absent where both are."""
    rows: list[dict[str, Any]] = []
    for point in candidate.results[-1].points:
        before = next((known for known in baseline.results[-1].points if known.concurrency == point.concurrency), None)
        now, was = point.metrics.get("output_tokens_per_s"), before.metrics.get("output_tokens_per_s") if before else None
        if now is not None and was:
            rows.append({"concurrency": point.concurrency, "before": was, "after": now, "ratio": now / was})
            codes = {item.code for side in (before, point) if side is not None for item in side.invalid}
            if codes and since.decides_by(state.spec, since.SIDE_VALIDITY_SAID):
                rows[-1]["invalid"] = sorted(codes)
    return rows


def meets_target(state: State, arm: ArmState) -> bool:
    """Whether the arm's mean (in ln) meets every bound; guards are read from its latest launch."""
    assert state.spec is not None
    if not arm.results or not state.spec.target.bounds:
        return False
    return point_meets_target(state, arm.results[-1].points) and _mean_meets(state, arm)


def confirmation_meets_target(state: State) -> bool:
    """Whether the fresh launch of the current baseline meets every bound; of two, their mean meets what is optimized."""
    assert state.spec is not None
    confirmed, primary = state.base_arm.confirmed, state.spec.target.primary
    if confirmed is None:
        return False
    if len(state.base_arm.confirmations) < 2 or primary is None:
        return point_meets_target(state, confirmed.points)
    return primary.holds(confirmed.value) and _guards_hold(state, confirmed.points)


def missed_by_noise(state: State) -> bool:
    """Whether the one fresh launch of what was kept misses what is optimized, and nothing else, by no more than two launches of one
    setting differ by: then a second one is worth more than an ending."""
    assert state.spec is not None
    arm, primary = state.base_arm, state.spec.target.primary
    if not since.decides_by(state.spec, since.SECOND_CONFIRMATION) or primary is None or arm.confirmed is None or len(arm.confirmations) != 1 or unmeasurable(state, arm):
        return False
    if primary.holds(arm.confirmed.value) or not _guards_hold(state, arm.confirmed.points):
        return False
    miss = log_value(primary.value, primary.direction) - log_value(arm.confirmed.value, primary.direction)
    return miss <= MISSED_BY_SD * closing.pooled(state).sd


def _guards_hold(state: State, points: tuple[LoadPoint, ...]) -> bool:
    assert state.spec is not None
    return all(claims.holds(state, bound, points[0]) for bound in state.spec.target.guards) and points[0].requests_failed <= ERROR_RATE_GUARD


def target_within_interval(state: State, arm: ArmState) -> bool:
    """Whether the 95 % interval of the arm's mean still reaches to the wrong side of the primary bound."""
    assert state.spec is not None
    primary = state.spec.target.primary
    if primary is None or not arm.results:
        return False
    policy, spread = closing.policy(state), closing.pooled(state)
    half = half_width(1 - policy.error, spread.degrees_of_freedom, closing.spread_of(arm.results, spread) / math.sqrt(len(arm.results)))
    low = math.fsum(log_value(result.value, primary.direction) for result in arm.results) / len(arm.results) - half
    return low < log_value(primary.value, primary.direction)


def _mean_meets(state: State, arm: ArmState) -> bool:
    assert state.spec is not None
    primary = state.spec.target.primary
    if primary is None:
        return False
    mean = math.fsum(log_value(result.value, primary.direction) for result in arm.results) / len(arm.results)
    return primary.holds(math.exp(mean if primary.direction == "at_least" else -mean))


def point_meets_target(state: State, points: tuple[LoadPoint, ...]) -> bool:
    """Whether one launch meets every bound of the target with the error guard."""
    assert state.spec is not None
    point = points[0]
    met = all(claims.holds(state, bound, point) for bound in state.spec.target.bounds)
    return met and point.requests_failed <= ERROR_RATE_GUARD
