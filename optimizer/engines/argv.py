"""Reads an engine's command line the way argparse does (unique prefixes, ``=``, several values, ``--no-``, JSON with
dotted keys) and edits it in place. Responsible for tokens: everything that is not edited keeps its bytes and its
order. Never runs anything, never builds a shell string."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.engines.dialect import Dialect
from optimizer.errors import EngineError
from optimizer.model.base import Value
from optimizer.model.flags import Flag, FlagTable

_INT = re.compile(r"^-?(?:0|[1-9]\d*)$")
_FLOAT = re.compile(r"^-?(?:\d+\.\d*|\.\d+|\d+(?:\.\d*)?[eE][+-]?\d+)$")
_NEGATIVE_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")
_SUFFIXED = re.compile(r"^(\d+(?:\.\d+)?)([A-Za-z]{1,2})$")

# vLLM rewrites -O3 to --optimization-level 3 before argparse sees it, so its help does not list -O.
_SHORT = {"-O": "--optimization-level"}

# Linux refuses a single argument of 128 KiB or more (MAX_ARG_STRLEN) with E2BIG.
LONGEST_ARGUMENT_BYTES = 131_071


@dataclass(frozen=True)
class Piece:
    """One option as given: tokens ``start`` to ``end`` (exclusive), what it sets, and how it was written."""

    start: int
    end: int
    param: str
    spelling: str
    value: Value
    equals: bool = False
    key: str = ""  # of --json-flag.key value
    flag: Flag | None = None


@dataclass(frozen=True)
class Parsed:
    """A command line taken apart. ``positionals`` and ``unknown`` are token indices."""

    pieces: tuple[Piece, ...]
    positionals: tuple[int, ...]
    unknown: tuple[int, ...]

    def settings(self) -> dict[str, Value]:
        """param -> value as the engine's parser ends up with: the last one given wins, dotted keys go into their
        JSON."""
        values: dict[str, Value] = {}
        for piece in self.pieces:
            if piece.key:
                given = values.get(piece.param)
                values[piece.param] = _with_key(
                    given if isinstance(given, dict) else {}, piece.key.split("."), piece.value
                )
            else:
                values[piece.param] = piece.value
        return values


def parse(argv: Sequence[str], start: int, flags: FlagTable, dialect: Dialect) -> Parsed:
    """Takes ``argv[start:]`` apart. Never raises: a token that this build does not know is listed as unknown."""
    pieces: list[Piece] = []
    positionals: list[int] = []
    unknown: list[int] = []
    index = start
    while index < len(argv):
        token = argv[index]
        if token == "--":
            positionals.extend(range(index + 1, len(argv)))
            break
        if not _looks_like_option(token, flags):
            positionals.append(index)
            index += 1
            continue
        piece = _read_option(argv, index, flags, dialect)
        if piece is None:
            unknown.append(index)
            index += 1
            # What follows an unknown flag is most likely its value, not a model name.
            if "=" not in token and index < len(argv) and not _looks_like_option(argv[index], flags):
                unknown.append(index)
                index += 1
            continue
        pieces.append(piece)
        index = piece.end
    return Parsed(tuple(pieces), tuple(positionals), tuple(unknown))


def find_flag(name: str, flags: FlagTable, dialect: Dialect) -> Flag | None:
    """The flag that argparse would take for ``name``: an exact spelling, else the only one that it is a prefix of."""
    name = _SHORT.get(name, name)
    if name in flags.by_name:
        return flags.by_name[name]
    if dialect.underscores and name.startswith("--") and "_" in name:
        return find_flag(name.replace("_", "-"), flags, dialect)
    if not name.startswith("--") or len(name) < 3 or dialect.exact:
        return None
    found = {flag.name: flag for spelling, flag in flags.by_name.items() if spelling.startswith(name)}
    return next(iter(found.values())) if len(found) == 1 else None


def _read_option(argv: Sequence[str], index: int, flags: FlagTable, dialect: Dialect) -> Piece | None:
    token = argv[index]
    name, equals, inline = (token, "", "") if dialect.exact else token.partition("=")
    key = ""
    flag = find_flag(name, flags, dialect) if flags.known else None
    if flag is None and dialect.underscores and "." in name and not dialect.exact:
        base, _, key = name.partition(".")
        flag = find_flag(base, flags, dialect) if flags.known else None
        name = base
    if flag is None and flags.known and dialect.exact:
        return None
    if flag is None and flags.known:
        # -O3: a short option with its value attached
        short = find_flag(_SHORT.get(token[:2], token[:2]), flags, dialect) if not token.startswith("--") else None
        if short is None or not short.takes_value:
            return None
        flag, name, equals, inline, key = short, token[:2], "", token[2:], ""
        return Piece(
            index,
            index + 1,
            dialect.param_of(flag),
            name,
            _value(inline, dialect.param_of(flag), flag, dialect),
            flag=flag,
        )
    if flag is None:
        return _read_without_help(argv, index, name, bool(equals), inline, key, dialect)
    param = dialect.param_of(flag)
    if not flag.takes_value:
        spelling = name.replace("_", "-") if dialect.underscores else name
        negative = (
            flag.negatable
            and spelling.startswith("--no-")
            and spelling not in {flag.name, flag.name.removeprefix("--no-")}
        )
        return Piece(index, index + 1, param, name, not (negative or token in dialect.negatives), flag=flag)
    if equals:
        value = _value(inline, param, flag, dialect)
        return Piece(index, index + 1, param, name, [value] if flag.many and not key else value, True, key, flag)
    if dialect.exact:
        given = argv[index + 1 : index + 2]
        return Piece(index, index + 1 + len(given), param, name, _value(given[0], param, flag, dialect) if given else True, flag=flag)
    end = index + 1
    most = len(argv) if flag.many and not key else index + 2
    while end < min(most, len(argv)) and not _looks_like_option(argv[end], flags):
        end += 1
    values: list[Value] = [_value(text, param, flag, dialect) for text in argv[index + 1 : end]]
    if not values:
        return Piece(index, end, param, name, True, False, key, flag)
    return Piece(index, end, param, name, values if flag.many and not key else values[0], False, key, flag)


def _read_without_help(
    argv: Sequence[str], index: int, name: str, equals: bool, inline: str, key: str, dialect: Dialect
) -> Piece | None:
    """The help text could not be read: a flag followed by something that is no flag has a value, else it is a
    switch."""
    spelled = name.replace("_", "-") if dialect.underscores else name
    param = dialect.param_spelled(spelled) or dialect.canonical(spelled.lstrip("-").replace("-", "_"))
    if equals:
        return Piece(index, index + 1, param, name, _value(inline, param, None, dialect), True, key)
    end = index + 1
    while end < len(argv) and not _looks_like_option(argv[end], FlagTable(known=False)):
        end += 1
    values: list[Value] = [_value(text, param, None, dialect) for text in argv[index + 1 : end]]
    return Piece(index, end, param, name, True if not values else values[0] if len(values) == 1 else values, False, key)


def _looks_like_option(token: str, flags: FlagTable) -> bool:
    """argparse's rule: starts with a dash, is no negative number and holds no space, unless it is a flag word for
    word."""
    if len(token) < 2 or not token.startswith("-"):
        return False
    if token in flags.by_name:
        return True
    if _NEGATIVE_NUMBER.match(token):
        return False
    return " " not in token.partition("=")[0]


def _value(text: str, param: str, flag: Flag | None, dialect: Dialect) -> Value:
    """Numbers as numbers, JSON objects as dicts, the rest as text."""
    if param in dialect.text or (flag is not None and text in flag.choices and not _INT.match(text)):
        return text
    if text.startswith("{") and text.endswith("}"):
        try:
            loaded: Value = json.loads(text, parse_constant=_refuse_constant)
        except ValueError:
            return text
        return loaded
    if _INT.match(text) and len(text) < 19:
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    if param in dialect.suffixed:
        match = _SUFFIXED.match(text)
        if match and match[2] in dialect.suffixes:
            return int(float(match[1]) * dialect.suffixes[match[2]])
    return text


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _with_key(given: Mapping[str, Value], path: list[str], value: Value) -> dict[str, Value]:
    result = dict(given)
    head, rest = path[0], path[1:]
    inner = result.get(head)
    if rest:
        result[head] = _with_key(inner if isinstance(inner, dict) else {}, rest, value)
    elif isinstance(value, str) and value in ("true", "false"):
        result[head] = value == "true"
    else:
        result[head] = value
    return result


def same(left: Value, right: Value) -> bool:
    """Equal as settings: 1 and 1.0 and "1" are one value; True is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right or (isinstance(left, bool) and isinstance(right, bool) and left == right)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) <= 1e-9 * max(1.0, abs(left), abs(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, list) and len(left) == 1 and not isinstance(right, list):
        return same(left[0], right)
    if isinstance(right, list) and len(right) == 1 and not isinstance(left, list):
        return same(left, right[0])
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, str) and isinstance(right, int | float):
        return left == text_of(right)
    if isinstance(right, str) and isinstance(left, int | float):
        return right == text_of(left)
    return left == right


