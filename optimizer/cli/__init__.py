"""The commands: parse, call the wiring, print, exit code. People's text goes to stderr when ``--json`` asks for a document on
stdout. Heavy imports happen inside the commands, so that ``--help`` stays instant."""

from __future__ import annotations

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
from optimizer.cli.base import Group

EPILOG = """
Start here:

\b
  optimize run --host sim:rtx6000x8-k26        a simulated box, nothing needed
  optimize diagnose --host localhost           what limits the server that runs here
  optimize run --target 1000tps@16 --host box  tune it (box: an alias of ~/.ssh/config)
"""


@click.group(cls=Group, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="optimize")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout; people's text goes to stderr.")
@click.option("--runs", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True, envvar="OPTIMIZE_RUNS",
              help="Folder of the studies.")  # fmt: skip
@click.option("--knowledge", "knowledge_", type=click.Path(path_type=Path, exists=True, file_okay=False), envvar="OPTIMIZE_KNOWLEDGE",
              help="Folder with playbooks/ and search_spaces/ (default: here, else the packaged ones).")  # fmt: skip
@click.pass_context
def main(ctx: click.Context, as_json: bool, runs: Path, knowledge_: Path | None) -> None:
    """An autonomous performance engineer for LLM inference servers (SGLang, vLLM).

    It reads the server and the box, ranks what may limit it, relaunches with one change at a time, measures honestly and
    writes down why."""
    ctx.obj = {"json": as_json, "runs": runs, "knowledge": knowledge_}


for command in (
    studying.run, studying.plan, studying.resume,
    diagnosing.diagnose, benching.bench,
    asking.why, asking.why_not,
    reading.journal, reading.studies, replaying.replay, exporting.export, exporting.tradeoff, learning.learned, reporting.report, reporting.diff,
    boxes.doctor, boxes.stop, boxes.restore,
    knowledge.lint, serving.mcp,
):  # fmt: skip
    main.add_command(command)
