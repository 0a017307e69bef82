"""``export``, ``copy`` and ``tradeoff``: a study for other tools, in another place, and its Pareto front."""

from __future__ import annotations

from pathlib import Path

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json, writable
from optimizer.cli.completing import study_names


@click.command()
@click.argument("study", shell_complete=study_names)
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
        say(found["text"])


@click.command()
@click.argument("study", shell_complete=study_names)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--study", "name", help="Into a store: the name there (default: the study's own).")
@json_option
@click.pass_context
def copy(ctx: click.Context, study: str, file: Path | None, name: str | None, as_json: bool) -> None:
    """Copy STUDY into FILE, one SQLite file; without FILE, from this machine into the --store."""
    from optimizer.wiring.copying import copy_study

    writable(file)
    found = copy_study(study, roots_of(ctx), file, name)
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(found["text"])


@click.command()
@click.argument("study", shell_complete=study_names)
@click.option("--latency", help="The latency metric: ttft_p50_ms, ttft_p99_ms, e2e_p90_ms … Default: the one of run --tradeoff, else tpot_p50_ms.")
@json_option
@click.pass_context
def tradeoff(ctx: click.Context, study: str, latency: str | None, as_json: bool) -> None:
    """Show which measured settings and loads of STUDY nobody beats in throughput and latency at once."""
    from optimizer.wiring.tradeoff import tradeoff as front

    found = front(study, roots_of(ctx), latency)
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(found["text"])
