"""``learned``: what earlier studies made of predictions."""

from __future__ import annotations

from pathlib import Path

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json, writable

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--export", type=FILE, help="Write it to a file that others can --merge. It names no machine, model or study.")
@click.option("--merge", type=FILE, help="Add what somebody else's studies taught.")
@click.option("--on/--off", "switch", default=None, help="Whether new studies use it and add to it.")
@click.option("--clear", is_flag=True, help="Forget everything.")
@json_option
@click.pass_context
def learned(ctx: click.Context, export: Path | None, merge: Path | None, switch: bool | None, clear: bool, as_json: bool) -> None:
    """Show how predictions fared in earlier studies, by cause, engine and class of box."""
    from optimizer.wiring.learning import learned_document

    writable(export)
    found = learned_document(export=export, merge=merge, switch=switch, clear=clear, database=roots_of(ctx).store)
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(found["text"])
