"""How a prediction fared: candidate against comparator, by an interval on the log ratio, with one quick exit and at
most four planned looks (five when thorough). It returns the verdict so far and which launch the next look needs; it
never launches, never ranks, and never calls "not significant" refuted.

Planned looks with the error split over them follow Bonferroni; the deferral is a predictive-power futility rule
(Spiegelhalter, Freedman & Blackburn 1986). Operating characteristics of exactly this code: docs/statistics.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from optimizer.core.weight import Seen, weigh, with_known_noise_db
from optimizer.errors import OptimizerError
from optimizer.model.verdict import Arm, Judgement, JudgePolicy, Noise, Verdict
from optimizer.stats.interval import half_width, look_confidence, looks, standard_error

Prediction = tuple[float, float]
Next = Literal["candidate", "baseline"]


@dataclass(frozen=True)
class _Comparison:
    """The numbers of one call, on the log scale. ``edge`` is the prediction's lower edge (0 without a prediction)."""

    d: float
    n_candidate: int
    n_baseline: int
    noise: Noise
    edge: float
    policy: JudgePolicy
    prediction: Prediction | None
    wanders: bool = False  # the baseline's latest launch makes a drift likely

    @property
    def rope(self) -> float:
        return math.log1p(self.policy.rope)

    @property
    def se(self) -> float:
        return standard_error(self.noise.sd, self.n_candidate, self.n_baseline)

    def interval(self, confidence: float) -> tuple[float, float]:
        half = half_width(confidence, self.noise.degrees_of_freedom, self.se)
        return self.d - half, self.d + half

    def bayes_db(self, confidence: float) -> float:
        """What the launches say of the prediction beside their interval at this confidence; 0 without a prediction."""
        if self.prediction is None:
            return 0.0
        if self.policy.noise_known:
            return with_known_noise_db(self.d, self.se, self.prediction, self.policy)
        half = half_width(confidence, self.noise.degrees_of_freedom, self.se)
        what = Seen(self.d, self.se, self.noise.degrees_of_freedom, half, confidence, self.rope)
        return weigh(what, self.prediction, self.policy).db


def judge(
    candidate: Arm,
    comparator: Arm,
    noise: Noise,
    prediction: Prediction | None,
    policy: JudgePolicy,
    launches_left: int,
) -> Judgement:
    """Judge ``candidate`` by all its launches so far.

    Args:
        candidate: ln(metric) of each of its valid launches, higher is better (latencies are inverted before).
        comparator: the baseline's valid launches since the last drift.
        noise: pooled over the study, both arms included (``stats.noise.pooled_noise``).
        prediction: claimed ratio (low, high), or None: then any useful improvement supports.
        launches_left: launches that may still be spent on this test, the reserve already taken off.

    Returns:
        A judgement whose ``final`` tells whether another launch is worth it and whose ``next_arm`` says of what. While
        it is not final the verdict is ``unresolved``. Raises OptimizerError when an arm is empty.
    """
    if not candidate.ln_values or not comparator.ln_values:
        raise OptimizerError(
            "A judgement needs at least one valid launch of the candidate and one of the baseline.",
            hint="Measure the missing one first; an invalid measurement does not count.",
        )
    case = _Comparison(
        d=_mean(candidate.ln_values) - _mean(comparator.ln_values),
        n_candidate=len(candidate.ln_values),
        n_baseline=len(comparator.ln_values),
        noise=noise,
        edge=max(math.log(prediction[0]), 0.0) if prediction else 0.0,
        policy=policy,
        prediction=prediction,
        wanders=wanders(comparator.ln_values, noise, policy),
    )
    return _decide(case, launches_left)


