"""What all commands share: errors become one message and an exit code, ``--json`` becomes one document on stdout."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from optimizer.errors import Interrupted, OptimizerError, UsageError
from optimizer.redact import printable

if TYPE_CHECKING:
    from optimizer.journal import Database
    from optimizer.wiring import Roots


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Whatever a command prints goes through here: parts of it were written by a box."""
    click.echo(printable(text), err=err, nl=nl)


class Group(click.Group):
    """Turns the project's own errors into one clear message and the exit code of their branch."""

    def invoke(self, ctx: click.Context) -> Any:
        words = (*ctx.args, *getattr(ctx, "_protected_args", ()))  # click takes them away
        try:
            return super().invoke(ctx)
        except OptimizerError as error:
            if ctx.params.get("as_json") or (ctx.obj or {}).get("json"):
                message, why, hint = error.parts
                click.echo(json.dumps({"error": {"kind": type(error).__name__, "message": message, "why": why, "hint": hint}}))
            say("optimize: " + "\n".join(error.parts), err=True)
            sys.exit(error.exit_code)
        except click.ClickException as error:  # of the command line itself: click says it on stderr and ends with 2
            if ctx.params.get("as_json") or (ctx.obj or {}).get("json") or "--json" in words:
                told = {"message": error.format_message(), "why": UsageError.matters, "hint": "--help lists commands and options."}
                click.echo(json.dumps({"error": {"kind": "UsageError", **told}}))
            error.show()
            say(UsageError.matters, err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("optimize: interrupted", err=True)
            sys.exit(Interrupted.exit_code)


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    """At once, so that an error of the very first check is a document as well."""
    known = ctx.ensure_object(dict)
    known["json"] = known.get("json", False) or value
    return value


def columns() -> int | None:
    """Of the terminal that a command prints to; None where it prints to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def json_option(command: Any) -> Any:
    text = "One JSON document on stdout."
    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json, help=text)(command)


def roots_of(ctx: click.Context) -> Roots:
    from optimizer.wiring import Roots

    return Roots(runs=ctx.obj["runs"], knowledge=ctx.obj["knowledge"], store=store_of(ctx.obj.get("store")))


def store_of(url: str | None) -> Database | None:
    """The database of ``--store``. Raises UsageError for what is none, or where its driver is not installed."""
    if not url:
        return None
    from optimizer.journal import database

    return database(url)


def wants_json(ctx: click.Context, as_json: bool) -> bool:
    ctx.obj["json"] = ctx.obj["json"] or as_json
    return bool(ctx.obj["json"])


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    click.echo("".join(char if char == "\n" or char.isprintable() else json.dumps(char)[1:-1] for char in text))
