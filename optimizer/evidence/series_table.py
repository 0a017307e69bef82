"""Reads a table of engine metrics over time (CSV with a header, one row per snapshot), as benchmark harnesses write them
beside vLLM and SGLang. Columns are known by name; a row that cannot be read is counted, never taken for zero."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line, Piece, iter_lines, pieces_of
from optimizer.evidence.vllm_state import number

MAX_ROWS = 200_000
_RUNNING = ("num_requests_running", "num_running_reqs", "running")
_WAITING = ("num_requests_waiting", "num_queue_reqs", "waiting")
_USAGE = ("kv_cache_usage_pct", "kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")

Row = tuple[float, Line]


class Table(NamedTuple):
    """One value per snapshot that has one; usage as a share of the pool. ``last`` holds the final row by column."""

    running: list[Row]
    waiting: list[Row]
    usage: list[Row]
    first: dict[str, Row]
    last: dict[str, Row]


def read_table(found: Found, data: bytes | Sequence[Piece]) -> Table | None:
    """The table, or None when the first line is no header with a column of running requests."""
    lines = iter_lines(pieces_of(data))
    header = next(lines, None)
    names = (
        [] if header is None else [name.strip().decode("ascii", "replace") for name in header.raw[:4000].split(b",")]
    )
    if not any(name in names for name in _RUNNING):
        return None
    table = Table([], [], [], {}, {})
    for line, _ in zip(lines, range(MAX_ROWS), strict=False):
        cells = line.raw.split(b",")
        if len(cells) != len(names):
            found.stranger(line)  # a row cut while it was written
            continue
        row = {
            name: value for name, cell in zip(names, cells, strict=True) if (value := number(cell.strip())) is not None
        }
        for columns, rows in ((_RUNNING, table.running), (_WAITING, table.waiting), (_USAGE, table.usage)):
            name = next((name for name in columns if name in row), None)
            if name is not None:
                rows.append((row[name] / 100 if name.endswith("_pct") else row[name], line))
        table.last.update({name: (value, line) for name, value in row.items()})
        for name, value in row.items():
            table.first.setdefault(name, (value, line))
    return table


def counter_facts(found: Found, table: Table) -> None:
    """What counters say over the whole table: preemptions, prefix hits, tokens, requests."""
    grown = {name: (max(0.0, value - table.first[name][0]), line) for name, (value, line) in table.last.items()}
    for name, column in (
        ("kv.preemptions", "num_preemptions_total"),
        ("server.prompt_tokens_total", "prompt_tokens_total"),
        ("server.output_tokens_total", "generation_tokens_total"),
        ("server.requests_total", "request_success_total"),
    ):
        if column in grown:
            found.add(name, round(grown[column][0]), grown[column][1])
    _hits(found, grown)


def _hits(found: Found, grown: Mapping[str, Row]) -> None:
    if "prefix_cache_hits" in grown and "prefix_cache_queries" in grown:
        queries, line = grown["prefix_cache_queries"]
        if queries > 0:
            found.add("kv.prefix_hit_share", min(1.0, grown["prefix_cache_hits"][0] / queries), line)
