"""Where shells cut words otherwise than click expects. bash ends a word at ``:`` and ``=``, so that ``sim:h2`` and ``--host=b`` come in parts and
only the last part is replaced; zsh and fish replace all of ``--host=b``; fish's script takes the comma of a description for its end."""

from __future__ import annotations

import os
from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' answer type value
    COMPREPLY=()
    for answer in $(env COMP_TYPED="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$answer"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _WithTheOption(ShellComplete):
    """What completes ``--host=b`` begins with ``--host=``."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if not equals or not option.startswith("-"):
            return found
        return [CompletionItem(f"{option}={item.value}", item.type, item.help) if item.type == "plain" else item for item in found]


class Bash(_WithTheOption, BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """From the line as typed, as bash has taken its words apart."""
        line = os.environ.get("COMP_TYPED")
        if line is None:  # a script of an older release, in a shell that is still open
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = words.pop() if len(words) > 1 and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Only what comes behind the last break: bash puts it there."""
        breaks = set(":=") & set(os.environ.get("COMP_BREAKS", ""))
        begun = max((incomplete.rfind(mark) for mark in breaks), default=-1) + 1
        return [CompletionItem(item.value[begun:], item.type) if item.type == "plain" else item for item in super().get_completions(args, incomplete)]


class Zsh(_WithTheOption, ZshComplete):
    pass


class Fish(_WithTheOption, FishComplete):
    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


def register() -> None:
    """The program completes with these from now on."""
    kinds: tuple[Any, ...] = (Bash, Zsh, Fish)
    for kind in kinds:
        add_completion_class(kind)
