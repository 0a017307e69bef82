"""The answer to ``why-not`` as people read it. Pure: the document that ``core.asking`` made in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.report.prose import changes_text, reworded
from optimizer.report.status import status_text

HEADS = {
    "kept": "was kept",
    "in_force": "is in force already",
    "ruled_out": "was ruled out",
    "not_shown": "was tested, and nothing was shown either way",
    "refused": "was refused a launch",
    "handed_over": "is a cause that no setting cures",
    "being_tested": "is being tested now",
    "never_tested": "was never tested",
}
MAX_SHOWN = 6


def why_not_text(found: Mapping[str, Any]) -> str:
    """The answer first, then what it rests on."""
    head = HEADS[found["answer"]]
    if found["answer"] == "ruled_out" and not found["measured"]:
        head = "was ruled out by evidence alone; it was never tested" if found["kind"] == "cause" else (
            "was never tested: every cause that it would cure was ruled out by evidence alone"
        )
    if found["kind"] == "cause" and found["answer"] == "kept":
        head = "was cured, and the cure was kept"
    name = found["asked"]
    if found["kind"] == "setting" and found["answer"] == "kept":
        changed = found["measured"][-1]["changes"]
        name = changes_text({key: value for key, value in changed.items() if key == name.partition("=")[0]})
    now = found["now"]["value"]
    value = f" Now: {now}." if found["kind"] == "setting" and now is not None else ""
    lines = [f"{name} {head}.{value}"]
    for item in found["measured"][-MAX_SHOWN:]:
        lines.append(f"  entry {item['entry']}: {_measured(item)}")
    for item in found["refused"][-MAX_SHOWN:]:
        what = f"{changes_text(item['params'])}: " if item["params"] else ""
        lines.append(f"  entry {item['entry']}: not launched ({item['kind'].replace('_', ' ')}): {what}{item['why']}{_source(item)}")
    if found["rule"] is not None and not found["refused"]:
        rule = found["rule"]
        lines.append(f"  it would not be launched ({rule['kind']}): {rule['why']}{_source(rule)}")
    for item in found.get("foreseen", ()):
        what = f" makes it {changes_text(item['sets'])}" if item["sets"] else ""
        lines.append(f"  the server itself{what}: {item['why']} (rule {item['rule']}; {item['source']})")
    for item in found["checks"][-MAX_SHOWN:]:
        lines.append(f"  entry {item['entry']}: test {item['test'].replace('_', ' ')}: {item['text']}")
    for row in found["evidence"][:MAX_SHOWN]:
        lines += _evidence(row)
    if found["cost"] is not None:
        lines.append(f"  {cost_text(found['cost'])}")
    return "\n".join(lines)


def cost_text(cost: Mapping[str, Any]) -> str:
    """What a test would cost, and how that is known."""
    basis = "the predicted effect" if cost["predicted"] else "an effect of unknown size; one that is large is settled by 1"
    if cost["measured_launches"]:
        launches = cost["measured_launches"]
        each = " each" if launches != 1 else ""
        known = f"start and measurement of this study's {launches} launch{'es' if launches != 1 else ''} before a confirmation took {cost['minutes_per_launch']:g} minutes{each}"
    else:
        known = f"about {cost['minutes_per_launch']:g} minutes each by the windows asked for; none was launched yet"
    return f"The test would cost about {cost['launches']:g} launch{'es' if cost['launches'] != 1 else ''} and {cost['minutes']:g} minutes here ({basis}; {known})."


def _measured(item: Mapping[str, Any]) -> str:
    interval = item["interval"]
    said = f"{changes_text(item['changes'])} for {item['hypothesis']}"
    if interval is not None:
        said += (
            f": ×{interval['ratio']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}] at {100 * interval['confidence']:.4g} %, {interval['n_candidate']} against "
            f"{interval['n_baseline']} launches (judged at entry {item['judged']})"
        )
    said += f"; {item['verdict'].replace('_', ' ')}" if item["verdict"] else ""
    reason = item["why"].partition("; ")[2] if interval is not None else item["why"]  # the interval stands before it already
    why = f": {reworded(reason)}" if reason else ""
    stale = f"; stale since entry {item['stale']}, where the baseline changed" if item["stale"] else ""
    return f"{said}{why}{stale}"


def _evidence(row: Mapping[str, Any]) -> list[str]:
    out = "ruled out by evidence alone" if row["ruled_out"] else status_text(row["status"])
    measured = row["probability_measured"]
    believed = f"{row['probability']:.2f} as ranked, {measured:.2f} with what was measured of it" if measured is not None else f"{row['probability']:.2f}"
    lines = [f"  {row['id']}: {row['claim']} Probability {believed} ({out})"]
    lines += [f"    against it: {text}" for text in facts_text(row["against"])]
    lines += [f"    for it: {text}" for text in facts_text(row["for"])]
    if row["status"] in ("open", "stale") and row["why_untested"]:
        lines.append(f"    no launch was spent on it: {row['why_untested']}")
    if row["status"] in ("open", "stale") and row["what_would_decide"]:
        lines.append(f"    what would decide: {row['what_would_decide']}")
    return lines


def facts_text(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per observation, with its weight and where it was read; where several rules weigh the same one, each by its name."""
    same: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for hit in hits:
        where = f", {hit['source']}{' line ' + str(hit['line']) if hit.get('line') else ''}" if hit.get("source") else ""
        same.setdefault((f"{hit['fact']}{labelled(hit.get('labels', {}))}", str(hit["value"]), where) if "fact" in hit else (str(hit["rule"]), "", ""), []).append(hit)
    rows = []
    for (name, value, where), found in same.items():
        weights = [f"{hit['db']:+g} db{' by ' + hit['rule'] if len(found) > 1 and hit.get('rule') else ''}" for hit in found]
        rows.append(f"{name}{f' = {value}' if 'fact' in found[0] else ''} ({', '.join(weights)}{where})")
    return rows


def labelled(labels: Mapping[str, Any]) -> str:
    """Which of several observations of one name: `` of eager at concurrency 1``."""
    of = f" of {labels['bucket']}" if labels.get("bucket") else ""
    at = f" at concurrency {labels['concurrency']}" if labels.get("concurrency") is not None else ""
    others = ", ".join(f"{name} {value}" for name, value in labels.items() if name not in ("bucket", "concurrency"))
    return f"{of}{at}{f' ({others})' if others else ''}"


def _source(item: Mapping[str, Any]) -> str:
    return f" [{item['source']}]" if item.get("source") else ""
