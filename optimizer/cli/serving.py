"""``mcp``: the questions as tools for coding agents."""

from __future__ import annotations

import os

import click

from optimizer.cli.base import store_of
from optimizer.errors import UsageError


@click.command()
@click.option("--allow-run", is_flag=True, help="Offer the tool that starts studies too; it asks for confirmation with every call.")
@click.pass_context
def mcp(ctx: click.Context, allow_run: bool) -> None:
    """Serve diagnose, plan, journal, why and why-not to a coding agent over the Model Context Protocol (stdin and stdout)."""
    try:
        from optimizer.mcp_server import serve
    except ModuleNotFoundError as error:
        raise UsageError("The MCP server needs a package that is not installed.", hint="pip install 'optimize[mcp]'") from error
    store_of(ctx.obj.get("store"))
    if ctx.obj.get("store"):
        os.environ["OPTIMIZE_STORE"] = ctx.obj["store"]  # where the library looks for it, which answers the tools
    serve(ctx.obj["runs"], allow_run=allow_run)
