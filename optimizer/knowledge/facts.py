"""The vocabulary of facts: every name, type and label that evidence may carry and that a rule may ask for.

Schema only; what a fact means for a hypothesis is said by playbooks, and how it is read by the evidence parsers."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Literal

from pydantic import Field

from optimizer.evidence.convert import factor, same_unit
from optimizer.model.base import Frozen, Scalar
from optimizer.model.evidence import Fact

FactType = Literal["int", "float", "bool", "str", "enum", "list", "map"]


class Named(Frozen):
    """A name with its meaning, and what it costs where that matters."""

    name: str
    meaning: str
    type: str | None = None
    cost: str | None = None


class Warned(Frozen):
    """A known warning of an engine: the code that facts carry and the text that logs print."""

    code: str
    text: str


class UnitMeaning(Frozen):
    unit: str
    meaning: str


class FactSpec(Frozen):
    """One fact. ``values`` is closed for enums; ``labels`` are the dimensions that tell observations apart."""

    name: str
    type: FactType
    unit: str = "none"
    meaning: str
    values: tuple[str, ...] = ()
    resource: str = ""
    use: str = ""
    phase: Literal["before", "during", "probe"] = "during"
    labels: tuple[str, ...] = ()
    collectors: tuple[str, ...] = ()
    sources: Mapping[str, str] = Field(default_factory=dict)

    @property
    def numeric(self) -> bool:
        return self.type in ("int", "float")

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value that the unit and the ending of the name allow: a share is 0 to 1, a utilisation
        0 to 100, whatever is counted or timed at least 0."""
        if not self.numeric or self.unit in ("C", "none"):
            return (-math.inf, math.inf)
        last = self.name.rpartition(".")[2]
        if self.unit == "ratio" and (last.endswith("share") or last.startswith("fraction") or "usage_" in last):
            return (0.0, 1.0)
        return (0.0, 100.0) if self.unit == "percent" and "util_" in last else (0.0, math.inf)


class Vocabulary(Frozen):
    """The file ``playbooks/facts.yaml``."""

    version: int
    conventions: tuple[str, ...] = ()
    units: tuple[UnitMeaning, ...] = ()
    collectors: tuple[Named, ...] = ()
    labels: tuple[Named, ...] = ()
    warning_codes: tuple[Warned, ...] = ()
    tests: tuple[Named, ...] = ()
    probes: tuple[Named, ...] = ()
    facts: tuple[FactSpec, ...]

    @cached_property
    def by_name(self) -> dict[str, FactSpec]:
        return {fact.name: fact for fact in self.facts}

    def unit(self, name: str) -> str:
        """Unit of a fact, "" when it is unknown or dimensionless by nature."""
        spec = self.by_name.get(name)
        return "" if spec is None or spec.unit == "none" else spec.unit

    def mistake(self, name: str, operator: str, right: object, labels: Mapping[str, Scalar]) -> str | None:
        """Why a comparison of this fact with a literal can never be true, or None when it can."""
        spec = self.by_name.get(name)
        if spec is None:
            return f"the fact {name} is not in the vocabulary"
        if unknown := sorted(set(labels) - set(spec.labels)):
            return f"{name} has no label {unknown[0]} (it has {', '.join(spec.labels) or 'none'})"
        if operator == "present":
            return None
        if operator in ("contains", "last_lt"):
            return None if spec.type == "list" else f"{operator} needs a list, and {name} is {spec.type}"
        if operator in ("gt", "ge", "lt", "le", "between"):
            return None if spec.numeric else f"{operator} compares numbers, and {name} is {spec.type}"
        options = right if isinstance(right, list) else [right]
        for option in options:
            if message := self._not_a_value(spec, option):
                return message
        return None

    def settled(self, name: str, operator: str, right: object) -> bool | None:
        """The answer that a comparison with a literal has whatever is observed, by the fact's own bounds; None when it can have
        both."""
        spec = self.by_name.get(name)
        if spec is None:
            return None
        options = right if isinstance(right, list) else [right]
        if operator == "present":
            return right is not False  # a fact that is missing is unknown, never absent
        if operator == "in" and spec.type in ("enum", "bool"):
            every: tuple[object, ...] = spec.values if spec.type == "enum" else (True, False)
            return True if all(value in options for value in every) else None
        numbers = [float(item) for item in options if isinstance(item, int | float) and not isinstance(item, bool)]
        low, high = spec.bounds
        if not numbers or len(numbers) != len(options) or low == -math.inf:
            return None
        first, last, outside = numbers[0], numbers[-1], not any(low <= number <= high for number in numbers)
        always, never = {
            "ge": (first <= low, first > high),
            "gt": (first < low, first >= high),
            "le": (first >= high, first < low),
            "lt": (first > high, first <= low),
            "between": (first <= low and last >= high, first > high or last < low),
            "eq": (False, outside),
            "in": (False, outside),
            "ne": (outside, False),
        }.get(operator, (False, False))
        return True if always else False if never else None

    def beyond(self, name: str, operator: str, right: object) -> str | None:
        """A sentence when a comparison is settled and its literal is no value that the fact can have: the wrong unit. A literal
        at the very bound (``ge 0``) only asks whether the fact was observed, which a part of a rule may."""
        answer = self.settled(name, operator, right) if operator != "present" else None
        spec = self.by_name.get(name)
        if answer is None or spec is None or not spec.numeric:
            return None
        low, high = spec.bounds
        options = right if isinstance(right, list) else [right]
        if any(isinstance(item, int | float) and low <= item <= high for item in options):
            return None
        span = f"{low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
        said = f"{operator} {', '.join(f'{item:g}' for item in options)}"
        return f"{name} is {span}, so {said} {'always' if answer else 'never'} holds: a rule that cannot fail decides nothing"

    def misfit(self, fact: Fact) -> str | None:
        """Why this observation cannot be used as it stands: unknown name, wrong type, impossible value, unit or label."""
        spec = self.by_name.get(fact.name)
        if spec is None:
            near = get_close_matches(fact.name, self.by_name, n=1, cutoff=0.75)
            return f"no fact has this name{f' (did you mean {near[0]}?)' if near else ''}"
        unit = "" if spec.unit == "none" else spec.unit
        if fact.unit and not same_unit(fact.unit, unit):
            other = factor(fact.unit, unit)
            return f"its unit is {fact.unit}, and it is measured in {unit or 'no unit'}" + (f" (multiply by {other:g})" if other else "")
        value = fact.value
        if spec.type in ("list", "map"):
            return None if isinstance(value, list if spec.type == "list" else dict) else f"{str(value)[:60]!r} is no {spec.type}"
        if spec.type == "int" and isinstance(value, float):
            pass  # a mean or a quantile of whole numbers is none; nothing is wrong with it
        elif (message := self._not_a_value(spec, value)) is not None:
            return message
        if spec.numeric and isinstance(value, int | float) and not math.isfinite(value):
            return f"{value} is no number"
        if unknown := sorted(set(fact.labels) - set(spec.labels) - {"test"}):
            return f"it has no label {unknown[0]} (it has {', '.join(spec.labels) or 'none'})"
        return None

    @staticmethod
    def _not_a_value(spec: FactSpec, option: object) -> str | None:
        fits = {
            "bool": isinstance(option, bool),
            "enum": option in spec.values,
            "str": isinstance(option, str),
            "list": False,
            "map": False,
        }.get(spec.type, isinstance(option, int | float) and not isinstance(option, bool))
        if fits:
            return None
        allowed = ", ".join(spec.values) if spec.type == "enum" else spec.type
        return f"{spec.name} can never be {option!r} (it is {allowed})"
