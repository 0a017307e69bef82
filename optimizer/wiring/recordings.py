"""``optimize replay … --policy``: another policy over what was measured before. The measurements come from a study's journal or
from a folder of recorded launches; a setting that was never measured is counted as not recorded, and never made up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optimizer.core.predicate import Look
from optimizer.core.state import ArmState, State, fold, metric_value
from optimizer.engines.registry import engines
from optimizer.errors import UsageError
from optimizer.evidence.bundle import Bundle, read_bundle
from optimizer.journal import Journal, Place
from optimizer.knowledge.library import Library
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json
from optimizer.model.flags import FlagTable
from optimizer.runner.diagnose import settings_of
from optimizer.search.by_evidence import Recorded, outlook
from optimizer.search.contest import contest
from optimizer.search.encode import Effect
from optimizer.search.policies import names as policy_names
from optimizer.search.table import Direction, Table, direction_of, effect_of
from optimizer.wiring import Roots, library, plan_of

_NEAR = 0.95
RATE = "output_tokens_per_s"
_SEEDS = 20


@dataclass(frozen=True)
class PolicyOptions:
    """What was asked on the command line. ``start``: the name of the launch to start from (default: the study's baseline). ``objective``
    None: what the study's target is in, else output tokens/s; ``seeds`` None: as many as the policy has a use for."""

    policy: str
    start: str | None = None
    concurrency: int | None = None
    objective: str | None = None
    seeds: int | None = None

    @property
    def metric(self) -> str:
        return self.objective or RATE


def is_recordings(folder: Path) -> bool:
    return folder.is_dir() and not (folder / "journal.db").is_file() and any(folder.glob("*/launch.json"))


def replay_policy(folder: Place, roots: Roots, options: PolicyOptions) -> dict[str, Any]:
    """Let a policy choose among the recorded configurations. Raises UsageError for a policy, launch or folder that is none."""
    ordered = options.policy == "evidence" or Path(options.policy).suffix == ".json"
    if ordered and options.seeds is not None:
        raise UsageError(f"--seeds says nothing here: {options.policy} decides the same each time.", hint="Leave it out, or name a policy with luck: tpe, gp, random.")
    known = library(roots)
    if isinstance(folder, Path) and is_recordings(folder):
        launches = _of_folder(folder, options)
    else:
        options, launches = _of_journal(folder, options)
    way, effect = direction_of(options.metric), effect_of(options.metric, direction_of(options.metric))
    start = _start(launches, options, folder)
    alike = [item for item in launches if item is start or _comparable(item, start)]
    measured = [item for item in alike if item.values]
    if len(measured) < 2:
        raise UsageError(f"{folder.name} holds {len(measured)} configuration that was measured{_at(options)}: there is nothing to choose.", hint=_levels(options))
    best = max(measured, key=lambda item: _mean(item) * (1 if way == "max" else -1))
    started, refused = time.perf_counter(), dict[str, str]()
    if Path(options.policy).suffix == ".json":
        steps, missing = _scripted(Path(options.policy), measured, start)
    elif options.policy == "evidence":
        steps, missing, refused = _evidence(alike, start, known, way, effect)
    else:
        return _contest(folder, measured, start, best, known, options, way, effect)
    took = time.perf_counter() - started
    return _document(folder, start, best, steps, missing, refused, way, options, took)


# ---- where the launches come from -----------------------------------------------------------------------------------


def _of_folder(folder: Path, options: PolicyOptions) -> list[Recorded]:
    found = []
    for path in sorted(path.parent for path in folder.glob("*/launch.json")):
        bundle = read_bundle(path)
        adapter = engines().get(bundle.engine)
        flags = adapter.flags(bundle.help_text) if adapter is not None and bundle.help_text else FlagTable(known=False)
        asked = bundle.evidence.value("settings.asked")
        settings: dict[str, Value] = {name: value for name, value in (asked if isinstance(asked, dict) else {}).items() if name not in ("host", "port")}
        settings |= {f"env.{name}": value for name, value in bundle.env.items()}
        rows = [row for row in bundle.bench if options.concurrency is None or row.get("c") == options.concurrency]
        found.append(
            Recorded(
                name=path.name, engine=bundle.engine, settings=settings, values=_values(rows, options), flags=flags, engine_version=bundle.engine_version or None,
                look=Look(facts=bundle.evidence, settings=settings_of(bundle), box=_box(bundle)), failed="" if bundle.ready else "it never served",
            )
        )  # fmt: skip
    return found


def _values(rows: Sequence[dict[str, Value]], options: PolicyOptions) -> tuple[float, ...]:
    """The objective at the highest level asked for; the benchmark's own names are understood."""
    if not rows:
        return ()
    row = rows[-1]
    own = {RATE: "output_tps"}.get(options.metric, options.metric)
    value = row.get(options.metric, row.get(own))
    return (float(value),) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else ()


def _box(bundle: Bundle) -> dict[str, Value]:
    memory, count = bundle.evidence.number("gpu.memory_total_gib"), bundle.evidence.number("gpu.count")
    box: dict[str, Value] = {}
    if memory is not None:
        box["gpu.memory_mib"] = memory * 1024
    if count is not None:
        box["gpu.count"] = count
    return box


def _of_journal(folder: Place, options: PolicyOptions) -> tuple[PolicyOptions, list[Recorded]]:
    """The launches of a study, and the options with the objective that it had where none was named."""
    with Journal.open(folder, write=False) as journal:
        state = fold(journal.read())
    survey = state.survey or {}
    primary = state.spec.target.primary if state.spec is not None else None
    options = replace(options, objective=options.objective or (primary.metric if primary is not None else RATE))
    _need_level(state, folder, options)
    found = []
    for arm in state.arms.values():
        name = "baseline" if not arm.settings.values else canonical_json(dict(arm.settings.values))
        look = Look(facts=state.survey_evidence.merged(arm.evidence), settings={**state.given, **arm.settings.values, **arm.effective}, box=survey.get("facts", {}))
        settings = {key: value for key, value in {**state.given, **arm.settings.values}.items() if value is not None}
        found.append(
            Recorded(
                name=name, engine=str(survey.get("engine", "")), settings=settings, values=_measured(state, arm, options), look=look,
                flags=state.flags, engine_version=survey.get("engine_version"), failed=arm.crashed or "",
            )
        )  # fmt: skip
    _need_arms(found, state, folder)
    return options, found


def _measured(state: State, arm: ArmState, options: PolicyOptions) -> tuple[float, ...]:
    """The objective of every launch at the load that counts: the target's, unless another one was named."""
    assert state.spec is not None
    level = options.concurrency or state.spec.workload.concurrency
    points = [point for result in arm.results for point in result.points if point.concurrency == level]
    return tuple(value for point in points if (value := metric_value(point, options.metric)) is not None)


def _need_level(state: State, folder: Place, options: PolicyOptions) -> None:
    points = [point for arm in state.arms.values() for result in arm.results for point in result.points]
    levels = sorted({point.concurrency for point in points})
    if points and options.concurrency is not None and options.concurrency not in levels:
        raise UsageError(f"{folder.name} measured nothing at concurrency {options.concurrency}.", hint=f"It measured at: {', '.join(map(str, levels))}")
    if points and all(metric_value(point, options.metric) is None for point in points):
        names = sorted({name for point in points for name in point.metrics if not name.endswith(("_se", "_spread"))})
        raise UsageError(f"{folder.name} measured no {options.metric}.", hint=f"--objective is one of: {', '.join(names)}")


def _need_arms(found: Sequence[Recorded], state: State, folder: Place) -> None:
    if not found:
        raise UsageError(f"{folder.name} measured nothing: there is nothing to replay.", hint=f"It ended: {(state.closed or {}).get('ending', 'unfinished')}")


def _start(launches: Sequence[Recorded], options: PolicyOptions, folder: Place) -> Recorded:
    wanted = options.start or "baseline"
    exact = [item for item in launches if item.name == wanted] or [item for item in launches if item.name.endswith(wanted)]
    if len(exact) != 1 or not exact[0].values:
        names = ", ".join(item.name for item in launches if item.values)
        what = "does not name one launch" if len(exact) != 1 else f"was not measured{_at(options)}"
        raise UsageError(f"--from {wanted!r} {what} of {folder.name}.", hint=f"Measured: {names or 'nothing'}{_other_levels(folder)}")
    return exact[0]


def _other_levels(folder: Place) -> str:
    """The loads that a folder of recordings has, for whoever named one that it has not."""
    if not (isinstance(folder, Path) and is_recordings(folder)):
        return ""
    levels = {row.get("c") for path in folder.glob("*/launch.json") for row in read_bundle(path.parent).bench}
    return f". Loads that were measured: {', '.join(str(level) for level in sorted(levels, key=str))}"


def _comparable(item: Recorded, start: Recorded) -> bool:
    """Only launches of one engine, model and number of GPUs may be compared."""
    same = ("model_path", "model", "tp_size", "tensor_parallel_size")
    return item.engine == start.engine and all(item.settings.get(name) == start.settings.get(name) for name in same)


def _at(options: PolicyOptions) -> str:
    return f" at concurrency {options.concurrency}" if options.concurrency is not None else ""


def _levels(options: PolicyOptions) -> str:
    return "Other levels: --concurrency N." if options.concurrency is not None else "Name another study."


# ---- the policies ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    launch: Recorded
    why: str


def _evidence(alike: Sequence[Recorded], start: Recorded, known: Library, way: Direction, effect: Effect) -> tuple[list[_Step], list[str], dict[str, str]]:
    """Launch, read what it left, choose again, until nothing promising is left. Also what was never recorded, and what was refused and why."""
    plan, sign = plan_of(known), 1.0 if way == "max" else -1.0
    left = {index: item for index, item in enumerate(alike) if item is not start}
    current, steps, missing, refused = start, list[_Step](), list[str](), dict[str, str]()
    while left:
        seen = outlook(current, left, plan, known.directions, effect)
        refused |= {alike[index].name: why for index, why in seen.refused.items()}
        missing += [wish for wish in seen.not_recorded if wish not in missing]
        best = next(iter(seen.promises), None)
        if best is None or best.gain <= 0:
            break
        launched = left.pop(best.index)
        if not launched.values and not launched.failed:
            missing.append(f"{launched.name} (recorded, but not measured at this level)")
            continue
        steps.append(_Step(launched, best.why if not launched.failed else f"{best.why}; {launched.failed}"))
        if launched.values and sign * _mean(launched) > sign * _mean(current):
            current = launched
    return steps, missing, refused


def _scripted(path: Path, measured: Sequence[Recorded], start: Recorded) -> tuple[list[_Step], list[str]]:
    """A file that lists changes to the start in the order to try them: [{"cuda_graph_max_bs": 32}, …]; null takes a setting away."""
    try:
        wanted = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"The policy file {path} cannot be read: {error}.", hint='It is a JSON list of changes: [{"max_num_seqs": 256}, …]') from error
    if not isinstance(wanted, list) or not all(isinstance(item, dict) for item in wanted):
        raise UsageError(f"The policy file {path} is no list of changes.", hint='[{"cuda_graph_max_bs": 32}, {"disable_cuda_graph": null}]')
    by_settings = {canonical_json(dict(item.settings)): item for item in measured}
    steps, missing = list[_Step](), list[str]()
    for changes in wanted:
        merged = {name: value for name, value in {**start.settings, **changes}.items() if value is not None}
        item = by_settings.get(canonical_json(merged))
        if item is None:
            missing.append(canonical_json(changes))
        elif item is not start:
            steps.append(_Step(item, "the file asks for it"))
    return steps, missing


