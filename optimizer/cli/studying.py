"""``run``, ``plan`` and ``resume``: a study, from its options to its ending."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from optimizer.cli.base import columns, json_option, print_json, roots_of, say, wants_json
from optimizer.cli.completing import box_names, engine_names, study_names
from optimizer.cli.person import asked, can_ask
from optimizer.errors import UsageError

if TYPE_CHECKING:
    from optimizer.core.plan import Plan
    from optimizer.core.state import State
    from optimizer.wiring import Options


def minutes(text: str) -> float:
    """``2h``, ``90m``, ``45``: minutes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(h|m|min|s)?", text.strip())
    if not match:
        raise UsageError(f"The budget {text!r} is no duration.", hint="Examples: --budget 2h, --budget 90m")
    return float(match[1]) * {"h": 60.0, "m": 1.0, "min": 1.0, "s": 1 / 60, None: 1.0}[match[2]]


def study_options(command: Any) -> Any:
    listed = [
        click.option("--host", shell_complete=box_names, required=True, multiple=True,
                     help="An SSH alias, `localhost`, or `sim:NAME` for a simulated box. Given again: further boxes of the same class that share the study."),
        click.option("--target", multiple=True, help="1000tps, 1000tps@16, ttft.p99<500ms; combine with commas, `and` or by repeating."),
        click.option("--inside", help="Words that enter the server's container: 'docker exec -i NAME', 'kubectl exec -i POD --'."),
        click.option("--engine", shell_complete=engine_names, type=str, help="sglang, vllm or llamacpp; found by itself otherwise."),
        click.option("--launch", help="How the server is started: a command in quotes, or a JSON file with argv and env."),
        click.option("--port", type=click.IntRange(1, 65535), help="Which running server, where there are several."),
        click.option("--workload", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="TOML or JSON file describing the load."),
        click.option("--concurrency", type=click.IntRange(1, 65536), help="Requests at once, where neither target nor workload says (default 16)."),
        click.option("--prompt-tokens", type=click.IntRange(1, 1_000_000), help="Of every request (default 512)."),
        click.option("--output-tokens", type=click.IntRange(1, 1_000_000), help="Of every request (default 256)."),
        click.option("--budget", default="2h", show_default=True, help="Time for the whole study."),
        click.option("--launches", type=int, default=20, show_default=True, help="Launches for the whole study, the baseline's included."),
        click.option("--thorough", is_flag=True, help="Spend launches on small effects too."),
        click.option("--yes", "-y", is_flag=True, help="Ask nothing: the running server may be stopped, and is brought back."),
        click.option("--finish", type=click.Choice(["best", "restore", "leave"]), help="What runs afterwards (default: the best if confirmed, else the original; leave: the last server that was measured, on its own port)."),
        click.option("--allow-lossy", is_flag=True, help="Also try settings that can change what the model answers."),
        click.option("--probes", type=click.Path(path_type=Path, exists=True, dir_okay=False),
                     help="Your own prompts (JSONL), asked of every launch: a setting that changes the answers is not kept without --allow-lossy."),
        click.option("--best-effort", is_flag=True, help="Tune even where the target is beyond the hardware."),
        click.option("--guard-minutes", type=click.FloatRange(0.5, 1440), default=15.0, show_default=True,
                     help="After so long without a word from here the box restores itself."),
        click.option("--confirm-window", type=click.FloatRange(1, 86400), help="Seconds of the confirming measurement (default 600)."),
        click.option("--time-scale", type=click.FloatRange(1, 1000), help="Simulated boxes only: how much faster their clock runs."),
        click.option("--prior", multiple=True, metavar="STUDY|FILE",
                     help="A known-good study or prior-art file; studies of the same box class under --runs count by themselves. `none`: no prior art."),
        click.option("--sampler", type=click.Choice(["gp", "tpe"]), default="gp", show_default=True,
                     help="Who proposes points of a space whose hypothesis paid off: a Gaussian process or Optuna's TPE."),
        click.option("--tradeoff", metavar="METRIC", default="",
                     help="Also search the front of throughput against this latency (tpot_p50_ms, ttft_p99_ms …) with the launches that are left; its points come from Optuna's TPE, whatever --sampler."),
        click.option("--policy", type=click.Choice(["evidence", "tpe", "random"]), default="evidence", show_default=True,
                     help="Who decides what is launched. Others than evidence are control arms: every launch is a point of the whole space, and all are spent."),
        click.option("--params", metavar="A,B,…", default="", help="Of a control arm: the parameters that it may move (default: all that this build offers)."),
        click.option("--study", help="Name of the study (default: six random hex digits)."),
        click.option("--seed", type=int, help="Seed of prompts and orders, and of a simulated box's luck (default: from the study's name)."),
    ]  # fmt: skip
    for option in reversed(listed):
        command = option(command)
    return command