def _decide(case: _Comparison, launches_left: int) -> Judgement:
    policy = case.policy
    if case.n_candidate == 1 and abs(case.d) > policy.quick_exit_sd * case.noise.sd:
        verdict = verdict_of(*case.interval(1 - policy.error), case.edge, case.rope)
        if verdict in ("supported", "partial", "harmful"):
            text = f"one launch is {abs(case.d) / case.noise.sd:.1f} sd away (quick exit at {policy.quick_exit_sd:g})"
            return _close(case, 1 - policy.error, verdict, text)
    confidence = look_confidence(policy.thorough, policy.error)
    plan = looks(policy.thorough)
    needed = _baseline_needed(case)
    if case.n_candidate in plan and case.n_baseline >= needed:
        verdict = verdict_of(*case.interval(confidence), case.edge, case.rope)
        if verdict != "unresolved":
            return _close(case, confidence, verdict, _explain(verdict, case, confidence))
        if case.n_candidate == plan[-1]:
            return _close(case, confidence, "unresolved", "the last look decided nothing")
    return _go_on(case, confidence, plan, launches_left)


def _go_on(case: _Comparison, confidence: float, plan: Sequence[int], launches_left: int) -> Judgement:
    """No verdict yet: is the next look affordable, is the last one promising, and which launch does it need?"""
    policy = case.policy
    topping_up = case.n_candidate in plan and case.n_baseline < _baseline_needed(case)
    ahead = [look for look in plan if look > case.n_candidate or (topping_up and look == case.n_candidate)]
    affordable = [look for look in ahead if _cost_of(look, case) <= launches_left]
    if not affordable:
        text = f"the next look needs more than the {launches_left} launches that are left"
        return _close(case, confidence, "unresolved", text)
    last = affordable[-1]
    if not policy.thorough and not topping_up and (case.n_candidate == 1 or case.n_candidate in plan):
        chance = chance_of_support(case.d, case.n_candidate, case.n_baseline, case.noise, case.edge, policy, last)
        if chance < policy.defer_below:
            text = f"the chance that look {last} would support it is {chance:.0%}, below {policy.defer_below:.0%}"
            return _close(case, confidence, "deferred", text)
    # One lone baseline launch is the weakest part of every comparison, and whatever is added serves all candidates.
    arm: Next = "baseline" if topping_up or case.n_baseline < 2 or _baselines_turn(case) else "candidate"
    look = affordable[0]
    return _judgement(case, confidence, "unresolved", f"look {look} comes next", arm, _cost_of(look, case))


def verdict_of(low: float, high: float, edge: float, rope: float) -> Verdict:
    """The verdict table on log ratios, rows from the top; ``unresolved`` where no row applies."""
    if low > rope:
        return "supported" if high >= edge else "partial"
    if high < -rope:
        return "harmful"
    if high < rope:
        return "no_useful_effect"
    if high < edge and low > -rope:
        return "below_prediction"
    return "unresolved"


def chance_of_support(
    d: float, n_candidate: int, n_baseline: int, noise: Noise, edge: float, policy: JudgePolicy, last_look: int
) -> float:
    """Predictive probability that ``last_look`` says supported, from the launches so far and a flat prior.

    An effect that already stands beyond the top-up distance also counts when it would end as partial: a claim that was
    too large does not make a real gain worthless."""
    final_baseline = max(n_baseline, last_look) if abs(d) <= policy.top_up_within_sd * noise.sd else max(n_baseline, 2)
    added = last_look - n_candidate + final_baseline - n_baseline
    half = half_width(
        look_confidence(policy.thorough, policy.error),
        noise.degrees_of_freedom + added,
        standard_error(noise.sd, last_look, final_baseline),
    )
    needed = math.log1p(policy.rope) + half
    if d <= policy.top_up_within_sd * noise.sd:
        needed = max(needed, edge - half)
    variance = 1 / n_candidate + 1 / n_baseline - 1 / last_look - 1 / final_baseline
    if variance <= 0:
        return 1.0 if d > needed else 0.0
    # Normal, not t: the tails of a t with three degrees of freedom keep hopeless ideas alive for half a launch each.
    return 0.5 * math.erfc((needed - d) / (noise.sd * math.sqrt(2 * variance)))


