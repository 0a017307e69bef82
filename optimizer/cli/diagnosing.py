"""``diagnose``: what may limit a server, by reading alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json
from optimizer.cli.completing import box_names, engine_names
from optimizer.errors import UsageError


@click.command()
@click.option("--evidence", multiple=True, type=click.Path(path_type=Path, exists=True),
              help="A bundle folder or case file; the second one is the baseline of the comparison.")  # fmt: skip
@click.option("--host", shell_complete=box_names, help="Read a live box instead (nothing is changed).")
@click.option("--inside", help="Words that enter the server's container: 'docker exec -i NAME', 'kubectl exec -i POD --'.")
@click.option("--port", type=click.IntRange(1, 65535))
@click.option("--engine", shell_complete=engine_names, type=str)
@click.option("--sheet", is_flag=True, help="Print the evidence sheet behind the causes: what was found where, and what is missing.")
@click.option("--all", "everything", is_flag=True, help="The sheet with every fact and every reason for a missing one.")
@json_option
@click.pass_context
def diagnose(
    ctx: click.Context, evidence: tuple[Path, ...], host: str | None, inside: str | None, port: int | None, engine: str | None, sheet: bool, everything: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Rank what may limit a server, from recorded evidence or from a live box.

    The answer first; a live box's evidence sheet always follows it, that of recorded evidence with --sheet or --all."""
    from optimizer.report.diagnosis_view import diagnosis_text
    from optimizer.report.sheet_view import sheet_text
    from optimizer.wiring import diagnose_bundle, diagnose_host

    if bool(evidence) == bool(host):
        raise UsageError("Give either --evidence PATH or --host NAME.", hint="Example: optimize diagnose --host localhost")
    if len(evidence) > 2:
        raise UsageError("At most two bundles can be compared.")
    if host:
        found = asyncio.run(diagnose_host(host, roots_of(ctx), port=port, engine=engine, inside=inside))
    else:
        found = diagnose_bundle(evidence, roots_of(ctx))
    if wants_json(ctx, as_json):
        print_json(found.to_json())
    else:
        say(diagnosis_text(found))
        if host or sheet or everything:
            say("\n" + sheet_text(found, everything=everything))
