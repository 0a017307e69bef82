"""How a study ends: the budget, the ending and its reason, the box's end state, and the summary that people read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from optimizer.core import answers, boxes, claims, economy, goodput, since
from optimizer.core.once import once_measured
from optimizer.core.plan import Plan
from optimizer.core.score import probability_of
from optimizer.core.state import ArmState, LaunchResult, State
from optimizer.model.step import ORIGINAL, AwaitReady, Launch, Restore, Secure, Step, Stop
from optimizer.model.target import unit_of
from optimizer.model.verdict import JudgePolicy, Noise
from optimizer.stats.interval import half_width
from optimizer.stats.noise import pooled_noise

MAX_CLOSING_FAILURES = 3
MAX_RETRIES = 2  # of a retryable failure of one setting
BUDGET_SPENT = "The budget is spent."
PLAIN_ENDINGS = {
    "met": "target met",
    "not_met": "target not met",
    "unreachable_by_configuration": "not reachable by configuration",
    "nothing_to_tune": "nothing to tune",
    "unfit": "the box or server is not fit to be tuned",
    "interrupted": "interrupted",
    "needs_operator": "a person is needed",
    "guard_fired": "the guard restored the box",
}


def policy(state: State) -> JudgePolicy:
    """How much evidence a verdict needs on this kind of box: identical relaunches on a shared CPU differ far more."""
    return once_measured(state, "policy", lambda: _policy(state))


def _policy(state: State) -> JudgePolicy:
    assert state.spec is not None
    kind: economy.BoxKind = "gpu" if (state.survey or {}).get("gpu_count") else "cpu"
    policy_ = economy.policy_for(kind, thorough=state.spec.thorough)
    if not since.decides_by(state.spec, since.WEIGHED_WITH_NOISE):
        policy_ = policy_.model_copy(update={"noise_known": True})
    if state.spec.target.primary is not None and state.spec.target.primary.metric == goodput.METRIC:
        counted = goodput.floor_of([result.points[0] for arm in state.arms.values() for result in arm.results])
        policy_ = policy_.model_copy(update={"noise_floor": max(policy_.noise_floor, counted)})
    # How uneven the windows of one launch are is a first idea of how launches differ; repeated launches then correct it.
    uneven = sorted(
        result.points[0].metrics["output_tokens_per_s_rel_se"]
        for arm in state.arms.values()
        for result in arm.results
        if result.points and "output_tokens_per_s_rel_se" in result.points[0].metrics
    )
    if not uneven:
        return policy_
    middle = uneven[len(uneven) // 2]
    return policy_.model_copy(update={"prior_sd": max(policy_.prior_sd, min(middle, economy.CPU_PRIOR_SD))})


def pooled(state: State) -> Noise:
    """Launch-to-launch noise over every setting of this study that was launched at least twice, with the prior."""
    return once_measured(state, "pooled", lambda: pooled_noise([arm.arm() for arm in arms_of(state)], policy(state)))


def arms_of(state: State) -> list[ArmState]:
    """Every arm, what it gave before and after a drift apart: the noise within each is the box's noise, the step between is not."""
    return [*state.arms.values(), *(replace(arm, results=arm.earlier) for arm in state.arms.values() if arm.earlier)]


def launches_left(state: State, reserve: int) -> int:
    """Launches that may still be spent, ``reserve`` of them kept for the confirmation."""
    assert state.spec is not None
    return max(0, state.spec.budget.launches - sum(one.launches_baseline + one.launches_after for one in (state, *state.peers)) - reserve)


def over_budget(state: State, reserve: int) -> bool:
    """Whether another launch no longer fits, in number or in minutes (judged by this study's own launches)."""
    if state.server is not None and state.server.status in ("launched", "ready"):
        return False  # what was launched is paid for: it is measured
    assert state.spec is not None
    if launches_left(state, reserve) <= 0:
        return True
    launches = max(1, state.launches_baseline + state.launches_after)
    per_launch = state.minutes / launches
    return max(one.minutes for one in (state, *state.peers)) + per_launch * (1 + reserve) > state.spec.budget.minutes


