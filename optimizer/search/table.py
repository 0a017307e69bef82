"""Tables of measurements as something to search: configurations, what was measured of each, and which rows were left out and
why. Responsible for reading; never fills in a number that nobody measured."""

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from optimizer.errors import UsageError
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json
from optimizer.search.encode import Effect

Direction = Literal["max", "min"]
Point = Mapping[str, Value]

# How a column's name tells whether more is better. Asked in this order, of the words before the first "per" where one stands.
_HARM = re.compile(r"error|timeout|fail|reject|preempt|abort|retract|evict|miss|loss|cost|price|power|energy|joule|watt|delay|drop|waste|kld|perplexity")
_MORE = re.compile(
    r"tps|tpm|rps|qps|tput|throughput|goodput|tok_s|toks|intvty|interactiv|hit_rate|(fl|t|i)ops|bandwidth|(bus|alg)bw|gbps|accept|speed|utili[sz]ation|mfu|mbu|(^|_)ts$"
)
_TIME = re.compile(r"ttft|ttfb|tpot|itl|latency|e2el?(_|$)|(^|_)p\d{1,2}(_?\d+)?$|(^|_)(ms|us|ns|s|sec|secs|seconds|min|minutes|h|hours)$|duration|time|elapsed|makespan")
_COUNTED = re.compile(r"(^|_)(tok|token|tokens|t|req|reqs|requests|queries|prompts|seqs|images|samples|steps|iters|gb|gib|mb|mib|bytes)_s(ec)?$")
_RARE = re.compile(r"(s|sec|second|min|minute|h|hour|joule|j|watt|w|kwh|mwh|power|energy|dollar|usd|eur|cost)s?(_|$)")  # after "per": having more of the rest is good
_SPEED_OF_ONE = re.compile(r"intvty|interactiv|per_user")
_PER_GPU = re.compile(r"per_(gpu|device|accelerator)")
_Member = tuple[dict[str, Value], float, Mapping[str, str]]
_CELLS = 200_000_000  # bytes of a table
# A column is one of numbers if at least this share of its filled cells are.
_MOSTLY = 0.8
_LARGEST = 1e100  # no unit makes a measurement larger, and sums of what is near the end of the range overflow


@dataclass(frozen=True)
class Table:
    """One group: ``points`` are its different configurations in the order of the file, ``results`` what was measured of each."""

    name: str
    names: tuple[str, ...]  # parameters that vary, in the order asked for
    points: tuple[Point, ...]
    results: tuple[tuple[float, ...], ...]
    direction: Direction
    effect: Effect
    default: int | None = 0  # index of the untuned configuration; None where it was never measured
    constant: Mapping[str, Value] = field(default_factory=dict)
    rows: tuple[Mapping[str, str], ...] = ()  # the first row of each configuration as it stands in the file

    @property
    def values(self) -> tuple[float, ...]:
        """The mean of each configuration: the truth as far as the table knows it."""
        return tuple(math.fsum(found) / len(found) for found in self.results)

    @property
    def best(self) -> float:
        return max(self.values) if self.direction == "max" else min(self.values)

    def share(self, value: float, best: float | None = None) -> float:
        """How much of the best a value is: 1 for the best, 0.95 for 5 % less throughput or 1/0.95 of the latency."""
        best = self.best if best is None else best
        if self.direction == "max":
            return value / best if best > 0 else 1.0 - (best - value) / max(abs(best), *(abs(one) for one in self.values), 1e-12)
        return best / value if value > 0 and best > 0 else 1.0 - (value - best) / max(abs(best), *(abs(one) for one in self.values), 1e-12)

    def gains(self) -> tuple[tuple[float, ...], ...]:
        """Every result as ln, oriented so that more is better; where some are not positive, in shares of the largest."""
        sign = 1.0 if self.direction == "max" else -1.0
        flat = [value for found in self.results for value in found]
        if min(flat) > 0:
            return tuple(tuple(sign * math.log(value) for value in found) for found in self.results)
        scale = max(abs(value) for value in flat) or 1.0
        return tuple(tuple(sign * value / scale for value in found) for found in self.results)

    def noise(self) -> float | None:
        """Standard deviation of one measurement (ln), pooled over repeated configurations; None without any."""
        squares, free = 0.0, 0
        for found in self.gains():
            if len(found) > 1:
                middle = math.fsum(found) / len(found)
                squares += math.fsum((value - middle) ** 2 for value in found)
                free += len(found) - 1
        return math.sqrt(squares / free) if free else None


