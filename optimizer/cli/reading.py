"""``journal`` and ``studies``: what was decided, and why."""

from __future__ import annotations

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json
from optimizer.cli.completing import study_names
from optimizer.errors import UsageError


@click.command()
@click.argument("study", shell_complete=study_names)
@click.option("--why", metavar="SEQ|SETTING", help="One entry with everything that led to it, down to the log line; or why a setting was set.")
@click.option("--hypothesis", help="Only what concerns this hypothesis.")
@click.option("--search", is_flag=True, help="What the search started from, which parameters left a space, what was stopped early, what became of each box.")
@click.option("--follow", is_flag=True, help="Keep printing while the study runs; with --json an object a line.")
@click.option("--all", "everything", is_flag=True, help="Also the routine steps.")
@json_option
@click.pass_context
def journal(ctx: click.Context, study: str, why: str | None, hypothesis: str | None, search: bool, follow: bool, everything: bool, as_json: bool) -> None:
    """Tell the story of a study: what was decided, on which evidence."""
    import json

    from optimizer.report.journal_view import (
        asked_why,
        entry_row,
        follow_journal,
        journal_document,
        journal_text,
        line_of,
        search_document,
    )

    folder = roots_of(ctx).named(study)
    asked = asked_why(why) if why is not None else None
    if follow and (why is not None or hypothesis is not None):
        raise UsageError("--follow tells every entry as it comes.", hint="Leave --why and --hypothesis away, or --follow.")
    if search and (why is not None or hypothesis is not None or follow or everything):
        raise UsageError("--search tells how the whole search went.", hint="Leave the other options away; its text names the entries for --why.")
    for_machine = wants_json(ctx, as_json)
    if search:
        found = search_document(folder)
        print_json(found) if for_machine else say(found["text"])
    elif follow:
        for entry in follow_journal(folder):
            say(json.dumps(entry_row(entry), ensure_ascii=False, default=str) if for_machine else line_of(entry))
    elif for_machine:
        print_json(journal_document(folder, why=asked, hypothesis=hypothesis))
    else:
        say(journal_text(folder, why=asked, hypothesis=hypothesis, everything=everything))


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that ended before anything was measured.")
@json_option
@click.pass_context
def studies(ctx: click.Context, as_json: bool, everything: bool) -> None:
    """List the studies, newest first."""
    from optimizer.report.journal_view import study_rows, study_table

    rows = study_rows(roots_of(ctx).names())
    if wants_json(ctx, as_json):
        print_json({"studies": rows})
    else:
        say(study_table(rows, everything=everything))
