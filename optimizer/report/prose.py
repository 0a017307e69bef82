"""One line of plain English per journal entry. Pure: an entry in, text out; the journal view, the live view and the report
all use it, so that an engineer reads the same sentence everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.core import builds
from optimizer.model.entry import Entry
from optimizer.model.measurement import STOPPED_EARLY
from optimizer.model.target import unit_of
from optimizer.model.verdict import given_up
from optimizer.report.status import status_text

_NAMED = 6  # parameters, and reasons, that a sentence names


def sentence(entry: Entry) -> str:
    """What the entry says, in one line without a line break; in a study on several boxes with the one that it is about."""
    writer = _WRITERS.get(str(entry.kind))
    text = writer(entry.body) if writer else str(entry.kind)
    return f"[{entry.box}] {' '.join(text.split())}" if entry.box else " ".join(text.split())


def changes_text(changes: Mapping[str, Any]) -> str:
    """Settings as people write them: ``cuda_graph_max_bs=256``, a removed one as ``without disable_cuda_graph``."""
    if not changes:
        return "the original command line"
    return " ".join(f"without {name}" if value is None else f"{name}={_value(value)}" for name, value in sorted(changes.items()))


def number(value: Any, digits: int = 4) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def interval_text(low: Any, high: Any, value: Any = None, unit: str = "") -> str:
    """``432.7 tok/s [398.0, 469.5]``: value and both ends to the same place, that of the greatest; without ``value`` the interval alone."""
    known = [float(one) for one in (value, low, high) if isinstance(one, int | float)]
    greatest = max((abs(one) for one in known), default=0.0)
    places = max(0, 3 - math.floor(math.log10(greatest))) if greatest > 0 else 0
    counted = value is None or value != 0  # where nothing was counted the upper end is a bound, and no figure has a place
    texts = [f"{one:,.{places}f}" if isinstance(one, int | float) and counted else number(one) for one in (value, low, high)]
    return " ".join(part for part in (*((texts[0], unit) if value is not None else ()), f"[{texts[1]}, {texts[2]}]") if part)


def result_text(result: Mapping[str, Any]) -> str:
    """A value with its unit, interval and the number of launches behind it."""
    if result.get("value") is None:
        return "not measured"
    low, high = result["interval"]
    launches = result["launches"]
    fresh = ""
    if result.get("fresh_confirmation"):
        window = next((level["window_s"] for level in result.get("levels", ())), None)
        what = "a fresh confirmation" if launches == 1 else "fresh confirmations"
        fresh = f", {what} of {window:.0f} s" if window else f", {what}"
    unit = result.get("unit") or unit_of(result["metric"])
    return f"{interval_text(low, high, result['value'], unit)} ({launches} launch{'es' if launches != 1 else ''}{fresh})"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else "true" if value is True else "false" if value is False else str(value)


def _opened(body: Mapping[str, Any]) -> str:
    spec = body["spec"]
    where = ", ".join(one["name"] for one in spec.get("boxes") or ()) or spec["host"]["name"]
    return f"Study opened: target {spec['target']['text'] or 'none'} on {where}, workload {spec['workload']['name']}."


def _intent(body: Mapping[str, Any]) -> str:
    step = body["step"]
    match step["kind"]:
        case "observe":
            return "Reading the box: hardware, running server, flags, log, metrics."
        case "secure":
            if step["op"] == "arm":
                return f"Locking the box and arming the guard ({step['minutes']:g} minutes)."
            return "Ending the guard and removing what was written on the box."
        case "calibrate":
            return f"Calibrating the load generator: it must sustain three times {number(step['tokens_per_s'])} tok/s."
        case "launch":
            return f"Launching ({step['purpose']}): {changes_text(step['settings']['values'])}, port {step['port']}."
        case "await_ready":
            return f"Waiting until launch {step['launch']} is ready and proven to be ours."
        case "measure":
            levels = ", ".join(f"c={level['concurrency']} for {level['window_s']:g} s" for level in step["levels"])
            limit = step.get("stop_below")
            ends = f" Its first windows end it below {number(limit)} tok/s." if limit is not None else ""
            return f"Measuring launch {step['launch']} ({step['purpose']}): {levels}.{ends}"
        case "check":
            return (
                f"Testing without a relaunch ({step['test'].replace('_', ' ')}, about {60 * step['minutes']:.0f} s) for {step['hypothesis']}: "
                f"{step['bits']:.2f} bits are expected of it, and {step['saves_minutes']:.1f} minutes of launches saved."
            )
        case "stop":
            return f"Stopping {'the original server' if step['launch'] == 'original' else 'launch ' + step['launch']}."
        case "propose":
            return _asked_sampler(step)
        case "restore":
            return "Bringing the original server back, and waiting until it listens; Ctrl-C leaves that to the guard on the box."
    return str(step["kind"])


def _asked_sampler(step: Mapping[str, Any]) -> str:
    studies = sorted({trial["note"] for trial in step["history"] if trial.get("note", "").startswith("study ")})
    earlier = sum(1 for trial in step["history"] if trial.get("note", "").startswith("study "))
    said = f", {earlier} of them from {', '.join(studies)}" if studies else ""
    first = f" What did best in earlier studies comes first: {'; '.join(changes_text(point) for point in step['try_first'])}." if step.get("try_first") else ""
    return f"Asking the sampler for a point of {step['space']} after {len(step['history'])} trials{said}.{first}"


def _proposed(body: Mapping[str, Any]) -> str:
    said = f"Proposed {changes_text(body['params'])}." if body["params"] else "Nothing is left to propose."
    reasons = sorted({item["why"] for item in body.get("left_out", []) if item.get("note")})
    said += f" Launches of earlier studies that this space has no place for: {'; '.join(reasons)}." if reasons else ""
    matters = ", ".join(f"{name} ({share:.1%} of the variance)" for name, share in body.get("unimportant", {}).items())
    return said + (f" Left as it is, since it hardly matters: {matters}." if matters else "")


def _outcome(body: Mapping[str, Any]) -> str:
    outcome = body["outcome"]
    took = f" ({outcome.get('duration_s', 0):.1f} s)"
    if outcome["status"] == "failed":
        return f"{body['step']} failed, {outcome['cause']}: {outcome['message']}{took}"
    if outcome["status"] == "unknown":
        return f"{body['step']} is unknown: {outcome['reason']}; it will be found out before anything else happens"
    return _done(body["step"], outcome["body"]) + took


def _done(step: str, body: Mapping[str, Any]) -> str:
    match step:
        case "observe":
            evidence = body.get("evidence", {})
            found = "a running server" if body.get("original") else "no running server"
            running = next((fact["value"] for fact in evidence.get("facts", []) if fact["name"] == "engine.version"), None)
            replaced = body.get("original") and builds.replaced(body.get("engine_version"), running)
            return (
                f"Found {body.get('engine', 'no engine')} {body.get('engine_version') or '(version unknown)'}, {found}: "
                f"{len(evidence.get('facts', []))} facts read, {len(evidence.get('missing', []))} missing."
                + (f" The server that runs is {running}: every launch, and the server that is brought back, is the installed one." if replaced else "")
            )
        case "launch":
            return f"Started as process {body.get('pid')}."
        case "await_ready":
            mismatches = body.get("mismatches") or []
            said = "settings read back as asked" if not mismatches else f"{len(mismatches)} settings differ"
            if body.get("began_before"):
                return f"Ready {body.get('ready_s', 0):.0f} s after the study went on, which is not how long its start took; identity proven, {said}."
            return f"Ready after {body.get('ready_s', 0):.0f} s; identity proven, {said}."
        case "measure":
            points = body["measurement"]["points"]
            levels = "; ".join(_point(point) + (_not_valid(point) if index else "") for index, point in enumerate(points))
            invalid = [f"{item['code']}: {item['detail']}" for item in points[0].get("invalid", [])] if points else []
            early = next((str(note) for point in points[:1] for note in point.get("notes", ()) if str(note).startswith(STOPPED_EARLY)), "")
            stopped = f" {early[:1].upper()}{early[1:]}; its side loads were left out." if early else ""
            return f"Measured {levels}.{stopped}" + (f" INVALID, not used: {'; '.join(invalid)}." if invalid else "")
        case "check":
            return f"Test {body['test'].replace('_', ' ')}: {body['text']}"
        case "propose":
            return _proposed(body)
        case "calibrate":
            return f"The load generator sustains {number(body.get('tokens_per_s'))} tok/s here."
        case "stop":
            return "Stopped: no process of ours left, port free."
        case "restore":
            return "The original server runs again." + (f" What it writes goes to {body['log']} now: where it went cannot be opened again." if body.get("log") else "")
        case "secure":
            if body.get("guard_restored"):
                return "The guard had fired: it took our server down and brought back what was there before. Nothing of ours is left."
            if body.get("original_restarted"):
                return f"The original server had ended by itself; it runs again (process {body['original_restarted']}). Nothing of ours is left."
            return "The box is locked and the guard watches." if body.get("armed") else "The box is as it should be; nothing of ours is left."
    return f"{step} done."


def _not_valid(point: Mapping[str, Any]) -> str:
    """Why a side level is no measurement to rely on; nothing where it is one. The target's own is said once, behind all levels."""
    details = "; ".join(item["detail"] for item in point.get("invalid", ()))
    return f" (not valid: {details})" if details else ""


