"""Reads Python literals that engines print (``server_args=ServerArgs(a=1, b='x')``, ``{'a': 1}``) without evaluating
anything:
what is not a plain literal becomes the text that was printed."""

import ast
import json
import re
import warnings
from typing import Any

from optimizer.model.base import Value

MAX_KEYS = 4000
_WORDS: dict[str, Value] = {"None": None, "True": True, "False": False, "0": 0, "1": 1}
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,16})\Z")
_FLOAT = re.compile(r"-?\d{1,17}\.\d{1,17}\Z")
# A name, a call, a representation in angle brackets: no literals, whatever is in them. Asking the compiler costs twenty times as much.
_NO_LITERAL = re.compile(r"<|(?!set\(\))[A-Za-z_][\w.]{0,200}(?:\Z|\()", re.ASCII)
_MARKS = re.compile(r"[\\'\"(\[{<)\]}>,]")


def arguments(body: str, depth: int = 0) -> dict[str, Value]:
    """Key -> value of ``a=1, b='x', c=Thing(d=2)`` or of ``{'a': 1, 'b': 'x'}`` (without or with the outer braces).

    Splits at top-level commas only; a cut or broken text yields the keys that were complete."""
    body = body.strip()
    if body.startswith("{"):
        body = body[1:]
    result: dict[str, Value] = {}
    for part in _split(body):
        key, value = _pair(part, depth)
        if key and len(result) < MAX_KEYS:
            result[key] = value
    return result


def _split(body: str) -> list[str]:
    parts: list[str] = []
    depth = 0
    quote = ""
    begin = 0
    skip = -1
    for match in _MARKS.finditer(body):
        char, index = match[0], match.start()
        if index == skip:
            continue
        if char == "\\":
            skip = index + 1 if quote else -1
        elif quote:
            if char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
            if depth < 0:
                parts.append(body[begin:index])
                return parts
        elif depth == 0:
            parts.append(body[begin:index])
            begin = index + 1
    return parts  # what follows the last complete comma may have been cut


def _pair(part: str, depth: int) -> tuple[str, Value]:
    part = part.strip()
    if part[:1] in ("'", '"'):
        end = part.find(part[0], 1)
        if end < 0 or ":" not in part[end:]:
            return "", None
        return part[1:end], literal(part[part.index(":", end) + 1 :].strip(), depth)
    key, sign, value = part.partition("=")
    return (key.strip(), literal(value.strip(), depth)) if sign and key.strip().isidentifier() else ("", None)


def literal(value: str, depth: int = 0) -> Value:
    """The value of a literal, of a nested dict whose values are literals, or the text itself."""
    if value in _WORDS:
        return _WORDS[value]
    if len(value) > 20_000:
        return value[:200]
    if value[:1] == "'" and value.find("'", 1) == len(value) - 1 and "\\" not in value:
        return value[1:-1]
    if _INTEGER.match(value):
        return int(value)
    if _FLOAT.match(value):
        return float(value)
    if _NO_LITERAL.match(value):
        return value[:2000]
    if value.startswith("{"):
        return dict(arguments(value, depth + 1)) if value.endswith("}") and depth < 6 else value[:2000]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "5m" is no literal, and that is no warning for the user
            parsed = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return value[:2000]
    return plain(parsed)


def plain(value: Any, depth: int = 0) -> Value:
    """JSON-like copy: tuples and sets become lists, other objects and non-finite numbers become text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**18 else str(value)[:40]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if depth > 12:
        return str(type(value).__name__)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in list(value)[:20_000]]
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in list(value.items())[:MAX_KEYS]}
    return str(value)[:200]


def strict_json(data: bytes, limit: int = 32 * 1024 * 1024) -> Value:
    """Parsed JSON with bounded size and depth, non-finite numbers as text. Raises ValueError with a short reason."""
    if len(data) > limit:
        raise ValueError(f"{len(data)} bytes, more than the limit of {limit}")
    try:
        return plain(json.loads(data.decode("utf-8-sig", "replace")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
