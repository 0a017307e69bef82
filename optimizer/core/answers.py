"""Does a setting change what the model answers? A candidate's answers to the fixed greedy probes against those of the
server as it was found. Pure; it judges by how far the reference agrees with itself, because a server that answers the
same prompt differently twice says nothing about a setting.

Another kernel, another batch shape or another reduction order changes the last bits of the logits, and greedy decoding
turns a tie into another word, after which the texts have nothing in common. So a first differing token does not count
where the model had no clear preference and the other token was among those it might as well have taken: less than
``TIE_NATS`` of log probability behind. Servers that give no log probabilities are compared by words, where every
difference counts. Then chance is asked (``stats.agreement``): where both sides were asked often enough, whether a probe that is
answered otherwise every time could be a server's own whim; else whether more probes differ than the reference's own, so that a
single odd one among eight is never called a change: it is said and not judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from optimizer.core.once import once_for
from optimizer.model.answers import TIE_NATS, AnswerComparison, AnswerPass, ProbeAnswer
from optimizer.stats.agreement import chance_of_as_many, chance_of_separation

ERROR = 0.05
FEW = 3  # probes of eight that the count alone never decides: repetition is asked where it decides these
SHORTEST = 4  # tokens that the reference must repeat before a prompt can be compared with


def compare(reference: Sequence[AnswerPass], candidate: Sequence[AnswerPass]) -> AnswerComparison | None:
    """``candidate`` against ``reference``; None where one of them was never asked the same probes."""
    if not reference or not candidate:
        return None
    if isinstance(reference, tuple) and isinstance(candidate, tuple):  # of one state: asked for by every look and by the summary
        return once_for("answers", lambda: _compared(reference, candidate), reference, candidate)
    return _compared(reference, candidate)


def _compared(reference: Sequence[AnswerPass], candidate: Sequence[AnswerPass]) -> AnswerComparison | None:
    probes = candidate[-1].probes
    before = [one for one in reference if one.probes == probes]
    after = [one for one in candidate if one.probes == probes]
    if not before:
        return None
    rows = []
    for index in range(len(after[-1].answers)):
        known = [one.answers[index] for one in before]
        found = [one.answers[index] for one in after]
        answers, others = [one for one in known if one is not None], [one for one in found if one is not None]
        if answers and others:
            rows.append(_Prompt(answers, others))
    repeats = (_repeats(before), _repeats(after))
    return _judge(rows, asked=len(after[-1].answers), passes=len(before), repeats=repeats)


def _repeats(passes: Sequence[AnswerPass]) -> int:
    """Passes that were complete and are known to be repetitions, with log probabilities: without them another kernel's tie,
    taken the same way each time, would look like a change."""
    return sum(one.repeat > 0 and all(answer is not None and bool(answer.margins) for answer in one.answers) for one in passes)


class _Prompt:
    """One probe: how far the reference repeats itself, and where the candidate leaves it."""

    def __init__(self, reference: Sequence[ProbeAnswer], candidate: Sequence[ProbeAnswer]) -> None:
        longest = max(1, *(len(one.tokens) for one in (*reference, *candidate)))
        pairs = [(a, b, first_difference(a, b)) for a, b in combinations(reference, 2)]
        own = [at for _, _, at in pairs if at is not None]
        self.own_agreement = min(own) / longest if own else 1.0
        self.own_differs = any(at is not None and not is_tie(a, at, b) and not is_tie(b, at, a) for a, b, at in pairs)
        settled = min(own) if own else longest
        self.settled = settled >= min(SHORTEST, longest)
        # The answers are as good as the best match: one repetition of the old text shows that nothing was lost.
        places = [(first_difference(a, b), a, b) for a in reference for b in candidate]
        best, against, found = max(places, key=lambda item: longest if item[0] is None else item[0])
        self.agreement = 1.0 if best is None else best / longest
        self.tie = self.differs = False
        if best is not None and best < settled:
            self.tie = is_tie(against, best, found)
            self.differs = not self.tie


def first_difference(a: ProbeAnswer, b: ProbeAnswer) -> int | None:
    """Index of the first token in which they differ, an early end included; None when they are the same."""
    if a.tokens == b.tokens:  # most are, and are told at once
        return None
    for index, (mine, other) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if mine != other:
            return index
    return None if len(a.tokens) == len(b.tokens) else min(len(a.tokens), len(b.tokens))


def is_tie(answer: ProbeAnswer, at: int, other: ProbeAnswer) -> bool:
    """Whether ``other``'s token was as good as ``answer``'s own at this place."""
    if at >= len(answer.margins) or answer.margins[at] >= TIE_NATS:
        return False
    # An answer that ended here took a token that is not part of its text, and an old record names no other tokens.
    return at >= len(other.tokens) or not answer.close or other.tokens[at] in answer.close.get(at, ())


def _judge(rows: Sequence[_Prompt], *, asked: int, passes: int, repeats: tuple[int, int]) -> AnswerComparison:
    settled = [row for row in rows if row.settled]
    differing, ties = sum(row.differs for row in settled), sum(row.tie for row in settled)
    own = sum(row.own_differs for row in rows)
    each_time = bool(settled) and chance_of_separation(FEW, len(settled), repeats[1], repeats[0]) <= ERROR
    if each_time:
        chance = chance_of_separation(differing, len(settled), repeats[1], repeats[0])
    else:
        chance = chance_of_as_many(differing, len(settled), own, len(rows)) if settled else 1.0
    often = f" each time (asked {repeats[0]} times as found, {repeats[1]} times so)" if each_time else ""

    def closed(verdict: str, why: str) -> AnswerComparison:
        return AnswerComparison.model_validate(
            {
                "verdict": verdict, "prompts": len(rows), "settled": len(settled), "differing": differing, "near_ties": ties, "reference_differing": own,
                "agreement": _mean([row.agreement for row in rows]), "reference_agreement": _mean([row.own_agreement for row in rows]),
                "chance": chance, "why": why,
            }
        )  # fmt: skip

    tied = f", {ties} more where the model itself had no clear preference" if ties else ""
    if passes < 2:
        return closed("cannot_tell", "the server as found was asked once only, so nobody knows how it repeats itself")
    if 2 * len(rows) < asked:
        return closed("cannot_tell", f"only {len(rows)} of {asked} probes were answered on both sides")
    if 2 * len(settled) < len(rows) or 2 * own > len(rows):
        return closed("cannot_tell", f"the server as found contradicts itself on {max(own, len(rows) - len(settled))} of {len(rows)} probes")
    if differing and chance <= ERROR:
        return closed(
            "changed",
            f"{differing} of {len(settled)} probes are answered differently{often}{tied}; the server as found differs from itself on {own} of "
            f"{len(rows)} (chance {chance:.2g})",
        )
    if 2 * ties > len(settled):
        return closed("cannot_tell", f"{ties} of {len(settled)} answers leave the old ones where the model itself had no clear preference")
    if differing:
        return closed("cannot_tell", f"{differing} of {len(settled)} probes are answered differently{often}{tied}: too few to tell from chance; ask more (--probes)")
    return closed("same", f"all {len(settled)} probes are answered as before{tied}")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
