"""Checks a case file before anybody diagnoses it: syntax, size, keys that appear twice, facts that nobody knows, values that
cannot be, and observations that contradict each other. Findings with file and line; ``diagnose`` itself stays lenient and
leaves out what does not fit."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from optimizer.evidence.odd import odd
from optimizer.knowledge.facts import Vocabulary
from optimizer.knowledge.lint import Finding
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact

LIMIT_BYTES = 4 * 1024 * 1024  # a case quotes a few lines of a log; whole logs belong into a folder
DEPTH = 40
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')

_COLON = re.compile(r"\s*:")

Path = tuple[str | int, ...]

# (fact, values) and (fact, values) that no server can show at the same time, and why.
_EXCLUSIVE: tuple[tuple[str, Any, str, Any, str], ...] = (
    ("graphs.disable_flag", lambda v: v is True, "graphs.mode", lambda v: v in ("full", "full_decode_only", "full_and_piecewise", "on"),
     "decode graphs are switched off and captured at the same time"),
    ("spec.method", lambda v: v == "none", "spec.draft_tokens", lambda v: _number(v) > 0, "nothing is drafted, yet drafts are counted"),
    ("spec.method", lambda v: v == "none", "spec.accept_len", lambda v: _number(v) > 1, "nothing is drafted, yet drafts are accepted"),
    ("kv.prefix_cache", lambda v: v is False, "kv.prefix_hit_share", lambda v: _number(v) > 0, "the prefix cache is off, yet it hits"),
    ("scheduler.stalled", lambda v: v is True, "decode.throughput_tps", lambda v: _number(v) > 0, "no step completes, yet tokens come out"),
    ("startup.outcome", lambda v: v not in ("ok", None), "client.output_tps", lambda v: _number(v) > 0, "the start failed, yet requests were served"),
    ("topology.p2p", lambda v: v in ("not_supported", "disabled_by_env"), "nccl.transport", lambda v: v == "p2p",
     "the GPUs may not reach each other, yet NCCL does so"),
)  # fmt: skip


def lint_case(data: bytes, file: str, vocabulary: Vocabulary) -> tuple[Finding, ...]:
    """Findings of one case file, in its order."""
    if len(data) > LIMIT_BYTES:
        return (
            _at(
                file,
                1,
                f"{len(data) / 1e6:.1f} MB; a case may have {LIMIT_BYTES / 1e6:.0f} MB. Give a folder for whole logs",
            ),
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return (_at(file, data.count(b"\n", 0, error.start) + 1, "this is no UTF-8 text"),)
    lines, found = _keys(text, file)
    if found:
        return tuple(found)
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        return (_at(file, error.lineno, f"this is no JSON: {error.msg}"),)
    except (ValueError, RecursionError) as error:
        return (_at(file, 1, f"this is no JSON: {error}"),)
    if not isinstance(document, dict):
        return (_at(file, 1, "a case is an object with engine, facts and log_lines"),)
    return tuple(_facts(document, lines, file, vocabulary))


def _facts(
    document: Mapping[str, Any], lines: Mapping[Path, int], file: str, vocabulary: Vocabulary
) -> Iterator[Finding]:
    placed: list[tuple[Fact, Path]] = []
    for group, path in _groups(document):
        if not isinstance(group, list):
            yield _at(file, lines.get(path, 1), "a list of facts is expected here")
            continue
        for index, raw in enumerate(group):
            where: Path = (*path, index)
            line = lines.get(where, 1)
            if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or raw.get("value") is None:
                yield _at(file, line, "every fact needs a name and a value")
                continue
            labels = raw.get("labels") if isinstance(raw.get("labels"), dict) else {}
            bound, unit = raw.get("bound"), raw.get("unit")
            fact = Fact(
                name=raw["name"], value=raw["value"], labels=labels or {}, unit="" if unit in (None, "none") else str(unit),
                bound=bound if bound in ("at_least", "at_most") else None,
            )  # fmt: skip
            if (why := vocabulary.misfit(fact)) is not None:
                yield _at(file, line, f"{fact.name}: {why}")
            else:
                placed.append((fact, where))
    evidence = Evidence(facts=tuple(fact for fact, where in placed if where[0] == "facts"))
    for fact, where in placed:
        mark = odd(fact, evidence)
        if mark is not None and mark.kind == "impossible":
            yield _at(file, lines.get(where, 1), f"{fact.name} = {fact.value}: {mark.why}")
    yield from _contradictions([(fact, lines.get(where, 1)) for fact, where in placed if where[0] == "facts"], file)


def _groups(document: Mapping[str, Any]) -> Iterator[tuple[Any, Path]]:
    if "facts" in document:
        yield document["facts"], ("facts",)
    tests = document.get("tests")
    for index, test in enumerate(tests if isinstance(tests, list) else ()):
        if isinstance(test, dict) and "facts" in test:
            yield test["facts"], ("tests", index, "facts")


def _contradictions(placed: list[tuple[Fact, int]], file: str) -> Iterator[Finding]:
    seen: dict[tuple[str, str], tuple[Fact, int]] = {}
    for fact, line in placed:
        key = (fact.name, json.dumps(fact.labels, sort_keys=True, default=str))
        before = seen.setdefault(key, (fact, line))
        if before[0].value != fact.value and before[0].bound is None and fact.bound is None:
            yield _at(
                file,
                line,
                f"{fact.name} is {fact.value!r} here and {before[0].value!r} in line {before[1]}: which one holds?",
            )
    for first, one, second, other, why in _EXCLUSIVE:
        left = next(((fact, line) for fact, line in placed if fact.name == first and one(fact.value)), None)
        right = next(((fact, line) for fact, line in placed if fact.name == second and other(fact.value)), None)
        if left is not None and right is not None:
            yield _at(
                file,
                max(left[1], right[1]),
                f"{first} = {left[0].value!r} contradicts {second} = {right[0].value!r}: {why}",
            )


def _keys(text: str, file: str) -> tuple[dict[Path, int], list[Finding]]:
    """Line of every value by its path, and findings for keys that appear twice in one object or nesting without end."""
    lines: dict[Path, int] = {}
    found: list[Finding] = []
    stack: list[tuple[str, set[str], list[str | int]]] = []  # kind, keys seen, place of the next value
    line, position = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        token = match[0]
        top = stack[-1] if stack else None
        if token in "}]":
            if stack:
                stack.pop()
        elif token == ",":
            if top is not None and top[0] == "[":
                top[2][0] = int(top[2][0]) + 1
        elif token != ":":
            key = (
                top is not None and top[0] == "{" and _COLON.match(text, match.end()) is not None
                if token[0] == '"'
                else False
            )
            if key and top is not None:
                name = token[1:-1]
                if name in top[1]:
                    found.append(
                        _at(
                            file, line, f"the key {name} appears twice in one object: only one of the two would be read"
                        )
                    )
                top[1].add(name)
                top[2][0] = name
            else:
                lines.setdefault(tuple(item[2][0] for item in stack), line)
                if token in "{[":
                    if len(stack) >= DEPTH:
                        return lines, [_at(file, line, f"nested deeper than {DEPTH} levels")]
                    stack.append((token, set(), [0 if token == "[" else ""]))
    return lines, found


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _no_constant(name: str) -> Value:
    raise ValueError(f"{name} is no number")


def _at(file: str, line: int, message: str) -> Finding:
    return Finding(file=file, line=line, message=message)
