"""Which hypothesis is worth the next launch: scores from evidence, gain and cost from ``economy``, and the settings that test
it. Nothing is chosen that a rule refuses, and every refusal is said with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.core import boxes, economy, picture, sampling, since
from optimizer.core.closing import half_of, pooled
from optimizer.core.dimensions import pruned
from optimizer.core.once import once, once_for
from optimizer.core.plan import Plan
from optimizer.core.predicate import Look, evaluate
from optimizer.core.prior import PRIOR_ART
from optimizer.core.refuse import Ground, dead_in, point_digest, refuse, screen
from optimizer.core.resolve import resolve_action, resolve_first
from optimizer.core.score import Scored, probability_of, score
from optimizer.core.state import Belief, State, mean_ln
from optimizer.model.base import Value
from optimizer.model.playbook import Action, HandOver, Playbook, SetAction, SpaceAction
from optimizer.model.settings import Settings
from optimizer.model.space import Refusal

# A launch costs minutes of an expensive box: below odds of 1:4 an idea has to wait for evidence.
MIN_PROBABILITY = 0.20
# From here on causes are cured together. Alone, two of them cost two launches; together one, and three only if one of the cures does
# harm, which is rare: launches would be saved far below this. What is risked is the credit, so it stays at odds of three to one.
BUNDLE_PROBABILITY = 0.75
HAND_OVER_PROBABILITY = 0.5
MAX_POINTS_OF_SPACE = 4  # proposals for one hypothesis beyond its try_first points
OPEN = ("open", "stale")
SHOWN = 16
RULED_OUT_DB = 8.0
SHOWN_PROBABILITY = 0.10


def view(state: State, plan: Plan) -> Look:
    """What predicates see: the baseline's facts with those derived from its ceiling, its effective settings, the box."""
    return once(state, plan, "view", lambda: _view(state, plan))


def _view(state: State, plan: Plan) -> Look:
    survey = state.survey or {}
    return Look(facts=picture.facts(state, plan), settings=state.effective, box=survey.get("facts", {}))


def ground(state: State, plan: Plan) -> Ground:
    """What refusals rest on."""
    return once(state, plan, "ground", lambda: _ground(state, plan))


def _ground(state: State, plan: Plan) -> Ground:
    assert state.spec is not None
    survey = state.survey or {}
    engine = survey.get("engine", "")
    primary = state.spec.target.primary
    decode = primary is None or not primary.metric.startswith(("ttft", "e2e"))
    return Ground(
        settings=Settings(values=dict(state.given)).merged(state.baseline.values),
        evidence=state.evidence,
        flags=state.flags,
        dead=[item for item in plan.dead if item.engine in ("any", engine)],
        constraints=[item for item in plan.constraints if item.engine in ("any", engine)],
        spaces=[space for space in plan.spaces if space.engine in ("any", engine)],
        engine_version=survey.get("engine_version"),
        effective=state.base_arm.effective or None,
        box=survey.get("facts", {}),
        phase="decode" if decode else "prefill",
        allow_lossy=state.spec.allow_lossy,
        by_version=sampling.screens(state),
    )


def dead_on_command_line(state: State, plan: Plan) -> tuple[Refusal, ...]:
    """Settings of the original command line and environment that are known to do nothing on this build."""
    return once(state, plan, "dead", lambda: dead_in(Settings(values=dict(state.given)), ground(state, plan)))


def scored(state: State, plan: Plan) -> tuple[Scored, ...]:
    """All hypotheses that concern this engine, best first."""
    return once(state, plan, "scored", lambda: _scored(state, plan), state.beliefs)


def _scored(state: State, plan: Plan) -> tuple[Scored, ...]:
    engine = (state.survey or {}).get("engine", "")
    books = [book for book in plan.playbooks if _concerns(book, engine)]
    measured = {name: belief.measured_db for name, belief in state.beliefs.items()}
    return score(books, view(state, plan), measured)


def _concerns(book: Playbook, engine: str) -> bool:
    return not book.actions or any(action.engine in ("any", engine) for action in book.actions)


def ranked_body(state: State, plan: Plan) -> dict[str, Any]:
    """The ranking for the journal: those that stand out, with what speaks for them, and whether the target is out of reach."""
    look, items = view(state, plan), scored(state, plan)
    found = [_row(state, plan, item, look) for item in items if _stands_out(state, item)]  # what can be tested is among them
    kind, sentence = picture.out_of_reach(state, plan, found)
    return {"hypotheses": found[:SHOWN], "ruled_out": _ruled_out(state, items), "reach": kind, "out_of_reach": sentence}


