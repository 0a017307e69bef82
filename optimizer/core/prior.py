"""Prior art: which known-good results concern this box, and the one hypothesis that they become: this launch differs from one that
was better. Its ratio comes from the recorded result, its prior from how alike the two are; it is tested like any other. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from optimizer.core import closing, learned, since
from optimizer.core.once import once_extended
from optimizer.core.plan import Plan
from optimizer.core.resolve import canonical_settings
from optimizer.core.state import State, mean_ln
from optimizer.model.base import Value
from optimizer.model.playbook import Action, Playbook, Prediction, SetAction, SpaceAction
from optimizer.model.prior import EarlierArm, EarlierStudy, Origin, PriorArt
from optimizer.model.settings import Settings
from optimizer.model.target import unit_of

PRIOR_ART = "prior-art"
SAME_DB, OTHER_BUILD_DB, OTHER_WORK_DB = 10.0, 0.0, -5.0
MOST_ARMS = 40  # of an earlier study: its latest
HALF = 0.5  # of the reported gain is what is predicted at least
# Where a server listens, what it serves and what it logs is no tuning: it is never carried over.
IDENTITY = frozenset({
    "model", "model_path", "tokenizer", "tokenizer_path", "served_model_name", "host", "port", "nccl_port", "dist_init_addr", "api_key",
    "log_level", "log_level_http", "download_dir", "random_seed", "seed", "load_format", "revision", "trust_remote_code",
    "enable_metrics", "base_gpu_id", "device", "chat_template", "speculative_draft_model_path", "file_storage_path",
})  # fmt: skip


Record = TypeVar("Record", bound=Origin)


@dataclass(frozen=True)
class Match(Generic[Record]):
    """A record that concerns this box. ``same_work``: its workload and metric are this study's, so its value compares with ours."""

    record: Record
    prior_db: float
    same_work: bool
    said: str


def extended(state: State, plan: Plan) -> Plan:
    """The plan with the hypothesis that prior art makes here; unchanged where there is none."""
    return once_extended(state, plan, lambda: _extended(state, plan))


def _extended(state: State, plan: Plan) -> Plan:
    plan = learned.adapted(state, plan)
    if plan.playbook(PRIOR_ART) is not None:
        return plan
    book = hypothesis(state, plan)
    return plan if book is None else replace(plan, playbooks=(*plan.playbooks, book))


def hypothesis(state: State, plan: Plan) -> Playbook | None:
    """``prior-art`` as a playbook of this study: claim, prior, prediction and the difference as its action."""
    found = best(state)
    if found is None:
        return None
    record, changes = found.record, difference(state, plan, found.record)
    ratio = predicted(state, found)
    given = _given_then(record) if since.decides_by(state.spec, since.UNITS_SAID) else _given_at_first(record)
    differs = f"this launch differs in {', '.join(sorted(changes))}" if changes else "this launch does not differ from it"
    actions: tuple[Action, ...] = (SetAction(params=changes),) if changes else ()
    return Playbook(
        id=PRIOR_ART, local=True, family="config", claim=f"{_called(record)}{given} on {found.said}; {differs}.", prior_db=found.prior_db,
        evidence=(), predicts=Prediction(metric=record.metric, ratio=ratio) if ratio is not None else None, actions=actions,
        discriminating_test="One launch with the difference applied.", source=record.source,
    )  # fmt: skip


def _given_then(record: PriorArt) -> str:
    if record.after is None:
        return " is known to be good"
    unit, launches = unit_of(record.metric), f"({record.launches} launch{'es' if record.launches != 1 else ''})"
    sure = f"[{record.low:,.4g}, {record.high:,.4g}] {launches}" if record.low is not None and record.high is not None else "(no interval is known)"
    before = f", {record.before:,.4g} before" if record.before is not None else ""
    return f" gave {record.after:,.4g} {unit} {sure}{before}"


def _given_at_first(record: PriorArt) -> str:
    """As studies before policy version 4 have it."""
    value = f" gave {record.after:.4g} {record.metric}" if record.after is not None else " is known to be good"
    return value + (f" (before: {record.before:.4g})" if record.before is not None else "")


def _called(record: PriorArt) -> str:
    return f"Study {record.name}" if record.kind == "study" else f"Prior art {record.name}"


def best(state: State) -> Match[PriorArt] | None:
    """The record that is most like this study, and of those the one that gave most."""
    if state.spec is None or state.survey is None:
        return None
    found = [match for record in state.spec.prior_art if isinstance(match := compared(state, record), Match)]
    return min(found, key=lambda match: (-match.prior_db, -_gain(match.record), match.record.name), default=None)


