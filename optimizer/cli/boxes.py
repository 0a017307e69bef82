"""``stop`` and ``restore``: a study or a box is brought to its end state."""

from __future__ import annotations

import asyncio
import os
import signal

import click

from optimizer.cli.base import json_option, print_json, roots_of, wants_json


@click.command()
@click.argument("study")
@json_option
@click.pass_context
def stop(ctx: click.Context, study: str, as_json: bool) -> None:
    """End a study now: its coordinator closes it and puts the box into its end state."""
    from optimizer.wiring import holder_of, result_of, resume_study

    roots = roots_of(ctx)
    folder = roots.study(study)
    holder = holder_of(folder)
    (folder / "stop").write_text("stop\n", encoding="utf-8")
    if holder is not None:
        os.kill(holder, signal.SIGTERM)
        message = {"study": study, "asked": True, "coordinator": holder}
        text = f"Asked the coordinator (process {holder}) of {study} to close it; follow with: optimize journal {study} --follow"
    else:
        try:
            state, plan_, _ = asyncio.run(resume_study(study, roots))
        finally:
            (folder / "stop").unlink(missing_ok=True)
        message = {**result_of(state, plan_), "asked": False}
        text = f"Study {study} is closed: {message['ending']}."
    if wants_json(ctx, as_json):
        print_json(message)
    else:
        click.echo(text)


@click.command()
@click.option("--host", required=True)
@json_option
@click.pass_context
def restore(ctx: click.Context, host: str, as_json: bool) -> None:
    """Bring a box back to what ran before a study, from the box's own record; needs no journal."""
    from optimizer.wiring import restore_host

    found = asyncio.run(restore_host(host))
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        click.echo(found["text"])