def _point(point: Mapping[str, Any]) -> str:
    metrics = point["metrics"]
    parts = [f"{number(metrics.get('output_tokens_per_s'))} tok/s at c={point['concurrency']}"]
    if "goodput_per_s" in metrics:
        share = f" ({metrics['good_share']:.0%} of the requests)" if "good_share" in metrics else ""
        parts.append(f"goodput {number(metrics['goodput_per_s'])} req/s{share}")
    parts += [f"{name} {number(metrics[key])} ms" for name, key in (("TTFT p50", "ttft_p50_ms"), ("TPOT p50", "tpot_p50_ms")) if key in metrics]
    return ", ".join(parts)


def _ceiling(body: Mapping[str, Any]) -> str:
    if body.get("unknown"):
        return f"No ceiling: {body['unknown']}"
    lost = " · ".join(f"{bucket_text(part, body['lost'])} {100 * part['share']:.0f} %" for part in body.get("lost", []) if part["share"] >= 0.01)
    # How many tokens a step brings is measured, and other drafts have another ceiling.
    as_drafted = " with the drafts as they are" if "best_draft_tokens" in body else ""
    return (
        f"Ceiling {number(body.get('ceiling_tokens_per_s'))} tok/s at c={body.get('concurrency')}{as_drafted}, measured "
        f"{number(body.get('measured_tokens_per_s'))}; winning back what is known to go to queue, launches and collectives would give about "
        f"{number(body.get('reachable_tokens_per_s'))}. Lost: {lost or 'nothing'}.{_drafts(body)}"
    )


