"""What changed between two studies of the same kind of server, most often before and after an upgrade: what was asked, what the
engine resolved without being asked, which start-up facts flipped, how much faster or slower it is, and which setting to put back
first. Compares measurements only; nothing is judged that neither study measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optimizer.core import closing, ledger
from optimizer.core.plan import Plan
from optimizer.core.state import ArmState, State, mean_ln
from optimizer.errors import UsageError
from optimizer.model.base import Value
from optimizer.model.playbook import SetAction, SpaceAction
from optimizer.model.startup import Flip
from optimizer.stats.interval import half_width, standard_error

CONFIDENCE = 0.95
# Of one launch or one folder, not of a version: where it listened, what it was called, what it drew by lot.
INCIDENTAL = frozenset({
    "port", "host", "served_model_name", "model_path", "model", "tokenizer_path", "tokenizer", "random_seed", "seed", "nccl_port", "dist_init_addr",
    "log_level", "api_key", "admin_api_key", "crash_dump_folder", "download_dir", "model_tag", "status", "version", "internal_states", "instance_id",
    "max_total_num_tokens", "max_req_input_len", "env.CUDA_VERSION", "env.NCCL_VERSION", "env.CUDNN_VERSION",
})  # fmt: skip
STEP_METRICS = ("output_tokens_per_s", "tpot_p50_ms", "ttft_p50_ms")


def compare(
    before: State, after: State, plan: Plan, *, best: bool = False, ceilings: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = (None, None)
) -> dict[str, Any]:
    """``before`` against ``after``, each as found, or with ``best`` as each study left it. ``ceilings``: the body of the ceiling entry of
    each, for where the time went. Raises UsageError where one measured nothing."""
    was, now = (state.base_arm if best else state.first_arm for state in (before, after))
    for state, arm in ((before, was), (after, now)):
        if not arm.results:
            raise UsageError(f"The study {state.spec.study if state.spec else '?'} measured nothing that could be compared.",
                             hint="Compare studies whose baseline was measured (optimize studies).")  # fmt: skip
    asked = _differences(_asked(before, was), _asked(after, now))
    resolved = {name: pair for name, pair in _differences(was.effective, now.effective).items() if name not in asked and name not in _asked(after, now)}
    declared = {param.name: param.flips for space in plan.spaces for param in space.params}
    old, new = (state.survey_evidence.merged(arm.evidence) for state, arm in ((before, was), (after, now)))
    flips = ledger.flips(old, new, {**asked, **resolved}, declared)
    same_build = _build(before) is not None and _build(before) == _build(after)
    # One build has one set of defaults: what it resolves otherwise follows from what it was asked otherwise, if anything was.
    changed = {} if same_build and asked else {name: pair for name, pair in resolved.items() if not _follows(name, asked)}
    buckets = _buckets(*ceilings)
    return {
        "before": _identity(before, was), "after": _identity(after, now),
        "comparable": _comparable(before, after), "same_build": same_build,
        "asked": [{"setting": name, "before": pair[0], "after": pair[1]} for name, pair in sorted(asked.items())],
        "resolved": [{"setting": name, "before": pair[0], "after": pair[1]} for name, pair in sorted(resolved.items())],
        "flips": [flip.plain() for flip in flips if not flip.minor],
        "speed": _speed(before, was, after, now),
        "levels": _levels(was, now),
        "buckets": buckets,
        "suspects": _suspects(asked, changed, flips, _cures(plan, _moved(buckets))),
    }  # fmt: skip


def _asked(state: State, arm: ArmState) -> dict[str, Value]:
    """What the command line and environment said; a removed flag is absent."""
    return {name: value for name, value in {**state.given, **arm.settings.values}.items() if value is not None}


def _differences(before: Mapping[str, Value], after: Mapping[str, Value]) -> dict[str, tuple[Value, Value]]:
    """name -> (before, after); a setting that only one side has is compared with None."""
    names = sorted((before.keys() | after.keys()) - INCIDENTAL)
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _build(state: State) -> str | None:
    """The engine's version as its own program or its log tells it."""
    told = (state.survey or {}).get("engine_version") or state.survey_evidence.value("engine.version")
    return str(told) if told else None


def _follows(name: str, asked: Mapping[str, Any]) -> bool:
    """Whether a resolved value is another word for one that was asked otherwise: ``effective_max_running_requests``."""
    return name.startswith("effective_") or any(param in name for param in asked)


def _identity(state: State, arm: ArmState) -> dict[str, Any]:
    survey = state.survey or {}
    return {
        "study": state.spec.study if state.spec else "", "engine": survey.get("engine"), "engine_version": _build(state),
        "gpu": survey.get("gpu"), "gpu_count": survey.get("gpu_count"), "model": survey.get("model_path"), "launches": len(arm.results),
        "workload": state.spec.workload.text if state.spec else "", "settings": dict(arm.settings.values),
    }  # fmt: skip


def _comparable(before: State, after: State) -> list[str]:
    """Why the two numbers may not be set against each other; empty when they may."""
    one, other = before.survey or {}, after.survey or {}
    names = {"engine": "engines", "gpu": "GPUs", "gpu_count": "numbers of GPUs"}
    said = [f"different {plural}: {one.get(name)} and {other.get(name)}" for name, plural in names.items() if one.get(name) != other.get(name)]
    if before.spec and after.spec and before.spec.workload.text != after.spec.workload.text:
        said.append(f"different loads: {before.spec.workload.text}; and {after.spec.workload.text}")
    shapes = [(survey.get("model_config_json") or {}) for survey in (one, other)]
    keys = ("architectures", "hidden_size", "num_hidden_layers", "quantization_config")
    if any(shapes[0].get(key) != shapes[1].get(key) for key in keys):
        said.append("different models")
    return said


