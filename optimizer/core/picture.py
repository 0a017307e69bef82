"""The current baseline against what its box could do: ceiling, waterfall, the facts derived from them, computed predictions and
whether the target is out of reach. Glue between the folded state and ``ceiling``; every number comes from there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.ceiling.hardware import find_hardware
from optimizer.ceiling.predict import Inputs, captured_efficiency, computed_ratio, inputs_of, rounds_of, speculation_of
from optimizer.ceiling.reach import out_of_reach as reach
from optimizer.ceiling.shape import shape_from_config, shape_from_facts
from optimizer.ceiling.waterfall import bucket_share as share_of
from optimizer.ceiling.waterfall import observed_efficiency
from optimizer.core import closing, since
from optimizer.core.once import once, once_for
from optimizer.core.plan import Plan
from optimizer.core.roofline import ceiling_facts
from optimizer.core.state import ArmState, State
from optimizer.errors import EvidenceError
from optimizer.model.ceiling import HardwareSpec, ModelShape, NoCeiling, Waterfall
from optimizer.model.evidence import Evidence
from optimizer.model.measurement import LoadPoint
from optimizer.model.playbook import Playbook

REVISED_EFFICIENCY = 0.05  # below, the launches of one setting differ by as much
DEEPEST_DRAFT = 5  # tokens: what a configuration could at most ask for


def shape_of(state: State, evidence: Evidence) -> ModelShape | NoCeiling:
    """The served model's shape, from config.json or else from the start-up facts."""
    return once_for("shape", lambda: _shape_of(state.survey or {}, evidence), state.survey, evidence)


def _shape_of(survey: Mapping[str, Any], evidence: Evidence) -> ModelShape | NoCeiling:
    config = survey.get("model_config_json")
    if isinstance(config, Mapping):
        try:
            return shape_from_config(config, str(survey.get("model_path") or ""))
        except EvidenceError as error:
            return NoCeiling(reason=error.message)
    return shape_from_facts(evidence)


def hardware_of(state: State, plan: Plan) -> HardwareSpec | NoCeiling:
    survey = state.survey or {}
    return once_for(
        "hardware", lambda: find_hardware(plan.hardware, survey.get("gpu"), survey.get("facts", {}).get("gpu.memory_mib")), plan.hardware, state.survey
    )


def inputs_at(state: State, plan: Plan, arm: ArmState, point: LoadPoint) -> Inputs:
    """Everything a computation may use about one load point of one arm."""
    evidence, efficiency = state.survey_evidence.merged(arm.evidence), best_efficiency(state, plan)
    # Of other launches the efficiency alone counts, and most do not move it.
    return once_for(f"inputs {efficiency!r}", lambda: _inputs_at(state, plan, evidence, point, efficiency), state.spec, state.survey, plan.hardware, evidence, point)


def _inputs_at(state: State, plan: Plan, evidence: Evidence, point: LoadPoint, efficiency: float | None) -> Inputs:
    requests = max(1, point.requests_ok)
    assert state.spec is not None
    prompt = point.prompt_tokens / requests if point.prompt_tokens else float(state.spec.workload.prompt_tokens)
    shape = shape_of(state, evidence)
    return inputs_of(
        evidence, shape, hardware_of(state, plan), point, prompt_tokens=prompt, output_tokens=float(state.spec.workload.output_tokens),
        efficiency=efficiency, draft_tokens_allowed=_allowed_draft(shape), interrupted=since.decides_by(state.spec, since.PROMPTS_TOLD_APART),
    )  # fmt: skip


def best_efficiency(state: State, plan: Plan) -> float | None:
    """The best η that graphed decode without drafts showed in this study at the target's concurrency, else at the side levels
    that ran from graphs; None before one did."""
    return once(state, plan, "efficiency", lambda: _best_efficiency(state, plan))


def _best_efficiency(state: State, plan: Plan) -> float | None:
    best: list[float] = []
    beside: list[Inputs] = []
    for arm in state.arms.values():
        if not arm.results:
            continue
        levels = _levels_of(state, plan, arm)
        beside += levels[1:]
        found = levels[0].waterfall
        eta = observed_efficiency(found) if isinstance(found, Waterfall) else None
        if eta is not None:
            best.append(eta)
    return max(best) if best else captured_efficiency(beside)


def _levels_of(state: State, plan: Plan, arm: ArmState) -> tuple[Inputs, ...]:
    """The load points of an arm's latest launch, before anything is known of η."""
    assert state.spec is not None
    spec = state.spec

    def compute() -> tuple[Inputs, ...]:
        evidence = state.survey_evidence.merged(arm.evidence)
        shape, hardware, load = shape_of(state, evidence), hardware_of(state, plan), spec.workload
        return tuple(
            inputs_of(evidence, shape, hardware, point, prompt_tokens=float(load.prompt_tokens), output_tokens=float(load.output_tokens),
                      interrupted=since.decides_by(spec, since.PROMPTS_TOLD_APART))
            for point in arm.results[-1].points
        )

    return once_for("levels", compute, plan.hardware, state.survey, state.survey_evidence, spec, arm)


def baseline_inputs(state: State, plan: Plan) -> Inputs | None:
    """Inputs at the target's level of the current baseline's latest launch."""
    arm = state.base_arm
    return inputs_at(state, plan, arm, arm.results[-1].points[0]) if arm.results else None