def bucket_text(part: Mapping[str, Any], lost: Sequence[Mapping[str, Any]]) -> str:
    """A bucket's name. The kernels' holds whatever no other explains: the collectives too, unless they have a share of their own."""
    rest = part["bucket"] == "kernel" and not any(other["bucket"] == "collectives" for other in lost)
    return "kernel or unexplained" if rest else str(part["bucket"])


def _drafts(body: Mapping[str, Any]) -> str:
    """The best depth at this load and where drafts stop paying; nothing where nothing is drafted."""
    if "best_draft_tokens" not in body:
        return ""
    level = body.get("break_even_concurrency")
    pays = "pay at every load" if level is None else "never pay" if level < 1 else f"stop paying at about {level:.0f} concurrent requests"
    if level is not None and 0 < body.get("drafts_measured_to", math.inf) < level:
        pays += f", which is beyond the {body['drafts_measured_to']:.0f} that were measured,"
    return f" Drafts: {body['best_draft_tokens']} deep is best here; as they are they {pays} in decode (predicted)."


def _ranked(body: Mapping[str, Any]) -> str:
    rows = [f"{row['id']} {row['score_db']:+.0f} db (P {row['probability']:.2f}{_became(row)})" for row in body["hypotheses"][:4]]
    reach = f" {body['out_of_reach']}" if body.get("out_of_reach") else ""
    return f"Ranked: {' · '.join(rows) or 'no hypothesis'}.{reach}"