def _stands_out(state: State, item: Scored) -> bool:
    return round(item.probability, 4) >= SHOWN_PROBABILITY or state.beliefs.get(item.id, Belief()).status != "open"


def rows(state: State, plan: Plan) -> list[dict[str, Any]]:
    """Every hypothesis that concerns this engine, as the ranking sees it now."""
    look = view(state, plan)
    return [_row(state, plan, item, look) for item in scored(state, plan)]


def _ruled_out(state: State, items: Sequence[Scored]) -> list[dict[str, Any]]:
    """Causes that the evidence alone excludes, strongest first: what nobody has to spend a launch on."""
    found = [(round(item.score_db, 2), item) for item in items if round(item.score_db, 2) <= item.prior_db - RULED_OUT_DB]
    found.sort(key=lambda one: (one[0], one[1].id))
    rows = ((score_db, item, [_evidence(state, hit) for hit in item.opposing[:2]]) for score_db, item in found)
    return [{"id": item.id, "family": item.family, "score_db": score_db, "against": against} for score_db, item, against in rows if against]


def _row(state: State, plan: Plan, item: Scored, look: Look) -> dict[str, Any]:
    book = plan.playbook(item.id)
    assert book is not None
    belief = state.beliefs.get(item.id, Belief())
    action = _action(book, state, look)
    ratio = _ratio(state, plan, book)
    further = _further(state, belief, action)
    if further and ratio is not None:
        ratio = _left_of(belief, ratio)
    value = _value(state, plan, item, book, ratio)
    testable = (
        (belief.status in OPEN or further or _again(belief, item))
        and item.probability >= MIN_PROBABILITY
        and isinstance(action, SetAction | SpaceAction)
        and ratio is not None
        and value > 0
    )
    return {
        "id": item.id,
        "family": item.family,
        "score_db": round(item.score_db, 2),
        "prior_db": item.prior_db,
        "probability": round(item.probability, 4),
        "status": belief.status,
        "value": round(value, 6),
        "launches": _launches(state, ratio),
        "testable": testable,
        "hand_over": isinstance(action, HandOver),
        "ratio": list(ratio) if ratio else None,
        "addresses": book.addresses,
        "for": [_evidence(state, hit) for hit in item.supporting[:4]],
        "against": [_evidence(state, hit) for hit in item.opposing[:2]],
    }


def _launches(state: State, ratio: tuple[float, float] | None) -> float | None:
    """Launches that a test of the predicted effect is expected to cost, re-measured baselines included."""
    if ratio is None:
        return None
    return round(economy.expected_launches(economy.effect_in_sd(economy.typical_ratio(ratio), pooled(state).sd)), 2)


def _again(belief: Belief, item: Scored) -> bool:
    """A cause that was cured in part: the evidence of the new baseline alone still makes it more likely than not."""
    alone = probability_of(item.score_db - belief.measured_db)
    return belief.status == "supported" and alone >= 0.5 and len(belief.tried) < MAX_POINTS_OF_SPACE and not belief.searched


def _further(state: State, belief: Belief, action: Action | None) -> bool:
    """Whether the space of a cause that paid off is searched further: its first points were somebody's good guesses for other boxes."""
    kept = belief.status == "supported" and len(belief.tried) < MAX_POINTS_OF_SPACE and not belief.searched
    return kept and isinstance(action, SpaceAction) and since.decides_by(state.spec, since.SPACES_SEARCHED) and _far_from_target(state)


def _far_from_target(state: State) -> bool:
    """Whether the noise of launches does not explain that the target is missed: else its confirmation is the better use of a launch."""
    distance = _missing(state)
    return distance is None or math.log(distance) > half_of(state, state.base_arm.results, pooled(state))


def _left_of(belief: Belief, ratio: tuple[float, float]) -> tuple[float, float] | None:
    """What is left of a cause's prediction after what its kept changes brought; None where nothing is."""
    left = ratio[1] / max(belief.gained, 1.0)
    return (1.0, left) if left > 1.0 else None


def _evidence(state: State, hit: Any) -> dict[str, Any]:
    fact = hit.facts[0] if hit.facts else None
    shown = {"fact": fact.name, "value": fact.value, "source": fact.source, "line": fact.line} if fact else {}
    labels = {"labels": dict(fact.labels)} if fact and fact.labels and since.decides_by(state.spec, since.LABELS_SAID) else {}
    return {"rule": hit.rule, "db": hit.db, **shown, **labels}


