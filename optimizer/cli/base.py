"""What all commands share: errors become one message and an exit code, ``--json`` becomes one document on stdout."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
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


# What holds for every command, and may stand before it or behind it; the last one counts.
SHARED: dict[str, dict[str, Any]] = {
    "runs": {"type": click.Path(path_type=Path, file_okay=False), "help": "Folder of the studies."},
    "knowledge": {"type": click.Path(path_type=Path, exists=True, file_okay=False), "help": "Folder with playbooks/ and search_spaces/ (default: here, else the packaged ones)."},
    "store": {"metavar": "URL", "help": "Keep journals and what studies taught in this PostgreSQL database, for teams: postgresql://user@host/database. Default: files under --runs."},
}  # fmt: skip


def _shared(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is not None and parameter.name is not None:
        ctx.ensure_object(dict)[parameter.name] = value
        ctx.find_root().params[parameter.name] = value  # where the completion of names looks
    return value


def takes_shared(command: click.Command) -> click.Command:
    """The command, which takes the shared options behind its name as well. They are listed once, by ``optimize --help``."""
    for name, told in SHARED.items():
        command.params.append(click.Option([f"--{name}"], **told, expose_value=False, is_eager=True, hidden=True, callback=_shared))
    command.epilog = command.epilog or "--runs, --knowledge and --store (see `optimize --help`) may stand here or before the command."
    return command


def columns() -> int | None:
    """Of the terminal that a command prints to; None where it prints to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def writable(path: Path | None) -> None:
    """Raises UsageError before any work is done where the file could not be written; folders are not made, as a typing error would make one."""
    if path is not None and not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: there is no such folder, or it is closed to this user.", why="The result would be lost, so nothing was begun.", hint="Name a file in a folder that is there and can be written.")


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
