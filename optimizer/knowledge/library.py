"""All knowledge of one run: playbooks, spaces, dead settings, constraints, hardware and the fact vocabulary, together
with the very texts they were read from, so that a study pins what it decided with. Reads nothing after loading; the
same texts give the same library.

File formats (strict YAML, see ``load.py``; the first key tells the kind; each record maps one to one onto the fields of
its type; ``source`` is required throughout; words like "on", "off", "no" must be quoted, 4.8e12 is a number):

``playbooks/**.yaml``
    ``playbook: ID``, then the fields of ``model.playbook.Playbook`` (``actions`` is a list; each action names its
    ``kind``: set, space or hand_over)::

        playbook: cuda-graph-disabled
        family: config
        claim: ...
        prior_db: -10
        addresses: eager
        evidence:
          - {id: flag, group: mode, if_true_db: 14, if_false_db: -6, when: {fact: graphs.disable_flag, eq: true}}
        predicts: {metric: output_tokens_per_s, ratio: [1.2, 5.0]}
        actions:
          - {kind: set, engine: sglang, params: {disable_cuda_graph: null}}
          - {kind: space, engine: sglang, space: sglang/decode-graphs, only: [cuda_graph_max_bs],
             try_first: [{cuda_graph_max_bs: {grid_above: graphs.required_size}}]}
        source: https://...
``playbooks/facts.yaml``
    ``version``, ``conventions``, ``units``, ``collectors``, ``labels``, ``warning_codes``, ``tests``, ``probes`` and
    ``facts: [fields of knowledge.facts.FactSpec]``.
``playbooks/hardware.yaml``
    ``hardware: gpus``, ``revision: 1``, ``gpus: [fields of model.ceiling.HardwareSpec]``.
``playbooks/ENGINE/dead.yaml``
    ``dead: ENGINE`` (any, sglang, vllm, llamacpp), ``revision: 1``, ``settings: [fields of model.space.DeadSetting]``
    without ``engine`` and ``file``.
``playbooks/ENGINE/constraints.yaml``
    ``constraints: ENGINE``, ``revision: 1``, ``rules: [fields of model.space.Constraint]`` without ``engine`` and
    ``file``.
``search_spaces/directions.yaml``
    ``directions: any``, ``revision: 1``, ``params: [fields of model.space.Direction]`` without ``engine`` and ``file``.
``search_spaces/**.yaml``
    ``space: ENGINE/NAME``, ``revision``, ``engine``, ``requires``, ``why_not`` and
    ``params: {NAME: fields of model.space.Param without name}`` (flags in snake_case, variables as ``env.NAME``).

Conditions (``when``, ``requires``)::

    {all: [...]}  {any: [...]}  {not: ...}
    {fact: NAME, labels: {...}, OP: RIGHT}  {setting: NAME, OP: RIGHT}  {box: NAME, OP: RIGHT}

OP is one of gt ge lt le eq ne in contains between present last_lt; RIGHT is a literal, or {fact|setting|box: NAME,
times: k, plus: n} for the single-valued ones. Missing means unknown; a setting that was not given equals null."""

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from optimizer.core.whole_space import space_named
from optimizer.errors import KnowledgeError
from optimizer.knowledge import playbook as schemas
from optimizer.knowledge.facts import Vocabulary
from optimizer.knowledge.load import KnowledgeRoots, LoadedDocument, load_yaml, read_files
from optimizer.model.base import Frozen
from optimizer.model.canonical import digest
from optimizer.model.ceiling import HardwareSpec
from optimizer.model.learned import Learned
from optimizer.model.playbook import Playbook
from optimizer.model.space import Constraint, DeadSetting, Direction, Space

_KINDS = ("playbook", "space", "dead", "constraints", "directions", "learned", "hardware", "facts")


