"""Schemas of knowledge files: one function per kind turns a loaded document into domain types, or points at the line
that is wrong. Each record maps one to one onto the fields of its type; an unknown key is an error. What needs more than
one file (names that must exist elsewhere) is left to ``lint``."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from optimizer.core.checks import problems_of
from optimizer.core.predicate import problems
from optimizer.errors import KnowledgeError
from optimizer.knowledge.facts import Vocabulary
from optimizer.knowledge.load import LinePath, LoadedDocument
from optimizer.model.ceiling import HardwareSpec
from optimizer.model.learned import Learned
from optimizer.model.playbook import Playbook
from optimizer.model.space import Constraint, DeadSetting, Direction, Space

T = TypeVar("T", bound=BaseModel)

CAUSE_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
SPACE_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*/[a-z0-9]+(?:-[a-z0-9]+)*")
PARAM_NAME = re.compile(r"env\.[A-Z][A-Z0-9_]*|[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")
FACT_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+")


def playbook(document: LoadedDocument) -> Playbook:
    """``playbook: ID`` and the fields of Playbook."""
    data = _renamed(document, "playbook", "id", CAUSE_ID)
    book = _built(document, Playbook, {**data, "file": document.file})
    seen: dict[str, int] = {}
    for index, rule in enumerate(book.evidence):
        where: LinePath = ("evidence", index)
        if rule.id in seen:
            raise document.error(f"the rule {rule.id} appears twice", where)
        seen[rule.id] = index
        _check_predicate(document, rule.when, (*where, "when"))
        if rule.if_true_db * rule.if_false_db >= 0:
            raise document.error(
                f"the rule {rule.id} cannot fail: if_true_db {rule.if_true_db:g} and if_false_db {rule.if_false_db:g} "
                "need opposite signs",
                where,
                hint="A rule that supports its hypothesis whatever is observed is no evidence.",
            )
    if not book.evidence:
        raise document.error("a playbook needs at least one evidence rule", ("evidence",))
    _check_prediction(document, book)
    for index, action in enumerate(book.actions):
        where = ("actions", index)
        if action.when is not None:
            _check_predicate(document, action.when, (*where, "when"))
        for name in getattr(action, "params", {}):
            _check_name(document, name, PARAM_NAME, "parameter", (*where, "params", name))
        if (space_id := getattr(action, "space", None)) is not None:
            _check_name(document, space_id, SPACE_ID, "space", (*where, "space"))
    for index, message in problems_of(book):
        raise document.error(message, ("checks", index))
    for kind, sign in (("excludes", -1), ("implies", 1)):
        for other, weight in getattr(book, kind).items():
            _check_name(document, other, CAUSE_ID, "hypothesis", (kind, other))
            if other == book.id:
                raise document.error(f"{book.id} {kind} itself", (kind, other))
            if weight * sign <= 0:
                word = "positive" if sign > 0 else "negative"
                raise document.error(f"{kind} needs a {word} weight", (kind, other))
    _required_text(document, ("claim", book.claim), ("source", book.source))
    return book


def _check_prediction(document: LoadedDocument, book: Playbook) -> None:
    if book.predicts is None:
        return
    low, high = book.predicts.ratio
    if not 0 < low <= high:
        raise document.error(f"the predicted ratio [{low:g}, {high:g}] is no interval", ("predicts", "ratio"))


def space(document: LoadedDocument) -> Space:
    """``space: ID`` and the fields of Space; ``params`` maps each parameter's name to the fields of Param."""
    data = _renamed(document, "space", "id", SPACE_ID)
    params = data.get("params")
    if not isinstance(params, dict) or not params:
        raise document.error("params must map parameter names to their fields", ("params",))
    listed = []
    for name, fields in params.items():
        _check_name(document, name, PARAM_NAME, "parameter", ("params", name))
        if not isinstance(fields, dict) or "name" in fields:
            raise document.error(f"the fields of {name} must be a mapping without a name", ("params", name))
        listed.append({"name": name, **fields})
    try:
        found = Space.model_validate_json(_json({**data, "params": listed, "file": document.file}), strict=True)
    except ValidationError as error:
        names = list(params)
        raise _invalid(document, error, lambda path: _param_path(path, names)) from error
    if found.requires is not None:
        _check_predicate(document, found.requires, ("requires",))
    for param in found.params:
        where: LinePath = ("params", param.name)
        if param.when is not None:
            _check_predicate(document, param.when, (*where, "when"))
        if bool(param.flag) == bool(param.env):
            raise document.error(f"{param.name} needs either flag or env", where)
        if param.type == "choice" and not param.grid:
            raise document.error(f"{param.name} is a choice without a grid", where)
        if param.low is not None and param.high is not None and param.low > param.high:
            raise document.error(f"{param.name} has low above high", where)
    return found


