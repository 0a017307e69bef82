"""Prints how many launches evidence, Optuna's TPE and random search need on the four simulated boxes, and on tables of public
measurements where a folder of them is given; writes both to docs/search.md.

    python benchmarks/search/run.py [--seeds 20] [--launches 20] [--boxes NAME …] [--all] [--tables FOLDER [--table-seeds N TPE]] [--write]

Evidence is the real decision loop, reading the logs and metrics that the box writes. The samplers get every parameter of the
short list below (with --all, of every space), the untuned launch as their first point, the same luck, and the same refusals for nothing."""

import argparse
import asyncio
import json
import math
import random
import re
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inprocess import InProcessExecutor, SimulatedBox, spec

from optimizer.core.rank import ground
from optimizer.core.refuse import Ground, point_digest, refuse
from optimizer.core.resolve import offered
from optimizer.core.state import fold
from optimizer.engines.simulator.box import box_names
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.canonical import derived_seed, digest
from optimizer.model.space import Param, Space, Trial
from optimizer.model.target import parse_target
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog
from optimizer.search.grid import key, only
from optimizer.search.propose import propose, random_proposal
from optimizer.wiring import Roots, plan_of
from optimizer.wiring.tables import TableOptions, replay_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "search.md"
README = ROOT / "README.md"
AT = (1, 2, 3, 5, 10, 20)
MOST_REFUSED = 64  # proposals in a row
ALONE = "(left alone)"
# What an engineer would hand to a sampler: the answer of every box is among them.
SHORT_LIST = (
    "disable_cuda_graph", "cuda_graph_max_bs", "max_running_requests", "mem_fraction_static", "chunked_prefill_size", "speculative_algorithm",
    "speculative_num_steps", "disable_custom_all_reduce", "env.NCCL_PROTO", "env.NCCL_MIN_NCHANNELS",
)
TABLES = (
    ("InferenceX, 27 clean rows", "inferencex_llama33_70b_fp4_b200_vllm_tp_bs_offload.csv", "tp,bs,offload", "total_throughput_tps", "",
     ("derived_validity_flags=", "log_present=1")),
    ("the same, per GPU", "inferencex_llama33_70b_fp4_b200_vllm_tp_bs_offload.csv", "tp,bs,offload", "total_tps_per_gpu", "",
     ("derived_validity_flags=", "log_present=1")),
    ("InferenceMAX by GPU, tokens/s per GPU", "inferencemax_official_dsr1_gptoss_agg.csv", "tp,ep,dp_attention,conc,framework,precision,mtp", "tput_per_gpu",
     "bench,seq,hw", ()),
    ("InferenceMAX by GPU, median TTFT", "inferencemax_official_dsr1_gptoss_agg.csv", "tp,ep,dp_attention,conc,framework,precision,mtp", "median_ttft",
     "bench,seq,hw", ()),
    ("InferenceMAX by load, tokens/s per GPU", "inferencemax_official_dsr1_gptoss_agg.csv", "hw,tp,ep,dp_attention,framework,precision,mtp", "tput_per_gpu",
     "bench,seq,conc", ()),
    ("GPUStack pages", "gpustack_performance_lab.csv", "engine,flags_json", "total_tps", "source_file,total_input_tokens,max_concurrency,request_rate", ()),
    ("Optuna histories of auto-tuning-vllm", "auto_tuning_vllm_optuna_trials.csv",
     "param:block_size,param:compilation_config,param:cuda_graph_sizes,param:gpu_memory_utilization,param:kv_cache_dtype,"
     "param:long_prefill_token_threshold,param:max_num_batched_tokens,param:max_num_partial_prefills,param:max_num_seqs", "objective_0", "commit,path",
     ("state=COMPLETE",)),
)  # fmt: skip


def space_of(box: SimulatedBox, library: Library, names: tuple[str, ...] | None) -> Space:
    """All parameters that this build offers, or these of them, as one space."""
    params: dict[str, Param] = {}
    for found in library.spaces:
        if found.engine in ("any", "sglang"):
            for param in found.params:
                if offered(param.name, param, box.flags) is not None and param.name not in ("tp_size", "dp_size", "ep_size") and (names is None or param.name in names):
                    # A sampler must be able to leave a choice alone, or it would have to speculate.
                    params[param.name] = param.model_copy(update={"grid": (*param.grid, ALONE)}) if param.type == "choice" else param
    return Space(id=f"bench/{box.name}", engine="sglang", params=tuple(params.values()))