def _contest(
    folder: Place, measured: Sequence[Recorded], start: Recorded, best: Recorded, known: Library, options: PolicyOptions, way: Direction, effect: Effect
) -> dict[str, Any]:
    if options.policy not in policy_names():
        raise UsageError(f"There is no policy {options.policy!r}.", hint=f"There are: {', '.join(policy_names())}, or a JSON file of changes in order.")
    others = [item for item in measured if item is not start]
    names = tuple(sorted({name for item in others for name in item.settings}))
    if len(others) < 2:
        raise UsageError(f"{folder.name} measured {len(others)} configuration{'s' * (len(others) != 1)} beside {start.name}{_at(options)}: there is nothing for {options.policy} to choose between.",
                         hint="--policy evidence replays it: what it would have launched instead is listed.")  # fmt: skip
    varied = tuple(name for name in names if len({canonical_json(item.settings.get(name)) for item in others}) > 1)
    table = Table(
        name=folder.name, names=varied, points=tuple({name: item.settings.get(name) for name in varied} for item in others),
        results=tuple(item.values for item in others), direction=way, effect=effect, default=None,
    )  # fmt: skip
    seeds = options.seeds or _SEEDS
    score = contest(table, (options.policy,), known.directions, seeds)[0]
    found = {"study": folder.name, "policy": options.policy, "from": start.name, "configurations": len(others), "best": {"name": best.name, "value": _mean(best)},
             **{name: value for name, value in score.plain().items() if name not in ("policy", "own_s")},
             "decisions_per_s": round(score.steps / score.own_s) if score.own_s > 0 else None, "identical": True}  # fmt: skip
    reached = score.launches_to["95%"]
    found["text"] = (
        f"{folder.name}: {options.policy} needs {reached.mean:.1f} ± {reached.se:.1f} launches (mean of {seeds} seeds ± its standard error) from {start.name} to 95 % of the "
        f"best of {len(others)} recorded configurations; {score.not_recorded:.1f} points asked for were never measured. Launches that failed are not among them."
    )
    return found


