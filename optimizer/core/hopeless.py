"""Launches that are not worth a measurement: what the server said while it started already rules the idea out. Pure; speaks
only where the start-up facts of both launches are known, and never of a launch that may still pay."""

from collections.abc import Mapping

from optimizer.core.ledger import fallbacks, flips
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence

POOL_SHARE = 0.5  # of the parent's KV pool
# A fallback of these facts changes how every step is computed. Others (a sampler, a cache) may cost little.
GRAVE = ("engine.generation", "graphs.mode", "kernel.attention_backend", "allreduce.custom", "nccl.transport", "kernel.moe_backend")


def hopeless(
    parent: Evidence,
    started: Evidence,
    changed: Mapping[str, tuple[Value, Value]],
    declared: Mapping[str, tuple[str, ...]],
    *,
    tokens_needed: float,
) -> str:
    """Why a launch that has just started is given up unmeasured; empty when it is not.

    ``changed``: param -> (parent's value, its own). ``tokens_needed``: KV tokens of the requests of the target's load. A pool
    below half of the parent's is given up only where it cannot hold that load any more; a fallback only where the server's own
    log names a changed setting as its cause, nobody expected it, and the parent did not have it."""
    if not changed:
        return ""
    before, now = parent.number("kv.pool_tokens"), started.number("kv.pool_tokens")
    if before and now is not None and now < POOL_SHARE * before and now < tokens_needed <= before:
        return (
            f"its KV pool holds {now:.0f} tokens, {now / before:.0%} of the baseline's {before:.0f}, and the requests of the target's load need "
            f"{tokens_needed:.0f}: they would wait for each other"
        )
    named = {flip.fact: flip for flip in fallbacks(started)}
    for flip in flips(parent, started, changed, declared):
        said = named.get(flip.fact)
        if flip.fact in GRAVE and flip.towards_fallback and not flip.expected and said is not None and set(said.blame) & set(changed):
            return (
                f"{', '.join(said.blame)} made {flip.fact} fall back from {flip.before} to {flip.after}, as the server's own log says "
                f"(line {said.line}); nothing of the idea asks for that"
            )
    return ""
