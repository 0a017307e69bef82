"""Names the cause from evidence alone: bundle and library in, diagnosis out. Starts nothing, measures nothing, and
reads no file itself. Only causes of the taxonomy are named; hypotheses that are local to ``run`` stay silent here."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from optimizer.ceiling.hardware import find_hardware
from optimizer.ceiling.predict import Inputs, computed_ratio
from optimizer.ceiling.shape import shape_from_config, shape_from_facts
from optimizer.core.builds import in_builds
from optimizer.core.predicate import Look, evaluate
from optimizer.core.roofline import ceiling_facts, ceiling_inputs, drafts, level_ceilings, load_points
from optimizer.core.score import Hit, Scored, score
from optimizer.core.validity import invalidities
from optimizer.engines.registry import engines
from optimizer.engines.renames import absent_spellings
from optimizer.errors import EvidenceError, OptimizerError
from optimizer.evidence.bundle import Bundle, read_bundle
from optimizer.evidence.case import DISPUTED
from optimizer.evidence.odd import without_impossible
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.ceiling import ModelShape, NoCeiling
from optimizer.model.diagnosis import Candidate, DeadInUse, Diagnosis, EvidenceLine, Predicted, Reason
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.flags import FlagTable
from optimizer.model.measurement import Invalidity
from optimizer.model.playbook import Action, HandOver, Playbook, SetAction, SpaceAction
from optimizer.runner.compared import asked_for, rates, slower
from optimizer.runner.doubts import believable
from optimizer.runner.next_step import (
    SUSPECT_DB,
    beyond_the_roofline,
    clean_first,
    failed_start,
    held_back,
    launch_cost,
    measure_again,
    next_observation,
    observed,
)
from optimizer.runner.phrases import action_sentence, not_in_build
from optimizer.runner.sheet import differences, missing_facts, seen_facts, vetted

# Policy constants, justified on the cases as a whole: +3 db are odds of 2:1, and the next best must be half as likely.
LEAD_DB = 3.0
DIAGNOSED_DB = 3.0
# End to end within the noise between runs.
NOTHING_TO_GAIN = (0.98, 1.02)


def diagnose(bundle: Bundle, library: Library, baseline: Bundle | None = None) -> Diagnosis:
    """Rank the causes for one bundle. ``baseline`` is a launch of the same box to compare speeds with."""
    bundle = vetted(bundle, library.vocabulary)
    possible, impossible, notes = without_impossible(bundle.evidence)
    bundle = bundle.model_copy(update={"evidence": possible}) if impossible else bundle
    inputs = _inputs(bundle, library)
    evidence = _complete(bundle, inputs, baseline)
    look = Look(facts=evidence, settings=settings_of(bundle), box=_box(evidence))
    scored = score(library.playbooks, look)
    named = [item for item in scored if not library.by_id[item.id].local]
    target = max(inputs, key=lambda item: item.situation.intended, default=None)
    flags = _flags(bundle)
    candidates = tuple(
        _candidate(
            item, library.by_id[item.id], target, _next_step(library.by_id[item.id], look, bundle, library, flags)
        )
        for item in named
    )
    contaminated = contamination(bundle, library)
    ceilings = level_ceilings(inputs)
    beyond = beyond_the_roofline(ceilings)
    verdict_reason = _reason(named, library, look)
    if contaminated and (verdict_reason in ("healthy", "load_limited") or not _stands(named, library, look, contaminated)):
        verdict_reason = "evidence_missing"  # neither that nothing deviates nor that something does can be read from such numbers
    refused = _refused(bundle, impossible)
    if refused and verdict_reason in ("healthy", "load_limited"):
        verdict_reason = "evidence_missing"  # what was refused might have been what deviates
    if beyond and verdict_reason in ("healthy", "load_limited"):
        verdict_reason = "evidence_missing"  # faster than the GPU can be: what was measured, or where, is not what is stated
    behind = slower(bundle, baseline) or asked_for(evidence)
    if behind and verdict_reason in ("healthy", "load_limited"):
        verdict_reason = "evidence_missing"  # nothing known deviates, and yet it is slower than it has to be
    else:
        behind = None
    step = candidates[0].next_step if verdict_reason is None and candidates else None
    if contaminated and verdict_reason is not None:
        step = measure_again(contaminated[0])
    elif contaminated and step is not None:
        step = clean_first(contaminated[0], evidence, candidates[0].id, step)
    elif refused and verdict_reason == "evidence_missing":
        step = f"Correct what cannot be as stated ({', '.join(refused[:4])}), and look again. Cost: none."
    elif beyond and verdict_reason == "evidence_missing" and not failed_start(evidence):
        step = beyond
    elif behind:
        step = behind
    elif verdict_reason is not None:
        step = next_observation(verdict_reason, named, library, look)
    shown = evidence.merged(Evidence(facts=impossible)) if impossible else evidence
    return Diagnosis(
        verdict="diagnosed" if verdict_reason is None else "cannot-tell",
        reason=verdict_reason,
        next_step=step,
        facts=seen_facts(shown, library),
        missing=missing_facts(shown, bundle, library.vocabulary),
        flips=differences(bundle, baseline, library),
        hypotheses=candidates,
        dead_settings=_dead_in_use(bundle, library, look),
        notes=(*_versions(bundle), *_notes(evidence), *notes),
        ceilings=ceilings,
        drafts=drafts(inputs),
        contaminated=contaminated,
    )


def _refused(bundle: Bundle, impossible: Iterable[Fact]) -> tuple[str, ...]:
    """Facts that were stated and support nothing: impossible ones, and those stated twice and differently."""
    disputed = (item.name for item in bundle.evidence.missing if item.reason.startswith(DISPUTED))
    return tuple(dict.fromkeys((*(fact.name for fact in impossible), *disputed)))


def contamination(bundle: Bundle, library: Library) -> tuple[Invalidity, ...]:
    """Why the numbers of this bundle must not be believed; empty when nothing speaks against them."""
    hardware = find_hardware(library.hardware, bundle.gpu or None)
    sheet_gib = None if isinstance(hardware, NoCeiling) else hardware.memory_mib / 1024
    return invalidities(bundle.evidence, gpu_memory_gib=sheet_gib)


def _inputs(bundle: Bundle, library: Library) -> tuple[Inputs, ...]:
    """What the ceiling says of each load level; empty without a benchmark."""
    evidence = bundle.evidence
    shape: ModelShape | NoCeiling
    try:
        config = bundle.model_config_json
        shape = shape_from_config(config, bundle.model) if config else shape_from_facts(evidence, bundle.model)
    except EvidenceError as error:
        shape = NoCeiling(reason=error.message)
    memory_gib = evidence.number("gpu.memory_total_gib")
    name = evidence.value("gpu.name")
    hardware = find_hardware(
        library.hardware, name if isinstance(name, str) else None, memory_gib * 1024 if memory_gib else None
    )
    return ceiling_inputs(evidence, shape, hardware, load_points(bundle.bench))


def _complete(bundle: Bundle, inputs: Sequence[Inputs], baseline: Bundle | None) -> Evidence:
    """The bundle's facts, with derived ones added where nothing was observed."""
    evidence = bundle.evidence
    derived = ceiling_facts(inputs).facts + (_against(bundle, baseline) if baseline is not None else ())
    observed = {fact.name for fact in evidence.facts}
    return evidence.merged(Evidence(facts=tuple(fact for fact in derived if fact.name not in observed)))


