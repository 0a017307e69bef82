"""Measures a grid of configurations of a real llama-server on this machine's processor, and lets the policies search it.

    make engines                                              # once: llama.cpp and a small model with random weights
    python benchmarks/search/llamacpp.py measure [--engines .engines] [--minutes 12] [--out FOLDER]
    python benchmarks/search/llamacpp.py replay [--seeds 100] [--folder FOLDER] [--write]

``measure`` starts every configuration once, in an order drawn from a seed, then some a second and third time until the minutes are
used; each launch is loaded by the product's load generator and read by the product's parsers. It writes ``llamacpp_cpu.csv`` (a row
per launch) and ``llamacpp_cpu_facts.jsonl`` (what the first launch of each configuration told in its log and metrics). ``replay``
starts nothing: it is ``optimize replay --table`` on that file, and the evidence policy once more with the facts of the launches that
it has paid for. The grid was written down before anything was measured, and no expectation was changed afterwards."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from run import DOCS, README, ROOT, figures, written

from optimizer.bench.calibrate import LOADGEN
from optimizer.bench.run import build_job, longest_s, summarise
from optimizer.core.predicate import Look
from optimizer.engines.registry import engine
from optimizer.evidence.bundle import bundle_from_files
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.canonical import canonical_json
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import LoadPoint
from optimizer.model.workload import Workload
from optimizer.runner.collecting import bench_rows
from optimizer.search.by_evidence import Promise, Recorded, outlook
from optimizer.search.table import Table, read_tables
from optimizer.wiring import Roots, plan_of
from optimizer.wiring.tables import TableOptions, replay_table

HERE = Path(__file__).parent
TABLE, FACTS = "llamacpp_cpu.csv", "llamacpp_cpu_facts.jsonl"
HELP = ROOT / "tests" / "recordings" / "llamacpp-2026.10-cpu" / "help.txt"
PARAMS = ("parallel", "threads", "ubatch_size", "spec_type", "flash_attn")
OBJECTIVES = {"output_tokens_per_s": "output tokens/s", "ttft_p50_ms": "median TTFT"}
METRICS = (*OBJECTIVES, "tpot_p50_ms", "e2e_p50_ms", "output_tokens_per_s_rel_se")
COLUMNS = ("launch", *PARAMS, *METRICS, "requests", "failed", "window_s", "start_s", "remarks")
# What llama-server takes on a machine of two cores when nothing is said: four slots, a thread a core, no drafts.
DEFAULT: dict[str, Value] = {"parallel": 4, "threads": 2, "ubatch_size": 512, "spec_type": "none", "flash_attn": "on"}
# In every launch: room for sixteen requests whatever the slots, and a thread that waits does not spin on a core that the client needs.
ALWAYS: dict[str, Value] = {"model": "model.gguf", "ctx_size": 8192, "kv_unified": True, "metrics": True}
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
WORKLOAD = Workload(
    concurrency=16, side_levels=(), prompt_tokens=64, output_tokens=32, vocabulary="ascii", warmup_min_s=2.0, warmup_max_s=4.0, window_s=6.0
)
AT = (1, 2, 3, 5, 10)
LABELS = {"evidence": "evidence", "tpe": "TPE", "gp": "GP", "random": "random"}


def grid() -> list[dict[str, Value]]:
    """Slots, threads, physical batch and drafts in all combinations; flash attention off at the default and at a slot for everybody."""
    found: list[dict[str, Value]] = [
        {**DEFAULT, "parallel": slots, "threads": threads, "ubatch_size": batch, "spec_type": drafts}
        for slots, threads, batch, drafts in itertools.product((1, 2, 4, 8, 16), (1, 2), (64, 512), ("none", "ngram-simple"))
    ]
    return found + [{**DEFAULT, "parallel": slots, "threads": threads, "flash_attn": "off"} for slots, threads in itertools.product((4, 16), (1, 2))]


# ---- measuring ------------------------------------------------------------------------------------------------------


def argv_of(point: Mapping[str, Value], port: int) -> list[str]:
    words = ["llamacpp/bin/llama-server"]
    for name, value in {**ALWAYS, **point, "host": "127.0.0.1", "port": port}.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def get(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode("utf-8", "replace"))
    except (OSError, urllib.error.URLError):
        return None


@contextmanager
def served(argv: Sequence[str], folder: Path, port: int, log: Path) -> Iterator[float]:
    """The server once it is ready, with the seconds that it took; ended afterwards. Raises RuntimeError if it never serves."""
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(argv, cwd=folder, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        while get(port, "/health") is None:
            if process.poll() is not None or time.monotonic() - began > 60:
                raise RuntimeError(f"It never served (exit {process.poll()}): {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.1)
        yield time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def watched(port: int) -> Iterator[list[str]]:
    """The pages of /metrics while there is load, twice a second."""
    pages: list[str] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            pages.append(get(port, "/metrics") or "")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield pages
    finally:
        ended.set()
        thread.join()


def launch(point: Mapping[str, Value], engines: Path, log: Path, number: int) -> tuple[LoadPoint, Evidence, float]:
    """One launch under load: what the client saw, what the server told, seconds to ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = argv_of(point, port)
    with served(argv, engines, port, log) as start_s:
        job = build_job(WORKLOAD, concurrency=WORKLOAD.concurrency, window_s=WORKLOAD.window_s, base_url=f"http://127.0.0.1:{port}", model="model.gguf",
                        seed=1, salt=f"launch/{number}", metrics_path="/metrics")  # fmt: skip
        with watched(port) as pages:
            done = subprocess.run([sys.executable, str(LOADGEN)], input=json.dumps(job).encode() + b"\n", capture_output=True, timeout=longest_s(job), check=True)
        found = summarise(done.stdout.splitlines(), WORKLOAD, WORKLOAD.concurrency)
        files = {
            "launch.json": json.dumps({"name": "grid", "engine": "llamacpp", "model": "model.gguf", "argv": argv, "env": ENVIRONMENT, "ready": True}).encode(),
            "metrics.txt": (get(port, "/metrics") or "").encode(),
            "metrics_load.txt": "".join(pages).encode(),
            "server_info.json": (get(port, "/props") or "{}").encode(),
            "bench.json": json.dumps([dict(row) for row in bench_rows([found])]).encode(),
        }
    files["server.log"] = log.read_bytes()
    return found, bundle_from_files(files).evidence, start_s