def ending_of(state: State, plan: Plan) -> tuple[str, str]:
    """The ending when nothing is left to try, and why."""
    first = state.ranked[0] if state.ranked else None
    confirmed = state.base_arm.confirmed
    if over_budget(state, reserve=1) and not _exhausted(state):
        said = f"{BUDGET_SPENT} The ranking shows what was left to try."
        if state.out_of_reach and since.decides_by(state.spec, since.LIMIT_SAID):
            said = f"{BUDGET_SPENT} A larger one would not have met the target either. {state.out_of_reach}"
        return "not_met", said
    handed = [item for item in state.refusals if item.get("kind") == "hand_over"]
    if state.out_of_reach or (handed and first is not None and first.get("id") == handed[-1].get("hypothesis")):
        why = state.out_of_reach or "The leading cause has no configuration action."
        ranked = [str(row["id"]) for row in state.ranked]
        return "unreachable_by_configuration", _with_handover(why, sorted(handed, key=lambda item: -_place(ranked, str(item.get("hypothesis")))))
    tested = [belief for belief in state.beliefs.values() if belief.tried]
    lacking = unmeasured(state)
    if lacking:
        best = f" Best confirmed: {confirmed.value:.4g}." if state.promoted and confirmed else ""
        which = "; ".join(f"{name}: {why}" for name, why in list(lacking.items())[:3])
        said = "1 idea could not be measured; what it would bring" if len(lacking) == 1 else f"{len(lacking)} ideas could not be measured; what they would bring"
        return "not_met", f"{said} is not known: {which}.{best}{claims.unshown(state, state.base_arm)}"
    if not tested:
        return "nothing_to_tune", _why_nothing(state) + claims.unshown(state, state.base_arm)
    if state.promoted:
        if is_refuted(state):
            shown = f"{confirmed.value:.4g}" if confirmed else ""
            return "not_met", f"Everything that ranked was tried. The fresh launch of what was kept gave {shown}, no more than the server as found: nothing is kept."
        best = f" Best confirmed: {confirmed.value:.4g}." if confirmed else ""
        return "not_met", f"Everything that ranked was tried.{best}{claims.unshown(state, state.base_arm)}"
    return "not_met", f"Everything that ranked was tried and nothing was kept.{claims.unshown(state, state.base_arm)}"


def unmeasured(state: State) -> dict[str, str]:
    """Ideas that were put aside because no launch of theirs gave a valid measurement, each with why. Nothing is known against them."""
    if not since.decides_by(state.spec, since.UNMEASURED_IS_OPEN):
        return {}
    return {name: belief.reason.rstrip(".") for name, belief in state.beliefs.items() if belief.status == "deferred" and belief.verdict == "invalid"}


def _why_nothing(state: State) -> str:
    """Why no launch was spent. A cause that is more likely than not is named, with what kept it from being tested."""
    said = []
    for row in state.ranked:
        if row["probability"] < 0.5:
            continue
        belief = state.beliefs.get(row["id"])
        why = belief.reason if belief and belief.reason else "no setting is known to cure it"
        if not (belief and belief.reason) and row["ratio"] is not None:
            why = f"the predicted ×{row['ratio'][0]:.2f} to ×{row['ratio'][1]:.2f} is too small for one launch to tell from noise, or more than the loss it addresses"
        said.append(f"{row['id']} (probability {row['probability']:.2f}): {why}")
    if not said and (against := _beyond_the_roofline(state)):
        return f"No cause stands out above its prior; but what was measured cannot be: {against}. Correct that before believing any of it."
    if not said:
        return "No cause stands out above its prior: the server is healthy for this workload, or the offered load is the limit."
    return f"No idea was worth a launch. What stands out: {'; '.join(said[:3])}"


def _beyond_the_roofline(state: State) -> str:
    """What contradicts the roofline of this GPU; empty where nothing does, and for studies from before that was said."""
    assert state.spec is not None
    found = state.ceiling if since.decides_by(state.spec, since.ROOFLINE_SAID) else None
    reasons = (str(level.get("unknown") or "") for level in (found or {}, *(found or {}).get("side", ())))
    return next((why.removeprefix("contradiction: ") for why in reasons if why.startswith("contradiction: ")), "")


def _exhausted(state: State) -> bool:
    """Nothing is left that a launch could test: neither ranked, nor chosen and then without its launch."""
    unlaunched = any(belief.status == "deferred" and belief.reason == BUDGET_SPENT for belief in state.beliefs.values())
    return not unlaunched and not any(item.get("testable") for item in state.ranked)


