"""Collects facts while a parser reads: last statement about a name and its labels wins, units come from one table, and
what
could not be read is kept with its reason. Knows no file format."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from optimizer.evidence.lines import Line, text
from optimizer.evidence.units import UNITS
from optimizer.model.base import Scalar, Value
from optimizer.model.evidence import Evidence, Fact, Missing

MAX_EXAMPLES = 10


class Found:
    """Facts of one source file. ``basis`` of a fact says how its value is known: log, argv, env, measured, derived."""

    def __init__(self, source: str, basis: str = "measured") -> None:
        self.source = source
        self.basis = basis
        self._facts: dict[tuple[object, ...], Fact] = {}
        self._missing: dict[str, str] = {}
        self.unrecognised = 0
        self.examples: list[str] = []
        self._stranger: Line | None = None

    def add(
        self,
        name: str,
        value: Value,
        at: Line | None = None,
        *,
        labels: Mapping[str, Scalar] | None = None,
        basis: str | None = None,
        source: str | None = None,
        bound: Literal["at_least", "at_most"] | None = None,
    ) -> None:
        """State a fact. None and non-finite numbers are no statement. ``at`` is the line that supports it."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return
        if isinstance(value, float):
            value = rounded(value)
        tags = dict(labels or {})
        self._facts[(name, *sorted((key, str(tag)) for key, tag in tags.items()))] = Fact(
            name=name,
            value=value,
            unit=UNITS.get(name, ""),
            labels=tags,
            source=self.source if source is None else source,
            line=None if at is None else at.number,
            span=None if at is None else (at.start, at.start + len(at.raw)),
            basis=basis or self.basis,
            bound=bound,
        )

    def keep(self, fact: Fact) -> None:
        self._facts[(fact.name, *sorted((key, str(tag)) for key, tag in fact.labels.items()))] = fact

    def drop(self, name: str) -> None:
        """Takes back the unlabelled statement about ``name``."""
        self._facts.pop((name,), None)

    def relabel(self, old: str, new: str) -> None:
        """Renames the source of all facts."""
        for key, fact in self._facts.items():
            if fact.source == old:
                self._facts[key] = fact.model_copy(update={"source": new})

    def has(self, name: str) -> bool:
        return (name,) in self._facts

    def get(self, name: str) -> Value:
        fact = self._facts.get((name,))
        return None if fact is None else fact.value

    def missing(self, name: str, reason: str) -> None:
        self._missing.setdefault(name, reason)

    def stranger(self, line: Line) -> None:
        """A line that looks like a statistics line and was not understood: counted, and sampled for the user."""
        self.unrecognised += 1
        self._stranger = self._stranger or line
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{self.source}:{line.number or '?'}: {text(line.raw, 300)}")

    def strangers(self) -> None:
        """States how many lines were not understood, zero included: the reader of the other facts must know."""
        self.add("log.unrecognised_lines", self.unrecognised, self._stranger)

    def evidence(self) -> Evidence:
        return Evidence(
            facts=tuple(self._facts.values()),
            missing=tuple(
                Missing(name=name, reason=reason) for name, reason in self._missing.items() if not self.has(name)
            ),
            unrecognised_lines=self.unrecognised,
            unrecognised_examples=tuple(self.examples),
        )


def rounded(value: float) -> float:
    """Six significant digits: what logs print has fewer, and equal inputs must give equal facts on every machine."""
    return float(f"{value:.6g}")


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile, an observed value: 0.9 of ten values is the ninth. None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, math.ceil(share * len(ordered) - 1e-9) - 1))]


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
