"""The commands: parse, call the wiring, print, exit code. People's text goes to stderr when ``--json`` asks for a document on
stdout. Heavy imports happen inside the commands, so that ``--help`` stays instant."""

from __future__ import annotations

import os
from pathlib import Path

import click

from optimizer import __version__
from optimizer.cli import (
    asking,
    benching,
    boxes,
    diagnosing,
    exporting,
    knowledge,
    learning,
    reading,
    replaying,
    reporting,
    serving,
    studying,
)
from optimizer.cli.base import SHARED, Group, takes_shared
from optimizer.errors import UsageError

EPILOG = """
Start here:

\b
  optimize run --host sim:rtx6000x8-k26        a simulated box, nothing needed
  optimize diagnose --host localhost           what limits the server that runs here
  optimize run --target 1000tps@16 --host box  tune it (box: an alias of ~/.ssh/config)
"""


FIRST = """optimize tunes an LLM inference server (SGLang, vLLM, llama.cpp): it reads what the server and the box say, ranks what may limit it,
changes one thing at a time, measures it honestly, and writes down why. Three commands to try:

  optimize run --host sim:h200-7b --target 1000tps@16  tune a simulated box: no GPU, no server, three minutes
  optimize diagnose --host localhost                   what limits the server that runs here; changes nothing
  optimize plan --host BOX --target 1000tps@16         what a study of a box of ~/.ssh/config would do; changes nothing

Then `optimize journal STUDY` tells what was done and why. All commands: optimize --help"""


@click.group(cls=Group, invoke_without_command=True, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="optimize")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout; people's text goes to stderr.")
@click.option("--runs", default=Path("runs"), show_default=True, envvar="OPTIMIZE_RUNS", **SHARED["runs"])
@click.option("--knowledge", "knowledge_", envvar="OPTIMIZE_KNOWLEDGE", **SHARED["knowledge"])
@click.option("--store", envvar="OPTIMIZE_STORE", **SHARED["store"])
@click.pass_context
def main(ctx: click.Context, as_json: bool, runs: Path, knowledge_: Path | None, store: str | None) -> None:
    """An autonomous performance engineer for LLM inference servers (SGLang, vLLM, llama.cpp).

    It reads the server and the box, ranks what may limit it, relaunches with one change at a time, measures honestly and
    writes down why."""
    ctx.obj = {"json": as_json, "runs": runs, "knowledge": knowledge_, "store": store}
    if ctx.invoked_subcommand is None:
        if as_json:
            raise UsageError("--json needs a command.", hint="For example: optimize --json studies")
        click.echo(FIRST)


if "_OPTIMIZE_COMPLETE" in os.environ:  # what only Tab needs is not loaded otherwise
    from optimizer.cli import shells

    shells.register()
for command in (
    studying.run, studying.plan, studying.resume,
    diagnosing.diagnose, benching.bench,
    asking.why, asking.why_not,
    reading.journal, reading.studies, replaying.replay, exporting.export, exporting.copy, exporting.tradeoff, learning.learned, reporting.report, reporting.diff,
    boxes.doctor, boxes.stop, boxes.restore,
    knowledge.lint, serving.mcp,
):  # fmt: skip
    main.add_command(takes_shared(command))
