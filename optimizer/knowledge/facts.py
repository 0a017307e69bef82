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
