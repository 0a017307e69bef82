"""Answers the ``when:`` trees of knowledge files in three values: true, false, or unknown (None).

Pure and total: whatever a fact holds, the answer is one of the three and nothing is raised. What nobody observed is
unknown, never false. It checks the shape of a tree as well (``problems``), so that a file that could only ever answer
unknown is refused when it is loaded."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from optimizer.model.base import Scalar, Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.playbook import Predicate, Tree

OPERANDS = ("fact", "setting", "box")
OPERATORS = ("gt", "ge", "lt", "le", "eq", "ne", "in", "contains", "between", "present", "last_lt")
METRIC = "metric"
_ORDERED = ("gt", "ge", "lt", "le")


class View(Protocol):
    """What a predicate may look at. A setting or box value that is absent is unknown; None means "not given"."""

    @property
    def facts(self) -> Evidence: ...

    @property
    def settings(self) -> Mapping[str, Value]: ...

    @property
    def box(self) -> Mapping[str, Value]: ...


@dataclass(frozen=True)
class Look:
    """The simplest View: facts of one launch, its effective settings, and what is known of the box."""

    facts: Evidence
    settings: Mapping[str, Value]
    box: Mapping[str, Value]


class Answer(NamedTuple):
    """The three-valued answer and the observations that it rests on (empty when unknown)."""

    value: bool | None
    facts: tuple[Fact, ...] = ()


_UNKNOWN = Answer(None)
_TREE = (dict, Mapping)  # the first is what trees are made of, and told at once


def evaluate(when: Predicate, view: View) -> bool | None:
    """True, false, or None when what the tree asks for was not observed."""
    return _condition(when).answer(view).value


def explain(when: Predicate, view: View) -> Answer:
    """``evaluate`` with the observations that decided it."""
    return _condition(when).answer(view)


# ---- a tree, read once ----------------------------------------------------------------------------------------------


class _Condition(Protocol):
    def answer(self, view: View) -> Answer: ...


def _condition(when: Any) -> _Condition:
    """What a tree asks. That of a knowledge file is read at its first use and kept with it."""
    if type(when) is not Tree:
        return _read(when)
    try:
        found: _Condition = when.read
    except AttributeError:
        found = when.read = _read(when)
    return found


def _read(when: Any) -> _Condition:
    if not isinstance(when, _TREE):
        return _NOTHING
    if "all" in when or "any" in when:
        return _Joined([_read(part) for part in _list(when.get("all", when.get("any")))], "any" in when)
    if "not" in when:
        return _Negated(_read(when["not"]))
    operator = next((name for name in OPERATORS if name in when), None)
    return _NOTHING if operator is None else _Comparison(operator, when)


class _Nothing:
    """Asks nothing that could be answered."""

    def answer(self, view: View) -> Answer:
        return _UNKNOWN


_NOTHING = _Nothing()


class _Joined:
    """``any`` when ``decisive`` is true, ``all`` when it is false: the first decisive part settles it, and no later one is asked."""

    __slots__ = ("decisive", "parts")

    def __init__(self, parts: list[_Condition], decisive: bool) -> None:
        self.parts, self.decisive = parts, decisive

    def answer(self, view: View) -> Answer:
        answers = []
        for part in self.parts:
            found = part.answer(view)
            if found.value is self.decisive:
                return found
            answers.append(found)
        if not answers or any(found.value is None for found in answers):
            return _UNKNOWN
        return Answer(not self.decisive, tuple(fact for found in answers for fact in found.facts))


class _Negated:
    __slots__ = ("inner",)

    def __init__(self, inner: _Condition) -> None:
        self.inner = inner

    def answer(self, view: View) -> Answer:
        found = self.inner.answer(view)
        return found if found.value is None else Answer(not found.value, found.facts)


class _Observed:
    """One operand: the values that a view has of it."""

    __slots__ = ("box", "fact", "labels", "only_fact", "setting")

    def __init__(self, operand: Mapping[str, Any]) -> None:
        self.fact, self.setting, self.box = (str(operand[kind]) if kind in operand else None for kind in OPERANDS)
        self.labels = _labels(operand)
        self.only_fact = self.fact is not None and self.setting is None and self.box is None

    def values(self, view: View) -> list[tuple[Value, Fact | None]]:
        """One for each matching observation of a fact, at most one of a setting or box value."""
        found: list[tuple[Value, Fact | None]] = []
        if self.fact is not None:
            labels = self.labels
            for fact in view.facts.all(self.fact):
                # A probe without a metric is about speed; what it did to another metric answers only who asks for that one.
                if METRIC in fact.labels and METRIC not in labels:
                    continue
                if not labels or all(_same(fact.labels.get(key), wanted) for key, wanted in labels.items()):
                    found.append((fact.value, fact))
            if self.only_fact:
                return found
        if self.setting is not None and self.setting in view.settings:
            found.append((view.settings[self.setting], None))
        if self.box is not None and self.box in view.box:
            found.append((view.box[self.box], None))
        return found


class _Comparison:
    """One comparison: an operand, and on the right a literal or another operand (times, plus)."""

    __slots__ = ("left", "literal", "operator", "other", "times_plus", "wanted", "when")

    def __init__(self, operator: str, when: Mapping[str, Any]) -> None:
        self.operator, self.when, self.wanted = operator, when, when[operator]
        self.left = _Observed(when)
        self.literal = None if isinstance(self.wanted, _TREE) else _Operand(self.wanted)
        if self.literal is None:
            self.other = _Observed(self.wanted)
            self.times_plus = self.wanted.get("times", 1), self.wanted.get("plus", 0)

    def answer(self, view: View) -> Answer:
        observations = self.left.values(view)
        if self.operator == "present":
            return self._present(view, observations)
        if not observations:
            return _UNKNOWN  # most rules ask for what was not observed
        if len(observations) == 1 and self.literal is not None:  # most of the others
            value, fact = observations[0]
            told = _answer(self.operator, _Operand(value, _bound(fact)), self.literal)
            return _UNKNOWN if told is None else Answer(told, (fact,)) if fact is not None else Answer(told)
        answers: list[tuple[bool | None, tuple[Fact, ...]]] = []
        for value, fact in observations:
            right, other = (self.literal, None) if self.literal is not None else self._right(view, fact)
            used = tuple(item for item in (fact, other) if item is not None)
            answers.append((None if right is None else _answer(self.operator, _Operand(value, _bound(fact)), right), used))
        # Several observations of one name differ in their labels; the rule holds if it holds for one of them.
        if held := next((used for value, used in answers if value is True), None):
            return Answer(True, held)
        if any(value is True for value, _ in answers):
            return Answer(True)
        if any(value is None for value, _ in answers):
            return _UNKNOWN
        return Answer(False, answers[0][1])

    def _present(self, view: View, observations: list[tuple[Value, Fact | None]]) -> Answer:
        """Whether a setting was given is known once the settings are; an unobserved fact stays unknown."""
        wanted = self.wanted is not False
        if (name := self.left.setting) is not None and name in view.settings:
            return Answer((view.settings[name] is not None) is wanted)
        if not observations:
            return _UNKNOWN
        return Answer(wanted, tuple(fact for _, fact in observations if fact is not None)[:1])

    def _right(self, view: View, left: Fact | None) -> tuple["_Operand | None", Fact | None]:
        """Another value; of several observations the one made under the left's conditions.

        None where it was not observed: that is unknown, and not the literal ``null``, which a value may equal."""
        candidates = [found for found in self.other.values(view) if not _on_the_left(found[1], self.wanted, self.when)]
        if not candidates:
            return None, None
        shared = dict(left.labels) if left is not None else {}
        value, fact = min(candidates, key=lambda found: _distance(found[1], shared))
        times, plus = self.times_plus
        if times != 1 or plus != 0:
            if any(_kind(item) != "number" for item in (value, times, plus)):
                return None, None
            value = value * times + plus
        return _Operand(value, _bound(fact)), fact


@dataclass(slots=True)
class _Operand:
    value: Any
    bound: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """[low, high] of what the number can be: a bounded observation is known from one side only."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return None
        if self.value != self.value:  # NaN
            return None
        number = float(self.value) if abs(self.value) < 1e300 else math.copysign(1e300, self.value)
        low = -math.inf if self.bound == "at_most" else number
        high = math.inf if self.bound == "at_least" else number
        return low, high


