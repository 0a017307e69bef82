"""``optimize plan`` for people. Text from a document; nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from optimizer.report.prose import changes_text


def plan_text(found: Mapping[str, Any]) -> str:
    """What would happen, and every value that the user did not give."""
    load = found["workload"]
    lines = [
        f"Host         {found['host']}: {found['engine']} {found['engine_version'] or '(version unknown)'}, "
        f"{'a server is running' if found['running_server'] else 'no server is running'}",
        f"Target       {found['target'] or 'none given (run needs one, for example --target 1000tps@16)'}",
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
    if found["would_restore"]:
        lines.append(f"Restores     {shlex.join(found['would_restore'])}")
    if found["unknown_flags"]:
        lines.append(f"Unknown      this build does not know {', '.join(found['unknown_flags'])}: it would refuse to start")
    lines += [f"Dead         {changes_text(item['params'])}: {item['why']}" for item in found["refused"]]
    lines.append(f"Evidence     {found['facts']} facts read, {len(found['missing'])} missing")
    lines.append("Hypotheses   (before any measurement)")
    lines += [f"  {row['score_db']:+6.1f} db  P {row['probability']:.2f}  {row['id']}" for row in found["hypotheses"][:8]]
    return "\n".join(lines)