def text_of(value: Value) -> str:
    """A value as one argument: JSON for objects and lists, the shortest exact spelling for numbers."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.1f}"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def tokens_for(spelling: str, value: Value, flag: Flag | None, *, equals: bool = False, exact: bool = False) -> list[str]:
    """The tokens that give ``value`` to an option. A leading dash is never left where it could be read as another
    option (H16)."""
    if isinstance(value, bool) and (flag is None or not flag.takes_value):
        if value:
            return [spelling]
        return [f"--no-{spelling.removeprefix('--')}"] if flag is not None and flag.negatable else []
    many = isinstance(value, list) and (flag is None or flag.many)
    texts = [text_of(item) for item in value] if many and isinstance(value, list) else [text_of(value)]
    _check(spelling, texts, value, flag)
    if exact:
        return [spelling, *texts]
    if any(text.startswith("-") and not _NEGATIVE_NUMBER.match(text) for text in texts) or equals:
        if len(texts) != 1:
            raise EngineError(
                f"{spelling} cannot be given the values {texts!r}: "
                "one that starts with a dash would be read as an option.",
                hint="Remove the value that starts with a dash.",
            )
        return [f"{spelling}={texts[0]}"]
    return [spelling, *texts]


def _check(spelling: str, texts: Iterable[str], value: Value, flag: Flag | None) -> None:
    for text in texts:
        if "\0" in text or len(text.encode("utf-8", "surrogateescape")) > LONGEST_ARGUMENT_BYTES - len(spelling) - 1:
            raise EngineError(
                f"The value of {spelling} cannot be an argument: it holds a NUL byte or is longer than "
                "128 KiB, which Linux refuses.",
                hint="Put the value into a file that the engine reads, or shorten it.",
            )
        if flag is not None and flag.choices and text not in flag.choices:
            raise EngineError(
                f"{spelling} does not take {text!r} on this build, so the server would refuse to start.",
                hint=f"It takes: {', '.join(flag.choices)}.",
            )
    if flag is not None and not flag.takes_value:
        raise EngineError(
            f"{spelling} is a switch on this build and takes no value, but {value!r} was asked for.",
            hint="Use true, false or null (not given).",
        )


def edit(
    argv: Sequence[str], start: int, parsed: Parsed, changes: Mapping[str, Value], flags: FlagTable, dialect: Dialect
) -> list[str]:
    """``argv`` with each parameter of ``changes`` at its new value (``None`` = not given). Everything else stays as
    it is.

    The user's own spelling is kept where the option was already there; a new option takes the newest spelling of this
    build and goes to the end. Raises EngineError for a parameter that this build has no flag for.
    """
    replacement: dict[int, list[str]] = {}
    removed: set[int] = set()
    appended: list[str] = []
    for param, value in changes.items():
        pieces = [piece for piece in parsed.pieces if piece.param == param]
        keep = pieces[-1] if pieces and not any(piece.key for piece in pieces) else None
        for piece in pieces:
            removed.update(range(piece.start, piece.end))
        if value is None or value == []:
            continue
        if keep is not None and _usable(keep, value):
            spelling = keep.spelling
            if isinstance(value, bool) and keep.flag is not None and keep.flag.negatable:
                spelling = keep.flag.name
            replacement[keep.start] = tokens_for(spelling, value, keep.flag, equals=keep.equals, exact=dialect.exact)
            continue
        offered = dialect.offered(param, flags)
        if offered is None:
            tried = ", ".join(dialect.spellings_of(param))
            raise EngineError(
                f"This engine build has no flag for the setting {param!r} (tried {tried}).",
                hint="It is not testable here: leave it out, or use a build whose --help lists it.",
            )
        tokens = tokens_for(offered, value, flags.by_name.get(offered), exact=dialect.exact)
        if keep is not None:
            replacement[keep.start] = tokens
        else:
            appended.extend(tokens)
    result = list(argv[:start])
    for index in range(start, len(argv)):
        if argv[index] == "--" and index not in removed:
            return [*result, *appended, *argv[index:]]
        result.extend(replacement.get(index, []))
        if index not in removed:
            result.append(argv[index])
    return [*result, *appended]


def _usable(piece: Piece, value: Value) -> bool:
    """May the user's own spelling carry the new value? Not when a switch is asked for where a value stood, or the
    reverse."""
    takes_value = piece.flag.takes_value if piece.flag is not None else not isinstance(piece.value, bool)
    return takes_value != isinstance(value, bool)
