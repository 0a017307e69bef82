"""Search spaces, constraints and dead settings: what may be tried, what the engine forbids, what does nothing."""

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from optimizer.model.base import FiniteFloat, Frozen, Scalar, Value
from optimizer.model.playbook import EngineName, Predicate

Needs = Literal["none", "reload", "relaunch", "reboot"]
ARM = "control-arm"  # the name under which a plain sampler's points are tested and judged
ALONE = "(left alone)"  # a choice that such a sampler can make: the parameter is not given


class Param(Frozen):
    """One dimension. ``flag`` lists spellings, newest first; the first that the box's --help offers is used. ``env`` = variable."""

    name: str
    flag: tuple[str, ...] = ()
    env: str | None = None
    type: Literal["int", "float", "bool", "choice"]
    grid: tuple[Scalar | list[Scalar], ...] = ()  # int/float: allowed values in order; choice: the choices, which may be lists
    same: dict[str, Scalar] = Field(default_factory=dict)  # choice: other names of a value of the grid, {NEXTN: EAGLE}; they are never proposed beside it
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    needs: Needs = "relaunch"
    readback: tuple[str, ...] = ()  # paths in /server_info, tried in order; must match what was asked
    when: Predicate | None = None  # the parameter exists only then (conditional space)
    flips: tuple[str, ...] = ()  # start-up facts that this parameter is expected to change
    builds: str | None = None  # versions that have it, e.g. ">=0.10.2", where no --help text can tell (a key of a JSON setting)
    lossy: bool = False
    cost_launches: FiniteFloat = 1.0
    note: str = ""

    def one(self, value: Value) -> Value:
        """The value under the one name that the grid has for it."""
        return self.same.get(value, value) if isinstance(value, str) else value


class Space(Frozen):
    """A named set of parameters, e.g. ``sglang/decode-graphs``."""

    id: str
    revision: int = 1
    engine: EngineName
    params: tuple[Param, ...]
    requires: Predicate | None = None  # false -> the whole space is pointless here, with ``why_not``
    why_not: str = ""
    file: str = ""


class DeadSetting(Frozen):
    """A setting known to do nothing. ``params``/``env``/``env_prefix`` name it; ``when`` unknown never kills."""

    engine: EngineName
    params: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    env_prefix: str | None = None
    kind: Literal["no_reader", "overwritten", "overridden", "bypassed"]
    builds: str | None = None  # e.g. ">=0.4.6.post5,<=0.5.23"
    when: Predicate | None = None
    scope: Literal["all", "decode", "prefill"] = "all"
    why: str
    source: str
    file: str = ""


class Constraint(Frozen):
    """A rule of the engine itself: what it refuses, rewrites or ignores."""

    id: str
    engine: EngineName
    effect: Literal["start_error", "overridden", "silent"]
    builds: str | None = None
    when: Predicate
    sets: dict[str, Value] = Field(default_factory=dict)  # for ``overridden``: what the server makes of it
    why: str
    source: str
    file: str = ""


class Refusal(Frozen):
    """Why a setting is not launched. Journalled, and printed by ``why-not``."""

    kind: Literal["unavailable", "dead", "infeasible", "lossy", "duplicate", "over_budget"]
    params: dict[str, Value]
    why: str
    source: str = ""


class Trial(Frozen):
    """What a search may know of an earlier launch."""

    params: dict[str, Value]
    value: FiniteFloat | None  # target metric, higher is better; None when infeasible
    infeasible: bool = False
    second: FiniteFloat | None = None  # the other objective of a trade-off, higher is better
    violations: dict[str, FiniteFloat] = Field(default_factory=dict)  # guards: above 0 is not allowed, but it ran

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is not there is not written, so that intents of older journals are recomputed byte for byte."""
        data: dict[str, Any] = handler(self)
        return {name: value for name, value in data.items() if not (name == "second" and value is None) and not (name == "violations" and not value)}
    note: str = ""


class Direction(Frozen):
    """Which way a parameter is expected to move a measurement: a start for a search, never a finding. The three effects are
    natural logarithms of the ratio ``per`` doubling, tenth (of a share), step of ``order``, or flag (given against not)."""

    engine: EngineName
    names: tuple[str, ...] = Field(min_length=1)
    per: Literal["doubling", "tenth", "step", "flag"]
    order: tuple[tuple[str, ...], ...] = ()  # for ``step``: values of one rank together, lowest first
    absent: FiniteFloat | None = None  # the number that a parameter which is not given stands for
    throughput: FiniteFloat
    per_gpu: FiniteFloat
    latency: FiniteFloat
    why: str
    file: str = ""
