"""Facts and what supports them. A fact that could not be read is *missing* with a reason: never false, never zero."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal, Self, TypeVar

from pydantic import Field

from optimizer.model.base import Frozen, Scalar, Value

T = TypeVar("T", bound=Frozen)


class Fact(Frozen):
    """One observation. Same name with other labels = another observation. ``line`` counts from 1 within ``source``."""

    name: str
    value: Value
    unit: str = ""
    labels: dict[str, Scalar] = Field(default_factory=dict)
    source: str = ""  # file name inside the bundle, or a key of the case
    line: int | None = None
    span: tuple[int, int] | None = None  # byte offsets in the source
    bound: Literal["at_least", "at_most"] | None = None
    range: tuple[float, float] | None = None
    basis: str = "measured"
    role: str = "server"

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """Name, role and labels: what makes two facts observations of the same thing."""
        if not self.labels:
            return (self.name, self.role)
        return (self.name, self.role, *sorted((key, str(value)) for key, value in self.labels.items()))

    def __copy__(self) -> Self:
        return _fresh(super().__copy__(), "identity")


class Missing(Frozen):
    """A fact that nobody could read, and why."""

    name: str
    reason: str


class Evidence(Frozen):
    """All that was read from one launch or case."""

    facts: tuple[Fact, ...] = ()
    missing: tuple[Missing, ...] = ()
    unrecognised_lines: int = 0
    unrecognised_examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was done to the input on reading: units converted, names refused

    def __copy__(self) -> Self:
        return _fresh(super().__copy__(), "_index", "_merges")

    @cached_property
    def _index(self) -> dict[str, tuple[Fact, ...]]:
        index: dict[str, list[Fact]] = {}
        for fact in self.facts:
            index.setdefault(fact.name, []).append(fact)
        return {name: tuple(found) for name, found in index.items()}

    def all(self, name: str) -> tuple[Fact, ...]:
        return self._index.get(name, ())

    def get(self, name: str, **labels: Scalar) -> Fact | None:
        """The first observation of ``name`` whose labels include ``labels``; unlabelled observations come first when none are asked."""
        found: Sequence[Fact] = self.all(name)
        if labels:
            found = [fact for fact in found if all(fact.labels.get(key) == value for key, value in labels.items())]
        if len(found) < 2:
            return found[0] if found else None
        return min(found, key=lambda fact: len(fact.labels))

    def value(self, name: str, default: Value = None, **labels: Scalar) -> Value:
        fact = self.get(name, **labels)
        return default if fact is None else fact.value

    def number(self, name: str, **labels: Scalar) -> float | None:
        """The value as a float, or None when it is missing or not a number."""
        value = self.value(name, **labels)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def merged(self, later: "Evidence") -> "Evidence":
        """Both, where a later observation of the same name and labels replaces the earlier one."""
        known = self._merges.get(id(later))
        if known is not None and known[0] is later:  # a study merges the same two for every decision
            return known[1]
        found = self._merged(later)
        if len(self._merges) >= 32:
            self._merges.clear()
        self._merges[id(later)] = (later, found)
        return found

    @cached_property
    def _merges(self) -> dict[int, tuple["Evidence", "Evidence"]]:
        """What ``merged`` gave before, by the other side (held, so that its id stays its own)."""
        return {}

    def _merged(self, later: "Evidence") -> "Evidence":
        keep = {fact.identity for fact in later.facts}
        facts = (*(fact for fact in self.facts if fact.identity not in keep), *later.facts)
        names = {fact.name for fact in facts}
        missing = {item.name: item for item in (*self.missing, *later.missing) if item.name not in names}
        return Evidence.model_construct(  # of parts that were validated
            facts=facts,
            missing=tuple(missing.values()),
            unrecognised_lines=self.unrecognised_lines + later.unrecognised_lines,
            unrecognised_examples=(self.unrecognised_examples + later.unrecognised_examples)[:10],
            notes=tuple(dict.fromkeys((*self.notes, *later.notes))),
        )


def _fresh(copied: T, *cached: str) -> T:
    """A copy may get other fields at once, so what was computed from the old ones is dropped."""
    for name in cached:
        copied.__dict__.pop(name, None)
    return copied


def evidence(facts: Iterable[Fact], missing: Iterable[Missing] = ()) -> Evidence:
    return Evidence(facts=tuple(facts), missing=tuple(missing))