def facts(state: State, plan: Plan) -> Evidence:
    """The baseline's evidence with what its ceiling says, where nothing of the kind was observed."""
    evidence, arm = state.evidence, state.base_arm
    if not arm.results:
        return evidence
    derived = ceiling_facts(inputs_at(state, plan, arm, point) for point in arm.results[-1].points)
    observed = {fact.name for fact in evidence.facts}
    return evidence.merged(Evidence(facts=tuple(fact for fact in derived.facts if fact.name not in observed)))


def ceiling_body(state: State, plan: Plan) -> dict[str, Any]:
    """The ceiling entry: bounds and waterfall at every measured level, or why there is none."""
    arm = state.base_arm
    if not arm.results:
        return {"unknown": "nothing was measured"}
    found = [inputs_at(state, plan, arm, point) for point in arm.results[-1].points]
    rounds = rounds_of(found) if since.decides_by(state.spec, since.PROMPTS_TOLD_APART) else None
    levels = [_level(item, rounds) for item in found]
    return {**levels[0], "side": levels[1:]}


def is_revised(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a candidate's launch has shown how fast this box decodes, so that the same baseline's losses are seen otherwise."""
    was, found = before.get("efficiency"), now.get("efficiency")
    return isinstance(was, int | float) and isinstance(found, int | float) and was > 0 and abs(found / was - 1) > REVISED_EFFICIENCY


def _level(inputs: Inputs, rounds: Mapping[float, float] | None) -> dict[str, Any]:
    found = inputs.waterfall
    measured = inputs.point.metrics.get("output_tokens_per_s")
    if isinstance(found, NoCeiling):
        return {"concurrency": inputs.point.concurrency, "unknown": found.reason, "measured_tokens_per_s": measured}
    body: dict[str, Any] = {
        "concurrency": found.concurrency,
        "measured_tokens_per_s": found.measured_tokens_per_s,
        "ceiling_tokens_per_s": found.ceiling.tokens_per_s,
        "expected_tokens_per_s": found.ceiling.expected_tokens_per_s,
        "reachable_tokens_per_s": found.reachable_tokens_per_s,
        "efficiency": found.efficiency,
        "bound": found.ceiling.bound,
        "lost": [{"bucket": part.bucket, "ms": part.ms, "share": found.share(part.bucket), "basis": part.basis, "why": part.why}
                 for part in found.slices if part.bucket != "ceiling"],
        "notes": [*found.notes, *found.ceiling.assumptions],
    }  # fmt: skip
    speculation = speculation_of(inputs, rounds)
    if speculation is not None:
        if rounds:
            body["drafts_measured_to"] = max(rounds)
        body["break_even_concurrency"] = speculation.break_even(inputs.situation.draft_tokens)
        body["best_draft_tokens"] = speculation.best_depth(inputs.situation.running)
    return body


def predicted_ratio(state: State, plan: Plan, book: Playbook) -> tuple[float, float] | None:
    """The playbook's computed prediction on this launch's facts; None where it has none or the facts do not allow it."""
    if book.predicts is None or book.predicts.computed is None:
        return None
    inputs = baseline_inputs(state, plan)
    return computed_ratio(book.predicts.computed, inputs) if inputs is not None else None


def bucket_share(state: State, plan: Plan, book: Playbook) -> float | None:
    """Share of the time that curing this cause could win back at most; None where nothing limits it."""
    inputs = baseline_inputs(state, plan)
    if inputs is None or not isinstance(inputs.waterfall, Waterfall):
        return None
    return share_of(inputs.waterfall, book.addresses)


def out_of_reach(state: State, plan: Plan, rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """(kind, sentence): none, configuration or hard. Throughput targets only: they alone have a ceiling."""
    assert state.spec is not None
    primary = state.spec.target.primary
    inputs = baseline_inputs(state, plan)
    if primary is None or primary.metric != "output_tokens_per_s" or inputs is None or isinstance(inputs.waterfall, NoCeiling):
        return "none", ""
    unmeasured = closing.unmeasured(state)
    if any(row["ratio"] is None for row in rows if row["id"] in unmeasured):
        return "none", ""  # nothing bounds what it would have brought
    open_predictions = [(str(row["addresses"]), float(row["ratio"][1])) for row in rows if row["ratio"] and (row["testable"] or row["id"] in unmeasured)]
    current = max(result.value for result in state.base_arm.results)
    answer = reach(primary.value, current, inputs.waterfall, open_predictions, first_words=not since.decides_by(state.spec, since.UNITS_SAID),
                   told=_largest_told(state) if since.decides_by(state.spec, since.LOSS_AS_TOLD) else None)  # fmt: skip
    return answer.kind, "" if answer.kind == "none" else answer.sentence


def _largest_told(state: State) -> tuple[str, float] | None:
    """(bucket, share) of the largest loss in the ceiling entry of the current baseline; None where it has none."""
    lost = [part for part in (state.ceiling or {}).get("lost", ()) if isinstance(part.get("ms"), int | float) and math.isfinite(part["ms"])]
    largest = max(lost, key=lambda part: float(part["ms"]), default=None)
    return (str(largest["bucket"]), float(largest["share"])) if largest is not None else None


def _allowed_draft(shape: ModelShape | NoCeiling) -> int:
    return DEEPEST_DRAFT if isinstance(shape, ModelShape) and shape.mtp_layers else 0
