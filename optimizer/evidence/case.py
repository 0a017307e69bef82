"""Turns the allowed keys of a case file into a launch and evidence. What a case does not mention is missing, never
false."""

from collections.abc import Mapping
from typing import Any

from optimizer.evidence.convert import factor, same_unit, scaled
from optimizer.evidence.gather import Launch, launch_facts, log_facts, startup_outcome
from optimizer.evidence.lines import Piece
from optimizer.evidence.odd import contradicted
from optimizer.evidence.units import UNITS
from optimizer.model.base import Scalar, Value
from optimizer.model.evidence import Evidence, Fact, Missing

# Begins the reason of a fact that a case states twice and differently.
DISPUTED = "the case states both"
# Facts that only a whole log can support; a few quoted lines cannot.
_WHOLE_LOG_ONLY = (
    "decode.lines",
    "prefill.lines",
    "startup.last_stage",
    "kernel.jit_in_serving",
    "validity.servers_in_log",
    "validity.failed_starts",
    "kv.token_readings_missing",
)


def case_parts(case: Mapping[str, Value]) -> tuple[Launch, Evidence]:
    """Raises ValueError naming the key that is malformed. Facts made under a test carry the label ``test`` with its
    name."""
    argv = case.get("argv")
    flags = case.get("known_flags")
    whole = isinstance(argv, list) and bool(argv)
    if flags is not None and not (isinstance(flags, list) and all(isinstance(flag, str) for flag in flags)):
        raise ValueError("known_flags must be a list of texts")
    described = {
        key: case.get(key) for key in ("engine", "engine_version", "gpu", "gpu_count", "interconnect", "model", "env")
    }
    launch = Launch.read({**described, "argv": argv if whole else flags, "name": ""})
    asked = launch_facts(launch, complete=whole)
    if not whole:
        asked.relabel("launch.json", "known_flags")
    else:
        asked.relabel("launch.json", "argv")
    evidence = asked.evidence().merged(_facts(case.get("facts"), "facts", {}))
    tests = case.get("tests")
    if tests is not None and not isinstance(tests, list):
        raise ValueError("tests must be a list")
    for test in tests or []:
        if not isinstance(test, dict) or not isinstance(test.get("name"), str):
            raise ValueError("every test needs a name")
        evidence = evidence.merged(_facts(test.get("facts"), "tests", {"test": test["name"]}))
    lines = case.get("log_lines")
    if lines is not None and not (isinstance(lines, list) and all(isinstance(line, str) for line in lines)):
        raise ValueError("log_lines must be a list of texts")
    if lines:
        log = (Piece("\n".join(line.replace("\n", " ") for line in lines).encode("utf-8", "replace")),)
        part = log_facts(launch.engine, log, source="log_lines")
        outcome = startup_outcome(launch.model_copy(update={"ready": None}), log, evidence)
        read = part.evidence().merged(outcome)
        kept = tuple(_as_key(fact) for fact in read.facts if fact.name not in _WHOLE_LOG_ONLY)
        evidence = evidence.merged(
            Evidence(
                facts=kept, unrecognised_lines=read.unrecognised_lines, unrecognised_examples=read.unrecognised_examples
            )
        )
    return launch, evidence


def _as_key(fact: Fact) -> Fact:
    return fact.model_copy(update={"source": "log_lines", "line": None, "span": None})


def _facts(raw: Value, source: str, extra: Mapping[str, Scalar]) -> Evidence:
    """The listed facts in the vocabulary's units. What cannot be read as stated is left out, with the reason in ``missing``
    and ``notes``: a number in a wrong unit is a wrong number."""
    if raw is None:
        return Evidence()
    if not isinstance(raw, list):
        raise ValueError(f"{source} must hold a list of facts")
    facts: list[Fact] = []
    missing: list[Missing] = []
    notes: list[str] = []
    for item in raw:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str) or item.get("value") is None:
            raise ValueError("every fact needs a name and a value")
        labels = item.get("labels") or {}
        if not isinstance(labels, dict) or not all(
            value is None or isinstance(value, bool | int | float | str) for value in labels.values()
        ):
            raise ValueError(f"the labels of {item['name'][:80]} must map names to plain values")
        name = item["name"][:120]
        try:
            by, note = _factor(name, item.get("unit"))
            facts.append(_fact(name, item, by, {**{str(key): value for key, value in labels.items()}, **extra}, source))
        except ValueError as error:
            missing.append(Missing(name=name, reason=f"the case states it, but {error}"))
            notes.append(f"{name}: left out, because {error}")
            continue
        if note:
            notes.append(f"{name}: {note}")
    for one, other in (disputed := contradicted(facts)).values():
        missing.append(Missing(name=one.name, reason=f"{DISPUTED} {one.value!r} and {other.value!r}"))
        notes.append(
            f"{one.name}: stated as {one.value!r} and as {other.value!r}, which contradict each other; neither is used"
        )
    facts = [fact for fact in facts if fact.identity not in disputed]
    return Evidence(facts=tuple(facts), missing=tuple(missing), notes=tuple(notes))


def _factor(name: str, unit: Value) -> tuple[float, str]:
    """(what to multiply with, what to say about it). A fact that only a user's own vocabulary knows keeps its unit; it is checked
    where that vocabulary is at hand."""
    given, wanted = "" if unit is None else str(unit)[:40], UNITS.get(name)
    if wanted is None or not given or same_unit(given, wanted):
        return 1.0, ""
    by = factor(given, wanted)
    if by is None:
        raise ValueError(f"its unit is {given}, and this fact is measured in {wanted or 'no unit'}")
    return by, f"converted from {given} to {wanted}"


def _fact(name: str, item: Mapping[str, Any], by: float, labels: dict[str, Scalar], source: str) -> Fact:
    limits = item.get("range")
    span = None
    if isinstance(limits, list) and len(limits) == 2 and all(isinstance(limit, int | float) for limit in limits):
        span = (float(limits[0]) * by, float(limits[1]) * by)
    bound = item.get("bound")
    return Fact(
        name=name,
        value=item["value"] if by == 1.0 else scaled(item["value"], by),
        unit=UNITS[name] if name in UNITS else str(item.get("unit") or ""),
        labels=labels,
        source=source,
        bound=bound if bound in ("at_least", "at_most") else None,
        range=span,
        basis=str(item.get("basis") or "reported")[:40],
    )