def _param_path(path: LinePath, names: list[str]) -> LinePath:
    if len(path) > 1 and path[0] == "params" and isinstance(path[1], int):
        return ("params", names[path[1]], *path[2:])
    return path


def dead_settings(document: LoadedDocument) -> tuple[DeadSetting, ...]:
    """``dead: ENGINE``, ``revision`` and ``settings: [fields of DeadSetting without engine]``."""
    records = _records(document, "dead", "settings", DeadSetting, engine=True)
    for index, record in enumerate(records):
        where: LinePath = ("settings", index)
        if not (record.params or record.env or record.env_prefix):
            raise document.error("name the setting: params, env or env_prefix", where)
        if record.when is not None:
            _check_predicate(document, record.when, (*where, "when"))
        _required_text(document, ("why", record.why), ("source", record.source), at=where)
    return records


def constraints(document: LoadedDocument) -> tuple[Constraint, ...]:
    """``constraints: ENGINE``, ``revision`` and ``rules: [fields of Constraint without engine]``."""
    records = _records(document, "constraints", "rules", Constraint, engine=True)
    seen: set[str] = set()
    for index, record in enumerate(records):
        where: LinePath = ("rules", index)
        if record.id in seen:
            raise document.error(f"the rule {record.id} appears twice", where)
        seen.add(record.id)
        _check_predicate(document, record.when, (*where, "when"))
        if (record.effect == "overridden") != bool(record.sets):
            raise document.error("sets belongs to the effect overridden, and to no other", where)
        _required_text(document, ("why", record.why), ("source", record.source), at=where)
    return records


def directions(document: LoadedDocument) -> tuple[Direction, ...]:
    """``directions: ENGINE``, ``revision`` and ``params: [fields of Direction without engine]``."""
    records = _records(document, "directions", "params", Direction, engine=True)
    seen: set[str] = set()
    for index, record in enumerate(records):
        where: LinePath = ("params", index)
        for name in record.names:
            _check_name(document, name, PARAM_NAME, "parameter", (*where, "names"))
            if name in seen:
                raise document.error(f"the parameter {name} appears twice", where)
            seen.add(name)
        if (record.per == "step") != bool(record.order):
            raise document.error("order belongs to per: step, and to no other", where)
        _required_text(document, ("why", record.why), at=where)
    return records


def learned(document: LoadedDocument) -> tuple[Learned, ...]:
    """``learned: rows`` and ``rows: [fields of Learned]``: pinned by a study, never written by hand."""
    return _records(document, "learned", "rows", Learned, engine=False)


def hardware(document: LoadedDocument) -> tuple[HardwareSpec, ...]:
    """``hardware: gpus``, ``revision`` and ``gpus: [fields of HardwareSpec]``."""
    records = _records(document, "hardware", "gpus", HardwareSpec, engine=False)
    seen: set[str] = set()
    for index, record in enumerate(records):
        if record.gpu in seen:
            raise document.error(f"the GPU {record.gpu} appears twice", ("gpus", index))
        seen.add(record.gpu)
        if record.memory_mib <= 0 or record.hbm_bytes_per_s <= 0 or any(rate <= 0 for rate in record.flops.values()):
            raise document.error(f"{record.gpu} has a size or rate that is not positive", ("gpus", index))
        _required_text(document, ("source", record.source), at=("gpus", index))
    return records


