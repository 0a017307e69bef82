"""The one door to YAML: turns the text of a knowledge file into plain JSON data and remembers the line of every value.

It resolves JSON's scalars only and refuses everything that lets two readers understand one file differently
(duplicate keys, anchors, aliases, tags, tabs, invisible characters, words such as ``no`` or ``1:30``). It knows nothing
of what the files mean, and it never writes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import optimizer
from optimizer.errors import KnowledgeError, UsageError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
# The largest magnitude that JSON readers agree on (RFC 8259 section 6).
MAX_INTEGER = 2**53

LinePath = tuple[str | int, ...]

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?")
# What one of YAML 1.1, YAML 1.2 or a human would read as something else than text.
_AMBIGUOUS = re.compile(
    r"(?i:y|n|yes|no|on|off|true|false|null|~|[-+]?\.inf|\.nan|nan|[-+]?infinity)"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9]*)?"  # base 60
    r"|[-+]?0[xXoObB]?[0-9a-fA-F_]+"  # other bases
    r"|[-+]?(?:[0-9][0-9_]*)?\.?[0-9][0-9_]*\.?(?:[eE][-+]?[0-9]+)?"  # numbers that are none in JSON
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*"  # dates
    r"|=|<<"
)
# Control characters, line separators, byte-order marks and everything that reorders or hides text on a screen.
_FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff\ud800-\udfff]"
)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class LoadedDocument:
    """Plain data of one file. ``lines`` maps the path of every value (keys and indexes from the root) to its line."""

    file: str
    data: dict[str, Any]
    lines: Mapping[LinePath, int]

    def line(self, path: LinePath = ()) -> int:
        """Line (from 1) of the value at ``path``, or of its nearest known ancestor."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def error(self, message: str, path: LinePath = (), *, hint: str = "") -> KnowledgeError:
        """A KnowledgeError that points at the value at ``path``."""
        return KnowledgeError(f"{self.file}:{self.line(path)}: {message}", hint=hint)


