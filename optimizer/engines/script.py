"""Writes ``launch.sh`` and ``env.sh`` that start exactly what a ``Command`` says. Responsible for quoting and for
keeping secret values out of the files; it decides nothing about the command."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from optimizer.engines.base import Command
from optimizer.engines.dialect import _SECRET_FLAG
from optimizer.model.base import Value

_SECRET_ENV = re.compile(r"(_KEY|APIKEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE)", re.IGNORECASE)
_NO_SECRET_ENV = re.compile(r"TOKENIZER|MAX_NEW_TOKENS|TOKEN_RATIO", re.IGNORECASE)


def render(command: Command, settings: Mapping[str, Value], comments: Iterable[str] = ()) -> dict[str, str]:
    """``{"launch.sh": ..., "env.sh": ...}``. Both are POSIX sh; a secret becomes ``${NAME:?...}``, to be given by
    whoever runs it."""
    lines = [*_commented(comments), *_commented(f"{param} = {value!r}" for param, value in sorted(settings.items()))]
    argv, needed = _without_secrets(command.argv)
    environment = ["# Sourced by launch.sh."]
    for name, value in sorted(command.env.items()):
        if value is None:
            environment.append(f"unset {name}")
        elif _is_secret_env(name):
            environment.append(f': "${{{name}:?set {name} before you start the server}}"; export {name}')
        else:
            environment.append(f"export {name}={shlex.quote(value)}")
    launch = [
        "#!/bin/sh",
        *lines,
        "set -eu",
        'here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)',
        '. "$here/env.sh"',
        *(f': "${{{name}:?set {name} to the secret value of {flag}}}"' for name, flag in needed),
        "exec \\",
        " \\\n".join(f"  {token}" for token in argv),
    ]
    return {"launch.sh": "\n".join(launch) + "\n", "env.sh": "\n".join(environment) + "\n"}


def _commented(lines: Iterable[str]) -> list[str]:
    return [f"# {part}".rstrip() for line in lines for part in re.split(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", line)]


def _without_secrets(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Quoted tokens, each option with its value on one line's worth of tokens, and (variable, flag) of every secret
    left out."""
    tokens: list[str] = []
    needed: list[tuple[str, str]] = []
    hide_next = ""
    for token in argv:
        name, equals, _ = token.partition("=")
        flag = name if token.startswith("--") and _SECRET_FLAG.search(name[2:]) else ""
        if hide_next and not token.startswith("--"):
            tokens.append(f'"${{{_variable(hide_next)}}}"')
            needed.append((_variable(hide_next), hide_next))
        elif flag and equals:
            tokens.append(f'{flag}="${{{_variable(flag)}}}"')
            needed.append((_variable(flag), flag))
        else:
            tokens.append(shlex.quote(token))
        hide_next = flag if flag and not equals else hide_next if hide_next and not token.startswith("--") else ""
    return tokens, list(dict.fromkeys(needed))


def _variable(flag: str) -> str:
    return re.sub(r"\W", "_", flag.lstrip("-")).upper()


def _is_secret_env(name: str) -> bool:
    return _SECRET_ENV.search(_NO_SECRET_ENV.sub("", name)) is not None
