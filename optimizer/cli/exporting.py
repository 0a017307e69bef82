"""``export``: a study for other tools."""

from __future__ import annotations

import click

from optimizer.cli.base import json_option, print_json, roots_of, wants_json


@click.command()
@click.argument("study")
@click.option("--optuna", "url", required=True, metavar="URL", help="Database for optuna-dashboard, e.g. sqlite:///study.db.")
@json_option
@click.pass_context
def export(ctx: click.Context, study: str, url: str, as_json: bool) -> None:
    """Write every launch of STUDY as an Optuna trial. The journal stays the one record."""
    from optimizer.wiring.exporting import export_study

    found = export_study(study, roots_of(ctx), url)
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        click.echo(found["text"])
