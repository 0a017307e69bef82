"""Exact tests of agreement. Pure; they know nothing about what was done.

``chance_of_as_many``: did more of one group do it than of another? R. A. Fisher, The Design of Experiments (1935), section 16: with
the margins held, the counts are hypergeometric.

``chance_of_separation``: every repetition of one kind differs from all repetitions of the other, which agree among themselves. A
permutation test (E. J. G. Pitman, 1937) with Markov's inequality over the items, which need not be independent of each other."""

import math


def chance_of_as_many(hits: int, of: int, reference_hits: int, reference_of: int) -> float:
    """P(at least ``hits`` of ``of``) when both groups have the same rate, given ``reference_hits`` of ``reference_of``.

    0 of 8 against 4 of 8 gives 0.038; against 3 of 8 0.1, which is no evidence."""
    both, total = hits + reference_hits, of + reference_of
    ways = math.comb(total, both)
    most = min(both, of)
    return min(1.0, math.fsum(math.comb(of, k) * math.comb(reference_of, both - k) for k in range(hits, most + 1)) / ways)


def chance_of_separation(items: int, of: int, repetitions: int, reference_repetitions: int) -> float:
    """P(at least ``items`` of ``of`` items are separated) when repetitions of both kinds are alike.

    Of the ways to name ``reference_repetitions`` of all repetitions the reference, at most ``all // reference_repetitions`` are
    groups that agree among themselves and are left by all others. 6 against 5 repetitions: 0.017 for one item of 8."""
    if not items:
        return 1.0
    together = repetitions + reference_repetitions
    one = (together // reference_repetitions) / math.comb(together, reference_repetitions) if reference_repetitions else 1.0
    return min(1.0, of * one / items)