def _gain(record: PriorArt) -> float:
    return record.after if record.after is not None else 0.0


def compared(state: State, record: Record) -> Match[Record] | str:
    """How a record concerns this box, or why it does not."""
    assert state.spec is not None
    survey: Mapping[str, Any] = state.survey or {}
    if record.engine != survey.get("engine"):
        return f"it is of {record.engine}, this is {survey.get('engine')}"
    if record.simulated != (state.spec.host.kind == "sim"):
        return "a simulated box says nothing about a real one, nor the other way round"
    if record.gpu_count != int(survey.get("gpu_count") or 0) or not _same_gpu(record.gpu, survey.get("gpu")):
        return f"it ran on {record.gpu_count} × {record.gpu or 'no GPU'}, this box has {survey.get('gpu_count') or 0} × {survey.get('gpu') or 'no GPU'}"
    if not record.gpu_count and record.cpus and record.cpus != survey.get("cpus"):
        return f"it ran on {record.cpus} CPUs, this box has {survey.get('cpus')}"
    same_model = _same_model(record, survey)
    if not same_model and record.kind == "study":
        return f"it served {record.model or 'another model'} ({record.model_class or 'of unknown shape'})"
    load = state.spec.workload
    same_work = (
        (record.concurrency is None or record.concurrency == load.concurrency)
        and (record.prompt_tokens is None or record.prompt_tokens == load.prompt_tokens)
        and (record.output_tokens is None or record.output_tokens == load.output_tokens)
        and record.metric == _metric(state)
    )
    same_build = record.engine_version is not None and record.engine_version == survey.get("engine_version")
    prior_db = (SAME_DB if same_build else OTHER_BUILD_DB) + (0.0 if same_work and same_model else OTHER_WORK_DB)
    said = f"{record.gpu_count} × {record.gpu}" if record.gpu_count else f"{record.cpus} CPUs" if record.cpus else "a box without GPUs"
    unlike = [text for text, known in (("another build", not same_build), ("another load", not same_work), ("another model", not same_model)) if known]
    return Match(record, prior_db, same_work and record.concurrency is not None and same_model, said + (f" ({', '.join(unlike)})" if unlike else ""))


def predicted(state: State, found: Match[PriorArt]) -> tuple[float, float] | None:
    """Half to all of the reported gain; where the load is ours, of what is still missing to the reported value. None: no number."""
    record = found.record
    if record.after is None or record.after <= 0:
        return None
    results = state.base_arm.results
    before = math.exp(math.fsum(math.log(max(item.value, 1e-9)) for item in results) / len(results)) if found.same_work and results else record.before
    if before is None or before <= 0:
        return None
    ratio = before / record.after if _less_is_better(record.metric) else record.after / before
    return (1 + HALF * (ratio - 1), ratio) if ratio > 1 else None


def difference(state: State, plan: Plan, record: PriorArt) -> dict[str, Value]:
    """What would have to be given (None: taken away) so that this launch becomes the recorded one. Only what tunes is compared: what
    the record chose on purpose, and what the knowledge files know of."""
    now = dict(canonical_settings(Settings(values=dict(state.given)).merged(state.baseline.values), keep_none=False).values)
    then = dict(canonical_settings(Settings(values=dict(record.settings)), keep_none=False).values)
    known = _tunable(plan)
    names = [
        name for name in sorted({*now, *then})
        if name not in IDENTITY and (name in record.chosen or (record.kind == "study" and _is_known(name, known)))
    ]  # fmt: skip
    return {name: then.get(name) for name in names if now.get(name) != then.get(name)}


def _tunable(plan: Plan) -> frozenset[str]:
    names = {param.name for space in plan.spaces for param in space.params}
    for book in plan.playbooks:
        for action in book.actions:
            if isinstance(action, SetAction):
                names |= set(action.params)
            elif isinstance(action, SpaceAction):
                names |= {name for point in action.try_first for name in point}
    return frozenset(names)


def _is_known(name: str, known: frozenset[str]) -> bool:
    """A JSON setting is known by any of its keys."""
    return name in known or any(item.startswith(f"{name}.") for item in known)


def is_like_here(match: Match[Any]) -> bool:
    """Same class of box, engine build, model and load: its launches compare with ours one by one."""
    return match.prior_db >= SAME_DB


