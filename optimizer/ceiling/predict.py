"""Predictions that are computed from this launch's own facts instead of taken from a playbook's interval: the ratio of
output tokens/s that curing one cause should give. ``COMPUTED`` maps the names that a playbook may use
(``predicts.computed``) to the computation; None means that the facts allow none, and the playbook's interval stands."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from optimizer.ceiling.bounds import prefill_per_round_ms
from optimizer.ceiling.collectives import collectives_of_step
from optimizer.ceiling.decode import decode_roof
from optimizer.ceiling.launches import PRIOR_EFFICIENCY, graphed_step_ms, graphs_gain_range, launches_most_ms
from optimizer.ceiling.pace import time_per_token
from optimizer.ceiling.prefill import interruption
from optimizer.ceiling.situation import situation_of
from optimizer.ceiling.speculation import (
    MAX_DEPTH,
    Acceptance,
    RoundCost,
    Speculation,
    acceptance_of,
    fitted_cost,
    prior_cost,
)
from optimizer.ceiling.waterfall import bucket_share, observed_efficiency, waterfall
from optimizer.model.ceiling import HardwareSpec, ModelShape, NoCeiling, Situation, Waterfall
from optimizer.model.evidence import Evidence
from optimizer.model.measurement import LoadPoint

Interval = tuple[float, float]
# MTP heads of released models accept about 0.7-0.9 of their first draft; nothing is known before a run has shown it.
PRIOR_ACCEPTANCE = (0.55, 0.90)
DRAFT_DEPTH = 3
WORTH_A_LAUNCH = 1.03
DEEPER_BY = 2  # one step more changes too little to be seen in a launch


@dataclass(frozen=True)
class Inputs:
    """What a computation may use; a missing shape, GPU or waterfall makes most of them answer None."""

    situation: Situation
    point: LoadPoint
    shape: ModelShape | NoCeiling
    hardware: HardwareSpec | NoCeiling
    waterfall: Waterfall | NoCeiling
    efficiency: float | None = None  # best η seen on this box class

    @property
    def round_ms(self) -> float:
        rate = self.point.metrics.get("output_tokens_per_s", 0.0)
        return 1e3 * self.situation.intended / rate if rate > 0 else math.inf

    @property
    def per_token_ms(self) -> float | None:
        """Time per accepted token of one sequence."""
        return time_per_token(self.shape, self.hardware, self.situation, self.point)

    @property
    def prompts_share(self) -> float:
        """Share of a round in which decode stands still for prompts, 0 to 0.9; 0 where that is not considered."""
        if self.situation.interruption_ms is None or not 0 < self.round_ms < math.inf:
            return 0.0
        return min(prefill_per_round_ms(self.situation.interruption_ms, self.situation) / self.round_ms, 0.9)


def inputs_of(
    evidence: Evidence,
    shape: ModelShape | NoCeiling,
    hardware: HardwareSpec | NoCeiling,
    point: LoadPoint,
    *,
    prompt_tokens: float,
    output_tokens: float,
    efficiency: float | None = None,
    draft_tokens_allowed: int = 0,
    interrupted: bool = False,
) -> Inputs:
    """Situation, waterfall and all, for one load point of one launch. ``interrupted``: the load was steady, so that prompts
    stop decode all the time, and that is told apart from decode."""
    situation = situation_of(
        evidence, concurrency=point.concurrency, prompt_tokens=prompt_tokens, output_tokens=output_tokens
    )
    if interrupted and not isinstance(shape, NoCeiling) and not isinstance(hardware, NoCeiling):
        stands_still, measured = interruption(shape, hardware, situation, evidence, point.metrics)
        situation = situation.model_copy(update={"interruption_ms": stands_still, "interruption_measured": measured})
    found = waterfall(
        shape, hardware, situation, point, efficiency=efficiency, draft_tokens_allowed=draft_tokens_allowed
    )
    return Inputs(situation, point, shape, hardware, found, efficiency)


def with_efficiency(inputs: Inputs, efficiency: float) -> Inputs:
    """The same level, its waterfall and predictions resting on this η."""
    found = waterfall(inputs.shape, inputs.hardware, inputs.situation, inputs.point, efficiency=efficiency)
    return replace(inputs, waterfall=found, efficiency=efficiency)


def captured_efficiency(levels: Iterable[Inputs]) -> float | None:
    """The best η of levels that ran from graphs: what a level of the same box that runs outside them may expect of a
    graph. Levels too small to fill the pipeline stages and replicas show less than the box can do, so they are out."""
    found = (
        observed_efficiency(item.waterfall)
        for item in levels
        if isinstance(item.waterfall, Waterfall)
        and item.situation.graph_off_share == 0
        and item.situation.running >= item.situation.pp * item.situation.replicas
    )
    return max((eta for eta in found if eta is not None), default=None)


def computed_ratio(name: str, inputs: Inputs) -> Interval | None:
    """The interval of the computation ``name``; None where the name is unknown or the facts do not allow it."""
    computation = COMPUTED.get(name)
    return None if computation is None else computation(inputs)


def speculation_of(inputs: Inputs, rounds_ms: Mapping[float, float] | None = None) -> Speculation | None:
    """The draft model of this launch: acceptance as observed, cost fitted to the rounds that were measured.

    ``rounds_ms``: running batch -> time of a round (TPOT · A) at further load levels of the same launch. None where
    the launch does not speculate or its plain step cannot be expected."""
    if isinstance(inputs.shape, NoCeiling) or isinstance(inputs.hardware, NoCeiling):
        return None
    situation = inputs.situation
    if not situation.draft_tokens or isinstance(inputs.waterfall, NoCeiling):
        return None
    observed = dict(rounds_ms or {})
    if inputs.per_token_ms is not None:
        observed.setdefault(situation.running, inputs.per_token_ms * situation.accept_len)
    ratios = {
        batch: time / _plain_step(inputs, inputs.shape, inputs.hardware, batch) for batch, time in observed.items()
    }
    plain = _plain_step(inputs, inputs.shape, inputs.hardware, situation.running)
    prior = prior_cost(inputs.shape, inputs.hardware, situation, plain)
    acceptance = acceptance_of(situation.draft_tokens, situation.accept_len, situation.accept_by_position)
    return Speculation(acceptance, fitted_cost(situation.draft_tokens, ratios, prior))


def rounds_of(levels: Iterable[Inputs]) -> dict[float, float]:
    """Running batch -> time of a speculative round (ms), over all load levels of one launch: what ``speculation_of`` fits
    the cost of a round to. Levels that run partly outside graphs show that and not the cost of drafts, so they are out."""
    return {
        item.situation.running: item.per_token_ms * item.situation.accept_len
        for item in levels
        if item.per_token_ms is not None and not (item.situation.graph_off_share or 0.0) > 0.1
    }


def draft_rates(levels: Sequence[Inputs], wanted: Iterable[int] = ()) -> dict[int, tuple[float, ...]]:
    """Concurrency -> tokens/s at draft depth 0, 1, ... ``MAX_DEPTH``, from the acceptance and the rounds of one launch.

    A round is its decode steps, which depend on the depth, and the rest of it (prompts, first tokens), which was measured
    with drafts and is what a plain launch is expected to need without them. Between levels the rest is interpolated.
    Empty where the launch does not draft or its plain step cannot be expected."""
    rounds, rest, expected = rounds_of(levels), dict[int, float](), dict[int, float]()
    for item in levels:
        if isinstance(item.waterfall, Waterfall) and item.per_token_ms is not None and math.isfinite(item.round_ms):
            decode = item.per_token_ms * item.situation.intended / max(item.situation.running, 1.0)
            rest[item.situation.intended] = max(item.round_ms - decode, 0.0)
            ceiling = item.waterfall.ceiling
            expected[item.situation.intended] = 1e3 * ceiling.concurrency / ceiling.expected_tokens_per_s
    found: dict[int, tuple[float, ...]] = {}
    for level in sorted({*wanted, *rest}) if rest else ():
        item = min(levels, key=lambda one: abs(math.log(one.situation.intended / level)))
        worth = speculation_of(item, rounds)
        if worth is None or isinstance(item.shape, NoCeiling) or isinstance(item.hardware, NoCeiling):
            continue
        depth, limit = item.situation.draft_tokens, item.situation.running / item.situation.intended
        running = item.situation.running if level in rest else max(level * limit, 1.0)
        plain = _plain_step(item, item.shape, item.hardware, running) * level / running
        if level in rest:
            plain = (item.round_ms - rest[level]) * worth.speedup(depth, running)
        without = expected[level] if level in rest else plain + _between(level, expected) - _between(level, {
            one.situation.intended: _plain_step(one, one.shape, one.hardware, one.situation.running)
            for one in levels if not isinstance(one.shape, NoCeiling) and not isinstance(one.hardware, NoCeiling)
        })  # fmt: skip
        drafted = [plain / worth.speedup(each, running) + _between(level, rest) for each in range(1, MAX_DEPTH + 1)]
        found[level] = tuple(1e3 * level / max(time, 1e-6) for time in (without, *drafted))
    return found


def break_even(rates: Mapping[int, Sequence[float]], draft_tokens: int) -> float | None:
    """Concurrency at which drafts of this depth stop paying, read between the levels; 0 where they never pay, None where
    they pay at all of them."""
    gains = [(level, math.log(rate[draft_tokens] / rate[0])) for level, rate in sorted(rates.items())]
    if not gains or gains[0][1] <= 0:
        return 0.0 if gains else None
    for (low, before), (high, after) in pairwise(gains):
        if after <= 0:
            return float(low * (high / low) ** (before / (before - after)))
    return None


def _between(level: int, values: Mapping[int, float]) -> float:
    """Linear between the levels that were measured, level beyond them."""
    points = sorted(values.items())
    if level <= points[0][0]:
        return points[0][1]
    for (low, first), (high, second) in pairwise(points):
        if level <= high:
            return first + (level - low) / (high - low) * (second - first)
    return points[-1][1]


def graphs_on(inputs: Inputs) -> Interval | None:
    """Capturing the running batch: the eager step becomes t_roof / η, prefill and ramp stay as they are."""
    if isinstance(inputs.shape, NoCeiling) or isinstance(inputs.hardware, NoCeiling) or inputs.per_token_ms is None:
        return None
    if isinstance(inputs.waterfall, NoCeiling):  # a measurement that contradicts its roofline supports no prediction
        return None
    if not (inputs.situation.graph_off_share or 0.0) > 0 or not math.isfinite(inputs.round_ms):
        return None
    batch, accepted = max(inputs.situation.running, 1.0), inputs.situation.accept_len
    roof = decode_roof(inputs.shape, inputs.hardware, inputs.situation, batch).ms
    collectives = collectives_of_step(inputs.shape, inputs.hardware, inputs.situation, batch)
    round_cost = 1.0
    if inputs.situation.draft_tokens:
        plain = _plain_step(inputs, inputs.shape, inputs.hardware, batch)
        cost = prior_cost(inputs.shape, inputs.hardware, inputs.situation, plain)
        round_cost = cost.ratio(inputs.situation.draft_tokens, batch) / accepted
    scale = inputs.situation.intended / batch
    most = launches_most_ms(inputs.shape, inputs.situation.kernels_per_step, inputs.situation.draft_tokens) / accepted
    rest = (roof * round_cost * scale, inputs.efficiency, (collectives.best_ms if collectives else 0.0) * scale, most * scale)
    low, high = graphs_gain_range(inputs.round_ms, inputs.per_token_ms * scale, *rest)
    if inputs.situation.interruption_ms is not None:
        # Between launched steps what prompts stop cannot be measured; without any, all of the time per token is the step's.
        whole = time_per_token(inputs.shape, inputs.hardware, inputs.situation.model_copy(update={"interruption_ms": None}), inputs.point)
        high = max(high, graphs_gain_range(inputs.round_ms, (whole or inputs.per_token_ms) * scale, *rest)[1])
    return (low, max(high, low))


def admit_all(inputs: Inputs) -> Interval | None:
    """Letting every offered request run: between half of what the bucket holds and the ratio of the batches."""
    batches = inputs.situation.intended / max(inputs.situation.running, 1.0)
    if batches <= 1.01:
        return None
    share = bucket_share(inputs.waterfall, "queue_cap") if isinstance(inputs.waterfall, Waterfall) else None
    expected = 1 / (1 - min(share, 0.98)) if share else math.sqrt(batches)
    return (math.sqrt(max(expected, 1.0)), batches)


def best_collectives(inputs: Inputs) -> Interval | None:
    """The best all-reduce path of this box class in place of the one in use: ± 40 % of the time that it saves."""
    if not isinstance(inputs.waterfall, Waterfall):
        return None
    share = inputs.waterfall.share("collectives")
    return (1 / (1 - 0.6 * share), 1 / (1 - min(1.4 * share, 0.95))) if share > 0 else None


def drafts_on(inputs: Inputs) -> Interval | None:
    """A draft of the model's own MTP layer, three deep, over the usual range of acceptance, at this concurrency."""
    if isinstance(inputs.shape, NoCeiling) or isinstance(inputs.hardware, NoCeiling) or not inputs.shape.mtp_layers:
        return None
    if inputs.situation.draft_tokens or isinstance(inputs.waterfall, NoCeiling):
        return None
    batch = max(inputs.situation.running, 1.0)
    plain = inputs.per_token_ms or _plain_step(inputs, inputs.shape, inputs.hardware, batch)
    cost = prior_cost(inputs.shape, inputs.hardware, inputs.situation, plain)
    low, high = _over_acceptance(cost, batch)
    return _of_round(inputs, low, high)