def completed(point: Mapping[str, Value]) -> dict[str, Value]:
    """A draft depth needs the two settings that belong to it; whoever wraps a sampler adds them."""
    point = {name: value for name, value in point.items() if value != ALONE}
    steps = point.get("speculative_num_steps")
    if point.get("speculative_algorithm") is None or not isinstance(steps, int) or "speculative_eagle_topk" in point:
        return {name: value for name, value in point.items() if not name.startswith("speculative_") or point.get("speculative_algorithm") is not None}
    return {**point, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": steps + 1}


def ground_of(box: SimulatedBox, library: Library) -> Ground:
    """What refusals rest on once the untuned launch was measured: the same for everybody."""
    executor, log = InProcessExecutor(box, library, 0), MemoryLog()
    log.append("opened", {"spec": spec(box, 0, 3).model_copy(update={"policy": "random"}).plain()}, expect=0)
    asyncio.run(drive(log, executor, plan_of(library)))
    before = next(entry.seq for entry in log.read() if entry.kind == "chosen")
    return ground(fold(log.read()[: before - 1]), plan_of(library))


def admitted(changes: Mapping[str, Value], rules: Ground, tried: set[str]) -> dict[str, Value] | None:
    """The changes without what does nothing beside the rest; None where the engine's rules or the memory model refuse them, or they were
    tried. As in a control arm, neither costs a launch."""
    left = dict(changes)
    while left and (refusals := refuse(left, rules, tried=tried)):
        if refusals[0].kind in ("infeasible", "duplicate"):
            return None
        left = {name: value for name, value in left.items() if name not in refusals[0].params}
    return left or None


def sampled(box: SimulatedBox, space: Space, policy: str, seed: int, launches: int, rules: Ground) -> list[float]:
    """The rate of every launch in turn; 0 for one that failed. The untuned launch is known beforehand, and what is refused before a launch
    costs none, as for evidence."""
    source = random.Random(derived_seed(box.name, policy, seed))
    noise = float(box.box["speed"]["noise_sd"])
    given = only(box.given, space.params)
    first = box.rate({})
    assert first.rate is not None
    history = [Trial(params=given, value=math.log(first.rate))] if given else []
    seen = {key(given)}
    rates: list[float] = []
    tried, refused = set[str](), list[dict[str, Value]]()
    while len(rates) < launches and len(refused) < MOST_REFUSED:
        point_seed = derived_seed(box.name, policy, seed, len(rates), len(refused))
        known = [*history, *(Trial(params=one, value=None, infeasible=True) for one in refused)]
        point = random_proposal(space.params, point_seed, seen=seen) if policy == "random" else propose(space, space.params, known, point_seed)
        if not point:
            break
        seen.add(key(point))
        # What a sampler leaves out is not given, also where the owner's command line had it.
        changes = admitted({**dict.fromkeys(given), **completed(point)}, rules, tried)
        if changes is None:
            refused.append(point)
            continue
        refused.clear()
        tried.add(point_digest(rules.settings.merged(changes), rules))
        run = box.rate(changes)
        luck = math.exp(-source.gauss(0.0, noise))
        history.append(Trial(params=point, value=None if run.rate is None else math.log(run.rate * luck), infeasible=run.rate is None))
        rates.append(run.rate or 0.0)
    return rates


def reasoned(box: SimulatedBox, library: Library, seed: int, launches: int) -> list[float]:
    """The rate, without luck, of every launch that the real loop made after the baseline."""
    executor, log = InProcessExecutor(box, library, seed), MemoryLog()
    log.append("opened", {"spec": spec(box, seed, launches).plain()}, expect=0)
    asyncio.run(drive(log, executor, plan_of(library)))
    return [box.rate(settings).rate or 0.0 for settings in executor.launched][:launches]


def summary(rates: list[list[float]], target: float, start: float, launches: int) -> dict[str, Any]:
    curves, reached, failed = [], [], []
    for one in rates:
        best, curve = start, []
        for rate in one:
            best = max(best, rate)
            curve.append(best)
        curve += [best] * (launches - len(curve))
        curves.append(curve)
        reached.append(next((place + 1 for place, value in enumerate(curve) if value >= target), 0))
        failed.append(sum(rate == 0.0 for rate in one))
    return {
        "reached": sum(1 for launch in reached if launch) / len(reached),
        "launches": statistics.fmean(launch or launches + 1 for launch in reached),
        "failed": statistics.fmean(failed),
        "made": statistics.fmean(len(one) for one in rates),
        "curve": {at: statistics.fmean(curve[at - 1] for curve in curves) / target for at in AT if at <= launches},
    }


def boxes(names: list[str], library: Library, seeds: int, launches: int, *, everything: bool) -> list[str]:
    lines = [
        f"Launches after the untuned one until its box's target is met, {seeds} seeds, at most {launches} launches each. \"Failed\" are launches that never served.",
        "",
        "| box | policy | target met | launches to target | launches made | failed | " + " | ".join(f"best after {at}" for at in AT if at <= launches) + " |",
        "|---|---|---|---|---|---|" + "---|" * sum(at <= launches for at in AT),
    ]
    for name in names:
        box = SimulatedBox(name)
        bound = parse_target([box.target]).primary
        assert bound is not None
        rules = ground_of(box, library)
        start, space = box.rate({}).rate or 0.0, space_of(box, library, None if everything else SHORT_LIST)
        for label, policy in (("evidence", "evidence"), (f"TPE, {len(space.params)} parameters", "tpe"), (f"random, {len(space.params)} parameters", "random")):
            begun = time.perf_counter()
            rates = [reasoned(box, library, seed, launches) if policy == "evidence" else sampled(box, space, policy, seed, launches, rules) for seed in range(seeds)]
            found = summary(rates, bound.value, start, launches)
            took = found["launches"]
            to_target = f"{took:.1f}" if found["reached"] == 1 else f"more than {min(took, launches):.1f}" if found["reached"] else "never"
            lines.append(
                f"| {name} ({box.target}) | {label} | {found['reached']:.0%} | {to_target} | {found['made']:.1f} | {found['failed']:.1f} | "
                + " | ".join(f"{share:.0%}" for share in found["curve"].values()) + " |"
            )
            print(lines[-1], f"{time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    lines += ["", "\"Best after n\" is the best rate so far as a share of the target, the untuned launch included."]
    return lines


SEEDS_HELD = {"evidence": 3, "random": 1}


def first_seeds(name: str, library: Library, launches: int) -> dict[str, str]:
    """What a test recomputes, so that a change of spaces, rules, simulator or decisions cannot leave old figures in the document: of each
    policy that depends on nothing but this repository, the launches of its first seeds as a count and a digest."""
    box = SimulatedBox(name)
    space, rules = space_of(box, library, SHORT_LIST), ground_of(box, library)
    found = {
        "evidence": [reasoned(box, library, seed, launches) for seed in range(SEEDS_HELD["evidence"])],
        "random": [sampled(box, space, "random", seed, launches, rules) for seed in range(SEEDS_HELD["random"])],
    }
    return {policy: f"{sum(map(len, rates))}:{digest([[f'{rate:.4g}' for rate in one] for one in rates])[:12]}" for policy, rates in found.items()}


def with_first_seeds(lines: list[str], names: list[str], library: Library, launches: int) -> list[str]:
    known = {name: first_seeds(name, library, launches) for name in names}
    return [*lines, "", f"<!-- launches of the first seeds, at most {launches} each, recomputed by a test: {json.dumps(known)} -->"]


def tables(folder: Path, seeds: int, tpe_seeds: int) -> list[str]:
    lines = [
        f"Launches to 95 % of the best, mean over {seeds} seeds (TPE: {tpe_seeds}), median over the groups of each table; in brackets how often evidence needed no more. "
        "\"± of a group\" is the standard error of a mean over the seeds, random's and TPE's, of the group where it is largest.",
        "",
        "| table | groups | evidence | TPE | GP | random | evidence ÷ random | the same where random needs more than two | at most half of random's | untuned default | ± of a group |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for title, file, params, objective, group, where in TABLES:
        if not (folder / file).is_file():
            continue
        asked = TableOptions(table=folder / file, params=tuple(params.split(",")), objective=objective, group=tuple(group.split(",")) if group else (), where=where)
        roots = Roots(runs=ROOT / "runs", knowledge=ROOT)
        found = replay_table(replace(asked, seeds=seeds, policies=("evidence", "gp", "random")), roots)
        by_tpe = replay_table(replace(asked, seeds=tpe_seeds, policies=("evidence", "tpe")), roots)  # Optuna's own ask takes most of the time
        total = found["summary"]
        median = {name: one["summary"]["median_launches_to"][name]["95%"] for one in (by_tpe, found) for name in one["policies"]}
        against = {name: one["summary"][f"against_{name}"]["never_more_on"] for one, name in ((by_tpe, "tpe"), (found, "gp"), (found, "random"))}
        widest = [max(group["policies"][name]["launches_to"]["95%"]["se"] for group in one["groups"]) for one, name in ((found, "random"), (by_tpe, "tpe"))]
        lines.append(
            f"| {title} | {total['groups']} | {median['evidence']:.1f} | {median['tpe']:.1f} ({against['tpe']:.0%}) | {median['gp']:.1f} ({against['gp']:.0%}) | "
            f"{median['random']:.1f} ({against['random']:.0%}) | {total['against_random']['median_ratio']:.2f} | "
            f"{'none' if (above := total['against_random']['median_ratio_above_two_launches']) is None else f'{above:.2f}'} | {'yes' if total['half_of_random'] else 'no'} | "
            f"{total['default']['median_share_of_best']:.0%} of the best | {widest[0]:.2f}, {widest[1]:.2f} |"
        )
        print(lines[-1], json.dumps({"speed": found["speed"], "half": total["half_of_random"], "ratio": total["against_random"]["median_ratio"]}), file=sys.stderr, flush=True)
    return lines


def written(text: str, name: str, lines: list[str], where: Path) -> str:
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not mark or not end:
        raise SystemExit(f"{where} has no place for {name}: <!-- {name} --> … <!-- end of {name} -->")
    return before + mark + "\n".join(lines) + "\n" + end + after


def figures(document: str) -> list[str]:
    """The README's table: launches of each policy, from the tables of docs/search.md."""
    lines = ["| launches until … | evidence | GP | Optuna TPE | random |", "|---|---|---|---|---|"]
    for row in _rows(document, "boxes"):
        box, policy, met, launches = row[:4]
        if policy == "evidence":
            lines.append(f"| the target of {box} is met, {_seeds(document, 'boxes')} seeds |")
        share = f" (met in {met})" if met not in ("0%", "100%") else ""
        lines[-1] += f" {launches}{share} |" + (" |" if policy == "evidence" else "")
    lines += [f"| 95 % of the best: real {row[0]}, {_seeds(document, 'engine')} seeds | {row[2]} | {row[4]} | {row[3]} | {row[5]} |" for row in _rows(document, "engine")]
    lines += [f"| 95 % of the best: {row[0]}{f', median of {row[1]} groups' if row[1] != '1' else ''} | {row[2]} | {row[4].split()[0]} | {row[3].split()[0]} | {row[5].split()[0]} |" for row in _rows(document, "tables")]
    return lines


def _rows(document: str, name: str) -> list[list[str]]:
    part = document.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    return rows[2:]


def _seeds(document: str, name: str) -> str:
    found = re.search(r"(\d+) seeds", document.partition(f"<!-- {name} -->")[2])
    return found[1] if found else "?"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--boxes", nargs="*", default=list(box_names()))
    parser.add_argument("--all", action="store_true", help="give the samplers every parameter that the box's --help offers: most launches then fail")
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--table-seeds", type=int, nargs=2, default=(400, 60), metavar=("SEEDS", "TPE"), help="of the policies on tables, and of TPE there")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/search.md")
    asked = parser.parse_args()
    library = load_library(find_knowledge(ROOT))
    parts: dict[str, list[str]] = {}
    if asked.boxes:
        parts["boxes"] = boxes(asked.boxes, library, asked.seeds, asked.launches, everything=asked.all)
        if not asked.all:
            parts["boxes"] = with_first_seeds(parts["boxes"], asked.boxes, library, asked.launches)
    if asked.tables is not None:
        parts["tables"] = tables(asked.tables, *asked.table_seeds)
    for lines in parts.values():
        print("\n".join([*lines, ""]))
    if asked.write:
        text = DOCS.read_text(encoding="utf-8")
        for name, lines in parts.items():
            text = written(text, name, lines, DOCS)
        DOCS.write_text(text, encoding="utf-8")
        README.write_text(written(README.read_text(encoding="utf-8"), "search", figures(text), README), encoding="utf-8")


if __name__ == "__main__":
    main()
