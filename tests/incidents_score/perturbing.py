"""The same incident as another observer would have written it down: facts left out, numbers read at other moments or
on another machine, another build. Rules that hinge on one exact value fall over here. Used by tests and benchmarks."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Case = dict[str, Any]

# Speeds, times and lengths differ between machines and loads by far more than a factor of two.
MAGNITUDES = ("ms", "us", "s", "tokens/s", "requests/s", "tokens", "GB/s", "launches", "billion", "W")
# Ratios and shares of the same incident differ by the moment they were read.
RATIOS = ("ratio", "percent")
OTHER_BUILD = {"sglang": "0.5.9", "vllm": "0.14.1"}


def leave_out(case: Mapping[str, Any], chance: random.Random, count: int) -> Case:
    """Without ``count`` of its observations, those of its tests included."""
    places = list(_places(case))
    gone = set(chance.sample(range(len(places)), min(count, max(len(places) - 2, 0))))
    return _kept(case, lambda index, _: index not in gone)


def without_fact(case: Mapping[str, Any], name: str) -> Case:
    """Without every observation of this name. Log lines that say the same stay: they are another witness."""
    return _kept(case, lambda _, fact: fact["name"] != name)


def rescaled(case: Mapping[str, Any], chance: random.Random) -> Case:
    """Magnitudes by one common factor from 0.5 to 2 per unit and a little of their own; ratios by up to a tenth of
    their distance from 1, so that what was faster stays faster and a share stays a share."""
    common = {unit: 2 ** chance.uniform(-1, 1) for unit in MAGNITUDES}

    def changed(fact: Mapping[str, Any]) -> dict[str, Any]:
        value, unit = fact.get("value"), fact.get("unit", "")
        if isinstance(value, bool) or not isinstance(value, int | float) or fact.get("basis") == "argv" or value == 0:
            return dict(fact)
        if unit in MAGNITUDES:
            new = value * common[unit] * 2 ** chance.uniform(-0.1, 0.1)
            return {**fact, "value": max(round(new), 1) if isinstance(value, int) else new}
        if unit in RATIOS and isinstance(value, float):
            full = 100.0 if unit == "percent" else 1.0
            new = full + (value - full) * chance.uniform(0.85, 1.15)
            return {**fact, "value": max(new, 0.0)}
        return dict(fact)

    return _mapped(case, changed)


def other_build(case: Mapping[str, Any]) -> Case:
    """Seen on another release. What is known of a release must not carry a diagnosis alone."""
    return {**case, "engine_version": OTHER_BUILD.get(case.get("engine", ""), "1.2.0")}


def other_engine(case: Mapping[str, Any]) -> Case:
    """The same facts reported by the other engine: most causes exist on both. Its log lines would read differently."""
    other = {"sglang": "vllm", "vllm": "sglang"}.get(case.get("engine", ""))
    if other is None:
        return dict(case)
    changed = _mapped(case, lambda fact: {**fact, "value": other} if fact["name"] == "engine.name" else dict(fact))
    return {
        **changed,
        "engine": other,
        "engine_version": OTHER_BUILD[other],
        "log_lines": [],
        "argv": None,
        "known_flags": [],
    }


def _places(case: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from case.get("facts", ())
    for test in case.get("tests", ()):
        yield from test.get("facts", ())


def _kept(case: Mapping[str, Any], keep: Callable[[int, Mapping[str, Any]], bool]) -> Case:
    number = iter(range(1_000_000))
    facts = [fact for fact in case.get("facts", ()) if keep(next(number), fact)]
    tests = [
        {**test, "facts": [fact for fact in test.get("facts", ()) if keep(next(number), fact)]}
        for test in case.get("tests", ())
    ]
    return {**case, "facts": facts, "tests": [test for test in tests if test["facts"]]}


def _mapped(case: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Case:
    tests = [{**test, "facts": [change(fact) for fact in test.get("facts", ())]} for test in case.get("tests", ())]
    return {**case, "facts": [change(fact) for fact in case.get("facts", ())], "tests": tests}