def _on_the_left(fact: Fact | None, operand: Mapping[str, Any], when: Mapping[str, Any]) -> bool:
    """An observation that the left side asks for by its labels is not what it should be compared with."""
    wanted = _labels(when)
    if fact is None or not wanted or operand.get("labels") or operand.get("fact") != when.get("fact"):
        return False
    return all(_same(fact.labels.get(key), value) for key, value in wanted.items())


def _distance(fact: Fact | None, labels: Mapping[str, Scalar]) -> tuple[int, int, int]:
    """Fewest contradicting conditions first, then most shared ones, then the plainest observation."""
    if fact is None:
        return (0, 0, 0)
    both = [key for key in fact.labels if key in labels and key != "test"]
    same = sum(1 for key in both if _same(fact.labels[key], labels[key]))
    return (len(both) - same, -same, len(fact.labels))


def _answer(operator: str, left: _Operand, right: _Operand) -> bool | None:
    if operator in _ORDERED:
        return _ordered(operator, left, right)
    if operator == "between":
        bounds = right.value
        if not isinstance(bounds, list) or len(bounds) != 2:
            return None
        low, high = _ordered("ge", left, _Operand(bounds[0])), _ordered("le", left, _Operand(bounds[1]))
        return False if False in (low, high) else None if None in (low, high) else True
    if operator in ("eq", "ne"):
        equal = _equal(left, right)
        return equal if operator == "eq" or equal is None else not equal
    if operator == "in":
        return _any(_equal(left, _Operand(option)) for option in _list(right.value)) if right.value else None
    if operator == "contains":
        return _contains(left.value, right.value)
    if operator == "last_lt":
        last = left.value[-1] if isinstance(left.value, list) and left.value else None
        return _ordered("lt", _Operand(last), right)
    return None


