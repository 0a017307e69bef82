"""Reads the text that ``llama-server --help`` prints into a ``FlagTable``. Responsible for that format only: options start at the
first column, spellings are separated by commas, values and choices stand in several notations, removed options are still listed."""

import re
from collections.abc import Iterator

from optimizer.model.canonical import digest
from optimizer.model.flags import Flag, FlagTable

_OPTION = re.compile(r"^(?P<invocation>-{1,2}[A-Za-z][^\n]*)$")
_SPELLING = re.compile(r"^-{1,2}[A-Za-z][\w.-]*$")
# The help starts in column 40; an invocation that is longer has its help on the next line.
_COLUMN = 40
_CHOICES = (
    re.compile(r"^\[([a-z0-9]+(?:\|[a-z0-9]+)+)\]$"),  # [on|off|auto]
    re.compile(r"^\{([\w-]+(?:,[\w-]+)+)\}$"),  # {none,layer,row}
    re.compile(r"^<(\d+(?:\|\d+)+)>$"),  # <0|1>
)
_ALLOWED = re.compile(r"allowed values: (?P<values>[\w-]+(?:, [\w-]+)+)")
_DEFAULT = re.compile(r"default: '?(?P<value>[^\s,;)']+)")
_REMOVED = "the argument has been removed"
_MOST_FLAGS = 5_000


def parse_help(text: str) -> FlagTable:
    """The options of a build. ``known`` is false when not one could be read: then nothing is filtered."""
    flags: dict[str, Flag] = {}
    for invocation, described in _entries(text):
        flag = None if _REMOVED in described else _flag(invocation, described)
        if flag is not None:
            flags.setdefault(flag.name, flag)
        if len(flags) >= _MOST_FLAGS:
            break
    table = tuple(flags[name] for name in sorted(flags))
    known = len(table) > 1  # a lone "-h" is a usage line, no help
    return FlagTable(
        flags=table if known else (), known=known, digest=digest([flag.plain() for flag in table]) if known else ""
    )


def _entries(text: str) -> Iterator[tuple[str, str]]:
    invocation, described = "", list[str]()
    for line in text.splitlines():
        if _OPTION.match(line):
            if invocation:
                yield invocation, " ".join(described)
            head, tail = line[:_COLUMN], line[_COLUMN:]
            if len(line) > _COLUMN and line[_COLUMN - 1] != " ":
                head, tail = line, ""  # too long for its column: the help follows below
            invocation, described = head.strip(), [tail.strip()]
        elif invocation and line.startswith(" " * _COLUMN):
            described.append(line.strip())
        elif line.strip():
            if invocation:
                yield invocation, " ".join(described)
            invocation, described = "", []
    if invocation:
        yield invocation, " ".join(described)


def _flag(invocation: str, described: str) -> Flag | None:
    spellings: list[str] = []
    metavar = ""
    for part in re.split(r",\s+(?=-)", invocation):
        spelling, _, rest = part.strip().partition(" ")
        if not _SPELLING.match(spelling):
            return None
        spellings.append(spelling)
        metavar = rest.strip() or metavar
    long = [spelling for spelling in spellings if spelling.startswith("--")]
    if not long:
        return None
    # "--spec-type none,draft-simple,..." lists what may be combined: no exact choices.
    choices = next((tuple(re.split(r"[|,]", found[1])) for pattern in _CHOICES if (found := pattern.match(metavar))), ())
    allowed = _ALLOWED.search(described) if metavar else None
    positive = [spelling for spelling in long if not spelling.startswith("--no-")]
    negatable = not metavar and bool(positive) and len(positive) < len(long)
    default = _DEFAULT.search(described)
    name = positive[0] if positive else long[0]
    return Flag(
        name=name,
        aliases=tuple(spelling for spelling in spellings if spelling != name),
        takes_value=bool(metavar),
        choices=choices or (tuple(allowed["values"].split(", ")) if allowed else ()),
        default=default["value"] if default else None,
        deprecated="DEPRECATED" in described,
        negatable=negatable,
    )
