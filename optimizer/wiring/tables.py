"""``optimize replay --table``: policies against each other on a table of measurements, as a document and as text for people."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.core.ledger import fallbacks
from optimizer.errors import UsageError
from optimizer.evidence.bundle import bundle_from_files
from optimizer.model.canonical import canonical_json
from optimizer.model.startup import Flip
from optimizer.search.contest import Reached, Score, contest
from optimizer.search.logged import replay_with_logs
from optimizer.search.policies import names as policy_names
from optimizer.search.table import Direction, Reading, Table, read_tables, tells_direction
from optimizer.wiring import Roots, library

MOST_BYTES = 200_000_000
_SHOWN = 12  # groups that the text lists one by one
_HALF, _NEVER_MORE = 0.5, 0.7  # what is promised of the median table, and of how many tables


@dataclass(frozen=True)
class TableOptions:
    """What was asked on the command line."""

    table: Path
    params: tuple[str, ...]
    objective: str
    group: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    policies: tuple[str, ...] = ("evidence", "tpe", "gp", "random")
    seeds: int = 20
    direction: Direction | None = None
    default: str = ""
    launches: int = 200
    logs: str = ""
    baseline: float | None = None


def replay_table(options: TableOptions, roots: Roots) -> dict[str, Any]:
    """The whole comparison. Raises UsageError for a file, column or policy that cannot be used."""
    if unknown := [name for name in options.policies if name not in policy_names()]:
        raise UsageError(f"There is no policy {unknown[0]!r}.", hint=f"There are: {', '.join(policy_names())}")
    if options.baseline is not None and not options.logs:
        raise UsageError("--baseline says nothing here: it is what a log's fallback is compared with.", hint="Give --logs as well, or leave it out.")
    if not options.policies or not options.params:
        raise UsageError("Name at least one policy and one parameter.", hint="--params a,b,c --policies evidence,random")
    text = _filtered(_text(options.table), options.where, options.table.name)
    reading = read_tables(
        text, options.params, options.objective, group=options.group, direction=options.direction,
        default=_pairs(options.default, "--default") if options.default else None, file=options.table.name,
    )  # fmt: skip
    directions = library(roots).directions
    scores = [contest(table, options.policies, directions, options.seeds, most_launches=options.launches) for table in reading.tables]
    groups = [_group(table, found, options.launches) for table, found in zip(reading.tables, scores, strict=True)]
    found: dict[str, Any] = {
        "table": options.table.name,
        "objective": options.objective,
        "direction": reading.tables[0].direction,
        "direction_from": "--direction" if options.direction else "the name" if tells_direction(options.objective) else "assumed",
        "params": list(options.params),
        "seeds": options.seeds,
        "policies": list(options.policies),
        "rows": {"read": reading.rows, "left_out": dict(reading.left_out), "first_left_out": dict(reading.examples)},
        "groups_without_a_choice": list(reading.small),
        "groups": groups,
        "summary": _summary(groups, options.policies),
        "speed": _speed(scores, options.policies),
    }
    if options.logs:
        found["with_logs"] = [_with_logs(table, options, directions) for table in reading.tables]
    found["text"] = _prose(found, reading, options)
    return found


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than {MOST_BYTES // 1_000_000} MB.", hint="Keep only the columns that are needed.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}).", hint="Save the table as UTF-8 CSV.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def _filtered(text: str, where: Sequence[str], file: str) -> str:
    """Only the rows whose columns hold these values (``column=`` keeps rows with an empty cell)."""
    if not where:
        return text
    wanted: dict[str, str] = {}
    for item in where:
        wanted.update(_pairs(item, "--where"))
    csv.field_size_limit(MOST_BYTES)
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    header = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = header
    if missing := [name for name in wanted if name not in header]:
        raise UsageError(f"{file} has no column {missing[0]}.", hint=f"Its columns: {', '.join(header[:60])}")
    kept = io.StringIO(newline="")
    writer = csv.DictWriter(kept, header, extrasaction="ignore")
    writer.writeheader()
    rows = [row for row in reader if all((row.get(name) or "").strip() == value for name, value in wanted.items())]
    if not rows:
        asked = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise UsageError(f"No row of {file} has {asked}.", hint="--where selects rows by the text of a cell; nothing after = selects empty ones.")
    writer.writerows(rows)
    return kept.getvalue()


def _pairs(text: str, option: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {text!r} is not understood.", hint=f"Write it as {option} column=value[,column=value].")
        found[name.strip()] = value.strip()
    return found


def _group(table: Table, scores: Sequence[Score], most: int) -> dict[str, Any]:
    values, default = table.values, table.default
    best = values.index(table.best)
    noise = table.noise()
    found: dict[str, Any] = {
        "name": table.name,
        "configurations": len(table.points),
        "measurements": sum(len(results) for results in table.results),
        "varied": list(table.names),
        "constant": dict(table.constant),
        "limit": min(most, len(table.points)),
        "noise": None if noise is None else round(noise, 5),
        "best": {"value": table.best, "configuration": dict(table.points[best])},
        "default": None
        if default is None
        else {"value": values[default], "configuration": dict(table.points[default]), "share_of_best": round(table.share(values[default]), 4)},
        "policies": {score.policy: _figures(score) for score in scores},
    }
    by_name = {score.policy: score.launches_to["95%"] for score in scores}
    if "evidence" in by_name:
        mine = by_name["evidence"]
        found["evidence_against"] = {name: round(mine.mean / other.mean, 3) for name, other in by_name.items() if name != "evidence"}
        found["evidence_against_is"] = {name: _bound(mine, other) for name, other in by_name.items() if name != "evidence"}
    return found


def _bound(mine: Reached, other: Reached) -> str:
    """What a ratio of two means is where some runs ended before they were there, which makes the mean a lower bound."""
    if mine.reached == 1:
        return "exact" if other.reached == 1 else "at most"
    return "at least" if other.reached == 1 else "unknown"


def _figures(score: Score) -> dict[str, Any]:
    plain = score.plain()
    return {name: value for name, value in plain.items() if name not in ("policy", "own_s")}


def _summary(groups: Sequence[dict[str, Any]], policies: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"groups": len(groups), "median_launches_to": {}, "default": _defaults(groups)}
    found["median_is_lower_bound"] = {}
    for name in policies:
        medians, bounds = {}, {}
        for share in ("90%", "95%", "99%"):
            reached = [group["policies"][name]["launches_to"][share] for group in groups]
            medians[share] = round(statistics.median(one["mean"] for one in reached), 3)
            # A group above its bound could be anywhere above it.
            bounds[share] = any(one["reached"] < 1 and one["mean"] <= medians[share] for one in reached)
        found["median_launches_to"][name], found["median_is_lower_bound"][name] = medians, bounds
    if "evidence" in policies:
        for other in policies:
            if other != "evidence":
                found[f"against_{other}"] = _against(groups, other)
        if "random" in policies:
            found["half_of_random"] = _claim(found["against_random"]["median_ratio"], lambda ratio: ratio <= _HALF)
        if "tpe" in policies:
            found["no_more_than_tpe"] = found["against_tpe"]["never_more_on"] >= _NEVER_MORE
    return found


def _claim(ratio: float | None, holds: Callable[[float], bool]) -> bool | None:
    return None if ratio is None else holds(ratio)


def _against(groups: Sequence[dict[str, Any]], other: str) -> dict[str, Any]:
    """How evidence did against another policy; also where that one needs more than two launches, for nobody can halve one. A ratio that is
    not known from above counts as the worst; where a median is one of those it is None."""
    ratios = [
        (group["evidence_against"][other] if group["evidence_against_is"][other] in ("exact", "at most") else math.inf, group["policies"][other]["launches_to"]["95%"]["mean"], group["name"])
        for group in groups
    ]
    kinds = Counter(group["evidence_against_is"][other] for group in groups)
    worth = [ratio for ratio, launches, _ in ratios if launches > 2.0]
    return {
        "median_ratio": _median(ratio for ratio, _, _ in ratios),
        "ratios_are": dict(kinds),
        "never_more_on": round(sum(ratio <= 1.0 for ratio, _, _ in ratios) / len(ratios), 3),
        "more_on": [name for ratio, _, name in ratios if ratio > 1.0],
        "groups_above_two_launches": len(worth),
        "median_ratio_above_two_launches": _median(worth),
    }


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    middle = statistics.median(found) if found else math.inf
    return round(middle, 3) if math.isfinite(middle) else None


def _defaults(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    known = [group["default"]["share_of_best"] for group in groups if group["default"]]
    return {
        "not_recorded_on": [group["name"] for group in groups if not group["default"]],
        "median_share_of_best": round(statistics.median(known), 4) if known else None,
    }


def _speed(scores: Sequence[Sequence[Score]], policies: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, name in enumerate(policies):
        steps, seconds = sum(one[place].steps for one in scores), sum(one[place].own_s for one in scores)
        decided = sum(one[place].decided for one in scores)
        found[name] = {"steps": steps, "decided": decided, "steps_per_s": round(steps / seconds) if seconds > 0 else None,
                       "decided_per_s": round(decided / seconds) if seconds > 0 else None}  # fmt: skip
    return found


# ---- launches that left their logs ----------------------------------------------------------------------------------


def _with_logs(table: Table, options: TableOptions, directions: Sequence[Any]) -> dict[str, Any]:
    """The evidence policy once more, reading the log of every launch as after a real one."""
    if options.baseline is None:
        raise UsageError("--logs needs --baseline: a fallback is given up only where it is slower than what ran before.", hint="--baseline 293.4")
    run = replay_with_logs(
        table, directions, lambda index: _fallbacks(options, table.rows[index]), baseline=options.baseline, most_launches=options.launches
    )
    return {"group": table.name, "baseline": options.baseline, "baseline_share_of_best": round(table.share(options.baseline), 4), "in_all_rows": dict(table.constant), **run.plain()}


def _fallbacks(options: TableOptions, row: Mapping[str, str]) -> tuple[Flip, ...]:
    try:
        path = Path(options.logs.format_map({str(name): value for name, value in row.items()}))
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(f"--logs {options.logs!r} is not understood: {error}.", hint="Columns go into braces: logs/trial_{trial}/server.log") from error
    if path.is_dir():
        path = path / "server.log"
    try:
        log = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The log {path} cannot be read: {error.strerror}.", hint="--logs gives the log of every row of the table.") from error
    engine = "sglang" if b"sglang" in log[:65536].lower() and b"vllm" not in log[:65536].lower() else "vllm"
    bundle = bundle_from_files({"launch.json": canonical_json({"engine": engine}).encode(), "server.log": log})
    return fallbacks(bundle.evidence)


def _logged_text(run: Mapping[str, Any]) -> list[str]:
    lines = ["", f"With the log of each launch ({run['group']}; baseline {run['baseline']:g}, {run['baseline_share_of_best'] * 100:.0f} % of the best of the table):"]
    lines += [f"  in all rows: {_spelled(run['in_all_rows'])}"] * any(value is not None for value in run["in_all_rows"].values())
    for number, launch in enumerate(run["launches"][:_SHOWN], 1):
        lines.append(f"  launch {number}: {launch['value']:g} with {_spelled(launch['configuration'])}")
        lines += [f"    {named}" for named in launch["fallbacks"]]
        lines += [f"    given up: {branch}" for branch in launch["pruned"]]
    if len(run["launches"]) > _SHOWN:
        lines.append(f"  and {len(run['launches']) - _SHOWN} more launches")
    return [*lines, f"  kept: {run['kept']}, {run['share_of_best'] * 100:.0f} % of the best of the table; {run['left']} configurations not launched. {run['why']}"]


def _spelled(configuration: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in configuration.items() if value is not None)


# ---- for people -----------------------------------------------------------------------------------------------------


def _prose(found: dict[str, Any], reading: Reading, options: TableOptions) -> str:
    groups, policies = found["groups"], found["policies"]
    more = "more is better" if found["direction"] == "max" else "less is better"
    more += {"assumed": ": the name does not tell, --direction min if it is not", "--direction": ", as --direction says"}.get(found["direction_from"], "")
    lines = [f"{found['table']}: {reading.rows} rows, {len(groups)} group{'s' * (len(groups) != 1)}, {options.objective} ({more}), {options.seeds} seeds."]
    for why, count in reading.left_out.items():
        lines.append(f"  left out: {count} row{'s' * (count != 1)}, {why} (first: {reading.examples[why]})")
    if reading.small:
        lines.append(f"  left out: {len(reading.small)} group{'s' * (len(reading.small) != 1)} with one configuration each: there is nothing to choose")
    lines += _noise_text(groups, policies)
    lines += ["", "Launches until 90 / 95 / 99 % of the best (mean over seeds ± the standard error of the 95 %):"]
    for group in groups if len(groups) <= _SHOWN else []:
        lines.append(f"  {group['name']}: {group['configurations']} configurations; {_default_text(group, first=bool(options.logs) and not options.default)}")
        for name in policies:
            figures = group["policies"][name]
            reached = " / ".join(_launches(figures["launches_to"][share], group["limit"]) for share in ("90%", "95%", "99%"))
            asked = f"; {figures['not_recorded']:.1f} points asked for that nobody measured" if figures["not_recorded"] else ""
            curve = " ".join(f"{figures['regret'][place] * 100:.0f}" for place in range(min(8, len(figures["regret"]))))
            se = figures["launches_to"]["95%"]["se"]
            lines.append(f"    {name:9} {reached:20} ± {se:.2f}  missing after each launch, %: {curve}{asked}")
    if len(groups) > 1:
        lines.append("  median over the groups:")
        for name in policies:
            median, bound = found["summary"]["median_launches_to"][name], found["summary"]["median_is_lower_bound"][name]
            lines.append(f"    {name:9} " + " / ".join(f"{'at least ' * bound[share]}{median[share]:.1f}" for share in ("90%", "95%", "99%")))
    for run in found.get("with_logs", []):
        lines += _logged_text(run)
    return "\n".join([*lines, "", *_judgement(found)])


def _launches(reached: Mapping[str, Any], limit: int) -> str:
    """A mean over seeds; where some ran out of launches first, the bound that it is and how many got there."""
    if reached["reached"] == 1:
        return f"{reached['mean']:.1f}"
    if reached["reached"] == 0:
        return f"not in {limit}"
    return f"at least {reached['mean']:.1f} (reached in {reached['reached']:.0%})"


def _noise_text(groups: Sequence[dict[str, Any]], policies: Sequence[str]) -> list[str]:
    """What the model knows that a study would have to learn: a policy launches every configuration once, which shows no noise."""
    told = [group["noise"] for group in groups if group["noise"] is not None]
    models = [name for name in policies if name in ("evidence", "gp")]
    if not told or not models:
        return []
    size = f"{min(told):.1%}" if len(told) == 1 else f"{min(told):.1%} to {max(told):.1%}"
    return [f"  noise of one launch: {size}, pooled over all repeated rows of a group, launched or not; {' and '.join(models)} {'is' if len(models) == 1 else 'are'} told it"]


def _default_text(group: dict[str, Any], *, first: bool) -> str:
    """``first``: with logs the untuned default is --baseline, and the first row is a launch like the others."""
    if group["default"] is None:
        return "the default was never measured"
    return f"the {'first row' if first else 'untuned default'} gives {group['default']['share_of_best'] * 100:.0f} % of the best"


def _judgement(found: dict[str, Any]) -> list[str]:
    lines, summary = [], found["summary"]
    for other in ("random", "tpe", "gp"):
        if (against := summary.get(f"against_{other}")) is None:
            continue
        if against["median_ratio"] is None:
            lines.append(f"How evidence compares with {other} on the median group cannot be told: its runs ended before they were there. Give more --launches.")
            continue
        most = "at most " if against["ratios_are"].get("at most") else ""
        lines.append(
            f"evidence needs {most}{against['median_ratio']:.2f} times the launches of {other} on the median group, and no more than it on "
            f"{against['never_more_on'] * 100:.0f} % of {summary['groups']}."
        )
        if 0 < against["groups_above_two_launches"] < summary["groups"] and against["median_ratio_above_two_launches"] is not None:
            lines.append(
                f"  On the {against['groups_above_two_launches']} groups where {other} needs more than two launches: "
                f"{against['median_ratio_above_two_launches']:.2f} times."
            )
        lost = against["more_on"]
        if lost:
            lines.append(f"  It does not win on: {'; '.join(lost[:8])}{f' and {len(lost) - 8} more' if len(lost) > 8 else ''}")
    if summary["default"]["median_share_of_best"] is not None:
        lines.append(f"The untuned default gives {summary['default']['median_share_of_best'] * 100:.0f} % of the best on the median group.")
    steps = ", ".join(
        f"{name} {speed['steps_per_s']:,}" + (f" ({speed['decided_per_s']:,} decided anew, the others looked up)" if speed["decided"] < speed["steps"] else "")
        for name, speed in found["speed"].items() if speed["steps_per_s"]
    )  # fmt: skip
    return [*lines, f"Steps a second a core, Optuna's own time aside: {steps}."]