def _place(ranked: list[str], hypothesis: str) -> int:
    """Where a cause ranks: of several that are handed over, the likeliest is what the ending speaks of."""
    return ranked.index(hypothesis) if hypothesis in ranked else len(ranked)


def _with_handover(why: str, handed: list[Mapping[str, Any]]) -> str:
    return f"{why} {handed[-1]['why']}" if handed else why


# ---- the box's end state ------------------------------------------------------------------------------------------


def wanted_state(state: State) -> str:
    """``best``, ``restore`` or ``leave``: what the user chose, else best if it was confirmed, else the original."""
    assert state.spec is not None and state.closing is not None
    if state.spec.finish == "leave" and since.decides_by(state.spec, since.LEFT_IF_IT_SERVES):
        return "leave" if _serves(state) else "restore"
    if state.closing.ending in ("interrupted", "unfit") and state.spec.finish != "leave":
        return "restore"
    if state.spec.finish in ("restore", "leave"):
        return state.spec.finish
    if is_confirmed_better(state):
        return "best"
    # Asked for the best where nothing beat the original: the original, which is not stopped only to be started again.
    return "best" if state.spec.finish == "best" and not state.promoted and not state.original_found else "restore"


def _serves(state: State) -> bool:
    """Whether what runs can be left to users: the server that ran before, or one of ours that was proven to be what was asked for. A study
    that was cut short leaves none that was not measured."""
    assert state.closing is not None
    if state.server is None:
        return state.original_running or not state.original_found
    if state.failures.get("stop"):
        return False  # its stop was begun, and how far that got is not known
    cut = state.closing.ending in ("interrupted", "unfit", "guard_fired")
    return state.server.status in (("measured",) if cut else ("ready", "measured"))


def is_confirmed_better(state: State) -> bool:
    """Whether the fresh launch of the promoted settings meets the target, or beats the mean of the server as it was found."""
    if any(peer.baseline == state.baseline and is_confirmed_better(replace(peer, peers=())) for peer in state.peers):
        return state.closing is None or state.closing.ending not in boxes.BOX_ENDINGS
    confirmed, first = state.base_arm.confirmed, [result.ln for result in state.first_arm.results or state.first_arm.earlier]
    if not state.promoted or confirmed is None:
        return False
    met = state.closing is not None and state.closing.ending == "met"  # then a guard may be what was won
    return met or not first or confirmed.ln > math.fsum(first) / len(first)


def is_refuted(state: State) -> bool:
    """Whether the fresh launch contradicts what was promoted: then the server as it was found is still the best that was seen."""
    return bool(state.promoted and state.base_arm.confirmed and not is_confirmed_better(state))


def next_step(state: State, *, key: str, port: int) -> Step | None:
    """The next effect on the way to the end state; None when the box is in it. Nothing is left behind except by wish."""
    assert state.spec is not None
    if state.disarmed or (not state.armed and state.server is None):
        return None
    if state.closing_failures >= MAX_CLOSING_FAILURES:
        return None
    wanted = "restore" if state.spec.host.kind == "sim" else wanted_state(state)
    server = state.server
    if wanted == "leave":
        return Secure(key=key, op="disarm", keep=server.key if server and server.status != "failed" else None)
    # Decided before anything is stopped: a final launch that cannot be had must not cost the original its place again.
    startable = not state.base_arm.crashed and state.failures.get(state.baseline.digest, 0) < MAX_CLOSING_FAILURES
    if wanted == "best" and startable:
        if server is not None and server.purpose == "final" and server.settings == state.baseline:
            if server.status == "launched":
                return AwaitReady(key=key, launch=server.key, deadline_s=state.spec.ready_deadline_s)
            if server.status == "ready":
                return Secure(key=key, op="disarm", keep=server.key)
        if state.original_running:
            return Stop(key=key, launch=ORIGINAL)
        if server is not None:
            return Stop(key=key, launch=server.key)
        return Launch(key=key, settings=state.baseline, purpose="final", port=port, served_name=None)
    if server is not None:
        return Stop(key=key, launch=server.key)
    if state.original_found and (state.original_touched or not state.original_running):
        return Restore(key=key)
    return Secure(key=key, op="disarm")


