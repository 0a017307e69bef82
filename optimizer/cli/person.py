"""Questions on the terminal, before a study is opened: numbered choices, answers with a default, yes or no. They go to stderr, so that
stdout stays a document. Ctrl-C and the end of input give up; nothing has been changed then."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from optimizer.cli.base import say
from optimizer.errors import GaveUp, OptimizerError
from optimizer.redact import printable

if TYPE_CHECKING:
    from optimizer.wiring import Options, Roots


TICK_S = 0.2


def can_ask() -> bool:
    """Whether somebody sees a question and can answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def asked(options: Options, roots: Roots) -> Options:
    """The options with what a person said, and the command that needs no answer the next time. Raises GaveUp."""
    say(f"Looking at {', '.join((options.host, *options.more_hosts))} …", err=True)  # some seconds, before the first question
    from optimizer.wiring.questions import command_of, completed

    try:
        whole = completed(options, roots, Terminal())
    except (click.Abort, KeyboardInterrupt) as error:
        raise GaveUp("No answer was given.", hint="With --yes and the options of `optimize run --help` nothing is asked.") from error
    if whole != options:
        say(f"The same without questions: {command_of(whole)}", err=True)
    return whole


@contextmanager
def _heard() -> Iterator[None]:
    """A Ctrl-C that comes when Python has looked for one and not begun to read yet would wait for the next line. A tick wakes the read,
    and it looks again."""
    held = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, held)


def _one_of(answer: object, most: int) -> int:
    text = str(answer).strip()
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise click.UsageError(printable(f"{text!r} is none of them: type a number from 1 to {most}."))
    return int(text)


class Terminal:
    """A person at the terminal; see ``wiring.questions.Person``."""

    def choose(self, question: str, choices: Sequence[str]) -> int:
        say(question, err=True)
        for number, choice in enumerate(choices, 1):
            say(f"  {number}  {choice}", err=True)
        with _heard():
            return int(click.prompt("Number", value_proc=lambda answer: _one_of(answer, len(choices)), default=1, err=True)) - 1

    def text(self, question: str, default: str | None, check: Callable[[str], object]) -> str:
        def checked(answer: Any) -> str:
            try:
                check(str(answer).strip())
            except OptimizerError as error:
                raise click.UsageError(printable(f"{error.message} {error.hint or ''}".strip())) from error
            return str(answer).strip()

        with _heard():
            return str(click.prompt(printable(question), default=default, value_proc=checked, err=True))

    def agree(self, question: str) -> bool:
        with _heard():
            return bool(click.confirm(printable(question), default=False, err=True))

    def tell(self, text: str) -> None:
        say(text, err=True)