def _against(bundle: Bundle, baseline: Bundle) -> tuple[Fact, ...]:
    """Speed relative to the baseline launch, per concurrency that both measured."""
    before = rates(baseline)
    drafting = bundle.evidence.value("spec.method") not in (None, "none")
    plain = baseline.evidence.value("spec.method") in (None, "none")
    name = "spec.speed_ratio" if drafting and plain else "reference.speed_ratio"
    facts = []
    for point in load_points(bundle.bench):
        if point.concurrency in before:
            ratio = float(f"{point.metrics['output_tokens_per_s'] / before[point.concurrency]:.4g}")
            labels = {"concurrency": point.concurrency} if drafting and plain else {"differs": "earlier_run"}
            facts.append(
                Fact(name=name, value=ratio, unit="ratio", labels=labels, source="bench.json", basis="derived")
            )
    return tuple(facts)


def settings_of(bundle: Bundle) -> dict[str, Value]:
    """Effective settings: what was asked, overlaid by what the server resolved, and the variables as ``env.NAME``."""
    settings: dict[str, Value] = {}
    for name in ("settings.asked", "settings.resolved"):
        value = bundle.evidence.value(name)
        if isinstance(value, dict):
            settings.update(value)
    settings.update({f"env.{key}": value for key, value in bundle.env.items()})
    return settings


def _box(evidence: Evidence) -> dict[str, Value]:
    memory_gib = evidence.number("gpu.memory_total_gib")
    count = evidence.number("gpu.count")
    known: dict[str, Value] = {}
    if memory_gib is not None:
        known["gpu.memory_mib"] = memory_gib * 1024
    if count is not None:
        known["gpu.count"] = count
    return known