def vocabulary(document: LoadedDocument) -> Vocabulary:
    """``facts: [fields of FactSpec]`` and the fields of Vocabulary."""
    found = _built(document, Vocabulary, document.data)
    seen: set[str] = set()
    for index, fact in enumerate(found.facts):
        where: LinePath = ("facts", index)
        if fact.name in seen:
            raise document.error(f"the fact {fact.name} appears twice", where)
        seen.add(fact.name)
        _check_name(document, fact.name, FACT_NAME, "fact", where)
        if (fact.type == "enum") != bool(fact.values):
            raise document.error(f"{fact.name}: values belong to the type enum, and to no other", where)
    return found


def _records(document: LoadedDocument, kind: str, key: str, model: type[T], *, engine: bool) -> tuple[T, ...]:
    data = document.data
    if extra := sorted(set(data) - {kind, key, "revision"}):
        raise document.error(f"{extra[0]} is not understood here", (extra[0],))
    revision = data.get("revision", 1)
    if isinstance(revision, bool) or not isinstance(revision, int):
        raise document.error("revision must be a whole number", ("revision",))
    rows = data.get(key)
    if not isinstance(rows, list):
        raise document.error(f"{key} must be a list", (key,))
    if not engine and data[kind] != key:
        raise document.error(f"{kind} must be {key}", (kind,))
    found = []
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or "file" in row or (engine and "engine" in row):
            raise document.error("a record must be a mapping of its own fields", (key, index))
        fields = {**row, "engine": data[kind], "file": document.file} if engine else row
        found.append(_built(document, model, fields, at=(key, index)))
    return tuple(found)


def _renamed(document: LoadedDocument, key: str, field: str, pattern: re.Pattern[str]) -> dict[str, Any]:
    data = dict(document.data)
    for reserved in (field, "file"):
        if reserved in data:
            raise document.error(f"{reserved} is not understood here", (reserved,))
    name = data.pop(key)
    _check_name(document, name, pattern, key, (key,))
    return {**data, field: name}


def _built(document: LoadedDocument, model: type[T], fields: Mapping[str, Any], at: LinePath = ()) -> T:
    try:
        # Strict on scalars ("1" is no number), lax on containers (a YAML list becomes a tuple).
        return model.model_validate_json(_json(fields), strict=True)
    except ValidationError as error:
        raise _invalid(document, error, lambda path: (*at, *path)) from error


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, allow_nan=False)


def _invalid(
    document: LoadedDocument, error: ValidationError, locate: Callable[[LinePath], LinePath]
) -> KnowledgeError:
    first = error.errors(include_url=False, include_context=False)[0]
    # Members of a union add their tag to the path; what is no key of the document is skipped.
    path: LinePath = ()
    for part in locate(tuple(first["loc"])):
        if (*path, part) in document.lines:
            path = (*path, part)
    name = ".".join(str(part) for part in first["loc"]) or "the record"
    what = "is not understood here" if first["type"] == "extra_forbidden" else first["msg"]
    return document.error(f"{name}: {what}", path)


def _check_predicate(document: LoadedDocument, when: Any, at: LinePath) -> None:
    for path, message in problems(when):
        raise document.error(message, (*at, *path))


def _check_name(document: LoadedDocument, name: Any, pattern: re.Pattern[str], kind: str, at: LinePath) -> None:
    if not isinstance(name, str) or len(name) > 120 or not pattern.fullmatch(name):
        raise document.error(f"{name!r} is no name of a {kind} (it must match {pattern.pattern})", at)


def _required_text(document: LoadedDocument, *texts: tuple[str, str], at: LinePath = ()) -> None:
    for name, text in texts:
        if not text.strip():
            raise document.error(f"{name} is empty", (*at, name))
