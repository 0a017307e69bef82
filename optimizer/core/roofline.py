"""What the ceiling adds to the facts of one launch: how close decode comes to its bound, where the time of a round
goes, and what its drafts are worth. Pure; nothing is added where the model, the GPU or a measurement is unknown, because a
guessed bound would look like an observation."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from optimizer.ceiling.launches import launches_note
from optimizer.ceiling.predict import (
    Inputs,
    break_even,
    captured_efficiency,
    draft_rates,
    inputs_of,
    rounds_of,
    speculation_of,
    with_efficiency,
)
from optimizer.model.base import Scalar, Value
from optimizer.model.ceiling import Ceiling, HardwareSpec, ModelShape, NoCeiling, Waterfall
from optimizer.model.diagnosis import DraftLevel, Drafts, LevelCeiling, Loss
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import LoadPoint

USUAL_LEVELS = (1, 4, 16, 32, 64)
# A bench row without counts still has its rate.
_METRICS = {"ttft_p50_ms": "ttft_p50_ms", "ttft_p99_ms": "ttft_p99_ms", "tpot_p50_ms": "tpot_p50_ms"}


def load_points(rows: Iterable[Mapping[str, Value]]) -> tuple[LoadPoint, ...]:
    """Rows of a bundle's ``bench.json`` as load points. A row without concurrency, time or rate is left out."""
    found = []
    for row in rows:
        level, duration, rate = _number(row, "c"), _number(row, "duration_s"), _number(row, "output_tps")
        if (
            level is None
            or level < 1
            or not duration
            or not rate
            or rate <= 0
            or row.get("workload", "random") != "random"
        ):
            continue
        requests, failed = int(_number(row, "requests") or 0), int(_number(row, "failed") or 0)
        metrics = {"output_tokens_per_s": rate}
        for key, name in _METRICS.items():
            if (value := _number(row, key)) is not None:
                metrics[name] = value
        found.append(
            LoadPoint(
                concurrency=int(level),
                requests_ok=max(requests - failed, 0),
                requests_failed=failed,
                # A bundle's row has tokens of one request, a load point those of all.
                prompt_tokens=int(_number(row, "prompt_tokens") or 0) * max(requests - failed, 1),
                output_tokens=int(_number(row, "out_tokens") or 0) * max(requests - failed, 1),
                window_s=duration,
                metrics=metrics,
            )
        )
    return tuple(found)


def ceiling_inputs(
    evidence: Evidence,
    shape: ModelShape | NoCeiling,
    hardware: HardwareSpec | NoCeiling,
    points: Iterable[LoadPoint],
    efficiency: float | None = None,
) -> tuple[Inputs, ...]:
    """Situation and waterfall of every load point, in their order."""
    found = []
    for point in points:
        requests = max(point.requests_ok, 1)
        output = point.output_tokens / requests or (evidence.number("client.output_tokens") or 1.0)
        prompt = evidence.number("client.input_tokens") or point.prompt_tokens / requests
        found.append(
            inputs_of(
                evidence, shape, hardware, point,
                prompt_tokens=prompt, output_tokens=max(output, 1.0), efficiency=efficiency,
            )
        )  # fmt: skip
    return _graphs_expected(tuple(found))


def _graphs_expected(levels: tuple[Inputs, ...]) -> tuple[Inputs, ...]:
    """Levels outside graphs expect of a graph what the levels of this launch that ran from graphs have shown."""
    shown = captured_efficiency(levels)
    if shown is None:
        return levels
    return tuple(
        with_efficiency(item, shown) if item.efficiency is None and (item.situation.graph_off_share or 0.0) > 0 else item
        for item in levels
    )


def ceiling_facts(inputs: Iterable[Inputs]) -> Evidence:
    """roofline.* , waterfall.share and the computed worth of drafts, per concurrency, marked as derived."""
    levels = tuple(inputs)
    rounds = rounds_of(levels)
    return Evidence(facts=tuple(fact for item in levels for fact in _facts(item, rounds)))


def level_ceilings(inputs: Iterable[Inputs]) -> tuple[LevelCeiling, ...]:
    """Ceiling, measurement and losses of every load level, in their order."""
    return tuple(_level(item) for item in inputs)


