"""``optimize plan`` for people. Text from a document; nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from optimizer.report.prose import changes_text
from optimizer.report.wrapping import within


def plan_text(found: Mapping[str, Any], columns: int | None = None) -> str:
    """What would happen, and every value that the user did not give. ``columns`` of the terminal, where there is one."""
    load = found["workload"]
    lines = [
        f"Host         {found['host']}: {found['engine']} {found['engine_version'] or '(version unknown)'}, "
        f"{'a server is running' if found['running_server'] else 'no server is running'}",
        f"Target       {_target(found)}",
        f"Workload     concurrency {load['concurrency']} (also {', '.join(map(str, load['side_levels'])) or 'no other level'}), {load['prompt_tokens']} prompt "
        f"tokens, {load['output_tokens']} output tokens, windows of {load['window_s']:g} s after {load['warmup_min_s']:g}-{load['warmup_max_s']:g} s of "
        f"warm-up, confirmation {load['confirm_window_s']:g} s",
        f"Budget       {found['budget']['launches']} launches, {found['budget']['minutes']:g} minutes; {max(0, found['budget']['launches'] - 3)} of them for "
        "candidates (two for the baseline, one for the confirmation)",
        f"Afterwards   {found['finish'] if found['finish'] != 'default' else 'the best settings if they are confirmed, else the original'}",
        f"First step   {found['next_step']}",
        f"Command      {shlex.join(found['first_command'])}",
        f"Given        {changes_text(found['given'])}",
    ]
    lines.append(_restores(found))
    lines.append(f"Guard        the box restores itself after {found['guard_minutes']:g} minutes without a word from here")
    if found["unknown_flags"]:
        lines.append(f"Unknown      this build does not know {', '.join(found['unknown_flags'])}: it would refuse to start")
    lines += [f"Dead         {changes_text(item['params'])}: {item['why']}" for item in found["refused"]]
    lines.append(f"Evidence     {found['facts']} facts read, {len(found['missing'])} missing")
    lines.append("Hypotheses   (before any measurement)")
    known_good = ", ".join(item["name"] for item in found.get("prior_art", []) if item["used"])
    for row in found["hypotheses"][:8]:
        of = f" (what {known_good} was left with; --prior none leaves it out)" if row["id"] == "prior-art" and known_good else ""
        lines.append(f"  {row['score_db']:+6.1f} db  P {row['probability']:.2f}  {row['id']}{of}")
    if known := [item for item in found.get("earlier_studies", []) if item["used"]]:
        lines.append("Starts from  launches of earlier studies: " + ", ".join(f"{item['name']} ({item['launches']})" for item in known) + "; --prior none leaves them out")
    lines += _durations(found)
    return "\n".join(part for line in lines for part in _fitted(line, columns))


def _fitted(line: str, columns: int | None) -> list[str]:
    """A line that is too long goes on below its text, not below its name."""
    if columns is None or len(line) <= columns:
        return [line]
    head = line[:13]
    rows = within(line[13:].strip(), columns, " " * 13)
    return [head + rows[0][13:], *rows[1:]] if not line.startswith("  ") else within(line.strip(), columns, "    ")


def _target(found: Mapping[str, Any]) -> str:
    if not found["target"]:
        return "none given (run needs one, for example --target 1000tps@16)"
    return f"{found['target']} (not given: the simulated box's own; --target sets another)" if found["target_from"] == "box" else str(found["target"])


def _restores(found: Mapping[str, Any]) -> str:
    if not found["would_restore"]:
        return "Restores     nothing: no server runs there now, so none would run in the end unless the best settings are confirmed"
    how = f" (by its supervisor, after `{found['restored_by']}`)" if found["restored_by"] else ""
    return f"Restores     {shlex.join(found['would_restore'])}{how}"


def _durations(found: Mapping[str, Any]) -> list[str]:
    """A line for each step, with who says so; what is unknown is called that."""
    rows = [(row["step"], duration_text(row["low_s"], row["high_s"]), row["source"]) for row in found["durations"]]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = ["Durations    (of the server's clock)", *(f"  {step:<{widths[0]}}  {took:<{widths[1]}}  {source}" for step, took, source in rows)]
    each, last, fit = found["candidate_s"], found["confirmation_s"], found["candidates_that_fit"]
    if fit is None:
        return [*lines, f"  how many launches {found['budget']['minutes']:g} minutes hold is known after the first one"]
    count = f"{fit[0]}" if fit[0] == fit[1] else f"{fit[0]} to {fit[1]}"
    return [*lines, f"  a candidate (start and measurement) takes {duration_text(*each)}, the confirmation {duration_text(*last)}: {found['budget']['minutes']:g} minutes hold {count} candidates "
                    "beside baseline and confirmation"]  # fmt: skip


def duration_text(low_s: float | None, high_s: float | None) -> str:
    """``2 to 7 min``, ``153 s``, ``unknown``."""
    if low_s is None or high_s is None:
        return "unknown"
    if high_s < 180:
        low, high, unit = f"{low_s:.0f}", f"{high_s:.0f}", "s"
    else:
        low, high, unit = f"{low_s / 60:.1f}", f"{high_s / 60:.1f}", "min"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"
