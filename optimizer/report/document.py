"""A study as one document: the answer, what was measured, what was believed when, what was ruled out and by what. Built from the
journal alone; every number carries its unit, the launches behind it and its interval, or says that it has none. It draws nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.core import closing, forensics
from optimizer.core.closing import PLAIN_ENDINGS, is_refuted, pooled, summary
from optimizer.core.confidence import next_launch
from optimizer.core.plan import Plan
from optimizer.core.state import ArmState, State
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.playbook import SetAction
from optimizer.model.target import unit_of
from optimizer.model.verdict import given_up
from optimizer.report import reproducing
from optimizer.report.both_sides import both_sides
from optimizer.report.kept import explained, measured_text
from optimizer.report.prose import changes_text, sentence
from optimizer.report.search_view import search_parts
from optimizer.report.setup import AT_THE_END, CONFIDENCE, confidence_text, setup, simulated_text

# Who can win back what a bucket of the waterfall holds, where no setting does.
TAKERS = {
    "queue": "a setting: slots, KV pool or more replicas",
    "eager": "a setting: captured graph sizes",
    "collectives": "a setting, the interconnect, or fewer GPUs per replica",
    "drafts": "a better draft model, or fewer draft steps",
    "host": "a faster host CPU, or an engine that overlaps its scheduling",
    "kernel": "whoever writes the kernels; on several GPUs also a setting or the link, as far as collectives were not measured on their own",
}
SHAPE_FACTS = (
    "gpu.name", "gpu.arch", "gpu.count", "gpu.driver", "gpu.cuda", "model.family", "model.params_total_b", "model.quantization", "model.moe_experts",
    "kernel.attention_backend", "kernel.attention_prefill", "kernel.moe_backend", "kernel.moe_config", "kernel.linear_backend", "kernel.quant_flag",
    "kernel.compile_mode", "kernel.time_share", "kv.dtype", "kv.block_tokens", "graphs.capture_sizes", "startup.warnings", "roofline.decode_ratio",
)  # fmt: skip
# Of the model's own config.json: the dimensions that a kernel is specialised on, and the formats of what it reads.
SHAPE_KEYS = (
    "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "moe_intermediate_size", "n_routed_experts", "num_experts", "num_local_experts", "num_experts_per_tok", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim", "index_topk", "torch_dtype", "dtype", "expert_dtype", "vocab_size",
)  # fmt: skip


LIKELY = 0.5  # probability
SUSPECTED = 0.25
KERNEL_SHARE = 0.1  # of a decode step: a kernel writer's day should be worth it


def study_document(entries: Sequence[Entry], state: State, plan: Plan) -> dict[str, Any]:
    """Everything that a report shows, JSON-ready."""
    result = dict(state.closed) if state.closed is not None else {**summary(state, plan), "ending": "open", "reason": "The study is not closed."}
    result["hypotheses"] = explained(entries, state, result["hypotheses"])
    spec = state.spec
    return {
        "study": result["study"],
        "ending": result["ending"],
        "ending_text": PLAIN_ENDINGS.get(result["ending"], result["ending"]),
        "reason": result["reason"],
        "host": spec.host.name if spec else None,
        "engine": (state.survey or {}).get("engine"),
        "engine_version": (state.survey or {}).get("engine_version"),
        "gpu": (state.survey or {}).get("gpu"),
        "gpu_count": (state.survey or {}).get("gpu_count"),
        "target": result["target"],
        "target_value": spec.target.primary.value if spec and spec.target.primary else None,
        "workload": result["workload"],
        "next_launch": next_launch(state),
        "confidence": confidence_text(state),
        "simulated": simulated_text(state),
        "setup": [{"what": what, "value": value} for what, value in setup(entries, state)],
        "intervals": CONFIDENCE,
        "noise_known": AT_THE_END,
        "opened_utc": entries[0].at_utc if entries else None,
        "search": search_parts(entries),
        "result": result,
        "gain": forensics.gain(state),
        "changes": changes_kept(entries, state, plan),
        "trials": trials(state),
        "beliefs": beliefs(entries, state, result["hypotheses"]),
        "both_sides": both_sides(entries, result["hypotheses"], plan),
        "waterfalls": [_waterfall(entry) for entry in _first_and_last(entries, EntryKind.CEILING)],
        "waterfall_labels": ["as found", "at the end"] if state.promoted else ["as first estimated", "as known at the end"],
        "flips": [dict(flip) for flip in state.flips],
        "ruled_out_by_evidence": ruled_out(state),
        "ruled_out_by_measurement": [item for item in entries_of(entries, EntryKind.PRUNED) if not given_up(item)],
        "given_up": [item for item in entries_of(entries, EntryKind.PRUNED) if given_up(item)],
        "deferred": entries_of(entries, EntryKind.DEFERRED),
        "refused": [dict(item) for item in state.refusals],
        "left": left(entries),
        "untried": untried(result["hypotheses"], plan, state),
        "hand_over": _hand_over(state, left(entries)),
        "reproduce": [{"command": command, "what": what} for command, what in (reproducing.commands(state) if spec else ())],
        "journal": [{"seq": entry.seq, "at_utc": entry.at_utc, "kind": entry.kind.value, "cause": entry.cause, "text": sentence(entry)} for entry in entries],
    }


def trials(state: State) -> list[dict[str, Any]]:
    """One row per setting that was launched: its launches, and its mean with the 95 % interval over launches."""
    metric = state.spec.target.primary.metric if state.spec and state.spec.target.primary else "output_tokens_per_s"
    noise = pooled(state)
    rows = []
    for arm in state.arms.values():
        values = [result.value for result in arm.results]
        row: dict[str, Any] = {
            "settings": dict(arm.settings.values), "text": _named(arm.settings.values, state),
            "metric": metric, "unit": unit_of(metric), "launches": [{"launch": result.launch, "entry": result.entry, "value": result.value} for result in arm.results],
            "invalid": [{"launch": launch, "why": why, "said": _unused(launch, arm)} for launch, why in arm.invalid], "crashed": arm.crashed, "confirmed": arm.confirmed.value if arm.confirmed else None,
            "value": None, "interval": None, "levels": _levels(arm),
        }  # fmt: skip
        if values:
            row |= {"value": closing.value_of(arm.results), "interval": closing.interval_of(state, arm.results, noise)}
        if values or arm.invalid or arm.crashed:
            rows.append(row)
    return rows


def _unused(launch: str, arm: ArmState) -> str:
    """A measurement that was not used; the launch itself may have been measured again."""
    again = any(result.launch == launch for result in (*arm.results, *arm.earlier))
    return f"a measurement of launch {launch} is not used, another of it is" if again else f"launch {launch} invalid"


def _named(values: Mapping[str, Any], state: State) -> str:
    """Without what is kept off a command line that never had it."""
    shown = {name: value for name, value in values.items() if value is not None or name in state.given}
    return changes_text(shown or values) if values else "as found"


def _levels(arm: ArmState) -> list[dict[str, Any]]:
    """Of the last launch: a figure at each concurrency, one launch each and so without an interval."""
    if not arm.results:
        return []
    wanted = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "itl_p99_ms")
    return [
        {"concurrency": point.concurrency, "requests": point.requests_ok, "window_s": point.window_s, **{name: point.metrics.get(name) for name in wanted}}
        for point in sorted(arm.results[-1].points, key=lambda point: point.concurrency)
    ]


def beliefs(entries: Sequence[Entry], state: State, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """``{hypothesis: [(entry, probability), ...]}`` over the rankings of the study, those first that were ever likely. What was cured,
    alone or as a companion, ends where it was kept, with the probability of ``rows`` (the final table): that it *was* the cause. What a
    cured server says of it afterwards is another question."""
    history: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        if entry.kind == EntryKind.RANKED:
            for row in entry.body["hypotheses"]:
                history.setdefault(row["id"], []).append((entry.seq, float(row["probability"])))
    for row in rows:
        belief = state.beliefs.get(row["id"])
        if belief is not None and belief.final_db is not None and row["detail"] in ("supported", "kept"):
            before = [point for point in history.get(row["id"], []) if point[0] < belief.entry]
            history[row["id"]] = [*before, (belief.entry, float(row["probability"]))]
    return dict(sorted(history.items(), key=lambda item: (-max(point[1] for point in item[1]), item[0])))


def changes_kept(entries: Sequence[Entry], state: State, plan: Plan) -> list[dict[str, Any]]:
    """Each setting that was kept, with the causes that it cures and the measurement behind it."""
    if is_refuted(state):
        return []
    rows = []
    for entry in entries:
        if entry.kind == EntryKind.PROMOTED and entry.seq in state.promotions:
            names = [entry.body["hypothesis"], *entry.body.get("companions", ())]
            claims = [{"id": name, "claim": book.claim} for name in names if (book := plan.playbook(name)) is not None]
            changes = {name: value for name, value in entry.body["changes"].items() if value is not None or name in state.given}
            rows.append({"entry": entry.seq, "changes": changes, "text": changes_text(changes or entry.body["changes"]), "causes": claims, "measured": measured_text(entries, entry)})
    return rows


def _first_and_last(entries: Sequence[Entry], kind: EntryKind) -> list[Entry]:
    found = [entry for entry in entries if entry.kind == kind and not entry.body.get("unknown")]
    return [found[0], found[-1]] if len(found) > 1 else found


def _waterfall(entry: Entry) -> dict[str, Any]:
    """Milliseconds of one decode step: what the roofline needs, then each loss. They add up to the measured step."""
    body = entry.body
    lost = [{**part, "who": TAKERS.get(part["bucket"], "")} for part in body["lost"] if part.get("ms") is not None]
    share = math.fsum(part["share"] for part in lost)
    total = lost[0]["ms"] / lost[0]["share"] if lost and lost[0]["share"] else None
    return {
        "entry": entry.seq, "concurrency": body["concurrency"], "ceiling_tokens_per_s": body["ceiling_tokens_per_s"],
        "measured_tokens_per_s": body["measured_tokens_per_s"], "reachable_tokens_per_s": body["reachable_tokens_per_s"],
        "step_ms": total, "roofline_ms": total * (1 - share) if total is not None else None, "lost": lost, "notes": list(body.get("notes", [])),
    }  # fmt: skip


def entries_of(entries: Sequence[Entry], kind: EntryKind) -> list[dict[str, Any]]:
    return [{"entry": entry.seq, "hypothesis": entry.body["hypothesis"], "changes": changes_text(entry.body.get("changes", {})), "verdict": entry.body.get("verdict"),
             "why": entry.body.get("why", "")} for entry in entries if entry.kind == kind and "hypothesis" in entry.body]  # fmt: skip


def left(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """What the last waterfall still loses, and who could win it back; with the causes in that bucket that were tested and not kept."""
    last = _first_and_last(entries, EntryKind.CEILING)[-1:]
    bucket_of = {row["id"]: row.get("addresses") for entry in entries if entry.kind == EntryKind.RANKED for row in entry.body["hypotheses"]}
    given_up = dict.fromkeys(entry.body["hypothesis"] for entry in entries if entry.kind in (EntryKind.PRUNED, EntryKind.DEFERRED) and "hypothesis" in entry.body)
    rows = []
    for part in (part for entry in last for part in sorted(_waterfall(entry)["lost"], key=lambda part: -part["share"]) if part["share"] >= 0.02):
        tried = [name for name in given_up if bucket_of.get(name) == part["bucket"]]
        rows.append({**part, "who": part["who"] + (f"; tested here and not kept: {', '.join(tried)}" if tried else "")})
    return rows


def ruled_out(state: State) -> list[dict[str, Any]]:
    """What evidence alone ruled out, without a launch. What was launched is not among it, although a cured server's evidence speaks
    against what was cured."""
    launched = {name for name, belief in state.beliefs.items() if belief.tried or belief.final_db is not None}
    return [dict(item) for item in state.ruled_out if item["id"] not in launched]


def untried(rows: Sequence[Mapping[str, Any]], plan: Plan, state: State) -> list[dict[str, Any]]:
    """Likely causes for which no launch was spent, by the final table. What a launch for another cause changed was tried."""
    launched = [set(arm.settings.values) for arm in state.arms.values() if arm.results or arm.earlier or arm.crashed]
    found = []
    for row in rows:
        book = plan.playbook(row["id"])
        sets = [set(action.params) for action in book.actions if isinstance(action, SetAction)] if book is not None else []
        if any(names and names <= known for names in sets for known in launched):
            continue
        if row["detail"] == "open" and row["probability"] >= LIKELY and book is not None:
            found.append({"id": row["id"], "probability": row["probability"], "claim": book.claim})
    return sorted(found, key=lambda row: -row["probability"])


def _hand_over(state: State, lost: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What somebody who writes kernels needs: who is suspected and why, on which lines, with which shapes. Also where nobody is
    suspected and the kernels still take much longer than the roofline."""
    handed = [dict(item) for item in state.refusals if item.get("kind") == "hand_over"]
    kernel = next((part for part in lost if part["bucket"] == "kernel" and part["share"] >= KERNEL_SHARE), None)
    if not handed and kernel is not None:
        share = f"{100 * kernel['share']:.1f} % of a decode step ({kernel['basis']}): {kernel['why']}"
        suspects = [row for row in state.ranked if row.get("family") == "kernel" and row["probability"] >= SUSPECTED]
        handed = [{"hypothesis": row["id"], "why": f"{share}. Suspected with probability {row['probability']:.2f}, by the evidence below."} for row in suspects]
        handed = handed or [{"hypothesis": "kernel", "why": f"{share}. No single kernel is suspected."}]
    if not handed:
        return None
    names = [item["hypothesis"] for item in handed]
    evidence = state.evidence
    shapes = [
        {"fact": name, "value": fact.value, "unit": fact.unit, "source": fact.source, "line": fact.line}
        for name in SHAPE_FACTS
        if (fact := evidence.get(name)) is not None
    ]
    config = (state.survey or {}).get("model_config_json") or {}
    shapes += [{"fact": key, "value": config[key], "unit": "", "source": "config.json", "line": None} for key in SHAPE_KEYS if config.get(key) is not None]
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        plain = {key: value for key, value in quantised.items() if isinstance(value, str | int | float | bool | list) and len(str(value)) < 80}
        shapes.append({"fact": "quantization_config", "value": plain, "unit": "", "source": "config.json", "line": None})
    suspects = [
        {"id": row["id"], "probability": row["probability"], "for": [item for item in row.get("for", []) if "fact" in item],
         "against": [item for item in row.get("against", []) if "fact" in item]}
        for row in state.ranked if row["id"] in names
    ]  # fmt: skip
    return {"reasons": [{"id": item["hypothesis"], "why": item["why"]} for item in handed], "suspects": suspects, "shapes": shapes}


def trial_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One flat row per launch, for CSV."""
    rows: list[dict[str, Any]] = []
    for trial in document["trials"]:
        low, high = trial["interval"] or (None, None)
        shared = {"study": document["study"], "settings": trial["text"], "metric": trial["metric"], "unit": trial["unit"], "mean_of_launches": trial["value"],
                  "interval_low": low, "interval_high": high, "launches": len(trial["launches"])}  # fmt: skip
        rows += [{**shared, "launch": item["launch"], "value": item["value"], "entry": item["entry"], "state": "valid"} for item in trial["launches"]]
        rows += [{**shared, "launch": item["launch"], "value": None, "entry": None, "state": f"invalid: {item['why']}"} for item in trial["invalid"]]
        if trial["crashed"]:
            rows.append({**shared, "launch": None, "value": None, "entry": None, "state": f"infeasible: {trial['crashed']}"})
    return rows