def draft_depth(inputs: Inputs) -> Interval | None:
    """The best depth in place of the one in use; None where the present one is the best."""
    found = speculation_of(inputs)
    if found is None:
        return None
    running, depth = inputs.situation.running, inputs.situation.draft_tokens
    best = found.best_depth(running)
    gain = found.speedup(best, running) / found.speedup(depth, running)
    if best == depth or gain <= 1.01:
        return None
    # Decode is only a part of the round, and acceptance beyond the observed depth is extrapolated.
    return (gain**0.5, gain**1.5)


def draft_deeper(inputs: Inputs) -> Interval | None:
    """Two more drafts than now. One depth cannot tell what a round costs anyway from what each draft costs, so the interval
    spans both readings: all of the round's cost belongs to its drafts (low), none of it does (high).

    None where the middle of the two gains less than 3 %."""
    found = speculation_of(inputs)
    if found is None:
        return None
    running, depth = inputs.situation.running, inputs.situation.draft_tokens
    deeper = min(depth + DEEPER_BY, MAX_DEPTH)
    low = found.speedup(deeper, running) / found.speedup(depth, running)
    high = found.acceptance.length(deeper) / found.acceptance.length(depth)
    low, high = _of_round(inputs, low, high)
    return (low, high) if low * high > WORTH_A_LAUNCH**2 else None