def _action(book: Playbook, state: State, look: Look) -> Action | None:
    """The first action for this engine whose condition is not known to be false."""
    engine = (state.survey or {}).get("engine", "")
    for action in book.actions:
        if action.engine in ("any", engine) and (action.when is None or evaluate(action.when, look) is not False):
            return action
    return None


def _ratio(state: State, plan: Plan, book: Playbook) -> tuple[float, float] | None:
    """The predicted ratio for the target metric: computed from this launch's facts where the playbook says so."""
    assert state.spec is not None
    primary = state.spec.target.primary
    if book.predicts is None or not _speaks_of(book.predicts.metric, primary.metric if primary else "output_tokens_per_s"):
        return None
    computed = picture.predicted_ratio(state, plan, book)
    low, high = computed if computed is not None else book.predicts.ratio
    return (low, high) if high > 1.0 else None


def _speaks_of(predicted: str, wanted: str) -> bool:
    """Whether a prediction for one metric says anything about another. A higher rate shortens every latency; a shorter time to
    first token or a calmer tail says nothing about the rate."""
    return _kind_of(predicted) in ("rate", _kind_of(wanted))


def _kind_of(metric: str) -> str:
    if metric.startswith("ttft"):
        return "ttft"
    if "_p99" in metric or "_p95" in metric:
        return "tail"
    if metric.endswith(("tokens_per_s", "requests_per_s")) or metric.startswith(("tpot", "itl", "e2e")):
        return "rate"
    return "other"  # served_share and the like: a hang or a failed start, no speed


def _value(state: State, plan: Plan, item: Scored, book: Playbook, ratio: tuple[float, float] | None) -> float:
    """Expected log gain per launch."""
    if ratio is None:
        return 0.0
    noise = pooled(state)
    if not economy.worth_its_own_test(economy.typical_ratio(ratio), noise.sd):
        return 0.0
    gain = economy.expected_gain(
        ratio, distance_to_target=_distance(state), bucket_share=picture.bucket_share(state, plan, book)
    )
    cost = economy.expected_launches(economy.effect_in_sd(economy.typical_ratio(ratio), noise.sd))
    return economy.rank_value(item.probability, gain, cost)


def _distance(state: State) -> float | None:
    """``_missing``, and at least 5 %: a missed guard or a percentile leaves work to do even where the mean is beyond its bound."""
    missing = _missing(state)
    return max(missing, 1.05) if missing is not None else None


def _missing(state: State) -> float | None:
    """Target over current for the primary metric, oriented so that more than 1 means "not there yet"; None where there is neither."""
    assert state.spec is not None
    primary = state.spec.target.primary
    if primary is None or not state.base_arm.results:
        return None
    mean = math.exp(mean_ln(state.base_arm.results))
    return primary.value / mean if primary.direction == "at_least" else 1 / (mean * primary.value)


# ---- choosing -----------------------------------------------------------------------------------------------------


def choose(state: State, plan: Plan) -> tuple[str, dict[str, Any]] | None:
    """(entry kind, body): the next ``chosen``, or the next ``refused``; None when nothing is worth a launch."""
    testable = sorted((row for row in state.ranked if row["testable"]), key=lambda row: (-row["value"], row["id"]))
    for row in testable:
        book = plan.playbook(row["id"])
        if book is not None and row["id"] not in boxes.pending(state):
            kind, body = _candidate(state, plan, book, row)
            if kind != "chosen":
                return kind, body
            body = _bundled(state, plan, body, testable)
            if not _measured_now(state, plan, body):
                return kind, body
    for row in state.ranked:
        if row["hand_over"] and row["status"] in OPEN and row["probability"] >= HAND_OVER_PROBABILITY:
            book = plan.playbook(row["id"])
            action = _action(book, state, view(state, plan)) if book else None
            if book is not None and isinstance(action, HandOver):
                return "refused", {"kind": "hand_over", "hypothesis": book.id, "params": {}, "why": action.text, "source": book.source,
                                   "claim": book.claim}  # fmt: skip
    return None


def _measured_now(state: State, plan: Plan, body: Mapping[str, Any]) -> bool:
    """Whether another box is testing what these changes come to: it waits, and is neither launched nor refused."""
    now = boxes.measured_now(state)
    if not now or body["changes"] is None:
        return False
    base = ground(state, plan)
    given = Settings(values=dict(state.given))
    return point_digest(base.settings.merged(body["changes"]), base) in {point_digest(given.merged(one.values), base) for one in now}


