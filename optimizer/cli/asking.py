"""``why`` and ``why-not``: a study answers for what it did and for what it left alone."""

from __future__ import annotations

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json
from optimizer.cli.completing import study_names


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("study", shell_complete=study_names)
@click.argument("what", metavar="SEQ|SETTING")
@json_option
@click.pass_context
def why(ctx: click.Context, study: str, what: str, as_json: bool) -> None:
    """Why entry SEQ of a study is there, or why SETTING was set: everything that led to it, down to the log line.

    `optimize journal STUDY` shows the numbers."""
    from optimizer.report.journal_view import asked_why
    from optimizer.wiring.asking import why as answer

    found = answer(study, asked_why(what), roots_of(ctx))
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(found["text"])


@click.command("why-not", context_settings={"ignore_unknown_options": True})
@click.argument("study", shell_complete=study_names)
@click.argument("setting")
@json_option
@click.pass_context
def why_not(ctx: click.Context, study: str, setting: str, as_json: bool) -> None:
    """What ruled SETTING in or out, or what its test would cost: NAME, NAME=VALUE, --flag, a variable, or the id of a cause."""
    from optimizer.wiring.asking import why_not as answer

    found = answer(study, setting, roots_of(ctx))
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(found["text"])
