"""What a judged launch is worth to each of the causes that it tested, as the journal says it: decibans by name, and where they come
from. Glue between the folded state and ``weight``; studies of a policy version before 5 get nothing from here."""

from __future__ import annotations

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
        return {"weights": {hypothesis: alone.db}, "weighed": weight.said(alone, what, ratio)}
    if hypothesis != PRIOR_ART:
        shared = weight.share(what, known, policy)
        return {"weights": {name: found.db for name, found in shared.items()}, "weighed": weight.said_of_shared(shared)}
    # Known-good settings claim that the launch is better as it is, whatever in it helps: that is what the launch tested.
    whole = known.pop(hypothesis)
    launch, shared = weight.weigh(what, whole.prediction, policy), weight.share(what, known, policy, whole if rest else None)
    if len(shared) == 1 and not rest:
        each = "; ".join(f"{name}, whose cure this is: {weight.said(found, what, known[name].prediction)}" for name, found in shared.items())
    else:
        each = f"of the causes that its settings cure, {weight.said_of_shared(shared, ', '.join(rest))}"
    return {
        "weights": {hypothesis: launch.db, **{name: found.db for name, found in shared.items()}},
        "weighed": f"{hypothesis}: {weight.said(launch, what, whole.prediction)}; {each}",
    }
