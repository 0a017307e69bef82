"""The knowledge that ships: it loads, it is complete, and the same texts give the same library."""

from pathlib import Path

import pytest

from optimizer.core.predicate import Look, evaluate
from optimizer.knowledge.causes import FAMILY_OF
from optimizer.knowledge.library import Library, library_from_files, load_library
from optimizer.knowledge.lint import lint
from optimizer.knowledge.load import find_knowledge, read_files
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.playbook import HandOver

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(REPOSITORY))


# A wrong measurement: nothing about the server changes when it is put right.
NO_PREDICTION = {"spec-workload-unrepresentative"}


def test_lint_has_no_error():
    findings = lint(read_files(find_knowledge(REPOSITORY)))
    assert [finding.text for finding in findings if finding.level == "error"] == []


def test_every_cause_has_a_playbook_of_its_family(library: Library):
    assert len(FAMILY_OF) == 64
    assert {book.id: book.family for book in library.playbooks if not book.local} == FAMILY_OF


def test_pinned_texts_give_the_same_library(library: Library):
    again = library_from_files(dict(reversed(list(library.files.items()))))
    assert again == library and again.digest == library.digest
    changed = {**library.files}
    name = next(iter(changed))
    changed[name] += "# a comment\n"
    assert library_from_files(changed).digest != library.digest


def test_every_rule_can_speak_against_and_every_idea_says_what_to_do(library: Library):
    for book in library.playbooks:
        assert all(rule.if_true_db * rule.if_false_db < 0 for rule in book.evidence), book.id
        assert book.actions and book.discriminating_test and book.source.startswith("https://"), book.id
        changes = [action for action in book.actions if not isinstance(action, HandOver)]
        assert book.predicts is not None or not changes or book.id in NO_PREDICTION, book.id


@pytest.mark.parametrize(("ranks", "applies"), [({"tp": 1, "pp": 1, "dp": 1, "nodes": 1}, False), ({"tp": 2, "pp": 1, "dp": 1, "nodes": 1}, True), ({"tp": 1, "pp": 2, "dp": 1, "nodes": 1}, True)])
def test_nccl_is_searched_where_the_servers_ranks_exchange_something_and_not_where_the_box_has_more_gpus(library: Library, ranks: dict[str, int], applies: bool):
    facts = {"gpu.count": 2, "allreduce.custom": "off", **{f"parallel.{name}": size for name, size in ranks.items()}}
    look = Look(Evidence(facts=tuple(Fact(name=name, value=value, source="test") for name, value in facts.items())), {}, {})
    nccl, all_reduce = library.space("nccl/nccl").requires, library.space("sglang/all-reduce").requires
    assert nccl is not None and all_reduce is not None
    assert (evaluate(nccl, look) is not False) is applies
    assert (evaluate(all_reduce, look) is not False) is (ranks["tp"] > 1)