# --- the verdict ---------------------------------------------------------------------------------------------------


def _reason(scored: Sequence[Scored], library: Library, look: Look) -> Reason | None:
    """None when the best hypothesis stands; otherwise why nobody can tell."""
    best = scored[0] if scored else None
    if best is not None and best.score_db >= DIAGNOSED_DB and best.supporting:
        implied = library.by_id[best.id].implies
        rival = next((item for item in scored[1:] if item.id not in implied), None)
        if rival is None or best.score_db - rival.score_db >= LEAD_DB:
            return None
        return "ambiguous"
    if failed_start(look.facts):
        return "evidence_missing"
    if best is not None and best.score_db > SUSPECT_DB and best.supporting:
        second = scored[1] if len(scored) > 1 else None
        close = second is not None and best.score_db - second.score_db < LEAD_DB and bool(second.supporting)
        return "ambiguous" if close else "evidence_missing"
    if not all(observed(look.facts).values()) or look.facts.value("scheduler.stalled") is True:
        return "evidence_missing"
    if held_back(look.facts) is not None:
        return "evidence_missing"
    return "load_limited" if _load_is_the_limit(look.facts) else "healthy"


def _stands(scored: Sequence[Scored], library: Library, look: Look, doubts: Sequence[Invalidity]) -> bool:
    """Whether the first cause is still the answer without what the contamination reaches. An undecided one has nothing to lose."""
    if _reason(scored, library, look) is not None:
        return True
    left = Look(facts=believable(look.facts, doubts, library.vocabulary), settings=look.settings, box=look.box)
    again = [item for item in score(library.playbooks, left) if not library.by_id[item.id].local]
    return again[0].id == scored[0].id and _reason(again, library, left) is None


def _load_is_the_limit(facts: Evidence) -> bool:
    """An open-loop load that is served in full while the GPU is mostly idle."""
    offered, served = facts.number("client.request_rate"), facts.number("client.requests_per_s")
    waiting, busy = facts.number("queue.depth_p95"), facts.number("gpu.sm_util_p50")
    if offered is None or served is None or served < 0.95 * offered:
        return False
    return (waiting is None or waiting < 1) and (busy is None or busy < 90)


# --- what is said of each hypothesis -------------------------------------------------------------------------------


def _candidate(item: Scored, book: Playbook, target: Inputs | None, next_step: str) -> Candidate:
    return Candidate(
        id=item.id,
        family=item.family,
        probability=round(item.probability, 4),
        score_db=round(item.score_db, 2),
        claim=book.claim,
        evidence=_lines(item.supporting),
        against=_lines(item.opposing),
        predicts=_predicted(book, target),
        next_step=next_step,
    )


def _lines(hits: Iterable[Hit]) -> tuple[EvidenceLine, ...]:
    """The observations behind the rules, strongest first; one observation is listed once."""
    found: dict[tuple[object, ...], EvidenceLine] = {}
    for hit in sorted(hits, key=lambda one: (-abs(one.db), one.rule)):
        for fact in hit.facts:
            key = (
                fact.name,
                fact.source,
                fact.line,
                *sorted((name, str(value)) for name, value in fact.labels.items()),
            )
            found.setdefault(
                key,
                EvidenceLine(
                    fact=fact.name, value=fact.value, source=fact.source or fact.basis, line=fact.line,
                    labels=fact.labels, rule=hit.rule, db=hit.db,
                ),
            )  # fmt: skip
    return tuple(found.values())


def _predicted(book: Playbook, target: Inputs | None) -> Predicted:
    if book.predicts is None:  # curing it changes what is known, not how fast the server is
        return Predicted(metric="output_tokens_per_s", ratio=NOTHING_TO_GAIN)
    ratio = None
    if book.predicts.computed is not None and target is not None:
        ratio = computed_ratio(book.predicts.computed, target)
    if ratio is None or not all(math.isfinite(edge) for edge in ratio):
        return Predicted(metric=book.predicts.metric, ratio=book.predicts.ratio)
    return Predicted(metric=book.predicts.metric, ratio=(round(ratio[0], 3), round(ratio[1], 3)), computed=True)


