"""How much a launch says about the causes that it tested, in decibans: Bayes factors with the error term of the interval, marginal over
the noise, shared among the causes of one launch. Pure; it judges nothing and ranks nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from optimizer.model.verdict import Judgement, JudgePolicy
from optimizer.stats.interval import standard_error, t_cdf

Prediction = tuple[float, float]
MOST_CAUSES = 8  # of one launch that are told apart: all of their combinations are weighed
POINT = 1e-3  # of a standard error: an interval of effects that is narrower is one effect
CERTAIN = 1e-6  # a cause is never taken to be surer than this when others are weighed against it


@dataclass(frozen=True)
class Seen:
    """What was measured of a candidate against its comparator, on the log scale. ``half``: of its interval at ``confidence``."""

    d: float
    se: float
    degrees_of_freedom: float
    half: float
    confidence: float
    rope: float


@dataclass(frozen=True)
class Weight:
    """``db`` counts; ``full_db`` is what the model alone gives, and ``limit`` says in words why less of it counts (empty: all does)."""

    db: float
    full_db: float
    limit: str = ""


@dataclass(frozen=True)
class Cause:
    """One of the causes that a launch tests: its probability before it, and the ratio that curing it predicts."""

    probability: float
    prediction: Prediction


def seen(judgement: Judgement, policy: JudgePolicy) -> Seen | None:
    """None where the judgement weighs nothing: of a study of an earlier policy, or of a launch that did other work."""
    if judgement.degrees_of_freedom is None:
        return None
    d, se = math.log(judgement.ratio), standard_error(judgement.sd, judgement.n_candidate, judgement.n_baseline)
    return Seen(d, se, judgement.degrees_of_freedom, math.log(judgement.high) - d, judgement.confidence, math.log1p(policy.rope))


def weigh(what: Seen, prediction: Prediction, policy: JudgePolicy) -> Weight:
    """How much likelier the measured difference is if the cause is real than if the change does nothing useful.

    With d = mean of candidate less mean of baseline, d | δ, σ ~ N(δ, σ²k), k = 1/n + 1/m, and νs²/σ² ~ χ²(ν), which is what the pooled
    noise says of σ (its prior included) and is independent of d. Integrating σ out leaves (d - δ)/(s√k) ~ t(ν): the very statistic of the
    interval. A real cause puts δ anywhere in its predicted interval [a, b] (uniform on the log ratio), no useful change anywhere in the
    region of practical equivalence [-r, r], so that either density has a closed form,

        p(d | [a, b]) = (T((d - a)/se) - T((d - b)/se)) / (b - a),    T the distribution function of t(ν), se = s√k,

    and the factor is their ratio. More than predicted is no evidence against the cause, and a harm no less evidence than no effect at
    all: d is taken no higher than b and no lower than 0. See ``limited`` for what an undecided interval may say at most."""
    low, high = _edges(prediction)
    d = max(min(what.d, high), 0.0)
    ratio = _density(what, d, low, high) / _density(what, d, -what.rope, what.rope)
    return limited(10 * math.log10(ratio), what, low, policy)


def share(what: Seen, causes: Mapping[str, Cause], policy: JudgePolicy, whole: Cause | None = None) -> dict[str, Weight]:
    """What each of several causes is credited with by the one launch that cures them all.

    The launch shows only that at least one of them helped. Before it, each is real with its own probability, independently. If the set A
    is real, the effect is at least the largest lower edge of A and at most the product of all upper edges (more than predicted is no
    evidence against a cause), and within the region of equivalence if none is. The factor of a cause is the density of what was measured
    with it in A, over the density without it, the others summed over what they may be: with one other that is all but certain, next to
    nothing is left to be credited.
    ``whole``: the hypothesis that the launch is better as it is, whatever the cause; if it holds, its prediction is the effect. At most
    ``MOST_CAUSES`` are told apart, the likeliest; further ones get nothing."""
    names = sorted(causes, key=lambda name: (-causes[name].probability, name))
    told, odds = names[:MOST_CAUSES], {name: min(max(causes[name].probability, CERTAIN), 1 - CERTAIN) for name in names}
    edges = {name: _edges(causes[name].prediction) for name in told}
    top = math.fsum(edges[name][1] for name in told)
    d = max(min(what.d, max(top, _edges(whole.prediction)[1]) if whole else top), 0.0)
    densities = {real: _density(what, d, max(edges[name][0] for name in real), top) if real else _density(what, d, -what.rope, what.rope)
                 for real in _subsets(told)}  # fmt: skip
    surely = min(max(whole.probability, CERTAIN), 1 - CERTAIN) if whole else 0.0
    by_itself = surely * _density(what, d, *_edges(whole.prediction)) if whole else 0.0
    found = {name: Weight(0.0, 0.0, f"more than {MOST_CAUSES} causes shared the launch") for name in names[MOST_CAUSES:]}
    for name in told:
        totals: dict[bool, list[float]] = {True: [], False: []}
        for real, density in densities.items():
            others = math.prod(odds[other] if other in real else 1 - odds[other] for other in told if other != name)
            totals[name in real].append(others * density)
        with_it, without = (by_itself + (1 - surely) * math.fsum(totals[is_real]) for is_real in (True, False))
        found[name] = limited(10 * math.log10(with_it / without), what, edges[name][0], policy)
    return found


def limited(full_db: float, what: Seen, edge: float, policy: JudgePolicy) -> Weight:
    """What counts of a factor: a reader who sees an interval that decides nothing never finds a belief beside it that the same launches
    have decided.

    While the interval holds no useful change, nothing speaks for the cause with more than ``most_db`` of the confidence at which it would
    no longer hold it; while it holds the predicted lower ``edge``, nothing speaks against the cause with more than ``most_db`` of its own
    confidence. What that costs is certainty about ideas without effect, of which less is said than is true; graded as the first, they
    would stay at even odds. One test is worth no more than ``bayes_clip_db`` in any case."""
    db, why = full_db, ""
    if db > 0 and what.d - what.half <= what.rope:
        excluded_at = max(1 - 2 * t_cdf((what.rope - what.d) / what.se, what.degrees_of_freedom), 0.0)
        if db > (most := most_db(excluded_at)):
            db, why = most, f"because the interval holds no useful change from {100 * excluded_at:.1f} % on"
    elif db < -(most := most_db(what.confidence)) and what.d + what.half >= edge:
        db, why = -most, f"because the {100 * what.confidence:g} % interval holds the predicted ×{math.exp(edge):.2f} too"
    if abs(db) > policy.bayes_clip_db:
        db, why = math.copysign(policy.bayes_clip_db, db), "the most that one test may say"
    return Weight(round(db, 2), round(full_db, 2), why)


def most_db(confidence: float) -> float:
    """The most that a result which just misses this confidence can say, -1/(e·p·ln p) with p = 1 - confidence (Sellke, Bayarri & Berger
    2001): 8.3 db (6.7:1) at 98.75 %, 3.9 db (2.5:1) at 95 %."""
    p = 1 - confidence
    return 10 * math.log10(-1 / (math.e * p * math.log(p))) if p < 1 / math.e else 0.0


def with_known_noise_db(d: float, se: float, prediction: Prediction, policy: JudgePolicy) -> float:
    """As policy versions before 5 had it: predicted effect against region of practical equivalence, normal model with the noise taken as
    known, both intervals read as mean ± 2 sd, clipped to ± ``bayes_clip_db``."""
    low, high = math.log(prediction[0]), math.log(prediction[1])
    centre, spread, null = (low + high) / 2, (high - low) / 4, math.log1p(policy.rope) / 2
    at = max(min(d, high), 0.0)
    log_ratio = _ln_normal(at - centre, math.hypot(se, spread)) - _ln_normal(at, math.hypot(se, null))
    return max(-policy.bayes_clip_db, min(policy.bayes_clip_db, 10 / math.log(10) * log_ratio))


# ---- densities --------------------------------------------------------------------------------------------------------


def _edges(prediction: Prediction) -> tuple[float, float]:
    """On the log scale; a loss is never what a cure predicts."""
    low = max(math.log(prediction[0]), 0.0)
    return low, max(math.log(prediction[1]), low)


def _subsets(names: Sequence[str]) -> list[frozenset[str]]:
    return [frozenset(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size)]


def _density(what: Seen, d: float, low: float, high: float) -> float:
    """Of the difference ``d`` where the effect lies anywhere in [low, high]; never 0, so that ratios exist."""
    near, far = (d - low) / what.se, (d - high) / what.se
    if near - far < POINT:
        return max(_t_density((near + far) / 2, what.degrees_of_freedom) / what.se, 1e-300)
    if far > 0:  # tails keep their relative precision, one less a tail does not
        near, far = -far, -near
    return max((t_cdf(near, what.degrees_of_freedom) - t_cdf(far, what.degrees_of_freedom)) / (high - low), 1e-300)


def _t_density(t: float, nu: float) -> float:
    ln = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi) - (nu + 1) / 2 * math.log1p(t * t / nu)
    return math.exp(ln)


def _ln_normal(x: float, sd: float) -> float:
    return -0.5 * (x / sd) ** 2 - math.log(sd)