def load_yaml(text: str, file: str) -> LoadedDocument:
    """Parse one document whose root is a mapping. Raises KnowledgeError (``file:line: message``) for anything else."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise KnowledgeError(f"{file}:1: larger than {MAX_BYTES // 1024} KiB.", hint="Split it by subject.")
    if bad := _FORBIDDEN.search(text):
        what = "a tab" if bad[0] == "\t" else f"the invisible or control character U+{ord(bad[0]):04X}"
        raise KnowledgeError(f"{file}:{_line_at(text, bad.start())}: {what} is not allowed.", hint="Use plain text.")
    builder = _Builder(file)
    try:
        data = builder.document(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or "not readable as YAML"
        raise KnowledgeError(f"{file}:{line}: {problem}.", hint="The file must be strict YAML.") from error
    return LoadedDocument(file=file, data=data, lines=builder.lines)


class _Builder:
    """Builds data from parser events, so that a bomb is refused before anything of it is expanded."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[LinePath, int] = {}

    def document(self, events: Iterator[Any]) -> dict[str, Any]:
        data: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._fail(event, "a second document starts here", "Write one file per document.")
                if event.version or event.tags:
                    self._fail(event, "directives are not allowed", "Remove the line that starts with %.")
                data = self._value(next(events), events, ())
        if not isinstance(data, dict):
            raise KnowledgeError(f"{self.file}:1: the root must be a mapping.", hint="Start with its kind: playbook.")
        return data

    def _value(self, event: Any, events: Iterator[Any], path: LinePath) -> Any:
        if isinstance(event, yaml.AliasEvent):
            self._fail(event, f"alias *{event.anchor} is not allowed", "Write the value out.")
        if event.anchor is not None:
            self._fail(event, f"anchor &{event.anchor} is not allowed", "Write the value out where it is used.")
        if event.tag is not None:
            self._fail(event, f"tag {event.tag} is not allowed", "Write plain values.")
        if len(path) > MAX_DEPTH:
            self._fail(event, f"nested deeper than {MAX_DEPTH} levels", "Flatten the file.")
        self.lines[path] = event.start_mark.line + 1
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(following := next(events), yaml.SequenceEndEvent):
                items.append(self._value(following, events, (*path, len(items))))
            return items
        return self._scalar(event)

    def _mapping(self, events: Iterator[Any], path: LinePath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fail(event, "a key must be a single word or a quoted text")
            key = self._value(event, events, (*path, ""))
            del self.lines[(*path, "")]
            if not isinstance(key, str):
                self._fail(event, f"the key {event.value!r} is not a text", "Quote it.")
            if key in found:
                self._fail(event, f"the key {key!r} appears twice (line {self.lines[(*path, key)]})", "Keep one.")
            line = event.start_mark.line + 1
            found[key] = self._value(next(events), events, (*path, key))
            self.lines[(*path, key)] = line
        return found

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.style is not None and event.style != "":
            return text
        match text:
            case "null":
                return None
            case "true":
                return True
            case "false":
                return False
            case "":
                self._fail(event, "a value is missing", 'Write null, "" or the value.')
        if number := _NUMBER.fullmatch(text):
            return self._number(event, text, whole=number["fraction"] is None and number["exponent"] is None)
        if _AMBIGUOUS.fullmatch(text):
            self._fail(event, f"{text} means different things to different readers", f'Quote it: "{text}"')
        return text

    def _number(self, event: Any, text: str, *, whole: bool) -> int | float:
        value = float(text)
        if abs(value) == float("inf") or (whole and abs(value) > MAX_INTEGER):
            self._fail(event, f"the number {text[:40]} is out of range")
        return int(text) if whole else value

    def _fail(self, event: Any, message: str, hint: str = "") -> None:
        raise KnowledgeError(f"{self.file}:{event.start_mark.line + 1}: {message}.", hint=hint)


def _line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


@dataclass(frozen=True)
class KnowledgeRoots:
    """Where playbooks and search spaces lie. Both folders exist."""

    playbooks: Path
    search_spaces: Path


def find_knowledge(explicit: Path | None = None) -> KnowledgeRoots:
    """The folder named by the user, else the current folder if it has both, else the packaged copy, else the sources.

    Raises UsageError when the named folder is none, KnowledgeError when nothing is found."""
    if explicit is not None:
        if (roots := _roots(explicit)) is None:
            raise UsageError(
                f"{explicit} holds no knowledge: it needs the folders playbooks/ and search_spaces/.",
                hint="Copy the two folders of the project there, or leave --knowledge out to use the built-in ones.",
            )
        return roots
    package = Path(optimizer.__file__).resolve().parent
    for candidate in (Path.cwd(), package / "_data", package.parent):
        if (roots := _roots(candidate)) is not None:
            return roots
    raise KnowledgeError("No playbooks were found: the installation is incomplete.", hint="Install it again.")


def _roots(folder: Path) -> KnowledgeRoots | None:
    playbooks, spaces = folder / "playbooks", folder / "search_spaces"
    return KnowledgeRoots(playbooks, spaces) if playbooks.is_dir() and spaces.is_dir() else None


def read_files(roots: KnowledgeRoots) -> dict[str, str]:
    """Text of every knowledge file by its path below the root, sorted. Links that leave the folder are refused."""
    files: dict[str, str] = {}
    for name, folder in (("playbooks", roots.playbooks), ("search_spaces", roots.search_spaces)):
        inside = folder.resolve()
        for path in sorted(folder.rglob("*.yaml")):
            label = f"{name}/{path.relative_to(folder).as_posix()}"
            if not path.resolve().is_relative_to(inside):
                raise KnowledgeError(f"{label}:1: the link leads out of the folder.", hint="Put a real file there.")
            files[label] = read_text(path, label)
    return files


def read_text(path: Path, label: str) -> str:
    """UTF-8 text of one file, bounded. Raises KnowledgeError with ``label``."""
    if not path.is_file():
        raise KnowledgeError(f"{label}:1: not a regular file.", hint="Put a real file there.")
    with path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise KnowledgeError(f"{label}:1: larger than {MAX_BYTES // 1024} KiB.", hint="Split it by subject.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise KnowledgeError(f"{label}:{line}: not UTF-8.", hint="Save the file as UTF-8.") from error
