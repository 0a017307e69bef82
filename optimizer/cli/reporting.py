"""``report`` and ``diff``: a study for people who were not there, and two studies side by side."""

from __future__ import annotations

from pathlib import Path

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json, writable
from optimizer.cli.completing import study_names


@click.command()
@click.argument("study", shell_complete=study_names)
@click.option("--format", "form", type=click.Choice(["html", "md", "json", "csv"]), default="html", show_default=True,
              help="One self-contained page, Markdown, the whole document, or one row per launch.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Where to write it (default: beside the journal; `-` for stdout).")
@json_option
@click.pass_context
def report(ctx: click.Context, study: str, form: str, output: Path | None, as_json: bool) -> None:
    """Write a study as one file: the answer first, then every measurement and what was ruled out by it."""
    from optimizer.wiring.reporting import report_of

    roots = roots_of(ctx)
    place = roots.named(study)
    path = output or roots.folder(place) / f"report.{form}"
    if str(path) != "-":
        writable(path)
    text = report_of(place, form)
    if str(path) == "-":
        say(text, nl=not text.endswith("\n"))
        return
    path.write_text(text, encoding="utf-8")
    if wants_json(ctx, as_json):
        print_json({"study": study, "format": form, "path": str(path), "bytes": len(text.encode())})
    else:
        say(f"Written: {path} ({len(text.encode()) / 1024:.0f} KiB)")


@click.command()
@click.argument("before", shell_complete=study_names)
@click.argument("after", shell_complete=study_names)
@click.option("--best", is_flag=True, help="Compare what each study kept, not the servers as they were found.")
@json_option
@click.pass_context
def diff(ctx: click.Context, before: str, after: str, best: bool, as_json: bool) -> None:
    """Compare two studies, for example before and after an upgrade: speed, resolved defaults, start-up facts, what to put back."""
    from optimizer.report.diff_view import diff_text
    from optimizer.wiring.reporting import compare_studies

    roots = roots_of(ctx)
    found = compare_studies(roots.named(before), roots.named(after), best=best)
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(diff_text(found))
