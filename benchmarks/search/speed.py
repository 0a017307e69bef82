"""Prints how fast replay is, in CPU-seconds of one core: decisions of recorded studies recomputed, and steps of a policy on tables.

    python benchmarks/search/speed.py [--passes 8] [--tables FOLDER] [--rows 80000] [--seeds 50]

Of a study: decisions a CPU-second of the first pass, in which a condition is read from its tree, and of the best of ``--passes``. Of a
table: steps a second, and those decided anew a second (the others met a history that another seed had met); the process's
own preparation of a table is not counted. ``--tables`` is a folder with the public tables of docs/search.md; ``--rows`` makes up a table
of so many configurations of eight parameters, to see what size costs. Run it where nothing else runs: caches are shared."""

import argparse
import itertools
import math
import random
import time
from pathlib import Path

from run import ROOT, TABLES

from optimizer.journal import Journal
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.runner.recorded import verify
from optimizer.search.contest import contest
from optimizer.search.table import Table
from optimizer.wiring import Roots, plans_by_entry
from optimizer.wiring.tables import TableOptions, replay_table

# Measurements of communication, beside the tables of launches: groups of up to 189, 1,173 and 1,512 configurations.
LARGE = (
    ("NCCL by system, operation and type", "aiconfigurator_nccl_perf.csv", "version,num_gpus,message_size", "latency", "system,op_name,nccl_dtype", ()),
    ("All-reduce by system", "aiconfigurator_custom_allreduce_perf.csv", "framework,version,kernel_source,allreduce_dtype,num_gpus,message_size,backend",
     "latency", "system", ()),
    ("NCCL by system", "aiconfigurator_nccl_perf.csv", "version,num_gpus,message_size,op_name,nccl_dtype", "latency", "system", ()),
)  # fmt: skip
GRID = {
    "tp": (1, 2, 4, 8), "max_num_seqs": (16, 32, 64, 128, 256), "max_num_batched_tokens": (2048, 4096, 8192, 16384, 32768), "block_size": (8, 16, 32, 64),
    "gpu_memory_utilization": (0.8, 0.85, 0.9, 0.92, 0.95), "kv_cache_dtype": ("auto", "fp8"), "threads": tuple(range(1, 11)), "backend": ("a", "b", "c", "d"),
}  # fmt: skip


def decisions(passes: int) -> list[str]:
    lines = ["| study | decisions | a CPU-second, first pass | best |", "|---|---|---|---|"]
    for folder in sorted((ROOT / "runs" / "recorded").iterdir()):
        with Journal.open(folder, write=False) as journal:
            entries = journal.read()
            plan_at = plans_by_entry(journal, entries)
            took = []
            for _ in range(passes):
                started = time.process_time()
                found = verify(entries, plan_at)
                took.append(time.process_time() - started)
            found.raise_if_bad()
        lines.append(f"| {folder.name} | {found.decisions} | {found.decisions / took[0]:,.0f} | {found.decisions / min(took):,.0f} |")
    return lines


def steps(folder: Path | None, rows: int, seeds: int) -> list[str]:
    lines = ["| table | configurations | policy | steps | a CPU-second | decided anew | a CPU-second |", "|---|---|---|---|---|---|---|"]
    for title, file, params, objective, group, where in (*TABLES, *LARGE) if folder is not None else ():
        assert folder is not None
        asked = TableOptions(
            table=folder / file, params=tuple(params.split(",")), objective=objective, group=tuple(group.split(",")) if group else (), where=where,
            policies=("evidence", "gp"), seeds=seeds,
        )  # fmt: skip
        found = replay_table(asked, Roots(runs=ROOT / "runs", knowledge=ROOT))
        largest = max(one["configurations"] for one in found["groups"])
        for name, speed in found["speed"].items():
            lines.append(f"| {title} | up to {largest} | {name} | {speed['steps']:,} | {speed['steps_per_s']:,} | {speed['decided']:,} | {speed['decided_per_s']:,} |")
    if rows:
        table = made_up(rows)
        for score in contest(table, ("evidence", "gp"), load_library(find_knowledge(ROOT)).directions, 2):
            lines.append(f"| made up | {len(table.points):,} | {score.policy} | {score.steps:,} | {score.steps / score.own_s:,.0f} | {score.decided:,} | "
                         f"{score.decided / score.own_s:,.0f} |")  # fmt: skip
    return lines


def made_up(rows: int) -> Table:
    """Effects of each value drawn once, and noise of 5 %: no measurement of anything."""
    source = random.Random(1)
    points = [dict(zip(GRID, values, strict=True)) for values in itertools.islice(itertools.product(*GRID.values()), rows)]
    effect = {name: {value: source.gauss(0.0, 0.3) for value in values} for name, values in GRID.items()}
    results = tuple((1000.0 * math.exp(sum(effect[name][value] for name, value in point.items()) + source.gauss(0.0, 0.05)),) for point in points)
    return Table(name="made up", names=tuple(GRID), points=tuple(points), results=results, direction="max", effect="throughput")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="configurations of a made-up table; 80000 takes a minute")
    parser.add_argument("--seeds", type=int, default=50)
    asked = parser.parse_args()
    print("\n".join([*decisions(asked.passes), "", *(steps(asked.tables, asked.rows, asked.seeds) if asked.tables or asked.rows else ())]))


if __name__ == "__main__":
    main()