def gain_text(gain: Mapping[str, Any]) -> str:
    """What a study has brought, by all launches of both sides."""
    before, after = gain["launches"]
    low, high = gain["interval"]
    return f"×{gain['ratio']:.3f} [{low:.3f}, {high:.3f}] at 95 %, all {after} launch(es) against {before} of the server as found"


def _became(row: Mapping[str, Any]) -> str:
    return "" if row.get("status", "open") == "open" else f"; {status_text(row['status'])}"


def _chosen(body: Mapping[str, Any]) -> str:
    what = changes_text(body["changes"]) if body.get("changes") is not None else f"a point of {body.get('space')}"
    ratio = body.get("ratio")
    predicted = f", predicted ×{ratio[0]:.2f} to ×{ratio[1]:.2f}" if ratio else ""
    together = "".join(f" Together with {item['hypothesis']} ({item['claim']})" for item in body.get("companions", []))
    together += "".join(f" It also cures {item['hypothesis']} ({item['claim']})" for item in body.get("cures", []))
    out = f" Not searched in it: {_left_out(body['left_out'])}." if body.get("left_out") else ""
    return f"Chosen: {body['hypothesis']} ({body.get('claim', '')}){together} Try {what}{predicted}.{out}"


def _left_out(left_out: Mapping[str, Any]) -> str:
    """Parameters by the reason why they are not searched, what evidence ruled out first; of many reasons the first."""
    rows = [f"{', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''} ({why.rstrip('.')})" for why, names in by_reason(left_out)]
    return "; ".join(rows[:_NAMED]) + (f"; and for {len(rows) - _NAMED} other reasons, which the entry has" if len(rows) > _NAMED else "")