def _bundled(state: State, plan: Plan, body: dict[str, Any], testable: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Causes that the evidence makes all but certain are cured in one launch: a launch is dearer than the attribution, which the
    start-up facts of each cure still show. If the bundle does not pay off as predicted, each is tested alone."""
    if body["hypothesis"] == PRIOR_ART:
        return _with_cures(state, plan, body)
    if state.bundle_failed or body["changes"] is None or body["probability"] < BUNDLE_PROBABILITY:
        return body
    changes, companions, ratios = dict(body["changes"]), [], [body["ratio"]]
    for row in testable:
        book = plan.playbook(row["id"])
        if book is None or book.id in (body["hypothesis"], *boxes.pending(state)) or row["probability"] < BUNDLE_PROBABILITY:
            continue
        kind, other = _candidate(state, plan, book, row)
        if kind != "chosen" or other["changes"] is None or set(other["changes"]) & set(changes):
            continue
        if refuse({**changes, **other["changes"]}, ground(state, plan), tried=tried_digests(state, ground(state, plan))):
            continue
        changes |= other["changes"]
        companions.append({"hypothesis": book.id, "changes": other["changes"], "claim": book.claim, "ratio": row["ratio"],
                           "score_db": row["score_db"]})  # fmt: skip
        ratios.append(row["ratio"])
    if not companions:
        return body
    low, high = max(ratio[0] for ratio in ratios), math.prod(ratio[1] for ratio in ratios)
    shared = _ratios(state, [body, *companions])
    return {**body, "changes": changes, "ratio": [low, high], "bundle": [item["hypothesis"] for item in companions], "companions": companions, **shared}


def _ratios(state: State, tested: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What each of the causes of one launch predicts by itself: needed to share what it says among them."""
    return {"ratios": {item["hypothesis"]: item["ratio"] for item in tested}} if since.decides_by(state.spec, since.SHARED_CREDIT) else {}


def _with_cures(state: State, plan: Plan, body: dict[str, Any]) -> dict[str, Any]:
    """Known-good settings name no cause. Causes that the evidence makes likely and whose whole cure is among them are cured by the
    same launch, and named with it if it pays off; if it does not, nothing is held against them."""
    cures, base, ratios, rest = [], ground(state, plan), [body], set(body["changes"])
    point = base.settings.merged(body["changes"])
    for row in state.ranked:
        book = plan.playbook(row["id"])
        if book is None or book.id == PRIOR_ART or not row["testable"]:
            continue
        kind, other = _candidate(state, plan, book, row)
        # Its cure adds nothing to what is launched anyway.
        if kind == "chosen" and other["changes"] and point_digest(point.merged(other["changes"]), base) == point_digest(point, base):
            cures.append({"hypothesis": book.id, "claim": book.claim, "score_db": row["score_db"]})
            ratios.append({"hypothesis": book.id, "ratio": row["ratio"]})
            rest -= set(other["changes"])
    if not cures:
        return body
    shared = _ratios(state, ratios)
    return {**body, "cures": cures, **shared, **({"rest": sorted(rest)} if shared else {})}


def _candidate(state: State, plan: Plan, book: Playbook, row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    look, base = view(state, plan), ground(state, plan)
    action = _action(book, state, look)
    common = {"hypothesis": book.id, "claim": book.claim, "family": book.family, "ratio": row["ratio"], "probability": row["probability"],
              "score_db": row["score_db"], "value": row["value"], "discriminating_test": book.discriminating_test}  # fmt: skip
    tried = tried_digests(state, base)
    refusals: list[Refusal] = []
    if isinstance(action, SetAction) and book.id == PRIOR_ART:
        # Somebody's whole launch: what this build does not have, or what does nothing here, is left out of it, and said.
        points: Sequence[dict[str, Value]] = (dict(action.params),)
    elif isinstance(action, SetAction):
        resolved = resolve_action(action, look.facts, look.settings, base.spaces, base.flags)
        points = () if isinstance(resolved, Refusal) else (resolved,)
        refusals += [resolved] if isinstance(resolved, Refusal) else []
    elif isinstance(action, SpaceAction):
        space = plan.space(action.space)
        if space is None or (space.requires is not None and evaluate(space.requires, look) is False):
            why = space.why_not if space else f"There is no space {action.space}."
            return "refused", _refusal(book, "unavailable", {}, why or f"{action.space} does not apply here.", book.source)
        points, unresolved = resolve_first(action, look.facts, look.settings, base.spaces, base.flags)
        refusals += unresolved
    else:
        return "refused", _refusal(book, "unavailable", {}, "It has no action for this engine.", book.source)
    for point in points:
        screened = screen(point, base, tried=tried)
        refusals += screened.refusals
        if screened.changes:
            return "chosen", {**common, "changes": screened.changes, "refused_parts": [item.plain() for item in screened.refusals]}
    if isinstance(action, SpaceAction) and (sampled := _sampled(state, plan, book, action, look)) is not None:
        return "chosen", {**common, **sampled}
    worst = refusals[-1] if refusals else None
    why = worst.why if worst else _nothing_to_try(state, book, action, points)
    return "refused", _refusal(book, worst.kind if worst else "unavailable", worst.params if worst else {}, why, worst.source if worst else book.source)


def _nothing_to_try(state: State, book: Playbook, action: SetAction | SpaceAction, points: Sequence[Mapping[str, Value]]) -> str:
    assert state.spec is not None
    if not since.decides_by(state.spec, since.UNITS_SAID) or not isinstance(action, SpaceAction) or points or state.beliefs.get(book.id, Belief()).tried:
        return "No point of its space is left that is worth a launch."
    lost = next((f" {other.text}" for other in book.actions if isinstance(other, HandOver)), "")
    return f"No setting is known to cure it: it names no point of {action.space} to try first, and a space is searched only once a first point paid off.{lost}"


def _refusal(book: Playbook, kind: str, params: Mapping[str, Value], why: str, source: str) -> dict[str, Any]:
    return {"kind": kind, "hypothesis": book.id, "params": dict(params), "why": why, "source": source}


def _sampled(state: State, plan: Plan, book: Playbook, action: SpaceAction, look: Look) -> dict[str, Any] | None:
    """A point that the sampler is asked for: only once its hypothesis has paid off, and not for ever."""
    belief = state.beliefs.get(book.id, Belief())
    # With others in one launch a cause may have paid off and be credited with next to nothing.
    paid_off = belief.measured_db > 0 or (belief.status == "supported" and since.decides_by(state.spec, since.SHARED_CREDIT))
    if not paid_off or len(belief.tried) >= MAX_POINTS_OF_SPACE:
        return None
    space = plan.space(action.space)
    if space is None:
        return None
    params = sampling.live_params(space, action, look)
    names = [param.name for param in params]
    gone = {name: why for name, why in _pruned_dimensions(state, plan, names).items() if name not in action.only}
    if not sampling.screens(state):
        names = [name for name in names if name not in gone]
        return {"changes": None, "space": space.id, "space_params": names, "fixed": {}} if names else None
    params = [param for param in sampling.sampled_params(space, action, look) if param.name not in gone]
    names, grids, out = sampling.dimensions(params, ground(state, plan))
    if since.decides_by(state.spec, since.STARTABLE):
        names, grids, never = sampling.startable(params, names, grids, ground(state, plan), set(names))
        out |= never
    found = {"changes": None, "space": space.id, "space_params": names, "fixed": {}, "grids": grids, "left_out": {**gone, **out}}
    return found if names else None


def _pruned_dimensions(state: State, plan: Plan, names: Sequence[str]) -> dict[str, str]:
    """Parameters that only hypotheses which the evidence excludes would change."""
    items = scored(state, plan)
    return pruned(
        names, plan.playbooks, {item.id: item.probability for item in items}, {item.id: bool(item.opposing) for item in items},
        (state.survey or {}).get("engine", ""), {space.id: [param.name for param in space.params] for space in plan.spaces},
    )  # fmt: skip


def tried_digests(state: State, base: Ground) -> set[str]:
    """Resolved digests of every point that was measured or found infeasible."""
    return once_for("tried", lambda: _tried_digests(state, base), state.given, state.arms, state.baseline, state.beliefs, state.peers, base)


def _tried_digests(state: State, base: Ground) -> set[str]:
    given = Settings(values=dict(state.given))
    here = [arm.settings for arm in state.arms.values() if arm.results or arm.crashed or arm.given_up]
    return {
        point_digest(given.merged(settings.values), base)
        for settings in (*here, *boxes.settled_elsewhere(state))
        if settings.digest != state.baseline.digest
    }