def draft_shallower(inputs: Inputs) -> Interval | None:
    """A shorter draft, or none at all; None where the best depth is not shorter than the present one."""
    return draft_depth(inputs) if _best_depth(inputs) < inputs.situation.draft_tokens else None


def drafts_off(inputs: Inputs) -> Interval | None:
    """No draft in place of the one in use; None where drafting pays."""
    found = speculation_of(inputs)
    if found is None:
        return None
    gain = 1 / found.speedup(inputs.situation.draft_tokens, inputs.situation.running)
    rates = draft_rates([inputs]).get(inputs.situation.intended)
    if rates is not None:  # with what drafts cost beside the decode steps
        gain = max(gain, rates[0] / rates[inputs.situation.draft_tokens])
    return (gain**0.5, gain**1.5) if gain > 1.01 else None


COMPUTED: dict[str, Callable[[Inputs], Interval | None]] = {
    "graphs_on": graphs_on,
    "admit_all": admit_all,
    "best_collectives": best_collectives,
    "drafts_on": drafts_on,
    "draft_depth": draft_depth,
    "draft_deeper": draft_deeper,
    "draft_shallower": draft_shallower,
    "drafts_off": drafts_off,
}


def _over_acceptance(cost: RoundCost, batch: float) -> Interval:
    speeds = []
    for rate in PRIOR_ACCEPTANCE:
        chain = Acceptance(tuple(rate ** (index + 1) for index in range(DRAFT_DEPTH)), rate)
        speeds.append(Speculation(chain, cost).speedup(DRAFT_DEPTH, batch))
    return (min(speeds), max(speeds))


def _of_round(inputs: Inputs, low: float, high: float) -> Interval:
    """The ratio of output tokens/s where decode alone is ``low`` to ``high`` times as fast and prompts take what they took. An
    estimate of what they take leaves the upper edge as it is: it is what a target is called out of reach by."""
    share = inputs.prompts_share
    if not share:
        return (low, high)
    slower = [1 / ((1 - share) / gain + share) for gain in (low, high)]
    return (min(slower[0], low), slower[1] if inputs.situation.interruption_measured else high)


def _best_depth(inputs: Inputs) -> int:
    found = speculation_of(inputs)
    return inputs.situation.draft_tokens if found is None else found.best_depth(inputs.situation.running)


def _plain_step(inputs: Inputs, shape: ModelShape, hardware: HardwareSpec, batch: float) -> float:
    """Expected graphed step without drafts."""
    roof = decode_roof(shape, hardware, inputs.situation, max(batch, 1.0)).ms
    collectives = collectives_of_step(shape, hardware, inputs.situation, max(batch, 1.0))
    return graphed_step_ms(roof, inputs.efficiency or PRIOR_EFFICIENCY, collectives.best_ms if collectives else 0.0)
