"""Checks knowledge files against each other: names that must exist elsewhere, rules that cannot decide anything, ideas
that could never be believed. Returns findings with file and line; never raises for what a file says, never repairs."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from optimizer.ceiling.predict import COMPUTED
from optimizer.core.builds import in_builds
from optimizer.core.predicate import OPERATORS, comparisons, operands
from optimizer.core.resolve import is_json_param
from optimizer.errors import KnowledgeError
from optimizer.evidence.absent import UNYIELDED
from optimizer.evidence.units import UNITS
from optimizer.knowledge.causes import CAUSES_BY_FAMILY, FAMILY_OF
from optimizer.knowledge.facts import FactSpec, Vocabulary
from optimizer.knowledge.library import Library, build_library, parse_document
from optimizer.knowledge.load import LinePath, LoadedDocument, load_yaml
from optimizer.model.base import Frozen
from optimizer.model.playbook import HandOver, Playbook, SetAction, SpaceAction
from optimizer.model.space import Space

# A prediction whose lower edge lies inside the region of practical equivalence could never be told from nothing.
ROPE_EDGE = 1.01
BELIEVABLE_DB = 0.0
# Collectors whose facts arise over several measurements.
_LATER = frozenset({"repeat", "journal", "client"})
# Parameters that an engine takes although no space samples them (each is in the --help of a release, or in its sources).
ENGINE_PARAMS: Mapping[str, frozenset[str]] = {
    "sglang": frozenset(
        (
            "cuda_graph_backend_decode",
            "disable_decode_cuda_graph",
            "grammar_backend",
            "load_balance_method",
            "mamba_radix_cache_strategy",
        )
    ),
    "vllm": frozenset(
        ("enable_eplb", "env.VLLM_USE_FLASHINFER_SAMPLER", "max_seq_len_to_capture", "speculative_config.enforce_eager")
    ),
    "llamacpp": frozenset(),
}
# Facts that only the tool itself derives; they need no collector.
MANUAL = "manual"


class Finding(Frozen):
    """One thing that is wrong (``error``) or worth a look (``warning``)."""

    file: str
    line: int
    message: str
    level: Literal["error", "warning"] = "error"

    @property
    def text(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def lint(files: Mapping[str, str], *, complete: bool = True) -> tuple[Finding, ...]:
    """Findings of all files, errors first, then by file and line. ``complete``: every known cause needs a playbook."""
    findings: list[Finding] = []
    documents: dict[str, LoadedDocument] = {}
    for name in sorted(files):
        try:
            document = load_yaml(files[name], name)
            parse_document(document)
            documents[name] = document
        except KnowledgeError as error:
            findings.append(_from_error(error, name))
    try:
        library = build_library(documents, {name: files[name] for name in documents})
    except KnowledgeError as error:
        findings.append(_from_error(error, "playbooks"))
        return _sorted(findings)
    findings.extend(_Checks(library, documents, complete and len(documents) == len(files)).all())
    return _sorted(findings)


def lint_one(files: Mapping[str, str], name: str, text: str) -> tuple[Finding, ...]:
    """Findings of one file beside all the others: it takes the place of the one that holds the same playbook, space or
    vocabulary, whatever either is called."""
    mine = _identity(name, text)
    kept = {
        other: words
        for other, words in files.items()
        if other != name and (mine is None or _identity(other, words) != mine)
    }
    return tuple(finding for finding in lint({**kept, name: text}, complete=False) if finding.file == name)


def _identity(name: str, text: str) -> tuple[str, str] | None:
    """What may exist only once in the knowledge; None where several files may say it, or nothing can be read."""
    try:
        kind, records = parse_document(load_yaml(text, name))
    except KnowledgeError:
        return None
    if kind == "facts":
        return kind, ""
    return (kind, records[0].id) if kind in ("playbook", "space") else None


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: (one.level, one.file, one.line, one.message)))


def _from_error(error: KnowledgeError, fallback: str) -> Finding:
    """``file:line: message`` back into its parts."""
    file, _, rest = error.message.partition(":")
    line, _, message = rest.partition(": ")
    if not line.isdigit():
        return Finding(file=fallback, line=1, message=error.message)
    return Finding(file=file, line=int(line), message=f"{message} {error.hint}".strip())


class _Checks:
    """The cross-file checks. Each is one generator of findings."""

    def __init__(self, library: Library, documents: Mapping[str, LoadedDocument], complete: bool) -> None:
        self.library = library
        self.documents = documents
        self.complete = complete

    def all(self) -> Iterator[Finding]:
        for book in self.library.playbooks:
            yield from self.identity(book)
            yield from self.rules(book)
            yield from self.prediction(book)
            yield from self.actions(book)
            yield from self.tests(book)
            yield from self.relations(book)
        yield from self.causes()
        for space in self.library.spaces:
            yield from self.space(space)
        yield from self.dead_and_constraints()
        yield from self.vocabulary()

    def at(self, file: str, path: LinePath, message: str, level: Literal["error", "warning"] = "error") -> Finding:
        document = self.documents.get(file)
        return Finding(file=file, line=document.line(path) if document else 1, message=message, level=level)

    # --- playbooks

    def identity(self, book: Playbook) -> Iterator[Finding]:
        family = FAMILY_OF.get(book.id)
        if family is None and not book.local:
            yield self.at(book.file, ("playbook",), f"{book.id} is no known cause; mark it local: true or correct it")
        elif family is not None and book.local:
            yield self.at(book.file, ("local",), f"{book.id} is a known cause and cannot be local")
        elif family is not None and family != book.family:
            yield self.at(book.file, ("family",), f"{book.id} belongs to the family {family}, not {book.family}")

    def rules(self, book: Playbook) -> Iterator[Finding]:
        best: dict[str, float] = {}
        for index, rule in enumerate(book.evidence):
            where: LinePath = ("evidence", index)
            yield from self.condition(book.file, rule.when, (*where, "when"))
            if rule.when.get("present") is True and "fact" in rule.when:
                message = f"the rule {rule.id} cannot fail: a fact that is missing is unknown, never absent"
                yield self.at(book.file, (*where, "when"), message)
            best[rule.group] = max(best.get(rule.group, 0.0), rule.if_true_db, rule.if_false_db)
        reach = book.prior_db + sum(best.values())
        if reach < BELIEVABLE_DB:
            message = f"{book.id} can never be believed: prior and all evidence for it add up to {reach:g} db"
            yield self.at(book.file, ("evidence",), message)

    def prediction(self, book: Playbook) -> Iterator[Finding]:
        acts = any(isinstance(action, SetAction | SpaceAction) for action in book.actions)
        if book.predicts is None:
            if acts and not book.local and _gains(book):
                yield self.at(book.file, ("actions",), "an action without a prediction cannot be judged", "warning")
            return
        low, _ = book.predicts.ratio
        if low <= ROPE_EDGE:
            message = f"the predicted ratio starts at {low:g}, inside the noise (it must exceed {ROPE_EDGE:g})"
            yield self.at(book.file, ("predicts", "ratio"), message)
        if book.predicts.computed is not None and book.predicts.computed not in COMPUTED:
            known = ", ".join(sorted(COMPUTED))
            message = f"there is no computation {book.predicts.computed} (there are {known})"
            yield self.at(book.file, ("predicts", "computed"), message)

    def actions(self, book: Playbook) -> Iterator[Finding]:
        if not book.actions:
            yield self.at(book.file, ("playbook",), f"{book.id} says neither what to change nor whom to hand it to")
        for index, action in enumerate(book.actions):
            where: LinePath = ("actions", index)
            if action.when is not None:
                yield from self.condition(book.file, action.when, (*where, "when"))
            if isinstance(action, SetAction):
                yield from self.values(book.file, action.params, (*where, "params"))
                yield from self.names(book.file, action, (*where, "params"))
            elif isinstance(action, SpaceAction):
                yield from self.space_action(book.file, action, where)
            elif isinstance(action, HandOver) and not action.text.strip():
                yield self.at(book.file, (*where, "text"), "the hand-over is empty")

    def space_action(self, file: str, action: SpaceAction, where: LinePath) -> Iterator[Finding]:
        space = self.library.space_by_id.get(action.space)
        if space is None:
            yield self.at(file, (*where, "space"), f"the space {action.space} does not exist")
            return
        if action.engine != "any" and space.engine not in ("any", action.engine):
            yield self.at(file, (*where, "engine"), f"the space {space.id} is for {space.engine}")
        names = {param.name for param in space.params}
        for name in action.only:
            if name not in names:
                yield self.at(file, (*where, "only"), f"{space.id} has no parameter {name}")
        for index, point in enumerate(action.try_first):
            path: LinePath = (*where, "try_first", index)
            for name in point:
                if name not in names or (action.only and name not in action.only):
                    yield self.at(file, path, f"{name} is none of the sampled parameters of {space.id}")
            yield from self.values(file, point, path)

    def values(self, file: str, params: Mapping[str, Any], where: LinePath) -> Iterator[Finding]:
        for name, value in params.items():
            if not isinstance(value, dict):
                continue
            for key in ("fact", "grid_above", "grid_below"):
                if isinstance(value.get(key), str) and value[key] not in self.library.vocabulary.by_name:
                    yield self.at(file, (*where, name), f"the fact {value[key]} is not in the vocabulary")

    def names(self, file: str, action: SetAction, where: LinePath) -> Iterator[Finding]:
        """A parameter that nothing knows would be refused at every launch, so it is a slip of the pen."""
        if not any(space.engine == action.engine or action.engine == "any" for space in self.library.spaces):
            return  # a knowledge without spaces of this engine says nothing of its parameters
        known = self._known_params(action.engine)
        for name in action.params:
            if name not in known:
                near = get_close_matches(name, sorted(known), n=1, cutoff=0.75)
                hint = f" (did you mean {near[0]}?)" if near else ""
                engine = "any engine" if action.engine == "any" else action.engine
                yield self.at(
                    file, (*where, name), f"no space and no engine knows the parameter {name} of {engine}{hint}"
                )

    def _known_params(self, engine: str) -> set[str]:
        fits = ("any", engine) if engine != "any" else ("any", *ENGINE_PARAMS)
        known = {param.name for space in self.library.spaces if space.engine in fits for param in space.params}
        foreign = {param.name for space in self.library.spaces for param in space.params} - known
        for names in (
            *(item.names for item in self.library.directions if item.engine in fits),
            *(item.params for item in self.library.dead if item.engine in fits),
        ):
            known |= set(names) - foreign  # a record for any engine names those of all
        for name in fits:
            known |= ENGINE_PARAMS.get(name, frozenset())
        return known | {name.partition(".")[0] for name in known if is_json_param(name)}

    def tests(self, book: Playbook) -> Iterator[Finding]:
        known = {test.name for test in self.library.vocabulary.tests}
        for index, name in enumerate(book.tests):
            if name not in known:
                yield self.at(book.file, ("tests", index), f"the test {name} is not in the vocabulary")
        if not book.discriminating_test.strip():
            yield self.at(book.file, ("playbook",), f"{book.id} names no discriminating test", "warning")

    def relations(self, book: Playbook) -> Iterator[Finding]:
        for kind in ("excludes", "implies"):
            for other in getattr(book, kind):
                if other not in self.library.by_id:
                    yield self.at(book.file, (kind, other), f"{kind}: there is no hypothesis {other}")
        for other in sorted(set(book.excludes) & set(book.implies)):
            yield self.at(book.file, ("implies", other), f"{book.id} both excludes and implies {other}")

    def causes(self) -> Iterator[Finding]:
        if not self.complete:
            return
        for family, causes in CAUSES_BY_FAMILY.items():
            for cause in causes:
                if cause not in self.library.by_id:
                    message = f"the cause {cause} ({family}) has no playbook"
                    yield Finding(file="playbooks", line=1, message=message)

    # --- conditions, spaces, dead settings, vocabulary

    def condition(self, file: str, when: Any, where: LinePath) -> Iterator[Finding]:
        vocabulary = self.library.vocabulary
        for operand in operands(when):
            if operand.kind != "fact":
                continue
            if (mistake := vocabulary.mistake(operand.name, "present", True, operand.labels)) is not None:
                yield self.at(file, (*where, *operand.path), mistake)
        for comparison in comparisons(when):
            if comparison.left.kind != "fact" or comparison.left.name not in vocabulary.by_name:
                continue
            mistake = vocabulary.mistake(comparison.left.name, comparison.operator, comparison.right, {})
            mistake = mistake or vocabulary.beyond(comparison.left.name, comparison.operator, comparison.right)
            if mistake is not None:
                yield self.at(file, (*where, *comparison.path), mistake)

        if (answer := _settled(when, vocabulary)) is not None and not _only_present(when):
            message = f"the rule cannot fail: it {'always' if answer else 'never'} holds, by the bounds of the facts that it asks for"
            yield self.at(file, where, message)

    def space(self, space: Space) -> Iterator[Finding]:
        if space.requires is not None:
            yield from self.condition(space.file, space.requires, ("requires",))
            if not space.why_not.strip():
                yield self.at(space.file, ("space",), f"{space.id} can be pointless but does not say why (why_not)")
        used = self._used_params(space)
        for param in space.params:
            where: LinePath = ("params", param.name)
            if param.when is not None:
                yield from self.condition(space.file, param.when, (*where, "when"))
            if param.builds is not None and in_builds("1.0", param.builds) is None:
                yield self.at(space.file, (*where, "builds"), f"the range of builds {param.builds!r} cannot be read")
            for other, value in param.same.items():
                if other in param.grid or value not in param.grid:
                    yield self.at(space.file, (*where, "same"), f"same: {other} has to be another name of a value of the grid, and {value!r} one of it")
            for fact in param.flips:
                spec = self.library.vocabulary.by_name.get(fact)
                if spec is None:
                    yield self.at(space.file, (*where, "flips"), f"flips: the fact {fact} is not in the vocabulary")
                elif spec.phase != "before":
                    yield self.at(space.file, (*where, "flips"), f"flips: {fact} is no start-up fact")
            if param.name not in used and MANUAL not in param.note.lower():
                message = f"no playbook tries {param.name}; say manual in its note if that is meant"
                yield self.at(space.file, where, message, "warning")

    def _used_params(self, space: Space) -> set[str]:
        used: set[str] = set()
        for book in self.library.playbooks:
            for action in book.actions:
                if isinstance(action, SetAction):
                    used |= set(action.params)
                elif isinstance(action, SpaceAction) and action.space == space.id:
                    used |= set(action.only or (param.name for param in space.params))
        return used

    def dead_and_constraints(self) -> Iterator[Finding]:
        for records, key in ((self.library.dead, "settings"), (self.library.constraints, "rules")):
            position: dict[str, int] = {}
            for record in records:
                index = position.get(record.file, 0)
                position[record.file] = index + 1
                where: LinePath = (key, index)
                if record.when is not None:
                    yield from self.condition(record.file, record.when, (*where, "when"))
                if record.builds is not None and in_builds("1.0", record.builds) is None:
                    message = f"the range of builds {record.builds!r} cannot be read"
                    yield self.at(record.file, (*where, "builds"), message)

    def vocabulary(self) -> Iterator[Finding]:
        vocabulary = self.library.vocabulary
        file = next(
            (name for name, document in self.documents.items() if "facts" in document.data), "playbooks/facts.yaml"
        )
        labels = {label.name for label in vocabulary.labels}
        collectors = {collector.name for collector in vocabulary.collectors}
        used = self._asked_for() if self.complete else None
        for index, fact in enumerate(vocabulary.facts):
            yield from self._fact(file, ("facts", index), fact, labels, collectors)
            if used is not None:
                yield from self._coverage(file, ("facts", index), fact, used)

    def _asked_for(self) -> set[str]:
        """Names of all facts that a rule, an action, a space or a dead setting asks for."""
        found: set[str] = set()
        for document in self.documents.values():
            if "facts" not in document.data:
                found |= _fact_names(document.data)
        return found

    def _coverage(self, file: str, where: LinePath, fact: FactSpec, used: set[str]) -> Iterator[Finding]:
        """A fact that nobody can state makes every rule about it silent for ever; one that nobody asks for either is a word."""
        yielded = fact.name in UNITS and fact.name not in UNYIELDED
        if yielded or (fact.name in UNYIELDED and fact.name in used):
            return  # the second: only a test or a person can tell, and the sheet says which
        if fact.name in used:
            message = f"{fact.name}: no collector yields it, so every rule that asks for it stays silent"
        elif fact.name in UNYIELDED and set(fact.collectors) & _LATER:
            return  # a repetition or a comparison states it; people read it
        else:
            message = f"{fact.name}: no collector yields it and no playbook uses it"
        yield self.at(file, where, message, "warning")

    def _fact(
        self, file: str, where: LinePath, fact: FactSpec, labels: set[str], collectors: set[str]
    ) -> Iterator[Finding]:
        for label in fact.labels:
            if label not in labels:
                yield self.at(file, where, f"{fact.name}: the label {label} is not declared")
        for collector in fact.collectors:
            if collector not in collectors:
                yield self.at(file, where, f"{fact.name}: the collector {collector} is not declared")
        if not fact.collectors:
            yield self.at(file, where, f"{fact.name} has no collector")


def _only_present(when: Any) -> bool:
    """A tree that is nothing but ``present``: a rule says so by itself (``rules``), an action may ask for it."""
    return isinstance(when, Mapping) and "present" in when


def _settled(when: Any, vocabulary: Vocabulary) -> bool | None:
    """The answer that a whole tree has whatever is observed; None when it can have both."""
    if not isinstance(when, Mapping):
        return None
    for key, decisive in (("all", False), ("any", True)):
        if key in when:
            parts = [_settled(part, vocabulary) for part in when[key]] if isinstance(when[key], list) else []
            if decisive in parts:
                return decisive
            return not decisive if parts and None not in parts else None
    if "not" in when:
        inner = _settled(when["not"], vocabulary)
        return None if inner is None else not inner
    if not isinstance(when.get("fact"), str):
        return None
    operator = next((name for name in OPERATORS if name in when), "")
    if not operator or isinstance(when[operator], Mapping):
        return None
    return vocabulary.settled(when["fact"], operator, when[operator])


def _fact_names(node: Any) -> set[str]:
    """Every value of a key ``fact`` or ``present``-like operand, and the lists of flips, anywhere in a document."""
    if isinstance(node, Mapping):
        found = set().union(*(_fact_names(value) for value in node.values())) if node else set()
        for key in ("fact", "grid_above", "grid_below"):
            if isinstance(node.get(key), str):
                found.add(node[key])
        flips = node.get("flips")
        return found | ({name for name in flips if isinstance(name, str)} if isinstance(flips, list) else set())
    if isinstance(node, list):
        return set().union(*(_fact_names(item) for item in node)) if node else set()
    return set()


def _gains(book: Playbook) -> bool:
    return book.addresses != "none"

