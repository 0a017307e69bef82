"""``doctor``, ``stop`` and ``restore``: what would go wrong on a box, and how a study or a box is brought to its end state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import click

from optimizer.cli.base import columns, json_option, print_json, roots_of, say, wants_json
from optimizer.cli.completing import box_names, engine_names, study_names


@click.command()
@click.argument("study", shell_complete=study_names)
@json_option
@click.pass_context
def stop(ctx: click.Context, study: str, as_json: bool) -> None:
    """End a study now: its coordinator closes it and puts the box into its end state."""
    from optimizer.core.closing import PLAIN_ENDINGS, what_runs
    from optimizer.wiring import EXIT_OF_ENDING, ask_stop, has_ended, holder_of, result_of, resume_study

    roots = roots_of(ctx)
    place = roots.study(study)
    holder, folder, ended = holder_of(place), roots.folder(place), has_ended(place)
    with contextlib.suppress(OSError):  # a full disk: then the signal alone has to do
        (folder / "stop").write_text("stop\n", encoding="utf-8")
    if holder is not None and not holder.runs_here:
        (folder / "stop").unlink(missing_ok=True)
        ask_stop(place)
        message = {"study": study, "asked": True, "coordinator": holder.pid, "on": holder.host}
        text = f"Asked the coordinator (process {holder.pid} on {holder.host}) of {study} to close it, which it sees within seconds; follow with: optimize journal {study} --follow"
    elif holder is not None:
        os.kill(holder.pid, signal.SIGTERM)
        message = {"study": study, "asked": True, "coordinator": holder.pid}
        text = f"Asked the coordinator (process {holder.pid}) of {study} to close it; follow with: optimize journal {study} --follow"
    else:
        if not ended:
            note(f"Closing {study}. What it still runs is taken down and the box restored; Ctrl-C leaves that to the guard on the box, at once.")
        try:
            state, plan_, _ = asyncio.run(resume_study(study, roots, say=note))
        finally:
            (folder / "stop").unlink(missing_ok=True)
        message = {**result_of(state, plan_), "asked": False}
        left = f" If its box is not as it was: optimize restore --host {state.spec.host.name}" if state.spec and message["ending"] == "needs_operator" else ""
        ending = PLAIN_ENDINGS[str(message["ending"])]
        stands = message["reason"] if message["ending"] == "needs_operator" else what_runs(state)
        text = f"Study {study} had ended before: {ending}. Nothing was done.{left}" if ended else f"Study {study} is closed: {ending}. {stands}"
    if wants_json(ctx, as_json):
        print_json(message)
    else:
        say(text)
    sys.exit(EXIT_OF_ENDING["needs_operator"] if not ended and message.get("ending") == "needs_operator" else 0)


def note(text: str) -> None:
    """What a waiting person should know: on stderr, beside a result that may be JSON."""
    say(text, err=True)


@click.command()
@click.option("--host", shell_complete=box_names, required=True)
@click.option("--inside", help="Words that enter the server's container: 'docker exec -i NAME', 'kubectl exec -i POD --'.")
@json_option
@click.pass_context
def restore(ctx: click.Context, host: str, inside: str | None, as_json: bool) -> None:
    """Bring a box back to what ran before a study, from the box's own record; needs no journal."""
    from optimizer.wiring import restore_host

    found = asyncio.run(restore_host(host, inside))
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(found["text"])


@click.command()
@click.option("--host", shell_complete=box_names, required=True, help="An SSH alias, `localhost`, or `sim:NAME`.")
@click.option("--port", type=click.IntRange(1, 65535), help="Which running server, where there are several.")
@click.option("--engine", shell_complete=engine_names, help="sglang, vllm or llamacpp; found by itself otherwise.")
@click.option("--inside", help="Words that enter the server's container: 'docker exec -i NAME', 'kubectl exec -i POD --'.")
@click.option("--launch", help="How the server would be started, if it does not run.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, host: str, port: int | None, engine: str | None, inside: str | None, launch: str | None, as_json: bool) -> None:
    """Say in seconds what would go wrong on a box and how to mend it; reads only."""
    from optimizer.report.doctor_view import doctor_text
    from optimizer.wiring import Options
    from optimizer.wiring.examining import examine_host

    found = asyncio.run(examine_host(Options(host=host, port=port, engine=engine, launch=launch, inside=inside), roots_of(ctx)))
    if wants_json(ctx, as_json):
        print_json(found)
    else:
        say(doctor_text(found, columns()))
    sys.exit(4 if found["verdict"] == "problem" else 0)
