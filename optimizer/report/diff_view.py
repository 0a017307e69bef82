"""``optimize diff`` for people. Text from a document; nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.report.prose import number

SHOWN = 12
FIGURES = (("output_tokens_per_s", "", "tok/s"), ("tpot_p50_ms", "TPOT p50", "ms"), ("ttft_p50_ms", "TTFT p50", "ms"))
OTHERS = ("different engines", "different GPUs", "different models")  # of core.forensics


def diff_text(found: Mapping[str, Any]) -> str:
    """How much it changed, what changed, and what to put back first."""
    one, other = found["before"], found["after"]
    lines = [
        f"before  {one['study']}: {one['engine']} {one['engine_version'] or '(version unknown)'}, {one['gpu_count']} × {one['gpu'] or 'no GPU'}",
        f"after   {other['study']}: {other['engine']} {other['engine_version'] or '(version unknown)'}, {other['gpu_count']} × {other['gpu'] or 'no GPU'}",
        "",
    ]
    if found["comparable"]:
        lines += ["The two speeds cannot be set against each other: " + "; ".join(found["comparable"]) + ".", ""]
    else:
        speed = found["speed"]
        low, high = speed["interval"]
        said = {"faster": "Faster", "slower": "Slower", "cannot tell": "Cannot tell: the interval includes no change"}[speed["verdict"]]
        lines.append(f"{said}: ×{speed['ratio']:.3f} [{low:.3f}, {high:.3f}] (95 %, {speed['launches'][0]} launch(es) before, {speed['launches'][1]} after)")
        for row in found["levels"]:
            told = [f"{name} {number(row[key][0])} -> {number(row[key][1])} {unit}".strip() for key, name, unit in FIGURES if None not in row[key]]
            lines.append(f"  c={row['concurrency']}: {', '.join(told)}")
        lines += ["  (the last launch of each, so without an interval)", ""]
        lines += _where_the_time_went(found["buckets"])
    lines += _table("Asked differently on the command line", found["asked"])
    lines += _table(_resolved_title(found), found["resolved"])
    flips = found["flips"]
    lines.append("Start-up facts that changed:" if flips else "No start-up fact that both tell has changed.")
    for flip in flips[:SHOWN]:
        kind = "  a fallback" if flip["towards_fallback"] else ""
        lines.append(f"  {flip['fact']}: {_pair(flip['before'], flip['after'])}{kind}")
    lines += ["", *_advice(found)]
    return "\n".join(lines)


def _resolved_title(found: Mapping[str, Any]) -> str:
    title = "Resolved differently without being asked"
    if not found["same_build"]:
        return f"{title} (defaults that changed)"
    return f"{title} (the build is the same, so this follows from the above or from the box)"


def _where_the_time_went(buckets: Mapping[str, Any] | None) -> list[str]:
    """The parts that grew or shrank; what stays below a hundredth of a millisecond is no part."""
    rows = [row for row in buckets["rows"] if abs(row["after_ms"] - row["before_ms"]) >= 0.01] if buckets is not None else []
    if buckets is None or not rows:
        return []
    parts = [f"  {row['bucket']}: {row['before_ms']:.2f} -> {row['after_ms']:.2f} ms ({row['basis']})" for row in rows]
    return [f"Where the time of a token went beyond the roofline, at c={buckets['concurrency']}:", *parts, ""]


def _table(title: str, rows: list[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return [f"{title}: nothing.", ""]
    shown = [f"  {row['setting']}: {_pair(row['before'], row['after'])}" for row in rows[:SHOWN]]
    more = [f"  and {len(rows) - SHOWN} more (--json)"] if len(rows) > SHOWN else []
    return [f"{title}:", *shown, *more, ""]


def _advice(found: Mapping[str, Any]) -> list[str]:
    suspects = [row for row in found["suspects"] if row["weight"] > 0]
    if any(reason.startswith(OTHERS) for reason in found["comparable"]):
        return ["No setting is blamed: what differs between two engines, models or kinds of GPU is not a setting's doing."]
    if not suspects:
        return ["No setting can be blamed: what the two launches tell of themselves does not differ where a setting could have done it."]
    faster = not found["comparable"] and found["speed"]["verdict"] == "faster"
    silent = [row["setting"] for row in found["suspects"] if row["weight"] == 0 and not row["unasked"]]
    lines = ["What may have made it faster (nothing here was tested):" if faster else "Put back first (one launch each tells; nothing here was tested):"]
    for row in suspects[:5]:
        reasons = [f"it may have flipped {', '.join(flip['fact'] for flip in row['flips'][:3])}"] * bool(row["flips"])
        reasons += [f"such settings cure what costs time in {row['cures']}"] * bool(row["cures"])
        because = "; ".join(reasons)
        default = not found["same_build"] and row["unasked"]
        if faster:
            lines.append(f"  {row['setting']}: {_pair(row['back_to'], row['now'])}{' (a changed default)' if default else ''}: {because}")
            continue
        how = f"set {row['setting']} to {_value(row['back_to'])}" if row["back_to"] is not None else f"remove {row['setting']}"
        flag = f", {_value(row['how'])}" if row.get("how") and row["back_to"] is not None else ", which this build has no flag for" if "how" in row and row["how"] is None else ""
        lines.append(f"  {how}{flag} (now {_value(row['now'])}{', a changed default' if default else ''}): {because}")
    return [*lines, *([f"Asked differently too, though nothing at start-up tells what it did: {', '.join(silent[:SHOWN])}."] if silent else [])]


def _pair(before: Any, after: Any) -> str:
    """Both values; of two long lists what only one of them has."""
    both = [_value(before), _value(after)]
    if not (isinstance(before, list | tuple) and isinstance(after, list | tuple)) or max(map(len, map(str, (before, after)))) <= 70:
        return " -> ".join(both)
    gone, come = ([item for item in side if item not in other] for side, other in ((before, after), (after, before)))
    said = [f"{word} {_value(items)}" for word, items in (("without", gone), ("with", come)) if items]
    return f"{len(before)} -> {len(after)} values: {', '.join(said) or 'in another order'}"


def _value(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 70 else f"{text[:67]}..."