def by_reason(left_out: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """(reason, its parameters), what evidence ruled out first."""
    found: dict[str, list[str]] = {}
    for name, why in sorted(left_out.items()):
        found.setdefault(str(why), []).append(name)
    return sorted(found.items(), key=lambda item: (not item[0].startswith("ruled out"), item[1]))


def _refused(body: Mapping[str, Any]) -> str:
    if body.get("about") == "command_line":
        return f"On the command line: {', '.join(body['params'])} does nothing here: {body['why']}"
    if body.get("about") == "part":
        return f"Left out of the sampler's point: {changes_text(body['params'])}: {body['why']}"
    if body.get("kind") == "hand_over":
        return f"{body['hypothesis']}: no configuration action. {body['why']}"
    what = f"{changes_text(body['params'])} for " if body.get("params") else ""
    return f"Not launched ({body['kind']}): {what}{body.get('hypothesis', '')}: {body['why']}"


def _flipped(body: Mapping[str, Any]) -> str:
    shown = [flip for flip in body["flips"] if not flip.get("minor")]
    if not shown:
        return "No start-up fact differs from the baseline's beyond book-keeping."
    rows = [f"{flip['fact']} {_short(flip['before'])} -> {_short(flip['after'])}{_blame(flip)}" for flip in shown]
    return f"Start-up facts that changed with it: {' · '.join(rows)}."


def _blame(flip: Mapping[str, Any]) -> str:
    if not flip.get("blame"):
        return " (no setting did that: the box drifted)"
    return "" if flip.get("expected") else " (towards a fallback)" if flip.get("towards_fallback") else " (not expected)"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 48 else text[:45] + "..."


def _judged(body: Mapping[str, Any]) -> str:
    judgement = body["judgement"]
    verdict = judgement["verdict"].upper().replace("_", " ") if judgement["final"] else "NOT YET DECIDED"
    side = "; ".join(
        f"at c={row['concurrency']} {number(row['before'])} -> {number(row['after'])} tok/s (×{row['ratio']:.2f}{', not valid' if row.get('invalid') else ''})"
        for row in body.get("side", [])
    )
    return (
        f"{body['hypothesis']}: {verdict}, ×{judgement['ratio']:.3f} [{judgement['low']:.3f}, {judgement['high']:.3f}] at "
        f"{100 * judgement['confidence']:.4g} %, {judgement['n_candidate']} launch(es) against {judgement['n_baseline']}, noise "
        f"{100 * judgement['sd']:.1f} %: {reworded(judgement['reason'])}. {side}{_answers_of(body)}{_weighed(body)}"
    )


def _weighed(body: Mapping[str, Any]) -> str:
    """What the launches are worth to the belief, beside their interval; once the verdict is final."""
    stop = "." if body.get("side") and "answers" not in body else ""
    return f"{stop} Weight: {body['weighed']}." if body.get("weighed") else ""


def _answers_of(body: Mapping[str, Any]) -> str:
    found = body.get("answers")
    return f" Answers ({found['verdict'].replace('_', ' ')}): {found['why']}." if found else ""


# Of the launches of the budget, those kept for other ideas and for the confirmation are not among them.
_LEFT = re.compile(r"the next look needs more than the (\d+) launches that are left")


def reworded(why: str) -> str:
    """A reason as a journal has it, in today's words; the journal's own are left alone, because its decisions are recomputed to the byte."""
    said = why.replace("the next look needs more than the 0 launches that are left", "no further launch is spent on it")
    said = _LEFT.sub(lambda found: f"the next look needs more launches than the {found[1]} that may be spent on it", said)
    return said.replace(") Answers ", "). Answers ")


def _settled(word: str) -> Any:
    def write(body: Mapping[str, Any]) -> str:
        return f"{word} {body['hypothesis']} ({changes_text(body.get('changes', {}))}): {reworded(body.get('why', ''))}"

    return write


def _note(body: Mapping[str, Any]) -> str:
    if body.get("closing"):
        return f"Ending: {body['closing'].replace('_', ' ')}. {body.get('text', '')}"
    return str(body.get("text", body))


def _closed(body: Mapping[str, Any]) -> str:
    return (
        f"Closed: {body['ending'].replace('_', ' ')}. {body['reason']} Baseline {result_text(body['baseline'])}, best "
        f"{result_text(body['best'])}, {body['launches']} launch{'es' * (body['launches'] != 1)} after the baseline, {body['minutes']:.1f} minutes."
    )


_WRITERS: dict[str, Any] = {
    "opened": _opened,
    "intent": _intent,
    "outcome": _outcome,
    "ceiling": _ceiling,
    "ranked": _ranked,
    "chosen": _chosen,
    "refused": _refused,
    "flipped": _flipped,
    "judged": _judged,
    "pruned": lambda body: _settled("Given up, not ruled out:" if given_up(body) else "Ruled out:")(body),
    "deferred": _settled("Put aside:"),
    "promoted": _settled("Kept:"),
    "rolled_back": lambda body: f"Rolled back to {changes_text(body.get('settings', {}))}: {body.get('why', '')}",
    "drifted": lambda body: f"The box drifted: {body.get('why', '')}",
    "note": _note,
    "guard_fired": lambda body: f"The guard on the box fired and restored it: {body.get('why', '')}",
    "knowledge_changed": lambda body: "The knowledge files were changed by the operator; decisions from here on use the new ones.",
    "lease_taken": lambda body: "Another coordinator process continues this study.",
    "closed": _closed,
}