def _level(item: Inputs) -> LevelCeiling:
    found, measured = item.waterfall, item.point.metrics.get("output_tokens_per_s")
    if not isinstance(found, Waterfall):
        return LevelCeiling(concurrency=item.point.concurrency, measured_tokens_per_s=measured, unknown=found.reason, contradicts=found.contradiction)
    return LevelCeiling(
        concurrency=found.concurrency,
        measured_tokens_per_s=found.measured_tokens_per_s,
        ceiling_tokens_per_s=found.ceiling.tokens_per_s,
        expected_tokens_per_s=found.ceiling.expected_tokens_per_s,
        reachable_tokens_per_s=found.reachable_tokens_per_s,
        efficiency=found.efficiency,
        bound=found.ceiling.bound,
        lost=tuple(
            Loss(bucket=part.bucket, ms=part.ms, share=found.share(part.bucket), basis=part.basis, why=part.why)
            for part in found.slices
            if part.bucket != "ceiling"
        ),
        notes=(*found.notes, *found.ceiling.assumptions, *_of_launches(item, found)),
        contradicts=_beyond(item.shape, found),
    )


def _of_launches(item: Inputs, found: Waterfall) -> tuple[str, ...]:
    """Where time is lost in launches, how well their number is known."""
    if not found.share("eager") or isinstance(item.shape, NoCeiling):
        return ()
    note = launches_note(item.shape, item.situation.kernels_per_step)
    return () if note is None else (note,)


def _beyond(shape: ModelShape | NoCeiling, found: Waterfall) -> bool:
    """Whether the speed beats a roofline that is exact: without config.json, or where experts may be chosen alike, the
    bytes that a step reads are only an upper estimate, and what beats it by little may be right."""
    exact = isinstance(shape, ModelShape) and shape.layers > 0 and not shape.experts
    return exact and found.measured_tokens_per_s > found.ceiling.tokens_per_s


def drafts(inputs: Iterable[Inputs]) -> Drafts | None:
    """Predicted speed at every depth, at the measured levels and at the usual ones; None where nothing is drafted."""
    levels = tuple(inputs)
    first = max(levels, key=lambda item: item.point.concurrency, default=None)
    rates = draft_rates(levels, USUAL_LEVELS)
    if first is None or not rates:
        return None
    return Drafts(
        draft_tokens=first.situation.draft_tokens,
        accept_len=_round(first.situation.accept_len),
        break_even=break_even(rates, first.situation.draft_tokens),
        levels=tuple(
            DraftLevel(concurrency=level, best=max(range(len(rate)), key=lambda depth: (rate[depth], -depth)),
                       tokens_per_s=tuple(_round(value) for value in rate))
            for level, rate in rates.items()
        ),
    )  # fmt: skip


def _facts(item: Inputs, rounds: Mapping[float, float]) -> Iterator[Fact]:
    found, level = item.waterfall, item.situation.intended
    if not isinstance(found, Waterfall):
        return
    bounds: Ceiling = found.ceiling
    yield _fact("roofline.bound", bounds.bound, {"phase": "decode", "concurrency": level})
    yield _fact("roofline.decode_ratio", _round(found.efficiency), {"concurrency": level}, "ratio")
    for bucket in dict.fromkeys(part.bucket for part in found.slices if part.bucket != "ceiling"):
        yield _fact("waterfall.share", _round(found.share(bucket)), {"bucket": bucket, "concurrency": level}, "ratio")
    if (worth := speculation_of(item, rounds)) is not None:
        depth, running = item.situation.draft_tokens, max(item.situation.running, 1.0)
        rates = draft_rates([item]).get(level)
        speed = rates[depth] / rates[0] if rates else worth.speedup(depth, running)
        yield _fact("spec.speed_ratio", _round(speed), {"concurrency": level}, "ratio")
        yield _fact("spec.step_ratio", _round(worth.cost.ratio(depth, running)), {"concurrency": level}, "ratio")


def _fact(name: str, value: Value, labels: dict[str, Scalar], unit: str = "") -> Fact:
    return Fact(name=name, value=value, unit=unit, labels=labels, source="", basis="derived")


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