def _next_step(book: Playbook, look: Look, bundle: Bundle, library: Library, flags: FlagTable) -> str:
    """The action for this engine, else the test that decides; with what it costs."""
    action = applicable(book.actions, bundle.engine, look)
    if action is None:
        return book.discriminating_test
    level = look.facts.number("client.concurrency")
    spaces = [space for space in library.spaces if space.engine in ("any", bundle.engine)]
    if (lacking := not_in_build(action, look, spaces, flags)) is not None:
        offered = [item for item in book.actions if not_in_build(item, look, spaces, flags) is None]
        other = applicable(offered, bundle.engine, look)
        if other is None or isinstance(other, HandOver):
            return f"{lacking} {book.discriminating_test if other is None else other.text}"
        action = other
    sentence = action_sentence(action, look, spaces, flags, int(level) if level else None)
    if isinstance(action, HandOver):
        return f"{sentence} Cost: no launch of ours; it is for a person to do."
    return f"{sentence} Cost: {launch_cost(look.facts)}."


def _flags(bundle: Bundle) -> FlagTable:
    """What this build offers; without its help text only spellings of other versions are filtered."""
    adapter = engines().get(bundle.engine)
    if adapter is None or not bundle.help_text:
        return FlagTable(known=False, absent=absent_spellings(bundle.engine, bundle.engine_version))
    return adapter.flags(bundle.help_text)


def applicable(actions: Iterable[Action], engine: str, look: Look) -> Action | None:
    """The first action for this engine whose condition is not known to be false; changes before hand-overs."""
    fitting = [
        action
        for action in actions
        if action.engine in ("any", engine) and (action.when is None or evaluate(action.when, look) is not False)
    ]
    changes = [action for action in fitting if isinstance(action, SetAction | SpaceAction)]
    handed = [action for action in fitting if isinstance(action, HandOver)]
    return next(iter((*changes, *handed)), None)


def _dead_in_use(bundle: Bundle, library: Library, look: Look) -> tuple[DeadInUse, ...]:
    """Settings that the user gave and that are known to do nothing. An unknown condition never accuses."""
    asked = bundle.evidence.value("settings.asked")
    given = dict(asked) if isinstance(asked, dict) else {}
    found = []
    for entry in library.dead_for(bundle.engine):
        if in_builds(bundle.engine_version, entry.builds) is not True:
            continue
        if entry.when is not None and evaluate(entry.when, look) is not True:
            continue
        for name in entry.params:
            if given.get(name) is not None:
                found.append(DeadInUse(setting=name, value=given[name], why=entry.why))
        for name, value in sorted(bundle.env.items()):
            if name in entry.env or (entry.env_prefix and name.startswith(entry.env_prefix)):
                found.append(DeadInUse(setting=f"env.{name}", value=value, why=entry.why))
    return tuple(found)


def _versions(bundle: Bundle) -> tuple[str, ...]:
    """Files of one bundle that name different builds: one of them is of another launch."""
    stated, logged = bundle.engine_version, bundle.evidence.get("engine.version")
    conflicts = bundle.evidence.value("validity.version_conflict")
    notes = [str(text) for text in conflicts] if isinstance(conflicts, list) else []
    if stated and logged is not None and isinstance(logged.value, str) and logged.source not in ("", "launch.json"):
        one, other = (text.lstrip("v").split("+")[0] for text in (stated, logged.value))
        if one[:1].isdigit() and other[:1].isdigit() and one != other:
            notes.append(f"launch.json says version {stated[:40]}, {logged.source} says {logged.value[:40]}")
    return tuple(notes)


def _notes(evidence: Evidence) -> tuple[str, ...]:
    notes = []
    overridden = evidence.value("settings.overridden")
    if isinstance(overridden, Mapping):
        for name, pair in overridden.items():
            if isinstance(pair, Mapping):
                notes.append(f"{name}: asked for {pair.get('asked')}, the server made it {pair.get('resolved')}")
    if evidence.value("spec.simulated") is True:
        notes.append("acceptance is simulated (SGLANG_SIMULATE_ACC_LEN): the speed is not that of real drafts")
    if evidence.unrecognised_lines:
        first = f", such as {evidence.unrecognised_examples[0]}" if evidence.unrecognised_examples else ""
        notes.append(f"{evidence.unrecognised_lines} log line(s) look like statistics and were not understood{first}")
    return (*notes, *evidence.notes)


def main(arguments: Sequence[str]) -> int:
    """``python -m optimizer.runner.diagnose PATH [BASELINE]``: the JSON of one diagnosis, for benchmarks."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m optimizer.runner.diagnose EVIDENCE [BASELINE]\n")
        return 2
    try:
        library = load_library(find_knowledge())
        bundles = [read_bundle(Path(path)) for path in arguments]
        found = diagnose(bundles[0], library, bundles[1] if len(bundles) > 1 else None)
    except OptimizerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(found.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