def origin_of(state: State) -> dict[str, Any]:
    """The fields of ``Origin`` for a study whose box was read."""
    assert state.spec is not None
    survey, load = state.survey or {}, state.spec.workload
    return {
        "name": state.spec.study, "kind": "study", "source": f"study {state.spec.study}", "engine": str(survey.get("engine", "")),
        "engine_version": survey.get("engine_version"), "model": _last(survey.get("model_path")), "model_class": model_class(survey),
        "gpu": survey.get("gpu"), "gpu_count": int(survey.get("gpu_count") or 0), "cpus": int(survey.get("cpus") or 0),
        "simulated": state.spec.host.kind == "sim", "metric": _metric(state), "concurrency": load.concurrency,
        "prompt_tokens": load.prompt_tokens, "output_tokens": load.output_tokens,
    }  # fmt: skip


def launches_of(state: State) -> EarlierStudy | None:
    """What a closed study leaves for the samplers of others: every setting that it launched, over the first baseline of the box that
    launched it. None where nothing but baselines was launched. Settings that name a box's own paths or ports are left out."""
    if state.closed is None or state.survey is None:
        return None
    found: dict[str, tuple[dict[str, Value], list[float | None]]] = {}
    for part in state.boxes.values() or (state,):
        base = part.first_arm.results or part.first_arm.earlier
        if not base or part.drifts:  # after a drift nothing compares with the first baseline
            continue
        mean = mean_ln(base)
        for arm in part.arms.values():
            values = {name: value for name, value in arm.settings.values.items() if name not in IDENTITY}
            if values and (arm.results or arm.crashed):
                ln = mean_ln(arm.results) - mean if arm.results else None
                found.setdefault(arm.settings.digest, (values, []))[1].append(ln)
    arms = []
    for values, seen in found.values():
        known = [ln for ln in seen if ln is not None]
        arms.append(EarlierArm(settings=values, ln=round(math.fsum(known) / len(known), 6) if known else None))
    given = {name: value for name, value in state.given.items() if name not in IDENTITY}
    return EarlierStudy(**origin_of(state), given=given, arms=tuple(arms[-MOST_ARMS:])) if arms else None


def record_of(state: State) -> PriorArt | None:
    """What a closed study leaves for others: its confirmed settings. None where nothing better was confirmed."""
    if state.closed is None or state.spec is None or state.survey is None or not closing.is_confirmed_better(state) or closing.is_refuted(state):
        return None
    confirmed = state.base_arm.confirmed
    assert confirmed is not None
    before, best = (state.closed.get("baseline") or {}).get("value"), state.closed.get("best") or {}
    # The interval is that of the figure which the report has; another figure's would be none.
    told = isinstance(best.get("value"), int | float) and math.isclose(best["value"], confirmed.value, rel_tol=1e-6)
    low, high = (float(edge) for edge in best["interval"]) if told else (None, None)
    point = canonical_settings(Settings(values=dict(state.given)).merged(state.baseline.values), keep_none=False)
    return PriorArt(
        **origin_of(state),
        before=float(before) if isinstance(before, int | float) else None, after=confirmed.value, settings=dict(point.values),
        low=low, high=high, launches=int(best["launches"]) if told else 0,
        chosen=tuple(sorted(state.baseline.values)),
    )  # fmt: skip


def model_class(survey: Mapping[str, Any]) -> str:
    """Architecture, layers and width of the served model; empty where its config.json was not read."""
    config = survey.get("model_config_json")
    if not isinstance(config, Mapping):
        return ""
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    layers, width = inner.get("num_hidden_layers"), inner.get("hidden_size")
    return f"{first} {layers}x{width}" if first and layers and width else ""


def _same_model(record: Origin, survey: Mapping[str, Any]) -> bool:
    here = model_class(survey)
    if record.model_class and here:
        return record.model_class == here
    return bool(record.model) and _plain(record.model) == _plain(_last(survey.get("model_path")))


def _last(path: Any) -> str:
    return str(path or "").rstrip("/").rsplit("/", 1)[-1]


def _plain(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _same_gpu(recorded: str | None, here: Any) -> bool:
    """A file may name a GPU shorter than its driver does (RTX PRO 6000 Blackwell)."""
    if not recorded or not here:
        return not recorded and not here
    words, full = recorded.casefold().split(), str(here).casefold().split()
    return all(word in full for word in words) or all(word in words for word in full)


def _metric(state: State) -> str:
    assert state.spec is not None
    primary = state.spec.target.primary
    return primary.metric if primary is not None else "output_tokens_per_s"


def _less_is_better(metric: str) -> bool:
    return metric.endswith("_ms") or metric == "error_rate"
