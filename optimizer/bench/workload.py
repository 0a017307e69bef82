"""From a declared workload to the job that offers it: prompts, lengths, times, conversations. Pure: the same workload,
seed and salt give the same requests on every machine. The generator of the texts itself lies in ``plain/prompts.py``, which
runs on the box; nothing is duplicated here.

The salt names the launch (study, launch and run index): prompt heads differ between runs, so no cache of an earlier
run can help; prompt bodies, lengths and times depend on the seed alone, so that every arm of a comparison is offered the
same work.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

from optimizer.bench.plain.prompts import ASCII, WORDS, Prompts
from optimizer.model.workload import Lengths, Workload

__all__ = ["ASCII", "WORDS", "declared_cached_share", "drawn", "job_prompts", "offered", "prompts", "salt_of"]

DRAWN = 4096  # lengths in a job; after that many requests they come again, with other prompts


def salt_of(*parts: object) -> str:
    """One salt from what identifies a run, such as (study, launch index, run index)."""
    return "/".join(str(part) for part in parts)


def job_prompts(workload: Workload, seed: int | str, salt: str) -> dict[str, Any]:
    """The part of a job from which the load generator makes its prompts."""
    found: dict[str, Any] = {
        "seed": str(seed),
        "salt": salt,
        "vocabulary": workload.vocabulary,
        "prompt_tokens": workload.prompt_tokens,
        "shared_prefix_tokens": workload.shared_prefix_tokens,
    }
    if workload.prefix_groups > 1:
        found["prefix_groups"] = workload.prefix_groups
    if workload.trace:
        found["block_tokens"] = workload.block_tokens
        found["longest"] = max(request.prompt_tokens for request in workload.trace)
    if workload.prompt_lengths:
        found["longest"] = max(drawn(workload.prompt_lengths, seed, "prompt"))
    return found


def offered(workload: Workload, seed: int | str) -> dict[str, Any]:
    """The part of a job that says what is asked and when, beyond the fixed lengths."""
    found: dict[str, Any] = {}
    if workload.trace:
        start = workload.trace[0].at_s
        found["requests"] = [
            [one.prompt_tokens, one.output_tokens, round(one.at_s - start, 6), list(one.blocks)] for one in workload.trace
        ]
        found["period_s"] = workload.trace_period_s
    elif workload.prompt_lengths or workload.output_lengths:
        asked = drawn(workload.prompt_lengths, seed, "prompt") if workload.prompt_lengths else [workload.prompt_tokens] * DRAWN
        answered = drawn(workload.output_lengths, seed, "output") if workload.output_lengths else [workload.output_tokens] * DRAWN
        found["requests"] = [[one, other, 0.0] for one, other in zip(asked, answered, strict=True)]
    elif workload.conversations:
        order = list(workload.conversations)
        random.Random(f"conversations/{seed}").shuffle(order)
        found["conversations"] = [[[turn.asked, turn.answered, turn.output_tokens] for turn in one] for one in order]
    if workload.turns > 1:
        found["turns"] = workload.turns
    if workload.think_s:
        found["think_s"] = workload.think_s
    if workload.arrival != "closed":
        found["arrival"] = workload.arrival
        if workload.rate_per_s is not None:
            found["rate_per_s"] = workload.rate_per_s
        if workload.arrival == "burst":
            found["burst_size"] = workload.burst_size
    if not workload.ignore_eos:
        found["ignore_eos"] = False
    return found


def drawn(lengths: Lengths, seed: int | str, what: str, count: int = DRAWN) -> list[int]:
    """``count`` lengths in tokens, the same for the same seed."""
    source = random.Random(f"lengths/{what}/{seed}")
    if lengths.kind == "choices":
        return source.choices(lengths.values, lengths.weights or None, k=count)
    if lengths.kind == "uniform":
        return [source.randint(lengths.low, lengths.high) for _ in range(count)]
    mean, sd = float(lengths.mean or 1.0), float(lengths.sd or 1.0)
    if lengths.kind == "normal":
        values = [source.gauss(mean, sd) for _ in range(count)]
    else:
        spread = math.log1p((sd / mean) ** 2)
        values = [source.lognormvariate(math.log(mean) - spread / 2, math.sqrt(spread)) for _ in range(count)]
    return [min(lengths.high, max(lengths.low, round(value))) for value in values]


def mean_length(lengths: Lengths) -> int:
    """The average of what is drawn, in whole tokens."""
    values = drawn(lengths, "mean", "mean")
    return max(1, round(sum(values) / len(values)))


def prompts(workload: Workload, seed: int | str, salt: str, count: int) -> list[str]:
    """The first ``count`` prompts of a run, e.g. for probes."""
    made: Any = Prompts(**job_prompts(workload, seed, salt))  # type: ignore[no-untyped-call]
    return [str(made.text(index)) for index in range(count)]


def declared_cached_share(workload: Workload) -> float:
    """Share of the prompt tokens that the workload itself lets a prefix cache serve, 0 to 1: at most so much may come from a
    cache. Exact for fixed lengths; for conversations as if every answer had its full length."""
    if workload.trace:
        return _shared_blocks(workload)
    shared = workload.shared_prefix_tokens
    if workload.conversations:
        return _repeated([[(len(turn.asked), len(turn.answered)) for turn in one] for one in workload.conversations])
    if workload.prompt_lengths:
        lengths = drawn(workload.prompt_lengths, "mean", "mean")
        return sum(min(shared, one) for one in lengths) / sum(lengths)
    if workload.turns > 1:
        first = min(shared, workload.prompt_tokens)
        one = [(workload.prompt_tokens, workload.output_tokens)] * workload.turns
        total = sum(_asked(one))
        return (sum(_asked(one)[1:]) - workload.prompt_tokens * (workload.turns - 1) + first) / total
    return min(shared, workload.prompt_tokens) / workload.prompt_tokens


def _asked(turns: Sequence[tuple[int, int]]) -> list[int]:
    """Length of the whole prompt of each turn: everything said before and the new question."""
    lengths, before = [], 0
    for asked, answered in turns:
        lengths.append(before + asked)
        before += asked + answered
    return lengths


def _repeated(conversations: Sequence[Sequence[tuple[int, int]]]) -> float:
    """Share of what is sent that the same conversation had said before."""
    total = sum(sum(_asked(turns)) for turns in conversations)
    new = sum(asked for turns in conversations for asked, _ in turns)
    return 1 - new / total if total else 0.0


def _shared_blocks(workload: Workload) -> float:
    """Share of a trace's prompt tokens in blocks that an earlier request of the trace began with as well."""
    seen: set[int] = set()
    shared = total = 0
    for request in workload.trace:
        total += request.prompt_tokens
        known = True
        for place, block in enumerate(request.blocks):
            size = min(workload.block_tokens, request.prompt_tokens - place * workload.block_tokens)
            known = known and block in seen
            if size > 0 and known:
                shared += size
            seen.add(block)
    return shared / total
