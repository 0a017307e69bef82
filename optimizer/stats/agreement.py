"""Fisher's exact test, one-sided: did more of one group do it than of another? Pure; it knows nothing about what was done.

Source: R. A. Fisher, The Design of Experiments (1935), section 16: with the margins held, the counts are hypergeometric."""

import math


def chance_of_as_many(hits: int, of: int, reference_hits: int, reference_of: int) -> float:
    """P(at least ``hits`` of ``of``) when both groups have the same rate, given ``reference_hits`` of ``reference_of``.

    0 of 8 against 4 of 8 gives 0.038; against 3 of 8 0.1, which is no evidence."""
    both, total = hits + reference_hits, of + reference_of
    ways = math.comb(total, both)
    most = min(both, of)
    return min(1.0, math.fsum(math.comb(of, k) * math.comb(reference_of, both - k) for k in range(hits, most + 1)) / ways)