def what_runs(state: State) -> str:
    """What serves on the box now that the study is over, in one sentence."""
    assert state.spec is not None
    if state.boxes:
        return " ".join(what_runs(part) for part in state.boxes.values())
    where = state.box or state.spec.host.name
    if state.lost:
        return f"What runs on {where} is not known: it was lost, and the guard on it restores what was there."
    if state.server is not None and state.server.purpose == "final" and state.server.status == "ready":
        return f"The best settings serve on {where} now, under the original's port and name."
    if state.original_running:
        missed = state.spec.finish != "restore" and is_confirmed_better(state)
        better = " although better settings were confirmed: they could not be brought up in its place" if missed else ""
        return f"The original server runs on {where}{better}."
    if state.server is not None:
        gone = state.original_found and since.decides_by(state.spec, since.LEFT_IF_IT_SERVES)
        instead = f", as {state.server.served_name}" if state.server.served_name and gone else ""
        stopped = " The server that ran before is stopped, and is not brought back." if gone else ""
        return f"Launch {state.server.key} still runs on {where}, port {state.server.port}{instead}.{stopped}"
    return f"No server of this study runs on {where}."


# ---- the summary --------------------------------------------------------------------------------------------------


def closed_body(state: State, plan: Plan) -> dict[str, Any]:
    """What ``run --json`` prints, and what the report starts with."""
    assert state.spec is not None and state.closing is not None
    parts = tuple(state.boxes.values()) or (state,)
    found = summary(state, plan)
    if state.boxes:
        found["boxes"] = [_box_row(part) for part in parts]
    stuck = [part for part in parts if part.lost or part.closing_failures >= MAX_CLOSING_FAILURES]
    if not stuck:
        return {**found, "ending": state.closing.ending, "reason": state.closing.reason}
    reason = f"{PLAIN_ENDINGS[state.closing.ending].capitalize()}: {state.closing.reason}"
    for part in stuck:
        assert part.spec is not None
        name = part.spec.host.name
        failed = part.lost or (part.last_failure.message if part.last_failure else "its last step failed")
        reason += (
            f" But {part.box or name} could not be brought into its end state: "
            f"{failed} The guard there tries again within {state.spec.guard_minutes:g} minutes; `optimize restore --host {name}` does it now."
        )
    return {**found, "ending": "needs_operator", "reason": reason, **({"ending_elsewhere": state.closing.ending} if len(stuck) < len(parts) else {})}


def _box_row(part: State) -> dict[str, Any]:
    """What one of several boxes did, for people and programs."""
    first = part.first_arm.results or part.first_arm.earlier
    assert part.spec is not None
    return {
        "box": part.box, "host": part.spec.host.name, "launches": part.launches_baseline + part.launches_after, "minutes": round(part.minutes, 2),
        "baseline": value_of(first) if first else None,
        "baseline_launches": len(first), "lost": part.lost or None, "left": part.closing.reason if part.closing and part.closing.ending in boxes.BOX_ENDINGS else None,
        "runs": what_runs(part),
    }  # fmt: skip


