"""``bench``: the load generator alone, against any server."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json, writable
from optimizer.cli.completing import box_names, engine_names
from optimizer.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from optimizer.model.measurement import LoadPoint
    from optimizer.model.workload import Workload
    from optimizer.report.bench_view import BenchProgress
    from optimizer.runner.benching import Bench
    from optimizer.wiring import Roots
    from optimizer.wiring.benching import BenchOptions

TOOL_NAMES = ("vllm", "sglang", "guidellm", "aiperf")
EXIT_NOT_MET, EXIT_NOTHING_VALID = 3, 4


@click.command()
@click.argument("url", required=False)
@click.option("--host", shell_complete=box_names, help="An SSH alias or `localhost`: measure the server that runs there, from there.")
@click.option("--port", type=click.IntRange(1, 65535), help="Which server of the host, where there are several.")
@click.option("--engine", shell_complete=engine_names, type=str, help="sglang, vllm or llamacpp; found by itself otherwise. With --host only.")
@click.option("--against", metavar="URL", help="A second server, offered the same work; loads alternate between the two.")
@click.option("--model", help="Name of the model in the requests (default: the one that is served).")
@click.option("--api", type=click.Choice(["completions", "chat", "generate", "llamacpp"]), help="OpenAI's two, SGLang's own, llama.cpp's own.")
@click.option("--workload", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="TOML or JSON file describing the load.")
@click.option("--concurrency", help="Users who wait for their answer: 16, or steps as in 1,8,64.")
@click.option("--rate", help="Arrivals per second that wait for nobody: 4, or steps as in 1,2,4.")
@click.option("--knee", is_flag=True, help="Find the largest load that meets --target, in few steps.")
@click.option("--target", multiple=True, help="1000tps, ttft.p99<500ms, 4goodput, error_rate<1%; combine with commas, `and` or by repeating.")
@click.option("--slo", help="Limits of each single request, for goodput: ttft<500ms,tpot<30ms.")
@click.option("--prompt-tokens", type=click.IntRange(1, 1_000_000), help="Of every request (default 512).")
@click.option("--output-tokens", type=click.IntRange(1, 1_000_000), help="Of every request (default 256).")
@click.option("--window", type=click.FloatRange(0.5, 86400), help="Measured seconds at each load (default 60).")
@click.option("--warmup", type=click.FloatRange(0, 3600), help="At least so many seconds of load before the window (default 30); ends when the rate is steady.")
@click.option("--warmup-max", type=click.FloatRange(0, 3600), help="At most so many (default 300).")
@click.option("--max-connections", type=click.IntRange(1, 65536), help="With --rate: so many at once at most; later requests wait, and their wait counts.")
@click.option("--ca", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Certificates that vouch for an https server.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts, lengths and arrivals.")
@click.option("--with", "tool", type=click.Choice(TOOL_NAMES), help="Measure with this tool instead; it must be installed here. What it does not say is left out.")
@click.option("--with-command", metavar="WORDS", help="How the tool starts, if not by its own name: '/venv/bin/vllm bench serve'.")
@click.option("--tokenizer", help="Of the model, for --with: a folder or a name (default: the model's name).")
@click.option("--requests", type=click.IntRange(1, 10_000_000), help="Of each load, with --with (default: ten for each user, 100 at least).")
@click.option("--export-as", "exports", type=(click.Choice(TOOL_NAMES), click.Path(path_type=Path, dir_okay=False)), multiple=True, metavar="TOOL FILE",
              help="The valid loads in the form of that tool's result file; aiperf's holds one load alone.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False), help="One row per load.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path, dir_okay=False), help="Throughput against latency: FILE.svg or FILE.html.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The JSON document as a file.")
@json_option
@click.pass_context
def bench(ctx: click.Context, /, as_json: bool, **values: Any) -> None:
    """Measure a server: throughput, latencies, errors, at one load, at several, or at the largest that meets a target.

    An API key comes from the server itself with --host, else from the environment: OPTIMIZE_API_KEY."""
    for_machine = wants_json(ctx, as_json)
    plot_file: Path | None = values["plot_file"]
    if plot_file is not None and plot_file.suffix.lower() not in (".svg", ".html"):
        raise UsageError(f"The plot {plot_file.name} must end in .svg or .html.")
    for path in (values["csv_file"], plot_file, values["out"], *(path for _, path in values["exports"])):
        writable(path)
    if any(name == "aiperf" for name, _ in values["exports"]) and (values["knee"] or "," in f"{values['concurrency']}{values['rate']}"):
        raise UsageError("A result file of aiperf holds one load.", hint="Give one --concurrency or --rate, or another form.")
    if values["against"] and values["knee"]:
        raise UsageError("--against compares loads, --knee looks for one: give one of them.")
    from optimizer.wiring.benching import BenchOptions

    fields = {"prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens", "api": "api", "window": "window_s", "warmup": "warmup_min_s",
              "warmup_max": "warmup_max_s", "slo": "slo"}  # fmt: skip
    changes = {name: values[option] for option, name in fields.items() if values[option] is not None}
    if values["warmup"] is not None and values["warmup_max"] is None:
        changes["warmup_max_s"] = max(values["warmup"], min(300.0, 4 * values["warmup"]))
    options = BenchOptions(
        url=values["url"], host=values["host"], port=values["port"], engine=values["engine"], model=values["model"], workload=values["workload"],
        changes=tuple(changes.items()), concurrency=values["concurrency"], rate=values["rate"], knee=values["knee"], target=tuple(values["target"]),
        ca_file=values["ca"], max_connections=values["max_connections"], seed=values["seed"],
        tool=values["tool"], tool_command=values["with_command"], tokenizer=values["tokenizer"], requests=values["requests"],
    )  # fmt: skip
    sys.exit(asyncio.run(_bench(options, roots_of(ctx), values, for_machine)))


async def _bench(options: BenchOptions, roots: Roots, values: dict[str, Any], for_machine: bool) -> int:
    from optimizer.report import bench_view
    from optimizer.runner.benching import interruptible
    from optimizer.wiring.benching import opened_bench, second_server

    with bench_view.BenchProgress(sys.stderr) as view:
        async with opened_bench(options, roots) as (first, wanted):
            view.say(f"{first.served.name}: {wanted.text}; {f'measured by {options.tool}' if options.tool else _times(wanted.workload)}.")
            benches = [first]
            if values["against"]:
                benches.append(first.against(await second_server(values["against"], options, wanted)))
            for one in benches:
                one.report = view.note
                one.measured = partial(_said, view, one)
            async with interruptible(benches):
                if options.knee:
                    await first.find_knee(wanted.loads[0], wanted.highest)
                else:
                    for load in wanted.loads:
                        for one in benches:
                            await one.step(load)
    _show(benches, values, for_machine)
    return _exit_code(benches, options)


def _times(load: Workload) -> str:
    """How long a load takes: its warm-up ends when the rate is steady."""
    return f"window {load.window_s:g} s after a warm-up of {load.warmup_min_s:g} to {max(load.warmup_min_s, load.warmup_max_s):g} s, until the rate is steady"


def _said(view: BenchProgress, bench: Bench, point: LoadPoint) -> None:
    from optimizer.report.bench_view import point_line

    view.say(point_line(bench.loads[-1], point, bench.open_loop))


def _show(benches: list[Bench], values: dict[str, Any], for_machine: bool) -> None:
    import json

    from optimizer.report import bench_view

    first = benches[0]
    documents = [
        bench_view.bench_document(
            one.served.name, one.workload.plain(), one.target, one.open_loop, one.loads, one.points,
            knee=one.found.plain() if one.found else None, note=one.note, interrupted=one.stopped,
        )
        for one in benches
    ]  # fmt: skip
    document = documents[0] if len(documents) == 1 else {**documents[0], "against": documents[1]}
    series = [(one.served.name, one.loads, one.points) for one in benches]
    if values["out"] is not None:
        values["out"].write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")
    if values["csv_file"] is not None:
        values["csv_file"].write_text(bench_view.csv_text(series, first.open_loop), encoding="utf-8")
    if values["plot_file"] is not None:
        drawn = bench_view.plot(series, open_loop=first.open_loop, html=values["plot_file"].suffix.lower() == ".html", title=f"{first.served.name}: {first.workload.text}")
        if drawn:
            values["plot_file"].write_text(drawn, encoding="utf-8")
        else:
            say(f"{values['plot_file']} was not written: no valid load has both a rate and a latency.", err=True)
    for name, path in values["exports"]:
        from optimizer.wiring.benching import exported

        if text := exported(name, first):
            path.write_text(text, encoding="utf-8")
        else:
            say(f"{path} was not written: no load was measured validly, and a result file of {name} cannot say so.", err=True)
    if for_machine:
        print_json(document)
        return
    for one in benches:
        if len(benches) > 1:
            say(one.served.name)
        if one.points:
            say(bench_view.bench_table(one.loads, one.points, open_loop=one.open_loop))
            if one.target.bounds and one.found is None:
                for load, point in zip(one.loads, one.points, strict=True):
                    say(f"{bench_view.load_text(load, one.open_loop)}: {bench_view.met_text(one.target, point)}")
        if one.found is not None or one.note:
            say(bench_view.knee_text(one.found.plain() if one.found else None, one.target, one.open_loop, one.note))
    if len(benches) > 1:
        say(bench_view.comparison_text(series[0], series[1], first.open_loop))
    if first.stopped:
        say("Interrupted: this is what was measured until then.", err=True)


def _exit_code(benches: list[Bench], options: BenchOptions) -> int:
    from optimizer.model.target import claimed

    first = benches[0]
    if any(one.stopped for one in benches):
        return Interrupted.exit_code
    valid = [point for one in benches for point in one.points if not point.invalid]
    if options.knee:
        return 0 if first.found is not None and first.found.good is not None and not first.note else EXIT_NOT_MET
    if not valid:
        return EXIT_NOTHING_VALID
    shown = [(bound, claimed(bound.metric, point.metrics)) for point in valid for bound in first.target.bounds]
    met = all(value is not None and bound.holds(value) for bound, value in shown)
    return 0 if met and len(valid) == sum(len(one.points) for one in benches) else (EXIT_NOT_MET if not met else EXIT_NOTHING_VALID)
