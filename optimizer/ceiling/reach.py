"""Whether a throughput target can be reached at all, by hardware and by configuration, and the sentence that says so.
It claims *out of reach* only from upper bounds: the roofline with the best allowed draft, or the upper edge of every
prediction that is still open."""

import math
from collections.abc import Iterable

from optimizer.ceiling.waterfall import bucket_share
from optimizer.model.ceiling import Ceiling, NoCeiling, OutOfReach, Waterfall

OpenPrediction = tuple[str, float]  # bucket that the idea addresses, upper edge of its predicted ratio


def reachable_by_configuration(
    current_tokens_per_s: float, found: Waterfall | NoCeiling | None, open_predictions: Iterable[OpenPrediction]
) -> float:
    """The current best times the upper edges of all open ideas, those of one bucket capped by what it holds."""
    together: dict[str, float] = {}
    for bucket, high in open_predictions:
        together[bucket] = together.get(bucket, 1.0) * max(high, 1.0)
    free, won = 1.0, 0.0
    for bucket, ratio in together.items():
        share = bucket_share(found, bucket) if isinstance(found, Waterfall) else None
        if share is None:
            free *= ratio
        else:
            won += min(share, 1 - 1 / ratio)
    return current_tokens_per_s * free / (1 - min(won, 0.999))


def out_of_reach(
    target_tokens_per_s: float,
    current_tokens_per_s: float,
    found: Waterfall | Ceiling | NoCeiling | None,
    open_predictions: Iterable[OpenPrediction],
    *,
    first_words: bool = False,
    told: tuple[str, float] | None = None,
) -> OutOfReach:
    """*hard*: the target exceeds the ceiling with the best allowed draft. *configuration*: no open idea leads there.
    ``first_words``: the sentence as studies before policy version 4 have it; those are recomputed to the byte. ``told``: the largest
    loss (bucket, share) as it was told last, where this is not to be told by ``found`` with a newer η."""
    bounds = found.ceiling if isinstance(found, Waterfall) else found
    predictions = tuple(open_predictions)
    reach = reachable_by_configuration(
        current_tokens_per_s, found if isinstance(found, Waterfall) else None, predictions
    )
    want, have = f"{target_tokens_per_s:,.0f} tok/s", f"measured {_rate(current_tokens_per_s)}"
    if first_words:
        have = f"measured {current_tokens_per_s:,.0f}"
    if isinstance(bounds, Ceiling):
        top = max(bounds.best_tokens_per_s, bounds.tokens_per_s)
        reach = min(reach, max(top, current_tokens_per_s))
        if target_tokens_per_s > top:
            draft = f" even if a draft of {bounds.best_acceptance:.0f} tokens were always accepted"
            ends = f"its roofline ({bounds.bound}) ends at {top:,.0f}{draft if bounds.best_acceptance > 1 else ''}"
            return OutOfReach(
                kind="hard",
                sentence=f"This box cannot reach {want} at concurrency {bounds.concurrency}: {ends}; {have}.",
                reachable_tokens_per_s=top,
            )
    if reach < target_tokens_per_s and current_tokens_per_s < target_tokens_per_s:
        rest = _rest_of(*told) if told is not None else _rest(found)
        if first_words:
            rest = rest.replace(" %", "%")
            ideas = ", no idea that could add to it is open" if not predictions else f", configuration could reach {reach:,.0f}"
        elif not predictions:
            ideas = "; no idea that could add to it is open"
        else:
            ideas = f"; if each idea that is open paid the most that it predicts, about {_rate(reach)}"
        return OutOfReach(
            kind="configuration",
            sentence=f"This box cannot reach {want} by configuration: {have}{ideas}{rest}.",
            reachable_tokens_per_s=reach,
        )
    return OutOfReach(
        kind="none",
        sentence=f"{want} is within reach: {have}, open ideas could lead to {reach:,.0f}.",
        reachable_tokens_per_s=reach,
    )


def _rest(found: Waterfall | Ceiling | NoCeiling | None) -> str:
    """Where the time is, in one clause."""
    if not isinstance(found, Waterfall):
        return ""
    largest = max(found.slices[1:], key=lambda part: part.ms, default=None)
    if largest is None or not math.isfinite(largest.ms):
        return ""
    return _rest_of(largest.bucket, found.share(largest.bucket))


def _rest_of(bucket: str, share: float) -> str:
    name = "kernels" if bucket == "kernel" else bucket.replace("_", " ")
    return f"; the largest loss is {name} ({100 * share:.0f} % of the time)"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f} tok/s" if tokens_per_s >= 1000 else f"{tokens_per_s:.4g} tok/s"