@dataclass(frozen=True)
class Reading:
    """What a file gave. ``left_out`` counts rows by reason, ``examples`` names the first row of each."""

    tables: tuple[Table, ...]
    rows: int
    left_out: Mapping[str, int]
    examples: Mapping[str, str]
    small: tuple[str, ...]  # groups with a single configuration: there is nothing to choose


def read_tables(
    text: str,
    params: Sequence[str],
    objective: str,
    *,
    group: Sequence[str] = (),
    direction: Direction | None = None,
    default: Mapping[str, str] | None = None,
    file: str = "the table",
) -> Reading:
    """Parse CSV ``text``. A row without a number in ``objective`` is left out and counted; an empty cell of a parameter means
    that it was not given. Raises UsageError where nothing can be searched."""
    header, rows = _rows(text, file)
    _columns(header, [*params, objective, *group], file)
    if len(set(params)) != len(params) or objective in params:
        raise UsageError("Every column may be named once: a parameter twice, or the objective as a parameter, says nothing.")
    left_out: Counter[str] = Counter()
    examples: dict[str, str] = {}

    def leave(number: int, why: str) -> None:
        left_out[why] += 1
        examples.setdefault(why, f"line {number}")

    kinds = {name: _kind([row.get(name) or "" for _, row in rows]) for name in params}
    groups: dict[str, list[_Member]] = {}
    for number, row in rows:
        if row.get("") is not None:
            leave(number, "it has more cells than the header")
            continue
        cell = (row.get(objective) or "").strip()
        value = _number(cell)
        if value is None:
            leave(number, f"{objective} holds {_no_number(cell) or 'no value'}")
            continue
        if value <= 0 and takes_time(objective):
            leave(number, f"{objective} is not above 0, which no run that worked gives")  # a failed run that somebody wrote down as the fastest
            continue
        point: dict[str, Value] = {}
        wrong = next((why for name in params if (why := _cell(point, name, kinds[name], row.get(name) or ""))), None)
        if wrong:
            leave(number, wrong)
            continue
        label = ", ".join(f"{name}={row.get(name) or ''}" for name in group) or file
        groups.setdefault(label, []).append((point, value, row))
    if not groups:
        reasons = "; ".join(f"{count} × {why} ({examples[why]})" for why, count in left_out.items()) or "it holds no row"
        raise UsageError(f"No row of {file} can be used: {reasons}.", hint=f"Every row needs a number in {objective}.")
    way = direction or direction_of(objective)
    built = [(label, _table(label, members, objective, way, default)) for label, members in groups.items()]
    tables = tuple(table for _, table in built if table is not None)
    small = tuple(label for label, table in built if table is None)
    if not tables:
        raise UsageError(
            f"{file} has one configuration{' in every group' if group else ''}"
            f"{f' after {sum(left_out.values())} rows were left out' if left_out else ''}: there is nothing to choose between.",
            why="A policy that has one choice is not compared with anything.", hint="Give a table with at least two different values of --params within a group.",
        )
    return Reading(tables, len(rows), dict(left_out), examples, small)


def direction_of(objective: str) -> Direction:
    """Is more better? By the column's name; where it does not tell (``tells_direction``), more is taken to be."""
    return _told(objective) or "max"


def tells_direction(objective: str) -> bool:
    """Whether the column's name says if more is better."""
    return _told(objective) is not None


def takes_time(objective: str) -> bool:
    """Whether the column is a time, which no run that worked brings to 0."""
    over, _ = _ratio(objective)
    return _told(objective) == "min" and bool(_TIME.search(over)) and not _HARM.search(over)


def _told(objective: str) -> Direction | None:
    over, under = _ratio(objective)
    if _HARM.search(over):
        return "min"
    if _MORE.search(over) or _COUNTED.search(over):
        return "max"
    if _TIME.search(over):
        return "min"
    return "max" if _RARE.match(under) else None


def _ratio(objective: str) -> tuple[str, str]:
    """(what is told, per what): ``ms/token`` and ``ms_per_token`` are one; nothing after it where the name is no ratio."""
    name = re.sub(r"[^a-z0-9]+", "_", re.sub(r"\s*/\s*", "_per_", objective.lower())).strip("_")
    over, _, under = name.partition("_per_")
    return over, under


def effect_of(objective: str, direction: Direction) -> Effect:
    """Which of the expected effects concern this objective."""
    name = objective.lower()
    if direction == "min" or _SPEED_OF_ONE.search(name):
        return "latency"
    return "per_gpu" if _PER_GPU.search(name) else "throughput"