# ---- what is said ---------------------------------------------------------------------------------------------------


def _document(
    folder: Place, start: Recorded, best: Recorded, steps: Sequence[_Step], missing: Sequence[str], refused: Mapping[str, str], way: Direction, options: PolicyOptions, took: float
) -> dict[str, Any]:
    at_once = _share(start, best, way)
    shares, reached = [], 0 if at_once is not None and at_once >= _NEAR else None
    for number, step in enumerate(steps, 1):
        share = _share(step.launch, best, way)
        shares.append(share)
        if reached is None and share is not None and share >= _NEAR:
            reached = number
    document: dict[str, Any] = {
        "study": folder.name,
        "policy": options.policy,
        "from": {"name": start.name, "value": _mean(start), "share_of_best": at_once},
        "best": {"name": best.name, "value": _mean(best)},
        "launches": [
            {"name": step.launch.name, "value": _mean(step.launch) if step.launch.values else None, "share_of_best": share, "why": step.why}
            for step, share in zip(steps, shares, strict=True)
        ],
        "launches_to_95%": reached,
        "not_recorded": list(missing),
        "refused": dict(refused),
        "decisions_per_s": round(max(1, len(steps)) / took) if took > 0 else None,
        "identical": True,
    }
    near = (
        f"within 5 % of the best recorded setting ({best.name}) in {reached} launch{'es' * (reached != 1)}"
        if reached is not None
        else f"never within 5 % of the best ({best.name})"
    )
    lines = [f"{folder.name}{_at(options)}: {options.policy} from {start.name}: {near}; {len(missing)} asked for and not recorded."]
    for number, launch in enumerate(document["launches"][:12], 1):
        value = "failed" if launch["value"] is None else f"{launch['value']:.4g}, {launch['share_of_best'] * 100:.0f} % of the best"
        lines.append(f"  launch {number}: {launch['name']}: {value} ({launch['why']})")
    lines += [f"  not recorded: {wish}" for wish in missing[:6]]
    lines += [f"  refused, not launched: {name}: {why}" for name, why in list(refused.items())[:6]]
    document["text"] = "\n".join(lines)
    return document


def _mean(item: Recorded) -> float:
    return math.fsum(item.values) / len(item.values) if item.values else math.nan


def _share(item: Recorded, best: Recorded, way: Direction) -> float | None:
    if not item.values:
        return None
    ratio = _mean(item) / _mean(best) if way == "max" else _mean(best) / _mean(item)
    return round(ratio, 4)