def drifted(value: float, others: Sequence[float], noise: Noise, policy: JudgePolicy) -> bool:
    """Whether a re-measured baseline launch misses the mean of the ``others``; all are ln(metric).

    ``noise`` must be pooled *without* ``value``, or a shift would hide itself in its own estimate."""
    return abs(value - _mean(others)) > policy.drift_sd * noise.sd * math.sqrt(1 + 1 / len(others))


def _baseline_needed(case: _Comparison) -> int:
    """Baseline launches that a look now asks for: as many as the candidate's within 3 sd, and never one alone."""
    within = abs(case.d) <= case.policy.top_up_within_sd * case.noise.sd
    return max(2, case.n_candidate) if within else 2


def _baselines_turn(case: _Comparison) -> bool:
    """Between looks the arms take turns, the baseline first, where its launches will be asked for anyway and its latest one
    makes a drift of the box likely: launched in two blocks, a drift would look like an effect. Where nothing points to one the
    candidate goes first, because an effect that grows beyond the top-up distance saves the baseline's launches."""
    within = abs(case.d) <= case.policy.top_up_within_sd * case.noise.sd
    return case.wanders and within and case.n_candidate >= 2 and case.n_baseline <= case.n_candidate


def wanders(ln_values: Sequence[float], noise: Noise, policy: JudgePolicy) -> bool:
    """Half way to ``drifted``: the latest baseline launch misses the others by more than half the bound. By chance alone it
    does so once in eight."""
    if len(ln_values) < 2:
        return False
    others = ln_values[:-1]
    return abs(ln_values[-1] - _mean(others)) > policy.drift_sd / 2 * noise.sd * math.sqrt(1 + 1 / len(others))


def _cost_of(look: int, case: _Comparison) -> int:
    """Launches until ``look`` can be held, with the top-up it would need if |d| stayed where it is."""
    within = abs(case.d) <= case.policy.top_up_within_sd * case.noise.sd
    return look - case.n_candidate + max((max(2, look) if within else 2) - case.n_baseline, 0)


def _close(case: _Comparison, confidence: float, verdict: Verdict, reason: str) -> Judgement:
    return _judgement(case, confidence, verdict, reason, None, None)


def _judgement(
    case: _Comparison,
    confidence: float,
    verdict: Verdict,
    reason: str,
    next_arm: Next | None,
    expected_launches: int | None,
) -> Judgement:
    low, high = case.interval(confidence)
    return Judgement(
        verdict=verdict,
        final=next_arm is None,
        ratio=math.exp(case.d),
        low=math.exp(max(low, -700.0)),
        high=math.exp(min(high, 700.0)),
        confidence=confidence,
        n_candidate=case.n_candidate,
        n_baseline=case.n_baseline,
        look=case.n_candidate,
        sd=case.noise.sd,
        bayes_db=case.bayes_db(confidence),
        degrees_of_freedom=None if case.policy.noise_known else case.noise.degrees_of_freedom,
        reason=reason,
        next_arm=next_arm,
        expected_launches=expected_launches,
    )


def _explain(verdict: Verdict, case: _Comparison, confidence: float) -> str:
    low, high = (math.exp(edge) for edge in case.interval(confidence))
    meaning = {
        "supported": "above the region of equivalence and compatible with the prediction",
        "partial": f"it helps, but less than the predicted {math.exp(case.edge):.3f}",
        "harmful": "it makes things worse",
        "no_useful_effect": "equivalent to the baseline",
        "below_prediction": f"the predicted {math.exp(case.edge):.3f} is excluded",
    }[verdict]
    counts = f"{case.n_candidate} launches against {case.n_baseline}"
    return f"{100 * confidence:g} % interval {low:.3f} to {high:.3f} of {counts}: {meaning}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
