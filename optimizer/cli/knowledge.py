"""``lint``: the knowledge files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from optimizer.cli.base import json_option, print_json, say, wants_json


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path, exists=True))
@json_option
@click.pass_context
def lint(ctx: click.Context, path: Path | None, as_json: bool) -> None:
    """Check playbooks, spaces and the other knowledge files of a folder, or one such file, or a case (JSON)."""
    from optimizer.wiring import lint_knowledge

    single = path if path is not None and path.is_file() else None
    found = lint_knowledge(ctx.obj["knowledge"] if single is not None else path or ctx.obj["knowledge"], single)
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        for line in found["lines"]:
            say(line)
    sys.exit(2 if found["errors"] else 0)