class Library(Frozen):
    """What was loaded, in the order of the file names. ``files`` maps path below the root -> text."""

    playbooks: tuple[Playbook, ...] = ()
    spaces: tuple[Space, ...] = ()
    dead: tuple[DeadSetting, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    directions: tuple[Direction, ...] = ()
    learned: tuple[Learned, ...] = ()
    hardware: tuple[HardwareSpec, ...] = ()
    vocabulary: Vocabulary = Vocabulary(version=0, facts=())
    files: Mapping[str, str] = {}

    @cached_property
    def digest(self) -> str:
        """sha256 over names and texts: two libraries with one digest decide alike."""
        return digest(dict(self.files))

    @cached_property
    def by_id(self) -> dict[str, Playbook]:
        return {book.id: book for book in self.playbooks}

    @cached_property
    def space_by_id(self) -> dict[str, Space]:
        return {space.id: space for space in self.spaces}

    def space(self, space_id: str) -> Space:
        """The space of that id, or the whole one of an engine. Raises KeyError."""
        found = space_named(self.spaces, space_id)
        if found is None:
            raise KeyError(space_id)
        return found

    def dead_for(self, engine: str) -> tuple[DeadSetting, ...]:
        return tuple(item for item in self.dead if item.engine in ("any", engine))

    def constraints_for(self, engine: str) -> tuple[Constraint, ...]:
        return tuple(item for item in self.constraints if item.engine in ("any", engine))


def load_library(roots: KnowledgeRoots) -> Library:
    """Read and parse every file below the two folders. Raises KnowledgeError at the first one that is wrong."""
    return library_from_files(read_files(roots))


def library_from_files(files: Mapping[str, str]) -> Library:
    """The library that these texts describe, as pinned in a journal: same texts, same library, byte for byte."""
    return _library_of(tuple(sorted(files.items())))


@lru_cache(maxsize=4)  # a resumed study needs the pinned one and today's, which are mostly the same, and reading one takes a third of a start
def _library_of(files: tuple[tuple[str, str], ...]) -> Library:
    return build_library({name: load_yaml(text, name) for name, text in files}, dict(files))


def build_library(documents: Mapping[str, LoadedDocument], files: Mapping[str, str]) -> Library:
    """Turn loaded documents into domain types and refuse what may exist only once."""
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    for name in sorted(documents):
        kind, records = parse_document(documents[name])
        found[kind].extend(records)
    _unique(documents, found["playbook"], "playbook")
    _unique(documents, found["space"], "space")
    _no_circles(documents, found["playbook"])
    if len(found["facts"]) > 1:
        raise KnowledgeError("playbooks: more than one file holds the fact vocabulary.", hint="Keep one facts.yaml.")
    return Library(
        playbooks=tuple(found["playbook"]),
        spaces=tuple(found["space"]),
        dead=tuple(found["dead"]),
        constraints=tuple(found["constraints"]),
        directions=tuple(found["directions"]),
        learned=tuple(found["learned"]),
        hardware=tuple(found["hardware"]),
        vocabulary=found["facts"][0] if found["facts"] else Vocabulary(version=0, facts=()),
        files=dict(sorted(files.items())),
    )


def parse_document(document: LoadedDocument) -> tuple[str, tuple[Any, ...]]:
    """(kind, records) of one file. The kind is told by the one top-level key that names it."""
    kinds = [kind for kind in _KINDS if kind in document.data]
    if len(kinds) != 1:
        raise document.error(
            f"the kind of the file is unclear: exactly one of {', '.join(_KINDS)} must be a key of it",
            hint="The formats are described in optimizer/knowledge/library.py.",
        )
    parse: Mapping[str, Callable[[LoadedDocument], Any]] = {
        "playbook": lambda loaded: (schemas.playbook(loaded),),
        "space": lambda loaded: (schemas.space(loaded),),
        "dead": schemas.dead_settings,
        "constraints": schemas.constraints,
        "directions": schemas.directions,
        "learned": schemas.learned,
        "hardware": schemas.hardware,
        "facts": lambda loaded: (schemas.vocabulary(loaded),),
    }
    return kinds[0], tuple(parse[kinds[0]](document))


def _no_circles(documents: Mapping[str, LoadedDocument], books: list[Any]) -> None:
    """Relations are applied once; a circle would make the result depend on where one starts."""
    by_id = {book.id: book for book in books}
    for kind in ("excludes", "implies"):
        edges = {name: sorted(getattr(by_id[name], kind)) for name in by_id}
        for start in sorted(edges):
            if (cycle := _cycle_from(start, edges)) is not None and min(cycle) == start:
                where = (kind, cycle[1] if len(cycle) > 1 else start)
                raise documents[by_id[start].file].error(f"{kind} is cyclic: {' -> '.join((*cycle, start))}", where, hint="Leave one of them away.")


def _unique(documents: Mapping[str, LoadedDocument], records: list[Any], kind: str) -> None:
    first: dict[str, str] = {}
    for record in records:
        if record.id in first:
            message = f"the {kind} {record.id} is already defined in {first[record.id]}"
            raise documents[record.file].error(message, (kind,))
        first[record.id] = record.file


def _cycle_from(start: str, edges: Mapping[str, list[str]]) -> tuple[str, ...] | None:
    """A path start -> ... -> start, or None. Depth first, iterative."""
    stack: list[tuple[str, tuple[str, ...]]] = [(start, (start,))]
    seen: set[str] = set()
    while stack:
        node, path = stack.pop()
        for following in edges.get(node, ()):
            if following == start:
                return path
            if following not in seen:
                seen.add(following)
                stack.append((following, (*path, following)))
    return None