def facts_line(point: Mapping[str, Value], evidence: Evidence) -> str:
    """The facts without their places; of the command line only the settings of the grid, since paths and ports are nobody's business."""
    kept = [fact for fact in evidence.facts if not fact.name.startswith("settings.") and not re.search(r"/[a-z]+/", canonical_json(fact.value))]
    facts = [{"name": fact.name, "value": fact.value, "unit": fact.unit, **({"labels": dict(fact.labels)} if fact.labels else {})} for fact in kept]
    return json.dumps({"configuration": dict(point), "facts": facts}, ensure_ascii=False)


def row_of(number: int, point: Mapping[str, Value], found: LoadPoint, start_s: float) -> dict[str, Any]:
    measured = {name: f"{found.metrics[name]:.4g}" if name in found.metrics else "" for name in METRICS}
    return {"launch": number, **point, **measured, "requests": found.requests_ok, "failed": found.requests_failed, "window_s": f"{found.window_s:.2f}",
            "start_s": f"{start_s:.2f}", "remarks": " ".join(sorted({item.code.value for item in found.invalid}))}  # fmt: skip


def measure(engines: Path, folder: Path, minutes: float, seed: int) -> None:
    deadline, points, source = time.monotonic() + 60 * minutes, grid(), random.Random(seed)
    rounds = [source.sample(points, len(points)) for _ in range(3)]
    log = engines / "grid.log"
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as table, (folder / FACTS).open("w", encoding="utf-8") as facts:
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for number, point in enumerate(itertools.chain(*rounds), 1):
            if time.monotonic() > deadline:
                break
            try:
                found, evidence, start_s = launch(point, engines, log, number)
            except RuntimeError as error:
                writer.writerow({"launch": number, **point, "remarks": "start_failed"})
                print(number, point, error, file=sys.stderr, flush=True)
                continue
            row = row_of(number, point, found, start_s)
            writer.writerow(row)
            table.flush()
            if number <= len(points):
                facts.write(facts_line(point, evidence) + "\n")
            print(" ".join(str(value) for value in row.values()), f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    log.unlink(missing_ok=True)


# ---- replaying ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reasoned:
    """One run of the evidence policy with facts. ``curve``: the share of the best of what looks best, at the start and after each
    launch; ``why`` each was made."""

    curve: tuple[float, ...]
    why: tuple[str, ...]


def recorded(table: Table, folder: Path) -> list[Recorded]:
    """Every configuration of the table with the facts of its launch."""
    told = {}
    for line in (folder / FACTS).read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        told[canonical_json(item["configuration"])] = Evidence(facts=tuple(Fact(**fact) for fact in item["facts"]))
    flags = engine("llamacpp").flags(HELP.read_text(encoding="utf-8"))
    found = []
    for point, results in zip(table.points, table.results, strict=True):
        point = {**table.constant, **point}
        settings = {**ALWAYS, **point}
        look = Look(facts=told[canonical_json({name: point[name] for name in PARAMS})], settings=settings, box={})
        found.append(Recorded(name=spelled(point), engine="llamacpp", settings=settings, values=results, look=look, flags=flags))
    return found


def spelled(point: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={point[name]}" for name in PARAMS if point[name] != DEFAULT[name]) or "the default"


Ask = Callable[[int, frozenset[int]], Promise | None]


def asking(table: Table, launches: Sequence[Recorded], library: Library) -> Ask:
    """The most promising launch after this one, of those that are left. It is the same for all seeds, so it is asked once."""
    plan = plan_of(library)

    @cache
    def ask(current: int, left: frozenset[int]) -> Promise | None:
        others = {index: launches[index] for index in sorted(left)}
        return next((item for item in outlook(launches[current], others, plan, library.directions, table.effect).promises if item.gain > 0), None)

    return ask


def reasoned(table: Table, launches: Sequence[Recorded], start: int, seed: int, ask: Ask) -> Reasoned:
    """Launch, read what it left, choose again, until nothing promises anything. Each launch gives one of its repeats."""
    gains = table.gains()
    current, left = start, frozenset(range(len(launches))) - {start}

    def told(index: int) -> float:
        return gains[index][(seed + index) % len(gains[index])]

    curve, why = [table.share(table.values[start])], []
    while left:
        best = ask(current, left)
        if best is None:
            break
        left -= {best.index}
        why.append(f"{launches[best.index].name}: {best.why}")
        if told(best.index) > told(current):
            current = best.index
        curve.append(table.share(table.values[current]))
    return Reasoned(tuple(curve), tuple(why))


def after(curve: Sequence[float], at: int) -> float:
    return curve[min(at, len(curve) - 1)]


def replay(folder: Path, seeds: int) -> tuple[list[str], list[str]]:
    """The two tables of the document: launches to 95 % of the best, and what is reached after each launch."""
    library = load_library(find_knowledge(ROOT))
    default = ",".join(f"{name}={value}" for name, value in DEFAULT.items())
    short = [
        f"Launches to 95 % of the best, mean over {seeds} seeds.",
        "",
        "| objective | configurations | evidence | TPE | GP | random | evidence ÷ random | noise of a launch | untuned default |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    long = [
        f"Launches, and the share of the best that is reached after so many, mean over {seeds} seeds. \"With facts\" counts from the server that runs.",
        "",
        "| objective | policy | launches to 90 % | to 95 % | to 99 % | " + " | ".join(f"after {at}" for at in AT) + " |",
        "|---|---|---|---|---|" + "---|" * len(AT),
    ]
    text = (folder / TABLE).read_text(encoding="utf-8")
    for objective, title in OBJECTIVES.items():
        found = replay_table(TableOptions(table=folder / TABLE, params=PARAMS, objective=objective, default=default, seeds=seeds), Roots(runs=ROOT / "runs", knowledge=ROOT))
        print(found["text"], "\n", file=sys.stderr)
        group = found["groups"][0]
        mean = {name: score["launches_to"] for name, score in group["policies"].items()}
        noise = "not repeated" if group["noise"] is None else f"{group['noise']:.1%}"
        short.append(
            f"| llama.cpp on two cores, {title} | {group['configurations']} | " + " | ".join(f"{mean[name]['95%']['mean']:.1f}" for name in ("evidence", "tpe", "gp", "random"))
            + f" | {group['evidence_against']['random']:.2f} | {noise} | {group['default']['share_of_best']:.0%} of the best |"
        )  # fmt: skip
        for name, score in group["policies"].items():
            curve = [1.0 - missing for missing in score["regret"]]
            long.append(f"| {title} | {LABELS[name]} | " + " | ".join(f"{mean[name][share]['mean']:.1f}" for share in ("90%", "95%", "99%"))
                        + " | " + " | ".join(f"{after(curve, at - 1):.0%}" for at in AT) + " |")  # fmt: skip
        table = read_tables(text, PARAMS, objective, default={name: str(value) for name, value in DEFAULT.items()}).tables[0]
        launches = recorded(table, folder)
        assert table.default is not None
        ask = asking(table, launches, library)
        for label, starts in (("with facts, from the default", [table.default]), ("with facts, from each configuration", list(range(len(launches))))):
            runs = [reasoned(table, launches, start, seed, ask) for start in starts for seed in range(seeds)]
            long.append(f"| {title} | {label} | {_to(runs, 0.90)} | {_to(runs, 0.95)} | {_to(runs, 0.99)} | "
                        + " | ".join(f"{statistics.fmean(after(run.curve, at) for run in runs):.0%}" for at in AT) + " |")  # fmt: skip
            if len(starts) == 1:
                for number, why in enumerate(runs[0].why[:5], 1):
                    print(f"  {title}, launch {number}: {why}", file=sys.stderr)
                print(f"  launches made: {statistics.fmean(len(run.why) for run in runs):.1f}", file=sys.stderr)
    return short, long


def _to(runs: Sequence[Reasoned], share: float) -> str:
    """Launches after the one that runs, of those runs that get there."""
    counts = [next((number for number, value in enumerate(run.curve) if value >= share - 1e-9), None) for run in runs]
    got = [count for count in counts if count is not None]
    if not got:
        return "never"
    return f"{statistics.fmean(got):.1f}" + ("" if len(got) == len(runs) else f" (in {len(got) / len(runs):.0%})")


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("--engines", type=Path, default=ROOT / ".engines")
    one.add_argument("--minutes", type=float, default=12.0, help="no further launch is started after so many")
    one.add_argument("--out", type=Path, default=HERE)
    one.add_argument("--seed", type=int, default=7, help="of the order of the launches")
    other = commands.add_parser("replay")
    other.add_argument("--folder", type=Path, default=HERE)
    other.add_argument("--seeds", type=int, default=100)
    other.add_argument("--write", action="store_true", help="put the figures into docs/search.md and the README")
    asked = parser.parse_args()
    if asked.command == "measure":
        measure(asked.engines.resolve(), asked.out, asked.minutes, asked.seed)
        return
    if missing := [name for name in (TABLE, FACTS) if not (asked.folder / name).is_file()]:
        raise SystemExit(f"{asked.folder} has no {' and no '.join(missing)}: run `python benchmarks/search/llamacpp.py measure` first, twelve quiet minutes.")
    short, long = replay(asked.folder, asked.seeds)
    print("\n".join([*short, "", *long]))
    if asked.write:
        text = written(written(DOCS.read_text(encoding="utf-8"), "engine", short, DOCS), "engine after each launch", long, DOCS)
        DOCS.write_text(text, encoding="utf-8")
        README.write_text(written(README.read_text(encoding="utf-8"), "search", figures(text), README), encoding="utf-8")


if __name__ == "__main__":
    main()
