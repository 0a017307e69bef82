"""``lint``: the knowledge files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from optimizer.cli.base import json_option, print_json, wants_json


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
@click.pass_context
def lint(ctx: click.Context, folder: Path | None, as_json: bool) -> None:
    """Check playbooks, spaces and the other knowledge files."""
    from optimizer.wiring import lint_knowledge

    found = lint_knowledge(folder or ctx.obj["knowledge"])
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        for line in found["lines"]:
            click.echo(line)
    sys.exit(2 if found["errors"] else 0)