def metrics_option(command: Any) -> Any:
    text = "Serve Prometheus metrics of this study while it runs (or OPTIMIZE_METRICS): 9464, 0.0.0.0:9464; 0: any free port. Off by default; docs/telemetry.md."
    return click.option("--metrics", metavar="[HOST:]PORT", help=text)(command)


def options_of(values: dict[str, Any]) -> Options:
    from optimizer.wiring import Options

    return Options(
        host=values["host"][0], more_hosts=tuple(values["host"][1:]), target=tuple(values["target"]), engine=values["engine"], launch=values["launch"], workload=values["workload"],
        port=values["port"], minutes=minutes(values["budget"]), launches=values["launches"], thorough=values["thorough"], yes=values["yes"],
        finish=values["finish"], allow_lossy=values["allow_lossy"], probes=values["probes"], best_effort=values["best_effort"], guard_minutes=values["guard_minutes"],
        time_scale=values["time_scale"], confirm_window_s=values["confirm_window"], study=values["study"], seed=values["seed"], inside=values["inside"],
        prior=values["prior"], sampler=values["sampler"], tradeoff=values["tradeoff"], policy=values["policy"],
        params=tuple(name.strip() for name in values["params"].split(",") if name.strip()), concurrency=values["concurrency"], prompt_tokens=values["prompt_tokens"], output_tokens=values["output_tokens"],
    )  # fmt: skip


@click.command()
@study_options
@metrics_option
@json_option
@click.pass_context
def run(ctx: click.Context, /, as_json: bool, metrics: str | None, **values: Any) -> None:
    """Tune a server until the target is shown, the budget is spent or nothing is left to try.

    On a terminal it asks what neither the box nor an option says; with --yes, or without a terminal, it asks nothing."""
    from optimizer.report.progress import Progress
    from optimizer.wiring import run_study
    from optimizer.wiring.observing import observed

    for_machine = wants_json(ctx, as_json)
    options = options_of(values)
    if not options.yes and can_ask():
        options = asked(options, roots_of(ctx))
    roots = roots_of(ctx)
    with Progress(sys.stderr) as view:
        with observed(view.watch, roots.place, metrics=metrics, say=view.say) as watch:
            state, plan, folder = asyncio.run(run_study(options, roots, watch=watch, progress=view.note, announce=view.opened, say=view.say))
        view.finished(state, folder)
    _end(state, plan, for_machine)


def _end(state: State, plan: Plan, for_machine: bool) -> NoReturn:
    """Print the result where it is wanted, and leave with the code of its ending."""
    from optimizer.wiring import EXIT_OF_ENDING, result_of

    result = result_of(state, plan)
    if for_machine:
        print_json(result)
    sys.exit(EXIT_OF_ENDING.get(result["ending"], 1))


@click.command()
@click.argument("study", shell_complete=study_names)
@click.option("--adopt-knowledge", is_flag=True, help="Go on with knowledge files that changed since the study was opened.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@metrics_option
@json_option
@click.pass_context
def resume(ctx: click.Context, study: str, adopt_knowledge: bool, yes: bool, metrics: str | None, as_json: bool) -> None:
    """Continue an interrupted study: find out how its last step ended, then go on."""
    from optimizer.report.progress import Progress
    from optimizer.wiring import resume_study
    from optimizer.wiring.observing import observed

    for_machine = wants_json(ctx, as_json)
    roots = roots_of(ctx)
    place = roots.study(study)
    with Progress(sys.stderr) as view:
        with observed(view.watch, lambda _: place, metrics=metrics, say=view.say) as watch:
            state, plan, folder = asyncio.run(resume_study(study, roots, watch=watch, progress=view.note, adopt=adopt_knowledge, say=view.say))
        view.finished(state, folder)
    _end(state, plan, for_machine)


@click.command()
@study_options
@json_option
@click.pass_context
def plan(ctx: click.Context, /, as_json: bool, **values: Any) -> None:
    """Say what `run` would do, from reading alone; nothing is launched, stopped or written."""
    from optimizer.report.plan_view import plan_text
    from optimizer.wiring.planning import plan_study

    options = options_of(values)
    if options.more_hosts:
        raise UsageError("A plan is made from one box.", hint="The other boxes of a study are of the same class, so that the plan holds for them: name one --host.")
    found = asyncio.run(plan_study(options, roots_of(ctx)))
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(plan_text(found, columns()))
