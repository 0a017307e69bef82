"""Reads the text that argparse prints for ``--help`` into a ``FlagTable``. Responsible for the text format only
(wrapped invocations, aliases, choices, defaults, ``--foo/--no-foo`` pairs, deprecation notes); it never decides what
a flag means, and it treats every word of the text as data."""

import re

from optimizer.model.canonical import digest
from optimizer.model.flags import Flag, FlagTable

# argparse indents an option by exactly two spaces and its help by more; a help text starts after at least two spaces.
_OPTION = re.compile(r"^  (?P<invocation>-{1,2}[A-Za-z].*)$")
_INLINE_HELP = re.compile(r"\s{2,}")
_SPELLING = re.compile(r"^-{1,2}[A-Za-z][\w.-]*$")
_EXACT_CHOICES = re.compile(r"^\{([^{}]*)\}$")
_MANY = re.compile(r"\.\.\.")
_DEFAULT = re.compile(r"\(default: (?P<value>.*)\)\s*$", re.DOTALL)
_DEPRECATED = re.compile(r"^\W*(?:note: --\S+ is )?deprecated\b|--(?P<name>[\w-]+) is deprecated", re.IGNORECASE)

# A real build prints up to about 550 options. The cap keeps a hostile text from filling memory and journal.
_MOST_FLAGS = 5_000
_LONGEST_DEFAULT = 200


def parse_help(text: str) -> FlagTable:
    """The options of an argparse help text. ``known`` is false when not one option could be read: then nothing is
    filtered."""
    flags = []
    for invocation, description in _entries(text):
        flag = _flag(invocation, description)
        if flag is not None:
            flags.append(flag)
        if len(flags) >= _MOST_FLAGS:
            break
    unique = {flag.name: flag for flag in reversed(flags)}
    table = tuple(unique[name] for name in sorted(unique))
    return FlagTable(flags=table, known=bool(table), digest=digest([flag.plain() for flag in table]) if table else "")


def _entries(text: str) -> list[tuple[str, str]]:
    """(invocation, help) of every option, the help joined to one line."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in text.splitlines():
        match = _OPTION.match(line)
        if match:
            invocation, help_start = _split_invocation(match["invocation"])
            found.append((invocation, [help_start] if help_start else []))
            inside = True
        elif inside and line.startswith("   ") and line.strip():
            found[-1][1].append(line.strip())
        elif line.strip():
            inside = False
    return [(invocation, " ".join(lines)) for invocation, lines in found]


def _split_invocation(text: str) -> tuple[str, str]:
    parts = _INLINE_HELP.split(text, maxsplit=1)
    return parts[0].strip(), parts[1].strip() if len(parts) > 1 else ""


def _flag(invocation: str, description: str) -> Flag | None:
    spellings: list[str] = []
    metavar = ""
    # ", -" separates spellings; a comma inside {a,b} is never followed by a space.
    for part in re.split(r", (?=-)", invocation):
        spelling, _, rest = part.partition(" ")
        if not _SPELLING.match(spelling):
            continue
        spellings.append(spelling)
        metavar = metavar or rest.strip()
    if not spellings:
        return None
    negative = {spelling for spelling in spellings if spelling.startswith("--no-") and f"--{spelling[5:]}" in spellings}
    positive = [spelling for spelling in spellings if spelling not in negative]
    name = next((spelling for spelling in positive if spelling.startswith("--")), positive[0])
    choices = _EXACT_CHOICES.match(metavar)
    default = _DEFAULT.search(description)
    deprecated = _DEPRECATED.search(description)
    return Flag(
        name=name,
        aliases=tuple(spelling for spelling in (*positive, *sorted(negative)) if spelling != name),
        takes_value=bool(metavar),
        many=bool(_MANY.search(metavar)),
        choices=tuple(choices[1].split(",")) if choices else (),
        default=default["value"][:_LONGEST_DEFAULT] if default else None,
        deprecated=deprecated is not None and deprecated["name"] in (None, name[2:]),
        negatable=bool(negative),
    )
