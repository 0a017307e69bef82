"""What a judged launch is worth to each of the causes that it tested, as the journal says it: decibans by name, and where they come
from. Glue between the folded state and ``weight``; studies of a policy version before 5 get nothing from here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.core import closing, since, weight
from optimizer.core.prior import PRIOR_ART
from optimizer.core.score import probability_of
from optimizer.core.state import State, Test
from optimizer.model.verdict import Judgement


def of_test(state: State, test: Test, judgement: Judgement) -> dict[str, Any]:
    """``weights`` ({cause: decibans}) and ``weighed`` (a sentence) of the candidate's judgement; empty where nothing is weighed."""
    if not since.decides_by(state.spec, since.SHARED_CREDIT) or test.ratio is None:
        return {}
    if test.bundle and judgement.verdict not in ("supported", "partial"):
        return {"weighed": f"which of {', '.join((test.hypothesis, *test.bundle))} did not help is not known: nothing is held against any, and each is tested alone"}
    return _weighed(state, judgement, test.hypothesis, test.ratio, [*test.bundle, *test.cures], test.ratios, test.score_db, test.rest)


def of_confirmation(state: State, promoted: Mapping[str, Any], judgement: Judgement) -> dict[str, Any]:
    """The same for the confirmation of a provisional promotion. ``promoted``: the body of its entry."""
    if not since.decides_by(state.spec, since.SHARED_CREDIT) or not promoted.get("ratio"):
        return {}
    low, high = promoted["ratio"]
    ratios = {name: (float(ratio[0]), float(ratio[1])) for name, ratio in promoted.get("ratios", {}).items()}
    return _weighed(state, judgement, promoted["hypothesis"], (low, high), promoted.get("companions", ()), ratios, promoted.get("scores", {}), promoted.get("rest", ()))


def to_confirm(state: State, test: Test) -> dict[str, Any]:
    """What a provisional promotion keeps, so that its confirmation can be weighed."""
    if not since.decides_by(state.spec, since.SHARED_CREDIT):
        return {}
    return {"ratios": {name: list(ratio) for name, ratio in test.ratios.items()}, "scores": dict(test.score_db), "rest": list(test.rest)}


def _weighed(
    state: State, judgement: Judgement, hypothesis: str, ratio: weight.Prediction, others: Sequence[str],
    ratios: Mapping[str, weight.Prediction], scores: Mapping[str, float], rest: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    policy = closing.policy(state)
    what = weight.seen(judgement, policy)
    if what is None:
        return {}
    known = {name: weight.Cause(probability_of(scores.get(name, 0.0)), ratios[name]) for name in (hypothesis, *others) if name in ratios}
    if not others or hypothesis not in known:
        alone = weight.weigh(what, ratio, policy)
        return {"weights": {hypothesis: alone.db}, "weighed": said(alone, what, ratio)}
    if hypothesis != PRIOR_ART:
        shared = weight.share(what, known, policy)
        return {"weights": {name: found.db for name, found in shared.items()}, "weighed": said_of_shared(shared)}
    # Known-good settings claim that the launch is better as it is, whatever in it helps: that is what the launch tested.
    whole = known.pop(hypothesis)
    launch, shared = weight.weigh(what, whole.prediction, policy), weight.share(what, known, policy, whole if rest else None)
    if len(shared) == 1 and not rest:
        each = "; ".join(f"{name}, whose cure this is: {said(found, what, known[name].prediction)}" for name, found in shared.items())
    else:
        each = f"of the causes that its settings cure, {said_of_shared(shared, ', '.join(rest))}"
    return {
        "weights": {hypothesis: launch.db, **{name: found.db for name, found in shared.items()}},
        "weighed": f"{hypothesis}: {said(launch, what, whole.prediction)}; {each}",
    }


# ---- in words ---------------------------------------------------------------------------------------------------------


def said(found: weight.Weight, what: weight.Seen, prediction: weight.Prediction) -> str:
    """Where the decibans of one cause come from, so that its interval and its probability can be read together."""
    under, than = f"the predicted ×{prediction[0]:.2f} to ×{prediction[1]:.2f}", "no useful change"
    if found.full_db < 0:
        under, than = than, under
    counted = f"; counted as {_times(found.db)}, {found.limit}" if found.limit else ""
    return (f"{found.db:+.1f} db: ×{math.exp(what.d):.3f}, with {what.degrees_of_freedom:.3g} degrees of freedom, is {_times(found.full_db)} as likely under {under} "
            f"as under {than}{counted}")  # fmt: skip


def said_of_shared(weights: Mapping[str, weight.Weight], rest: str = "") -> str:
    """What one launch of several causes is worth to each. ``rest``: the settings in it that belong to none of their cures, if any do."""
    each = ", ".join(f"{found.db:+.1f} db for {name}" for name, found in weights.items())
    of = f"{', '.join(weights)}{f' and the other settings ({rest})' if rest else ''}"
    return f"one launch says only whether at least one of {of} helped, not which; each is credited with what the others leave open: {each}"


def _times(db: float) -> str:
    times = 10 ** (abs(db) / 10)
    return "more than 1,000 times" if times > 1000 else f"{times:.0f} times" if times >= 9.5 else f"{times:.1f} times"
