"""Writes ``launch.sh`` and ``env.sh`` that start exactly what a ``Command`` says. Responsible for quoting and for
keeping secret values out of the files; it decides nothing about the command."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from optimizer.engines.base import Command
from optimizer.engines.members import MemberCommand
from optimizer.model.base import Value
from optimizer.redact import Redactor, may_hold_secret

_HIDDEN = re.compile("«(?:secret|redacted)")  # what stands for a value that never left the box


class Word(NamedTuple):
    """One argument: its text, then the value of a variable where a secret was left out."""

    text: str
    variable: str = ""


# The members come up in their order: the router when every worker answers, and when one ends, all end.
_TOGETHER = """\
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
logs=${{LOGS:-.}}
pids=
stop() {{ trap - EXIT INT TERM; for pid in $pids; do kill "$pid" 2>/dev/null || :; done; wait; }}
trap 'stop; exit 143' INT TERM
trap stop EXIT
alive() {{ for pid in $pids; do kill -0 "$pid" 2>/dev/null || {{ echo "A member ended; its log in $logs says why." >&2; exit 1; }}; done; }}
start() {{ sh "$here/launch-$1.sh" >>"$logs/$1.log" 2>&1 & pids="$pids $!"; }}
ready() {{ until curl -sf -o /dev/null "http://127.0.0.1:$1$2"; do alive; sleep 1; done; }}
{steps}
while :; do alive; sleep 1; done
"""


def render_members(commands: Sequence[MemberCommand], settings: Mapping[str, Value], health_path: str, comments: Iterable[str] = ()) -> dict[str, str]:
    """The same for a deployment: ``launch.sh`` starts ``launch-NAME.sh`` of each member in their order, and keeps them together."""
    files: dict[str, str] = {}
    for one in commands:
        whole = Command(argv=one.argv, env={**one.member.env, **one.env})
        files |= {name.replace(".sh", f"-{one.member.name}.sh"): text for name, text in render(whole, one.settings.values, (), f"-{one.member.name}").items()}
    workers = [one for one in commands if one.member.role != "router"]
    steps = [f"start {one.member.name}" for one in workers] + [f"ready {one.port} {health_path}" for one in workers]
    steps += [f"start {one.member.name}" for one in commands if one.member.role == "router"]
    lines = [*_commented(comments), *_settings_said(settings), "set -eu"]
    files["launch.sh"] = "\n".join(["#!/bin/sh", *lines]) + "\n" + _TOGETHER.format(steps="\n".join(steps))
    files["env.sh"] = "# Every member has its own: " + ", ".join(f"env-{one.member.name}.sh" for one in commands) + ".\n"
    return files


def _settings_said(settings: Mapping[str, Value]) -> list[str]:
    return _commented(f"{param} {'removed' if value is None else f'= {value!r}'}" for param, value in sorted(settings.items()))


def render(command: Command, settings: Mapping[str, Value], comments: Iterable[str] = (), suffix: str = "") -> dict[str, str]:
    """``{"launch.sh": ..., "env.sh": ...}``. Both are POSIX sh; a secret becomes ``${NAME:?...}``, to be given by
    whoever runs it. ``suffix``: of the name under which the first finds the second."""
    lines = [*_commented(comments), *_settings_said(settings)]
    words, needed = words_of(command.argv)
    environment = [f"# Sourced by launch{suffix}.sh."]
    for name, value in sorted(command.env.items()):
        if value is None:
            environment.append(f"unset {name}")
        elif is_secret(name, value):
            environment.append(f': "${{{name}:?set {name} before you start the server}}"; export {name}')
        else:
            environment.append(f"export {name}={shlex.quote(value)}")
    launch = [
        "#!/bin/sh",
        *lines,
        "set -eu",
        'here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)',
        f'. "$here/env{suffix}.sh"',
        *(f': "${{{name}:?set {name} to the secret value of {flag}}}"' for name, flag in needed),
        "exec \\",
        " \\\n".join(f"  {_quoted(word)}" for word in words),
    ]
    return {"launch.sh": "\n".join(launch) + "\n", "env.sh": "\n".join(environment) + "\n"}


def _quoted(word: Word) -> str:
    return (shlex.quote(word.text) if word.text or not word.variable else "") + (f'"${{{word.variable}}}"' if word.variable else "")


def _commented(lines: Iterable[str]) -> list[str]:
    return [f"# {part}".rstrip() for line in lines for part in re.split(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", line)]


def words_of(argv: Sequence[str]) -> tuple[list[Word], list[tuple[str, str]]]:
    """The arguments without secrets, and (variable, flag) of every secret left out."""
    words: list[Word] = []
    needed: list[tuple[str, str]] = []
    hide_next = ""
    for number, token in enumerate(argv):
        name, equals, value = token.partition("=")
        flag = name if token.startswith("--") and is_secret(name[2:], value) else ""
        hidden, text = "", token
        if hide_next and not token.startswith("--"):
            hidden, text = hide_next, ""
        elif flag and equals:
            hidden, text = flag, f"{flag}="
        elif is_secret("", token):
            hidden, text = argv[number - 1] if number and argv[number - 1].startswith("--") else f"argument {number}", ""
        words.append(Word(text, _variable(hidden) if hidden else ""))
        if hidden:
            needed.append((_variable(hidden), hidden))
        hide_next = flag if flag and not equals else hide_next if hide_next and not token.startswith("--") else ""
    return words, list(dict.fromkeys(needed))


def _variable(flag: str) -> str:
    return re.sub(r"\W", "_", flag.lstrip("-")).upper()


def is_secret(name: str, value: str) -> bool:
    """By its name, by its looks, or because it was hidden before it came here."""
    return may_hold_secret(name) or _HIDDEN.search(value) is not None or Redactor().text(value) != value