def _rows(text: str, file: str) -> tuple[list[str], list[tuple[int, dict[str, Any]]]]:
    if len(text) > _CELLS:
        raise UsageError(f"{file} is larger than {_CELLS // 1_000_000} MB.", hint="Split it, or keep the columns that are needed.")
    csv.field_size_limit(_CELLS)
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), restkey="")
    try:
        header = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = header
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{file} is no CSV (line {reader.line_num}: {error}).") from error
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise UsageError(f"{file} names the column {twice[0]!r} twice.", hint="Rename one of them.")
    return header, rows


def _columns(header: Sequence[str], wanted: Sequence[str], file: str) -> None:
    if missing := [name for name in wanted if name not in header]:
        other = next((name for name, sign in (("semicolons", ";"), ("tabs", "\t"), ("bars", "|")) if len(header) == 1 and sign in header[0]), "")
        hint = f"Its cells are separated by {other}, it seems: save it with commas." if other else f"Its columns: {', '.join(header[:60])}"
        raise UsageError(f"{file} has no column {', '.join(missing)}.", hint=hint)


def _kind(cells: Sequence[str]) -> Literal["number", "json", "choice"]:
    filled = [cell for cell in cells if cell.strip()]
    if filled and sum(_number(cell) is not None for cell in filled) >= _MOSTLY * len(filled):
        return "number"
    if sum(_object(cell) is not None for cell in filled) * 2 >= max(1, len(filled)):  # the others are broken: no choice is spelled like an object
        return "json"
    return "choice"


def _cell(point: dict[str, Value], name: str, kind: str, cell: str) -> str | None:
    """Put the value into ``point``; the reason why the row is of no use otherwise."""
    cell = cell.strip()
    if kind == "json":
        if cell and _object(cell) is None:
            return f"{name} holds no JSON object where other rows hold one"
        for key, value in (_object(cell) or {}).items() if cell else ():
            point[f"{name}:{key}"] = _value(value if isinstance(value, str) else canonical_json(value))
        return None
    if not cell:
        point[name] = None
        return None
    if kind == "number" and _number(cell) is None:
        return f"{name} holds {_no_number(cell).removesuffix(' instead of a number')} where other rows hold numbers"
    point[name] = _value(cell)
    return None


def _value(cell: str) -> Value:
    number = _number(cell)
    if number is not None:
        return int(number) if number == int(number) and abs(number) < 2**53 else number
    return {"true": True, "false": False, "null": None, "": None}.get(cell.lower(), cell)


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) < _LARGEST and "_" not in cell else None


def _no_number(cell: str) -> str:
    """What a cell holds that ``_number`` cannot use; empty for an empty one."""
    try:
        number = float(cell) if cell else 0.0
    except ValueError:
        return "text instead of a number"
    if not math.isfinite(number):
        return "nan or inf, which no run measures"
    return "" if not cell else "a number that no unit makes a measurement" if abs(number) >= _LARGEST else "text instead of a number"


def _object(cell: str) -> dict[str, Any] | None:
    try:
        found = json.loads(cell)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _table(
    label: str, members: Sequence[_Member], objective: str, way: Direction, default: Mapping[str, str] | None
) -> Table | None:
    names = list(dict.fromkeys(name for point, _, _ in members for name in point))
    seen: dict[str, tuple[Point, list[float], Mapping[str, str]]] = {}
    for point, value, row in members:
        full = {name: point.get(name) for name in names}
        seen.setdefault(canonical_json(full), (full, [], row))[1].append(value)
    varied = tuple(name for name in names if len({canonical_json(point[name]) for point, _, _ in seen.values()}) > 1)
    if len(seen) < 2:
        return None
    first = next(iter(seen.values()))[0]
    points = tuple({name: point[name] for name in varied} for point, _, _ in seen.values())
    found = [point for point, _, _ in seen.values()]
    wanted = {name: _value(cell) for name, cell in (default or {}).items()}
    if unknown := sorted(set(wanted) - set(names)):
        raise UsageError(f"--default names {unknown[0]}, which is none of --params.", hint=f"They are: {', '.join(names)}")
    index = next((i for i, point in enumerate(found) if all(point[name] == value for name, value in wanted.items())), None)
    return Table(
        name=label, names=varied, points=points, results=tuple(tuple(values) for _, values, _ in seen.values()), direction=way,
        effect=effect_of(objective, way), default=index, constant={name: first[name] for name in names if name not in varied},
        rows=tuple(row for _, _, row in seen.values()),
    )  # fmt: skip
