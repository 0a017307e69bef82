"""Decides which settings are not worth a launch, and says why: not on this build, known to do nothing, lossy, forbidden
by the engine, too big for the device, already tried. Also maps a point to what the engine makes of it. Pure; what is
unknown never refuses."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from optimizer.core.builds import in_builds
from optimizer.core.fits import fits
from optimizer.core.predicate import Look, evaluate, operands
from optimizer.core.resolve import Unresolved, canonical_settings, param_of, resolve_value, unavailable
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings
from optimizer.model.space import Constraint, DeadSetting, Param, Refusal, Space

Phase = Literal["all", "decode", "prefill"]

_GIVEN = "given."
_MOST_ROUNDS = 8  # overriding rules can trigger each other; the recorded chains end after two


@dataclass(frozen=True)
class Ground:
    """What refusals rest on. ``settings``: what the running point gives (the user's own launch plus the baseline's
    overlay); ``effective``: what its server made of it. ``phase``: which phase the target looks at ("decode" for rates
    and inter-token times, "prefill" for time to first token); a setting dead in the other phase only is not refused."""

    settings: Settings
    evidence: Evidence
    flags: FlagTable
    dead: Sequence[DeadSetting] = ()
    constraints: Sequence[Constraint] = ()
    spaces: Sequence[Space] = ()
    engine_version: str | None = None
    effective: Mapping[str, Value] | None = None
    box: Mapping[str, Value] | None = None
    phase: Phase = "all"
    allow_lossy: bool = False
    by_version: bool = True  # whether a parameter's own ``builds`` count; journals of earlier policies are recomputed without

    # What every rule asks for again and again, computed once for each ground.

    @cached_property
    def now(self) -> Mapping[str, Value]:
        """What is given now, in its canonical form."""
        return canonical_settings(self.settings, keep_none=False).values

    @cached_property
    def in_force(self) -> Mapping[str, Value]:
        """``effective`` with the keys of its JSON settings."""
        effective = self.effective or {}
        return {**effective, **_dotted(effective)}

    @cached_property
    def in_force_by_key(self) -> tuple[str, ...]:
        """The names of ``in_force`` that are keys of a JSON setting."""
        return tuple(name for name in self.in_force if "." in name)

    @cached_property
    def look(self) -> Look:
        """What predicates see of the launch that runs."""
        return Look(self.evidence, _PointView(self.now, self, ()), self.box or {})

    @cached_property
    def dead_here(self) -> tuple[DeadSetting, ...]:
        """What is dead on this build in the phase that counts, in its order."""
        return tuple(entry for entry in self.dead if entry.scope in ("all", self.phase) and in_builds(self.engine_version, entry.builds) is True)

    @cached_property
    def by_effect(self) -> Mapping[str, tuple[Constraint, ...]]:
        """The rules of this build by what they do, in their order."""
        found: dict[str, list[Constraint]] = {}
        for rule in self.constraints:
            if in_builds(self.engine_version, rule.builds) is True:
                found.setdefault(rule.effect, []).append(rule)
        return {effect: tuple(rules) for effect, rules in found.items()}

    @cached_property
    def renamed(self) -> Mapping[str, Param]:
        """The parameters some of whose values have several names."""
        return {param.name: param for space in self.spaces for param in space.params if param.same}

    @cached_property
    def looks(self) -> dict[str, Look]:
        """What predicates see of points that were asked about before, by the digest of what was asked."""
        return {}

    @cached_property
    def resolved(self) -> dict[str, Settings]:
        """Resolved forms that were worked out before, by the digest of what was asked."""
        return {}


@dataclass(frozen=True)
class Screened:
    """``changes``: what remains worth launching (empty: nothing). ``resolved``: the point as the engine will have
    it."""

    changes: dict[str, Value]
    refusals: tuple[Refusal, ...]
    resolved: Settings


def refuse(changes: Mapping[str, Value], ground: Ground, *, tried: Collection[str] = ()) -> tuple[Refusal, ...]:
    """Why ``changes`` (param -> value, None = not given) must not be launched as they are; empty when they may be.

    ``tried``: ``point_digest`` of every point already measured or found infeasible.
    """
    found = list(_by_param(changes, ground))
    if not found:
        found.extend(_by_point(changes, ground, tried))
    return tuple(found)


def first_of_itself(changes: Mapping[str, Value], ground: Ground) -> Refusal | None:
    """The first refusal that a value of ``changes`` draws by itself (not on this build, dead, lossy), whatever the point comes to."""
    return next(_by_param(changes, ground), None)


def never_starts(name: str, value: Value, ground: Ground, open_settings: Collection[str]) -> str:
    """Why the engine does not start with this value whatever the settings in ``open_settings`` are going to be; empty when that depends."""
    after = _point({name: value}, ground)
    point = canonical_settings(after, keep_none=False).values
    view = Look(ground.evidence, _Partly(_PointView(point, ground, frozenset(after.values)), frozenset(open_settings) - {name}), ground.box or {})
    rules = (rule for rule in _rules(ground, "start_error") if evaluate(rule.when, view) is True and evaluate(rule.when, ground.look) is not True)
    return next((rule.why for rule in rules), "")


def screen(changes: Mapping[str, Value], ground: Ground, *, tried: Collection[str] = ()) -> Screened:
    """``changes`` without the parts that are refused; a value that the engine overrides is replaced by its own
    choice."""
    refusals = list(_by_param(changes, ground))
    refused = {name for refusal in refusals for name in refusal.params}
    sound = {name: value for name, value in changes.items() if name not in refused}
    kept: dict[str, Value] = {}
    if sound:
        # An overridden value is no reason to leave it out: the engine may insist that its companions are given together.
        own = _overridden(changes, ground)
        kept = {name: own.get(name, value) for name, value in changes.items() if name in sound or name in own}
        kept.update(_companions(kept, ground))
    if kept:
        blocking = list(_by_point(kept, ground, tried))
        refusals.extend(blocking)
        if blocking:
            kept = {}
    return Screened(kept, tuple(refusals), resolved_form(_point(kept, ground), ground))


@dataclass(frozen=True)
class Foreseen:
    """What the engine will do beside what it was asked: it rewrites settings (``sets``), or something happens without a word."""

    rule: str
    effect: Literal["overridden", "silent"]
    sets: dict[str, Value]
    why: str
    source: str


def foreseen(changes: Mapping[str, Value], ground: Ground) -> tuple[Foreseen, ...]:
    """The engine's rules that come into play because of ``changes``: they apply to the new point, and either did not apply before or
    speak of what is changed. In the order of the rules."""
    after = _point(changes, ground)
    view = _look_at(after, ground)
    resolved = resolved_form(after, ground).values
    found = []
    for effect in ("overridden", "silent"):
        for rule in _rules(ground, effect):
            if evaluate(rule.when, view) is not True:
                continue
            named = {item.name.removeprefix(_GIVEN) for item in operands(rule.when) if item.kind == "setting"}
            if evaluate(rule.when, ground.look) is True and not named & set(changes):
                continue
            sets = {name: resolved.get(name) for name in rule.sets}
            found.append(Foreseen(rule.id, rule.effect, sets, rule.why, rule.source))  # type: ignore[arg-type]
    return tuple(found)


def point_digest(settings: Settings, ground: Ground) -> str:
    """Digest of a whole point in its resolved form: two points that the engine turns into the same launch share it."""
    return resolved_form(settings, ground).digest


def dead_in(settings: Settings, ground: Ground) -> tuple[Refusal, ...]:
    """The settings of a command line or known-good set that do nothing on this build."""
    found = []
    for name, value in settings.values.items():
        if value is None:
            continue
        entry = _dead(name, settings, ground)
        if entry is not None:
            found.append(Refusal(kind="dead", params={name: value}, why=entry.why, source=entry.source))
    return tuple(found)


def resolved_form(settings: Settings, ground: Ground) -> Settings:
    """The point as the engine will have it: canonical names and values, overriding rules applied until nothing
    changes."""
    known = ground.resolved.get(settings.digest)
    if known is None:
        known = ground.resolved[settings.digest] = _resolved_form(settings, ground)
    return known


def _resolved_form(settings: Settings, ground: Ground) -> Settings:
    values = dict(canonical_settings(settings, keep_none=False).values)
    values |= {name: param.one(values[name]) for name, param in ground.renamed.items() if name in values}
    for _ in range(_MOST_ROUNDS):
        changed = False
        view = Look(ground.evidence, _PointView(values, ground, values), ground.box or {})
        seen = dict(values)
        for rule in _rules(ground, "overridden"):
            if values != seen:  # a rule before this one has changed the point
                view = Look(ground.evidence, _PointView(values, ground, values), ground.box or {})
                seen = dict(values)
            if evaluate(rule.when, view) is not True:
                continue
            for name, value in rule.sets.items():
                result = resolve_value(value, ground.evidence, view.settings, param_of(name, ground.spaces))
                if isinstance(result, Unresolved):
                    continue
                if result is None and name in values:
                    del values[name]
                    changed = True
                elif result is not None and not _equal(values.get(name), result):
                    values[name] = result
                    changed = True
        if not changed:
            break
    return canonical_settings(Settings(values=dict(sorted(values.items()))), keep_none=False)


# ---- one parameter ---------------------------------------------------------------------------------------------------


def _by_param(changes: Mapping[str, Value], ground: Ground) -> Iterator[Refusal]:
    after = _point(changes, ground)
    now = ground.now
    alive = any(_dead(name, after, ground) is None for name in changes)
    for name, value in changes.items():
        if value is None and alive:
            continue  # taking a dead setting off the command line, beside a change that does something, is tidy
        param = param_of(name, ground.spaces)
        refusal = unavailable(name, value, param, ground.flags) or _of_another_version(name, value, param, ground)
        if refusal is not None:
            yield refusal
            continue
        entry = _dead(name, after, ground)
        if entry is not None and not (entry.kind == "overridden" and _agrees_with_engine(name, value, changes, ground)):
            yield Refusal(kind="dead", params={name: value}, why=entry.why, source=entry.source)
            continue
        if param is not None and param.lossy and value is not None and not ground.allow_lossy:
            if _equal(now.get(name), value):
                continue  # the user's own choice
            yield Refusal(
                kind="lossy",
                params={name: value},
                why=f"{name} can change what the model answers; it is tried only with --allow-lossy.",
                source=param.note,
            )


def _of_another_version(name: str, value: Value, param: Param | None, ground: Ground) -> Refusal | None:
    """A parameter that no help text lists (a key of a JSON setting), on a version that is known not to have it."""
    if param is None or value is None or not ground.by_version or in_builds(ground.engine_version, param.builds) is not False:
        return None
    why = f"Not testable here: {name} is for versions {param.builds}, this is {ground.engine_version}."
    return Refusal(kind="unavailable", params={name: value}, why=why, source=param.note or "search space")


def _dead(name: str, after: Settings, ground: Ground) -> DeadSetting | None:
    variable = name.removeprefix("env.") if name.startswith("env.") else None
    for entry in ground.dead_here:
        named = name in entry.params or (
            variable is not None
            and (variable in entry.env or (entry.env_prefix is not None and variable.startswith(entry.env_prefix)))
        )
        if not named:
            continue
        if entry.when is not None and evaluate(entry.when, _look_at(after, ground)) is not True:
            continue
        return entry
    return None


def _agrees_with_engine(name: str, value: Value, changes: Mapping[str, Value], ground: Ground) -> bool:
    """An overridden value that is asked for as the engine would set it anyway, beside a change that does something."""
    resolved = resolved_form(_point(changes, ground), ground).values
    others = {key for key in changes if key != name}
    return bool(others) and _equal(resolved.get(name), value)


def _overridden(changes: Mapping[str, Value], ground: Ground) -> dict[str, Value]:
    """The engine's own value of every number or switch in ``changes`` that it overrides. Names stay: an alias is no other
    value."""
    resolved = resolved_form(_point(changes, ground), ground).values
    return {
        name: resolved[name]
        for name, value in changes.items()
        if value is not None and name in resolved and not isinstance(value, str) and not _equal(resolved[name], value)
    }


def _companions(changes: Mapping[str, Value], ground: Ground) -> dict[str, Value]:
    """Given settings of the same family that the engine will override because of ``changes``: they are put right on the
    command line too, or the readback would contradict it."""
    given = ground.now
    resolved = resolved_form(_point(changes, ground), ground).values
    families = {name.partition("_")[0] for name in changes}
    return {
        name: resolved[name]
        for name, value in given.items()
        if name not in changes
        and name in resolved
        and name.partition("_")[0] in families
        and not isinstance(value, str)
        and not _equal(resolved[name], value)
    }


# ---- the whole point -------------------------------------------------------------------------------------------------


def _by_point(changes: Mapping[str, Value], ground: Ground, tried: Collection[str]) -> Iterator[Refusal]:
    after = _point(changes, ground)
    view = _look_at(after, ground)
    infeasible = False
    for rule in _rules(ground, "start_error"):
        # A rule that would forbid the launch that is running cannot be right about this build or box.
        if evaluate(rule.when, view) is True and evaluate(rule.when, ground.look) is not True:
            infeasible = True
            yield Refusal(
                kind="infeasible", params=dict(changes), why=f"{rule.why} (rule {rule.id})", source=rule.source
            )
    memory = fits(dict(ground.look.settings), dict(view.settings), ground.evidence, ground.box or {})
    if memory.fits is False and not infeasible:
        infeasible = True
        yield Refusal(kind="infeasible", params=dict(changes), why=memory.why, source="memory model")
    if infeasible:
        return
    resolved = resolved_form(after, ground)
    if resolved.digest == resolved_form(ground.settings, ground).digest:
        yield Refusal(
            kind="duplicate",
            params=dict(changes),
            why="The engine would end up with exactly the settings that run now.",
            source="resolved form",
        )
    elif resolved.digest in tried:
        yield Refusal(
            kind="duplicate",
            params=dict(changes),
            why="The engine would end up with settings that this study has already tried.",
            source="resolved form",
        )


def _rules(ground: Ground, effect: str) -> Sequence[Constraint]:
    return ground.by_effect.get(effect, ())


def _point(changes: Mapping[str, Value], ground: Ground) -> Settings:
    return canonical_settings(ground.settings.merged(changes))


def _look_at(after: Settings, ground: Ground) -> Look:
    known = ground.looks.get(after.digest)
    if known is None:
        point = canonical_settings(after, keep_none=False).values
        known = ground.looks[after.digest] = Look(ground.evidence, _PointView(point, ground, after.values), ground.box or {})
    return known


class _PointView(dict[str, Value]):
    """Settings of a proposed launch as predicates see them: ``NAME`` is what will be in force (given, else what the
    last server made of it, else null), ``given.NAME`` what the command line will say (null when it says nothing)."""

    def __init__(self, point: Mapping[str, Value], ground: Ground, named: Iterable[str]) -> None:
        super().__init__(ground.in_force)
        # What was given before and is not any more falls back to a default that nobody has seen yet.
        dropped = {name for name in (*ground.now, *named) if name not in point}
        if dropped:
            for name in dropped:
                self.pop(name, None)
            for name in ground.in_force_by_key:
                if name.partition(".")[0] in dropped:
                    self.pop(name, None)
        self._given = {**point, **_dotted(point)}
        self.update(self._given)

    def __missing__(self, name: str) -> Value:
        return self._given.get(name[len(_GIVEN) :]) if name.startswith(_GIVEN) else None

    def get(self, name: str, default: object = None) -> Value:  # every name has a value here
        return self[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)


class _Partly(Mapping[str, Value]):
    """A point of which some settings are not known yet."""

    def __init__(self, view: _PointView, unknown: frozenset[str]) -> None:
        self._view, self._unknown = view, unknown

    def __getitem__(self, name: str) -> Value:
        return self._view[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.removeprefix(_GIVEN) not in self._unknown

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._view if name not in self._unknown)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _dotted(values: Mapping[str, Value]) -> dict[str, Value]:
    return {
        f"{name}.{key}": inner
        for name, value in values.items()
        if isinstance(value, dict)
        for key, inner in value.items()
    }


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right