_DECIDED: Mapping[str, Callable[[float, float, float, float], tuple[bool, bool]]] = {
    # (surely true, surely false) for left in [a, b] and right in [c, d]
    "gt": lambda a, b, c, d: (a > d, b <= c),
    "ge": lambda a, b, c, d: (a >= d, b < c),
    "lt": lambda a, b, c, d: (b < c, a >= d),
    "le": lambda a, b, c, d: (b <= c, a > d),
}


def _ordered(operator: str, left: _Operand, right: _Operand) -> bool | None:
    first, second = left.interval, right.interval
    if first is None or second is None:
        return None
    surely, never = _DECIDED[operator](*first, *second)
    return True if surely else False if never else None


def _equal(left: _Operand, right: _Operand) -> bool | None:
    if type(left.value) is str and type(right.value) is str:  # most comparisons
        return left.value == right.value
    first, second = left.interval, right.interval
    if first is not None and second is not None:
        if first[0] == first[1] == second[0] == second[1]:
            return True
        return None if first[0] <= second[1] and second[0] <= first[1] else False
    if left.value is None or right.value is None:
        return left.value is right.value if right.value is None else None
    return _same(left.value, right.value) if _kind(left.value) == _kind(right.value) else None


def _contains(value: Any, wanted: Any) -> bool | None:
    """One entry of a list equals ``wanted``, or contains it as text (``NCCL_PROTO=LL`` contains ``NCCL_PROTO``)."""
    if not isinstance(value, list) or wanted is None:
        return None
    if isinstance(wanted, str):
        return any(isinstance(entry, str) and wanted in entry for entry in value)
    return any(_same(entry, wanted) for entry in value)


def _any(answers: Iterator[bool | None]) -> bool | None:
    found = list(answers)
    return True if True in found else None if None in found else False


def _same(left: Any, right: Any) -> bool:
    return _kind(left) == _kind(right) and bool(left == right)


def _kind(value: Any) -> str:
    if type(value) in _KINDS:
        return _KINDS[type(value)]
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


_KINDS: Mapping[type, str] = {bool: "bool", int: "number", float: "number", str: "str", list: "list", dict: "dict", type(None): "NoneType"}


def _bound(fact: Fact | None) -> str | None:
    return fact.bound if fact is not None else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_NO_LABELS: Mapping[str, Any] = {}