def gain(state: State) -> dict[str, Any] | None:
    """What a study has brought: all launches of what it kept, its confirmation among them, against all of the server as found;
    ``ratio`` above 1 is better. None where nothing is kept, or a launch gave nothing."""
    was, now = state.first_arm, state.base_arm
    if not closing.is_kept(state) or not was.results or not now.results or min(one.value for one in (*was.results, *now.results)) <= 0:
        return None
    return _speed(state, was, state, now)


def _speed(before: State, was: ArmState, after: State, now: ArmState) -> dict[str, Any]:
    """The ratio of the primary metrics with its 95 % interval over launches; the larger noise of the two studies counts."""
    noises = [closing.pooled(state) for state in (before, after)]
    noise = max(noises, key=lambda item: item.sd)
    difference = mean_ln(now.results) - mean_ln(was.results)
    half = half_width(CONFIDENCE, noise.degrees_of_freedom, standard_error(noise.sd, len(now.results), len(was.results)))
    low, high = math.exp(difference - half), math.exp(difference + half)
    verdict = "faster" if low > 1 else "slower" if high < 1 else "cannot tell"
    return {"ratio": math.exp(difference), "interval": [low, high], "launches": [len(was.results), len(now.results)], "verdict": verdict}


def _levels(was: ArmState, now: ArmState) -> list[dict[str, Any]]:
    """Step times at every concurrency that both measured: the last launch of each, so without an interval."""
    rows = []
    after = {point.concurrency: point for point in now.results[-1].points}
    for point in was.results[-1].points:
        other = after.get(point.concurrency)
        if other is not None:
            rows.append({"concurrency": point.concurrency, **{name: [point.metrics.get(name), other.metrics.get(name)] for name in STEP_METRICS}})
    return sorted(rows, key=lambda row: row["concurrency"])


def _buckets(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where the time of one token of every stream went, in ms, by the ceilings of both at one concurrency; None where one has none."""
    if before is None or after is None or before.get("unknown") or after.get("unknown") or before.get("concurrency") != after.get("concurrency"):
        return None
    old, new = ({part["bucket"]: part for part in ceiling.get("lost", ())} for ceiling in (before, after))
    rows = [
        {"bucket": name, "before_ms": old.get(name, {}).get("ms", 0.0), "after_ms": new.get(name, {}).get("ms", 0.0),
         "basis": "measured" if all(side.get(name, {}).get("basis", "measured") == "measured" for side in (old, new)) else "estimated"}
        for name in sorted(old.keys() | new.keys())
    ]  # fmt: skip
    return {"concurrency": before["concurrency"], "rows": sorted(rows, key=lambda row: -abs(row["after_ms"] - row["before_ms"]))}


def _moved(buckets: Mapping[str, Any] | None) -> str:
    """The bucket that changed most; empty where none changed by a tenth of a millisecond."""
    first = buckets["rows"][0] if buckets is not None and buckets["rows"] else None
    return str(first["bucket"]) if first is not None and abs(first["after_ms"] - first["before_ms"]) >= 0.1 else ""


def _cures(plan: Plan, bucket: str) -> dict[str, str]:
    """The settings that cure what costs time in ``bucket``: name -> bucket."""
    spaces = {space.id: [param.name for param in space.params] for space in plan.spaces}
    named: dict[str, str] = {}
    for book in plan.playbooks:
        if not bucket or book.addresses != bucket:
            continue
        for action in book.actions:
            names = list(action.params) if isinstance(action, SetAction) else spaces.get(action.space, []) if isinstance(action, SpaceAction) else []
            named |= dict.fromkeys(names, bucket)
    return named


# No setting of a server flips a driver; and what NCCL says of its variables is the variables again.
NOT_FLIPPED = ("gpu.", "host.", "topology.", "nccl.env", "engine.version")


def _suspects(
    asked: Mapping[str, tuple[Value, Value]], resolved: Mapping[str, tuple[Value, Value]], flips: tuple[Flip, ...], cures: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Settings to put back, the best founded first: blamed alone for a fallback, blamed for a flip or known to cure where the time went,
    merely different."""
    rows = []
    for name, (before, after) in {**asked, **resolved}.items():
        mine = [flip for flip in flips if name in flip.blame and not flip.minor and not flip.fact.startswith(NOT_FLIPPED)]
        weight = sum((3.0 if flip.towards_fallback else 1.0) / len(flip.blame) for flip in mine)
        rows.append({
            "setting": name, "back_to": before, "now": after, "unasked": name in resolved, "weight": weight + (1.0 if name in cures else 0.0), "cures": cures.get(name),
            "flips": [{"fact": flip.fact, "before": flip.before, "after": flip.after, "towards_fallback": flip.towards_fallback, "why": flip.why} for flip in mine],
        })  # fmt: skip
    return sorted(rows, key=lambda row: (-row["weight"], not row["unasked"], isinstance(row["back_to"], list | tuple), row["setting"]))  # a list often follows from one number
