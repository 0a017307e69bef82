"""The commands: parse, call the wiring, print, exit code. People's text goes to stderr when ``--json`` asks for a document on
stdout. Heavy imports happen inside the commands, so that ``--help`` stays instant."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optimizer import __version__
from optimizer.errors import Interrupted, OptimizerError, UsageError

if TYPE_CHECKING:
    from optimizer.wiring import Options, Roots

EPILOG = """
Start here:

\b
  optimize run --host sim:rtx6000x8-k26        a simulated box, nothing needed
  optimize diagnose --host localhost           what limits the server that runs here
  optimize run --target 1000tps@16 --host box  tune it (box: an alias of ~/.ssh/config)
"""


class Group(click.Group):
    """Turns the project's own errors into one clear message and the exit code of their branch."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OptimizerError as error:
            if ctx.params.get("as_json") or (ctx.obj or {}).get("json"):
                click.echo(json.dumps({"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}))
            click.echo(f"optimize: {error.message}", err=True)
            if error.hint:
                click.echo(error.hint, err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("optimize: interrupted", err=True)
            sys.exit(Interrupted.exit_code)


@click.group(cls=Group, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="optimize")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout; people's text goes to stderr.")
@click.option("--runs", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True, envvar="OPTIMIZE_RUNS",
              help="Folder of the studies.")  # fmt: skip
@click.option("--knowledge", type=click.Path(path_type=Path, exists=True, file_okay=False), envvar="OPTIMIZE_KNOWLEDGE",
              help="Folder with playbooks/ and search_spaces/ (default: here, else the packaged ones).")  # fmt: skip
@click.pass_context
def main(ctx: click.Context, as_json: bool, runs: Path, knowledge: Path | None) -> None:
    """An autonomous performance engineer for LLM inference servers (SGLang, vLLM).

    It reads the server and the box, ranks what may limit it, relaunches with one change at a time, measures honestly and
    writes down why."""
    ctx.obj = {"json": as_json, "runs": runs, "knowledge": knowledge}


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    """At once, so that an error of the very first check is a document as well."""
    known = ctx.ensure_object(dict)
    known["json"] = known.get("json", False) or value
    return value


def _json_option(command: Any) -> Any:
    text = "One JSON document on stdout."
    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json, help=text)(command)


def _roots(ctx: click.Context) -> Roots:
    from optimizer.wiring import Roots

    return Roots(runs=ctx.obj["runs"], knowledge=ctx.obj["knowledge"])


def _wants_json(ctx: click.Context, as_json: bool) -> bool:
    ctx.obj["json"] = ctx.obj["json"] or as_json
    return bool(ctx.obj["json"])


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _minutes(text: str) -> float:
    """``2h``, ``90m``, ``45``: minutes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(h|m|min|s)?", text.strip())
    if not match:
        raise UsageError(f"The budget {text!r} is no duration.", hint="Examples: --budget 2h, --budget 90m")
    return float(match[1]) * {"h": 60.0, "m": 1.0, "min": 1.0, "s": 1 / 60, None: 1.0}[match[2]]


def _study_options(command: Any) -> Any:
    options = [
        click.option("--host", required=True, help="An SSH alias, `localhost`, or `sim:NAME` for a simulated box."),
        click.option("--target", multiple=True, help="1000tps, 1000tps@16, ttft.p99<500ms; combine with commas or by repeating."),
        click.option("--engine", type=str, help="sglang or vllm; found by itself otherwise."),
        click.option("--launch", help="How the server is started: a command in quotes, or a JSON file with argv and env."),
        click.option("--port", type=click.IntRange(1, 65535), help="Which running server, where there are several."),
        click.option("--workload", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="TOML or JSON file describing the load."),
        click.option("--budget", default="2h", show_default=True, help="Time for the whole study."),
        click.option("--launches", type=int, default=20, show_default=True, help="Launches for the whole study, the baseline's included."),
        click.option("--thorough", is_flag=True, help="Spend launches on small effects too."),
        click.option("--yes", "-y", is_flag=True, help="Ask nothing: the running server may be stopped, and is brought back."),
        click.option("--finish", type=click.Choice(["best", "restore", "leave"]), help="What runs afterwards (default: the best if confirmed, else the original)."),
        click.option("--allow-lossy", is_flag=True, help="Also try settings that can change what the model answers."),
        click.option("--best-effort", is_flag=True, help="Tune even where the target is beyond the hardware."),
        click.option("--guard-minutes", type=click.FloatRange(0.5, 1440), default=15.0, show_default=True,
                     help="After so long without a word from here the box restores itself."),
        click.option("--confirm-window", type=click.FloatRange(1, 86400), help="Seconds of the confirming measurement (default 600)."),
        click.option("--time-scale", type=click.FloatRange(1, 1000), help="Simulated boxes only: how much faster their clock runs."),
        click.option("--study", help="Name of the study (default: six random hex digits)."),
        click.option("--seed", type=int, help="Seed of prompts and orders (default: from the study's name)."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _options(values: dict[str, Any]) -> Options:
    from optimizer.wiring import Options

    return Options(
        host=values["host"], target=tuple(values["target"]), engine=values["engine"], launch=values["launch"], workload=values["workload"],
        port=values["port"], minutes=_minutes(values["budget"]), launches=values["launches"], thorough=values["thorough"], yes=values["yes"],
        finish=values["finish"], allow_lossy=values["allow_lossy"], best_effort=values["best_effort"], guard_minutes=values["guard_minutes"],
        time_scale=values["time_scale"], confirm_window_s=values["confirm_window"], study=values["study"], seed=values["seed"],
    )  # fmt: skip


@main.command()
@_study_options
@_json_option
@click.pass_context
def run(ctx: click.Context, /, as_json: bool, **values: Any) -> None:
    """Tune a server until the target is shown, the budget is spent or nothing is left to try."""
    from optimizer.report.progress import Progress
    from optimizer.wiring import EXIT_OF_ENDING, result_of, run_study

    wants_json = _wants_json(ctx, as_json)
    options = _options(values)
    with Progress(sys.stderr) as view:
        ask = None if options.yes or not sys.stdin.isatty() else view.ask
        state, plan, folder = asyncio.run(
            run_study(options, _roots(ctx), watch=view.watch, progress=view.note, ask=ask, announce=view.opened)
        )
        view.finished(state, folder)
    result = result_of(state, plan)
    if wants_json:
        _print_json(result)
    sys.exit(EXIT_OF_ENDING.get(result["ending"], 1))


@main.command()
@click.argument("study")
@click.option("--adopt-knowledge", is_flag=True, help="Go on with knowledge files that changed since the study was opened.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@_json_option
@click.pass_context
def resume(ctx: click.Context, study: str, adopt_knowledge: bool, yes: bool, as_json: bool) -> None:
    """Continue an interrupted study: find out how its last step ended, then go on."""
    from optimizer.report.progress import Progress
    from optimizer.wiring import EXIT_OF_ENDING, result_of, resume_study

    wants_json = _wants_json(ctx, as_json)
    with Progress(sys.stderr) as view:
        state, plan, folder = asyncio.run(resume_study(study, _roots(ctx), watch=view.watch, progress=view.note, adopt=adopt_knowledge))
        view.finished(state, folder)
    result = result_of(state, plan)
    if wants_json:
        _print_json(result)
    sys.exit(EXIT_OF_ENDING.get(result["ending"], 1))


@main.command()
@_study_options
@_json_option
@click.pass_context
def plan(ctx: click.Context, /, as_json: bool, **values: Any) -> None:
    """Say what `run` would do, from reading alone; nothing is launched, stopped or written."""
    from optimizer.report.plan_view import plan_text
    from optimizer.wiring.planning import plan_study

    found = asyncio.run(plan_study(_options(values), _roots(ctx)))
    if _wants_json(ctx, as_json):
        _print_json(found)
    else:
        click.echo(plan_text(found))


@main.command()
@click.option("--evidence", multiple=True, type=click.Path(path_type=Path, exists=True),
              help="A bundle folder or case file; the second one is the baseline of the comparison.")  # fmt: skip
@click.option("--host", help="Read a live box instead (nothing is changed).")
@click.option("--port", type=click.IntRange(1, 65535))
@click.option("--engine", type=str)
@_json_option
@click.pass_context
def diagnose(ctx: click.Context, evidence: tuple[Path, ...], host: str | None, port: int | None, engine: str | None, as_json: bool) -> None:
    """Rank what may limit a server, from recorded evidence or from a live box."""
    from optimizer.report.diagnosis_view import diagnosis_text
    from optimizer.wiring import diagnose_bundle, diagnose_host

    if bool(evidence) == bool(host):
        raise UsageError("Give either --evidence PATH or --host NAME.", hint="Example: optimize diagnose --host localhost")
    if len(evidence) > 2:
        raise UsageError("At most two bundles can be compared.")
    if host:
        found = asyncio.run(diagnose_host(host, _roots(ctx), port=port, engine=engine))
    else:
        found = diagnose_bundle(evidence, _roots(ctx))
    if _wants_json(ctx, as_json):
        _print_json(found.to_json())
    else:
        click.echo(diagnosis_text(found))


@main.command()
@click.argument("study")
@click.option("--verify", is_flag=True, help="Recompute every decision and compare it with the recorded one.")
@click.option("--until", type=int, help="Replay only up to this entry.")
@_json_option
@click.pass_context
def replay(ctx: click.Context, study: str, verify: bool, until: int | None, as_json: bool) -> None:
    """Drive a recorded study again, without its box. STUDY is a name or a folder."""
    from optimizer.wiring.replaying import replay_study

    found = replay_study(study, _roots(ctx), verify=verify, until=until)
    if _wants_json(ctx, as_json):
        _print_json(found)
    else:
        click.echo(found["text"])
    sys.exit(0 if found["identical"] else 6)


@main.command()
@click.argument("study")
@click.option("--why", type=int, metavar="SEQ", help="One entry with everything that led to it, down to the log line.")
@click.option("--hypothesis", help="Only what concerns this hypothesis.")
@click.option("--follow", is_flag=True, help="Keep printing while the study runs.")
@click.option("--all", "everything", is_flag=True, help="Also the routine steps.")
@_json_option
@click.pass_context
def journal(ctx: click.Context, study: str, why: int | None, hypothesis: str | None, follow: bool, everything: bool, as_json: bool) -> None:
    """Tell the story of a study: what was decided, on which evidence."""
    from optimizer.report.journal_view import follow_journal, journal_document, journal_text

    folder = _roots(ctx).study(study)
    if _wants_json(ctx, as_json):
        _print_json(journal_document(folder, why=why, hypothesis=hypothesis))
    elif follow:
        for line in follow_journal(folder):
            click.echo(line)
    else:
        click.echo(journal_text(folder, why=why, hypothesis=hypothesis, everything=everything))


@main.command()
@_json_option
@click.pass_context
def studies(ctx: click.Context, as_json: bool) -> None:
    """List the studies, newest first."""
    from optimizer.report.journal_view import study_rows, study_table

    rows = study_rows(_roots(ctx).names())
    if _wants_json(ctx, as_json):
        _print_json({"studies": rows})
    else:
        click.echo(study_table(rows))


@main.command()
@click.argument("study")
@_json_option
@click.pass_context
def stop(ctx: click.Context, study: str, as_json: bool) -> None:
    """End a study now: its coordinator closes it and puts the box into its end state."""
    from optimizer.wiring import holder_of, result_of, resume_study

    roots = _roots(ctx)
    folder = roots.study(study)
    holder = holder_of(folder)
    (folder / "stop").write_text("stop\n", encoding="utf-8")
    if holder is not None:
        os.kill(holder, signal.SIGTERM)
        message = {"study": study, "asked": True, "coordinator": holder}
        text = f"Asked the coordinator (process {holder}) of {study} to close it; follow with: optimize journal {study} --follow"
    else:
        try:
            state, plan_, _ = asyncio.run(resume_study(study, roots))
        finally:
            (folder / "stop").unlink(missing_ok=True)
        message = {**result_of(state, plan_), "asked": False}
        text = f"Study {study} is closed: {message['ending']}."
    if _wants_json(ctx, as_json):
        _print_json(message)
    else:
        click.echo(text)


@main.command()
@click.option("--host", required=True)
@_json_option
@click.pass_context
def restore(ctx: click.Context, host: str, as_json: bool) -> None:
    """Bring a box back to what ran before a study, from the box's own record; needs no journal."""
    from optimizer.wiring import restore_host

    found = asyncio.run(restore_host(host))
    if _wants_json(ctx, as_json):
        _print_json(found)
    else:
        click.echo(found["text"])


@main.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@_json_option
@click.pass_context
def lint(ctx: click.Context, folder: Path | None, as_json: bool) -> None:
    """Check playbooks, spaces and the other knowledge files."""
    from optimizer.wiring import lint_knowledge

    found = lint_knowledge(folder or ctx.obj["knowledge"])
    if _wants_json(ctx, as_json):
        _print_json(found)
    else:
        for line in found["lines"]:
            click.echo(line)
    sys.exit(2 if found["errors"] else 0)


if __name__ == "__main__":
    main()