def figures(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """The baseline and the best so far in the target's metric, each with value, interval, launches and settings."""
    assert state.spec is not None
    noise, primary, kept = pooled(state), state.spec.target.primary, is_kept(state)
    metric = primary.metric if primary else "output_tokens_per_s"
    best = state.base_arm if kept else state.first_arm
    return _result(state, state.first_arm, metric, noise, confirmed=False), _result(state, best, metric, noise, confirmed=kept)


def is_kept(state: State) -> bool:
    """Whether something was promoted that no fresh launch has contradicted."""
    return bool(state.promoted) and not is_refuted(state)


def summary(state: State, plan: Plan) -> dict[str, Any]:
    assert state.spec is not None
    noise, kept = pooled(state), is_kept(state)
    baseline, best_figures = figures(state)
    best = state.base_arm if kept else state.first_arm
    compared = answers.compare(state.first_arm.answers, best.answers) if kept else None
    return {
        "study": state.spec.study,
        "target": state.spec.target.text,
        "workload": state.spec.workload.text,
        "launches": state.launches_after,
        "launches_baseline": state.launches_baseline,
        "minutes": round(state.minutes, 2),
        "noise": {"sd": noise.sd, "degrees_of_freedom": noise.degrees_of_freedom},
        "baseline": baseline,
        "best": best_figures,
        "hypotheses": hypotheses(state, plan),
        "promoted": [dict(changes) for changes in state.promoted] if kept else [],
        **({"drifts": state.drifts} if state.drifts else {}),
        **({"answers": compared.plain()} if compared is not None else {}),
    }


def hypotheses(state: State, plan: Plan) -> list[dict[str, Any]]:
    """Every ranked hypothesis with its status in the user's four words, and the inner one beside it. One that was cured shows the
    probability that it *was* the cause: evidence before its test, and the verdict."""
    words = {"supported": "supported", "pruned": "pruned", "stale": "stale"}
    rows, known, refuted = [], {row["id"]: row for row in state.ranked}, is_refuted(state)
    for name in (*known, *sorted(set(state.beliefs) - set(known))):
        belief, playbook = state.beliefs.get(name), plan.playbook(name)
        if playbook is None:
            continue
        score_db = known[name]["score_db"] if name in known else playbook.prior_db + (belief.measured_db if belief else 0.0)
        inner = belief.status if belief else "open"
        if inner in ("supported", "kept") and refuted:
            inner = "not_confirmed"
        elif belief is not None and belief.final_db is not None:
            score_db = belief.final_db
        rows.append({
            "id": name, "family": playbook.family, "probability": round(probability_of(score_db), 4), "score_db": round(score_db, 2),
            "status": words.get(inner, "open"), "detail": inner, "reason": belief.reason if belief else "",
        })  # fmt: skip
    return rows


def value_of(results: Sequence[LaunchResult]) -> float:
    """The mean of launches: geometric, or arithmetic where one of them gave nothing."""
    if min(result.value for result in results) <= 0:
        return math.fsum(result.value for result in results) / len(results)
    return math.exp(_mean_ln_value(results))


def _mean_ln_value(results: Sequence[LaunchResult]) -> float:
    return math.fsum(math.log(max(result.value, 1e-3)) for result in results) / len(results)


def spread_of(results: Sequence[LaunchResult], noise: Noise) -> float:
    """The sd of ln(value) of one launch: the study's noise, or of a goodput what counting so few good requests leaves open."""
    return max(noise.sd, *(goodput.counting_error(result.points[0]) for result in results if result.points), 0.0)


def half_of(state: State, results: Sequence[LaunchResult], noise: Noise) -> float:
    """Half of the 95 % interval of ln(mean) over launches."""
    return half_width(1 - policy(state).error, noise.degrees_of_freedom, spread_of(results, noise) / math.sqrt(len(results)))


def interval_of(state: State, results: Sequence[LaunchResult], noise: Noise) -> list[float]:
    """The 95 % interval of ``value_of`` over launches. Where nothing was counted, from 0 to the rate that would have shown something."""
    if value_of(results) <= 0:
        return [0.0, goodput.NONE_SEEN / max(math.fsum(result.points[0].window_s for result in results if result.points), 1e-3)]
    half = half_of(state, results, noise)
    return [math.exp(_mean_ln_value(results) - half), math.exp(_mean_ln_value(results) + half)]


def _result(state: State, arm: ArmState, metric: str, noise: Noise, *, confirmed: bool) -> dict[str, Any]:
    """Value with its 95 % interval over launches. A promoted result is the fresh confirmation's number alone."""
    results = list(arm.confirmations) if confirmed and arm.confirmed else list(arm.results or arm.earlier)
    if not results:
        return {"metric": metric, "unit": unit_of(metric), "value": None, "interval": None, "launches": 0,
                "settings": dict(arm.settings.values)}  # fmt: skip
    levels = [
        {"concurrency": point.concurrency, "output_tokens_per_s": point.metrics.get("output_tokens_per_s"),
         "ttft_p50_ms": point.metrics.get("ttft_p50_ms"), "tpot_p50_ms": point.metrics.get("tpot_p50_ms"),
         "requests_ok": point.requests_ok, "window_s": point.window_s, "invalid": [item.code for item in point.invalid]}
        for point in results[-1].points
    ]  # fmt: skip
    return {
        "metric": metric,
        "unit": unit_of(metric),
        "value": value_of(results),
        "interval": interval_of(state, results, noise),
        "launches": len(results),
        "fresh_confirmation": bool(confirmed and arm.confirmed),
        "levels": levels,
        "settings": dict(arm.settings.values),
        "entries": [result.entry for result in results],
        **({"before_drift": True} if not arm.results and arm.earlier else {}),
    }
