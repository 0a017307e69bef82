"""The answer to "why was this set?" as people read it. Pure: the document that ``core.why_set`` made in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.report.asking_view import facts_text
from optimizer.report.prose import changes_text, number, result_text, reworded


def setting_text(found: Mapping[str, Any]) -> str:
    """The answer first, then cause, evidence, prediction, measurement and confirmation, each with its entry."""
    study, name = found["study"], found["setting"]
    if found["answer"] == "given":
        return f"{name}={found['given_value']} was on the original command line; this study neither changed nor tested it.\n  optimize why-not {study} {name} says why not."
    if found["answer"] == "absent":
        others = ", ".join(name for name in found["together"] if name != found["setting"])
        beside = f" The change that named it (entry {found['entry']}) did its work through {others}." if others else f" (entry {found['entry']})"
        return f"{name} is kept off the command line, and it never was on it: nothing changed by this name.{beside}"
    if found["answer"] == "tested":
        return f"{name} was tested (entry {found['entry']}) and not kept.\n  optimize why-not {study} {name} says by which measurement."
    head = f"{name} was taken off the command line" if found["value"] is None else f"{changes_text({name: found['value']})} was set"
    if found["answer"] == "taken_back":
        head += f", and that was taken back (entry {found['taken_back']['entry']}: {found['taken_back']['why']})"
    lines = [f"{head} (entry {found['entry']}). {_before(found)}"]
    for cause in found["causes"]:
        where = f" (ranked at entry {cause['entry']})" if cause["entry"] else ""
        lines.append(f"  what for   {cause['id']}{': ' + cause['claim'] if cause['claim'] else ''}{where}")
        lines += [f"    for it: {text}" for text in facts_text(cause["for"])]
        lines += [f"    against it: {text}" for text in facts_text(cause["against"])] or ["    against it: nothing that was read"]
    if found["predicted"]:
        lines.append(f"  predicted  ×{found['predicted'][0]:.2f} to ×{found['predicted'][1]:.2f} (entry {found['chosen']})")
    if found["measured"]:
        lines.append(f"  measured   {_measured(found['measured'])}")
    for row in found["side"]:
        lines.append(f"  beside     at c={row['concurrency']} {number(row['before'])} -> {number(row['after'])} tok/s (×{row['ratio']:.2f}, one launch each, no interval{'; not valid: ' + ', '.join(row['invalid']) if row.get('invalid') else ''}; entry {row['entry']})")
    if found["answers"]:
        lines.append(f"  answers    {found['answers']['verdict'].replace('_', ' ')}: {found['answers']['why']} (entry {found['answers']['entry']})")
    if found["weighed"]:
        lines.append(f"  belief     {found['weighed']}")
    if not found["measured"] or found["measured"]["entry"] > found["entry"]:  # the reason of the day, not what was learned later
        lines.append(f"  kept       {found['kept_because']} (entry {found['entry']})")
    if found["together"]:
        lines.append(f"  together   in one launch: {changes_text(found['together'])}; the ratio is of all of it")
    for flip in found["flips"]:
        lines.append(f"  the start  {flip['fact']} {flip['before']} -> {flip['after']} (entry {flip['entry']})")
    if found["result"]:
        lines.append(f"  study      before {result_text(found['result']['baseline'])}, at the end {result_text(found['result']['best'])} (entry {found['result']['entry']})")
    lines.append(f"  All that led to it: optimize journal {study} --why {found['entry']}")
    return "\n".join(lines)


def _before(found: Mapping[str, Any]) -> str:
    if found["given"]:
        return f"On the original command line: {found['given_value']}."
    return "Not on the original command line" + (f"; the server itself took {found['before']}." if found["before"] is not None else ".")


def _measured(look: Mapping[str, Any]) -> str:
    """With its interval, its launches, and the verdict in words."""
    verdict = look["verdict"].replace("_", " ") if look["final"] else "not yet decided"
    return (
        f"×{look['ratio']:.3f} [{look['low']:.3f}, {look['high']:.3f}] at {100 * look['confidence']:.4g} %, {look['n_candidate']} against {look['n_baseline']} "
        f"launches: {verdict}; {reworded(look['reason'])} (entry {look['entry']})"
    )
