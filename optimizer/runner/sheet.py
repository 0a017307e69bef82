"""The evidence sheet of a diagnosis: every fact of the vocabulary, found with its source and what is odd about it, or missing with
its reason; what two bundles differ in. Refuses observations that the vocabulary cannot hold. Ranks nothing."""

from collections.abc import Mapping

from optimizer.core.ledger import fallbacks, flips
from optimizer.evidence.absent import why_absent
from optimizer.evidence.bundle import Bundle
from optimizer.evidence.odd import odd
from optimizer.knowledge.facts import Vocabulary
from optimizer.knowledge.library import Library
from optimizer.model.base import Value
from optimizer.model.diagnosis import MissingFact, SeenFact
from optimizer.model.evidence import Evidence, Fact, Missing
from optimizer.model.startup import Flip

READ_ENGINES = ("sglang", "vllm", "llamacpp")
# Settings that differ between any two launches and change nothing.
_NAMES = frozenset({"port", "host", "served_model_name", "nccl_port", "dist_init_addr", "log_level", "model_path", "model"})


def vetted(bundle: Bundle, vocabulary: Vocabulary) -> Bundle:
    """The bundle without observations that the vocabulary cannot hold; each refusal is a note and a missing fact."""
    kept: list[Fact] = []
    missing: list[Missing] = []
    notes: list[str] = []
    if bundle.engine not in READ_ENGINES:
        notes.append(
            f"engine {bundle.engine[:40]!r} is none whose logs and flags are understood ({', '.join(READ_ENGINES)}): only the facts "
            "that the evidence states and lines of NCCL were used"
        )
    for fact in bundle.evidence.facts:
        why = vocabulary.misfit(fact)
        if why is None:
            kept.append(fact)
            continue
        missing.append(Missing(name=fact.name, reason=f"{fact.source or 'the evidence'} states it, but {why}"))
        notes.append(f"{fact.name}: left out, because {why}")
    if not notes:
        return bundle
    evidence = bundle.evidence.model_copy(update={"facts": tuple(kept)})
    evidence = evidence.merged(Evidence(missing=tuple(missing), notes=tuple(notes)))
    return bundle.model_copy(update={"evidence": evidence})


def seen_facts(evidence: Evidence, library: Library) -> tuple[SeenFact, ...]:
    """Every fact that was read, in the order of reading, with what is odd about it."""
    found = []
    for fact in evidence.facts:
        mark = odd(fact, evidence)
        spec = library.vocabulary.by_name.get(fact.name)
        found.append(
            SeenFact(
                fact=fact.name, value=fact.value, unit=fact.unit or library.vocabulary.unit(fact.name), source=fact.source or fact.basis,
                line=fact.line, labels=fact.labels, span=fact.span, basis=fact.basis, bound=fact.bound,
                resource=spec.resource if spec is not None else "", odd=mark.kind if mark else None, why_odd=mark.why if mark else "",
            )
        )  # fmt: skip
    return tuple(found)


def missing_facts(evidence: Evidence, bundle: Bundle, vocabulary: Vocabulary) -> tuple[MissingFact, ...]:
    """Every fact of the vocabulary that was not found, and why, in the vocabulary's order; then what else could not be read."""
    names = {fact.name for fact in evidence.facts}
    found = [
        MissingFact(
            fact=spec.name, resource=spec.resource,
            reason=why_absent(spec.name, spec.collectors, spec.phase, evidence, bundle.files, bundle.kind),
        )
        for spec in vocabulary.facts
        if spec.name not in names
    ]  # fmt: skip
    known = {spec.name for spec in vocabulary.facts}
    found += [MissingFact(fact=item.name, resource="evidence", reason=item.reason) for item in evidence.missing if item.name not in known]
    return tuple(found)


def differences(bundle: Bundle, baseline: Bundle | None, library: Library) -> tuple[Flip, ...]:
    """The fallback ledger: against the baseline's start, or, without one, what the log itself names."""
    if baseline is None:
        return fallbacks(bundle.evidence)
    declared = {param.name: param.flips for space in library.spaces for param in space.params}
    return flips(baseline.evidence, bundle.evidence, changed(asked(baseline), asked(bundle)), declared)


def asked(bundle: Bundle) -> dict[str, Value]:
    """Flags as typed, and variables as ``env.NAME``."""
    flags = bundle.evidence.value("settings.asked")
    return {**(flags if isinstance(flags, dict) else {}), **{f"env.{name}": value for name, value in bundle.env.items()}}


def changed(before: Mapping[str, Value], after: Mapping[str, Value]) -> dict[str, tuple[Value, Value]]:
    """Settings whose asked value differs: name -> (before, after)."""
    names = sorted((set(before) | set(after)) - _NAMES)
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}
