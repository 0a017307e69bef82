"""``optimize diff`` for people. Text from a document; nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.report.prose import number

SHOWN = 12
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
            tokens, tpot, ttft = (row[name] for name in ("output_tokens_per_s", "tpot_p50_ms", "ttft_p50_ms"))
            lines.append(
                f"  c={row['concurrency']}: {number(tokens[0])} -> {number(tokens[1])} tok/s, TPOT p50 {number(tpot[0])} -> {number(tpot[1])} ms, "
                f"TTFT p50 {number(ttft[0])} -> {number(ttft[1])} ms (one launch each, no interval)"
            )
        lines.append("")
    lines += _table("Asked differently on the command line", found["asked"])
    lines += _table("Resolved differently without being asked (defaults that changed)", found["resolved"])
    flips = found["flips"]
    lines.append("Start-up facts that changed:" if flips else "No start-up fact that both tell has changed.")
    for flip in flips[:SHOWN]:
        kind = "  a fallback" if flip["towards_fallback"] else ""
        lines.append(f"  {flip['fact']}: {_value(flip['before'])} -> {_value(flip['after'])}{kind}")
    lines += ["", *_advice(found)]
    return "\n".join(lines)


def _table(title: str, rows: list[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return [f"{title}: nothing.", ""]
    shown = [f"  {row['setting']}: {_value(row['before'])} -> {_value(row['after'])}" for row in rows[:SHOWN]]
    more = [f"  and {len(rows) - SHOWN} more (--json)"] if len(rows) > SHOWN else []
    return [f"{title}:", *shown, *more, ""]


def _advice(found: Mapping[str, Any]) -> list[str]:
    suspects = [row for row in found["suspects"] if row["weight"] > 0]
    if any(reason.startswith(OTHERS) for reason in found["comparable"]):
        return ["No setting is blamed: what differs between two engines, models or kinds of GPU is not a setting's doing."]
    if not suspects:
        return ["No setting can be blamed: what the two launches tell of themselves does not differ where a setting could have done it."]
    lines = ["Put back first (one launch each tells; nothing here was tested):"]
    for row in suspects[:5]:
        because = ", ".join(flip["fact"] for flip in row["flips"][:3])
        how = f"set {row['setting']} to {_value(row['back_to'])}" if row["back_to"] is not None else f"remove {row['setting']}"
        lines.append(f"  {how} (now {_value(row['now'])}{', a changed default' if row['unasked'] else ''}): it may have flipped {because}")
    return lines


def _value(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 70 else f"{text[:67]}..."
