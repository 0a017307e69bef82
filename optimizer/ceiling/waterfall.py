"""Splits the time of a round, from the ceiling down to what was measured, into the places where it is lost. A round
delivers one token to each of the intended sequences, so its time is concurrency / throughput and every loss adds up to
it exactly. What no other bucket explains is *kernel*; nothing is rounded away and nothing is counted twice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from optimizer.ceiling.bounds import ceiling, draft_round_roof_ms, impossible, prefill_per_round_ms
from optimizer.ceiling.collectives import Collectives, collectives_of_step
from optimizer.ceiling.decode import decode_roof
from optimizer.ceiling.launches import PRIOR_EFFICIENCY, graphed_step_ms, launches_most_ms
from optimizer.ceiling.pace import time_per_token
from optimizer.ceiling.prefill import EFFICIENCY
from optimizer.ceiling.speculation import prior_cost
from optimizer.model.ceiling import Ceiling, HardwareSpec, ModelShape, NoCeiling, Situation, Slice, Waterfall
from optimizer.model.measurement import LoadPoint
from optimizer.model.playbook import Bucket

Basis = Literal["measured", "estimated"]


@dataclass(frozen=True)
class _Loss:
    bucket: Bucket
    ms: float
    basis: Basis
    why: str


@dataclass(frozen=True)
class _Round:
    """Times of a round in ms. ``step``: what the measured step would take at the intended batch, launched as it is."""

    total: float
    decode: float  # of the total, with the running batch as measured
    step: float  # one decode round at the intended batch, per accepted token
    graphed: float  # the same from a graph
    launches: float  # the most that launching it from the host can cost
    step_known: bool


def waterfall(
    shape: ModelShape | NoCeiling,
    hardware: HardwareSpec | NoCeiling,
    situation: Situation,
    point: LoadPoint,
    *,
    efficiency: float | None = None,
    draft_tokens_allowed: int = 0,
) -> Waterfall | NoCeiling:
    """Where the time of one load point goes.

    Args:
        situation: at the concurrency of ``point``.
        efficiency: best η seen on this box class; None takes the prior, and what rests on it is *estimated*.
    """
    bounds = ceiling(shape, hardware, situation, efficiency=efficiency, draft_tokens_allowed=draft_tokens_allowed)
    if isinstance(shape, NoCeiling) or isinstance(hardware, NoCeiling) or isinstance(bounds, NoCeiling):
        return bounds if isinstance(bounds, NoCeiling) else NoCeiling(reason="the model or the GPU is unknown")
    rate = point.metrics.get("output_tokens_per_s", 0.0)
    if rate <= 0:
        return NoCeiling(reason="no output tokens per second were measured")
    if (why := impossible(shape, hardware, situation, rate)) is not None:
        return NoCeiling(reason=why, contradiction=True)
    batch, depth = float(situation.intended), situation.draft_tokens
    roof = draft_round_roof_ms(shape, hardware, situation, batch, depth) / (depth + 1)
    collectives = collectives_of_step(shape, hardware, situation, batch, depth + 1.0)
    times = _times(shape, hardware, situation, point, efficiency, collectives)
    losses = _losses(situation, times, roof, collectives, efficiency)
    return _assemble(bounds, situation, times, roof, losses, rate, efficiency, collectives)


def bucket_share(found: Waterfall, bucket: str) -> float | None:
    """Share of the round that curing ``bucket`` could win back; None where the waterfall sets no limit.

    Host time that was not measured hides in *kernel*; drafts that are not used yet have no bucket to cap them. Where what prompts
    stop was estimated, what is booked as *prefill* may be decode after all."""
    guessed = found.share("prefill") if not found.prompts_measured and bucket in ("eager", "drafts", "kernel") else 0.0
    if bucket == "none" or (bucket == "drafts" and not found.speculating):
        return None
    if bucket == "host" and not found.host_measured:
        return found.share("kernel")
    if bucket == "collectives" and not found.collectives_measured:
        return found.share("collectives") + found.share("kernel")
    return found.share(bucket) + guessed


def observed_efficiency(found: Waterfall) -> float | None:
    """η of this launch, where it ran from graphs without drafts: what a later waterfall of the box class may expect."""
    clean = not found.speculating and found.share("eager") == 0 and found.share("queue_cap") == 0
    return found.efficiency if clean else None


def _times(
    shape: ModelShape,
    hardware: HardwareSpec,
    situation: Situation,
    point: LoadPoint,
    efficiency: float | None,
    collectives: Collectives | None,
) -> _Round:
    total = 1e3 * situation.intended / point.metrics["output_tokens_per_s"]
    scale = situation.intended / max(situation.running, 1.0)
    per_token = time_per_token(shape, hardware, situation, point)
    used = efficiency or PRIOR_EFFICIENCY
    best_ms = collectives.best_ms if collectives else 0.0
    graphed = _graphed_round(shape, hardware, situation, float(situation.intended), used, best_ms)
    graphed_now = _graphed_round(shape, hardware, situation, max(situation.running, 1.0), used, best_ms)
    decode = total if per_token is None else min(scale * per_token, total)
    now = decode / scale
    # A larger batch costs a graphed step its extra reads; an eager step is bound by its launches and stays as it is.
    eager = (situation.graph_off_share or 0.0) > 0.5
    step = max(now, graphed) if eager else now + max(graphed - graphed_now, 0.0)
    most = launches_most_ms(shape, situation.kernels_per_step, situation.draft_tokens) / situation.accept_len
    return _Round(total, decode, min(step, decode), graphed, most, per_token is not None)


def _graphed_round(
    shape: ModelShape,
    hardware: HardwareSpec,
    situation: Situation,
    batch: float,
    efficiency: float,
    collectives_ms: float,
) -> float:
    """Expected time per accepted token and sequence of a graphed step, or of a round of drafts over its acceptance."""
    plain = graphed_step_ms(decode_roof(shape, hardware, situation, batch).ms, efficiency, collectives_ms)
    if not situation.draft_tokens:
        return plain
    cost = prior_cost(shape, hardware, situation, plain)
    return plain * cost.ratio(situation.draft_tokens, batch) / situation.accept_len


def _losses(
    situation: Situation, times: _Round, roof: float, collectives: Collectives | None, efficiency: float | None
) -> list[_Loss]:
    """What each bucket asks for, in order; ``_assemble`` grants no more than is there."""
    accepted, depth = situation.accept_len, situation.draft_tokens
    told = situation.interruption_ms is None or situation.interruption_measured
    prompts_basis: Basis = "measured" if times.step_known and told else "estimated"
    losses = [
        _Loss(
            "queue_cap", times.decode - times.step, situation.running_basis,
            f"{situation.running:.0f} of {situation.intended} sequences run: {situation.running_why}",
        ),
        _Loss("prefill", times.total - times.decode, prompts_basis, "the part of a round that is not decode steps"),
    ]  # fmt: skip
    off = situation.graph_off_share or 0.0
    if off > 0:
        expected = f"{times.graphed:.1f} ms expected from a graph"
        losses.append(_Loss(
            "eager", off * min(times.step - times.graphed, times.launches), "measured" if efficiency else "estimated",
            f"{off:.0%} of the decode steps run outside graphs: {times.step:.1f} ms against {expected}",
        ))  # fmt: skip
    if collectives is not None and collectives.lost_ms > 0 and collectives.used_path != "custom_eager":
        basis: Basis = "measured" if situation.allreduce_us is not None else "estimated"
        losses.append(_Loss(
            "collectives", collectives.lost_ms / accepted, basis,
            f"{collectives.count} all-reduces per step over {collectives.used_path} take {collectives.used_us:.1f} us, "
            f"over {collectives.best_path} {collectives.best_us:.1f} us",
        ))  # fmt: skip
    if depth:
        spent = times.step - math.fsum(max(loss.ms, 0.0) for loss in losses if loss.bucket in ("eager", "collectives"))
        losses.append(_Loss(
            "drafts", (depth + 1 - accepted) / (depth + 1) * spent, "measured",
            f"{accepted:.2f} of {depth + 1} tokens of a round are accepted",
        ))  # fmt: skip
    if situation.idle_gap_share is not None:
        losses.append(_Loss(
            "host", situation.idle_gap_share * times.step, "measured",
            f"the GPU waits for the host during {situation.idle_gap_share:.0%} of the steps",
        ))  # fmt: skip
    return losses


def _assemble(
    bounds: Ceiling,
    situation: Situation,
    times: _Round,
    roof: float,
    losses: Sequence[_Loss],
    rate: float,
    efficiency: float | None,
    collectives: Collectives | None,
) -> Waterfall:
    left = max(times.total - roof, 0.0)
    granted: list[_Loss] = []
    for loss in losses:
        ms = min(max(loss.ms, 0.0), left)
        left -= ms
        if ms > 0:
            granted.append(_Loss(loss.bucket, ms, loss.basis, loss.why))
    # The rest carries the error of every estimate above it, and is itself one where that error may exceed it.
    guessed = math.fsum(loss.ms for loss in granted if loss.basis == "estimated")
    basis: Basis = "measured" if times.step_known and guessed <= left else "estimated"
    hidden = _hidden(situation, collectives)
    rest = "what no other bucket explains: kernels slower than the roofline"
    granted.append(_Loss("kernel", left, basis, ", and ".join((rest, *hidden))))
    slices, reached = [], min(roof, times.total)
    slices.append(_slice("ceiling", reached, reached, situation, "measured", f"the roofline, bound by {bounds.bound}"))
    for loss in granted:
        reached += loss.ms
        slices.append(_slice(loss.bucket, loss.ms, reached, situation, loss.basis, loss.why))
    by_bucket = {loss.bucket: loss.ms for loss in granted}
    needed = bounds.prefill_ms_per_request / EFFICIENCY if situation.interruption_ms is None else situation.interruption_ms
    prefill_floor = prefill_per_round_ms(needed, situation)
    winnable = math.fsum(by_bucket.get(bucket, 0.0) for bucket in ("queue_cap", "eager", "collectives"))
    winnable += max(by_bucket.get("prefill", 0.0) - prefill_floor, 0.0)
    winnable += by_bucket.get("host", 0.0)
    plain = situation.draft_tokens == 0 and (situation.graph_off_share or 0.0) == 0
    own = min(roof / times.step, 1.0) if plain and times.step > 0 else None
    return Waterfall(
        concurrency=situation.intended,
        measured_tokens_per_s=rate,
        ceiling=bounds,
        slices=tuple(slices),
        efficiency=own or efficiency or PRIOR_EFFICIENCY,
        reachable_tokens_per_s=1e3 * situation.intended / max(times.total - winnable, 1e-9),
        speculating=situation.draft_tokens > 0,
        host_measured=situation.idle_gap_share is not None,
        collectives_measured=situation.allreduce_us is not None or situation.tp <= 1,
        prompts_measured=situation.interruption_ms is None or situation.interruption_measured,
        notes=(*_notes(times, roof, granted, situation), *hidden.values()),
    )


def _hidden(situation: Situation, collectives: Collectives | None) -> dict[str, str]:
    """What *kernel* may hold beside kernels, because the facts do not measure it: its name -> the note that says so."""
    found = {}
    if situation.tp > 1 and collectives is None:
        over = f" (here over {situation.allreduce_path})" if situation.allreduce_path else ""
        found["collectives"] = (
            f"collectives{over}: cannot tell without config.json, which has the number and the width of the layers; "
            "what they take is counted as kernel"
        )
    if situation.overlap is False and situation.idle_gap_share is None:
        found["host time"] = (
            "host: the overlap schedule is off, so the GPU waits for the host between steps; no profile measured how "
            "long, what it takes is counted as kernel"
        )
    return found


def _slice(
    bucket: Bucket | Literal["ceiling"], ms: float, reached: float, situation: Situation, basis: Basis, why: str
) -> Slice:
    return Slice(bucket=bucket, ms=ms, tokens_per_s_after=1e3 * situation.intended / reached, basis=basis, why=why)


def _notes(times: _Round, roof: float, granted: Sequence[_Loss], situation: Situation) -> tuple[str, ...]:
    notes = []
    if times.total < roof * 0.999:
        notes.append("The measurement beats the roofline: the shape, the GPU or the count of tokens is wrong.")
    lost = math.fsum(loss.ms for loss in granted)
    estimated = math.fsum(loss.ms for loss in granted if loss.basis == "estimated")
    if lost > 0 and estimated > lost / 2:
        cheapest = (
            "one launch with the running batch captured would measure the graphed step"
            if (situation.graph_off_share or 0.0) > 0
            else "a profile of ten steps would measure it"
        )
        notes.append(f"{estimated / lost:.0%} of the loss is estimated, not measured; {cheapest}.")
    if situation.interruption_ms is not None and situation.prompt_tokens > 0:
        how = "measured" if situation.interruption_measured else "expected, not measured"
        notes.append(f"Each prompt stops decode for {situation.interruption_ms:.1f} ms ({how}), {situation.intended} times while an answer is written.")
    if not times.step_known:
        notes.append("No time per token was measured, so prefill could not be told from decode.")
    return tuple(notes)