def _labels(operand: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = operand.get("labels")
    return labels if labels is not None and isinstance(labels, _TREE) else _NO_LABELS


# --- the shape of a tree -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """One value that a tree looks at: ``kind`` is fact, setting or box; ``path`` leads to it inside the tree."""

    kind: str
    name: str
    labels: Mapping[str, Scalar]
    path: tuple[str | int, ...]


@dataclass(frozen=True)
class Comparison:
    """One comparison with a literal on the right, for checks against the vocabulary."""

    left: Operand
    operator: str
    right: Any
    path: tuple[str | int, ...]


Problem = tuple[tuple[str | int, ...], str]


def problems(when: Any) -> tuple[Problem, ...]:
    """(path inside the tree, what is wrong) for everything that could never be evaluated."""
    return tuple(_problems(when, ()))


def _problems(when: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    if not isinstance(when, Mapping):
        yield path, "a condition must be a mapping such as {fact: NAME, ge: 1}"
        return
    joins = [key for key in ("all", "any", "not") if key in when]
    if joins:
        key = joins[0]
        if len(when) > 1:
            yield path, f"{key} must stand alone, found also {', '.join(sorted(set(when) - {key}))}"
        elif key == "not":
            yield from _problems(when["not"], (*path, "not"))
        elif not isinstance(when[key], list) or not when[key]:
            yield (*path, key), f"{key} needs a list of at least one condition"
        else:
            for index, part in enumerate(when[key]):
                yield from _problems(part, (*path, key, index))
        return
    yield from _operand_problems(when, path, extra=OPERATORS)
    operators = [name for name in OPERATORS if name in when]
    if len(operators) != 1:
        yield path, f"exactly one of {', '.join(OPERATORS)} is needed, found {', '.join(operators) or 'none'}"
        return
    yield from _right_problems(operators[0], when[operators[0]], (*path, operators[0]))


def _operand_problems(
    value: Mapping[str, Any], path: tuple[str | int, ...], extra: tuple[str, ...]
) -> Iterator[Problem]:
    kinds = [name for name in OPERANDS if name in value]
    if len(kinds) != 1:
        yield path, f"exactly one of {', '.join(OPERANDS)} is needed, found {', '.join(kinds) or 'none'}"
    elif not isinstance(value[kinds[0]], str):
        yield (*path, kinds[0]), "a name must be a text"
    for key in sorted(set(value) - set(kinds) - set(extra) - {"labels"}):
        yield (*path, key), f"{key} is not understood in a condition"
    if "labels" in value:
        labels = value["labels"]
        if "fact" not in value:
            yield (*path, "labels"), "only facts have labels"
        if not isinstance(labels, Mapping) or any(isinstance(item, list | dict) for item in labels.values()):
            yield (*path, "labels"), "labels must be a mapping of label to one value"


def _right_problems(operator: str, right: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    if operator == "present":
        if not isinstance(right, bool):
            yield path, "present must be true or false"
    elif operator == "in":
        if not isinstance(right, list) or not right:
            yield path, "in needs a list of at least one value"
    elif operator == "between":
        numbers = isinstance(right, list) and len(right) == 2 and all(_kind(item) == "number" for item in right)
        if not numbers or right[0] > right[1]:
            yield path, "between needs [low, high] in this order"
    elif isinstance(right, Mapping):
        yield from _operand_problems(right, path, extra=("times", "plus"))
        for key in ("times", "plus"):
            if key in right and _kind(right[key]) != "number":
                yield (*path, key), f"{key} must be a number"
    elif operator in (*_ORDERED, "last_lt") and _kind(right) != "number":
        yield path, f"{operator} compares numbers, found {right!r}"
    elif isinstance(right, list):
        yield path, f"{operator} takes one value; use in or between for several"


def operands(when: Any, path: tuple[str | int, ...] = ()) -> Iterator[Operand]:
    """Every fact, setting and box value that a well-formed tree names, on both sides of its comparisons."""
    if isinstance(when, Mapping):
        for kind in OPERANDS:
            if isinstance(when.get(kind), str):
                labels = when.get("labels")
                yield Operand(kind, when[kind], labels if isinstance(labels, Mapping) else {}, path)
        for key, value in when.items():
            if key != "labels":
                yield from operands(value, (*path, key))
    elif isinstance(when, list):
        for index, value in enumerate(when):
            yield from operands(value, (*path, index))


def comparisons(when: Any, path: tuple[str | int, ...] = ()) -> Iterator[Comparison]:
    """Every comparison of a well-formed tree whose right side is a literal."""
    if not isinstance(when, Mapping):
        return
    for key in ("all", "any"):
        for index, part in enumerate(_list(when.get(key))):
            yield from comparisons(part, (*path, key, index))
    if "not" in when:
        yield from comparisons(when["not"], (*path, "not"))
    for operator in OPERATORS:
        if operator in when and not isinstance(when[operator], Mapping):
            left = next(operands({key: value for key, value in when.items() if key in (*OPERANDS, "labels")}), None)
            if left is not None:
                yield Comparison(left, operator, when[operator], (*path, operator))
