"""Whether the rules say what causes do, or what the published cases happened to say: every cause from first principles,
the published cases as another observer would have written them down, and healthy launches at other loads."""

import json
import random
from functools import cache
from pathlib import Path

import pytest

from optimizer.evidence.bundle import bundle_from_case, read_bundle
from optimizer.knowledge.causes import FAMILY_OF
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Frozen
from optimizer.runner.diagnose import diagnose

from . import perturbing
from .distractors import filled, healthy_facts
from .first_principles import STORIES, incidents
from .judging import HIDDEN, judge, load, share

TESTS = Path(__file__).parents[1]
RECORDINGS = TESTS / "recordings"
H200 = RECORDINGS / "sglang-0.5.12-h200"
facts_of = cache(healthy_facts)


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(TESTS.parent))


@pytest.fixture(scope="module")
def known():
    cases, labels = load(TESTS / "incidents")
    return [case for case in cases if labels[case["id"]]["diagnosable"]], labels


def beside_a_healthy_launch(case):
    return filled(case, facts_of(RECORDINGS, case["engine"], case.get("gpu_count") or 1))


def answer(case, library: Library):
    shown = {key: value for key, value in case.items() if key not in HIDDEN}
    return diagnose(bundle_from_case(json.dumps(shown).encode()), library)


def test_every_cause_has_a_story():
    assert set(STORIES) == set(FAMILY_OF)


@pytest.mark.parametrize("cause", sorted(STORIES))
def test_a_cause_comes_first_by_what_it_does(cause: str, library: Library):
    for story_of, engine, number, case in incidents():
        if story_of != cause:
            continue
        for name, shown in (("alone", case), ("beside a healthy launch", beside_a_healthy_launch(case))):
            found = answer(shown, library)
            assert found.hypotheses[0].id == cause, (engine, number, name)
            if found.verdict == "cannot-tell":  # it may be unsure of the right one, never of another
                assert found.reason in ("ambiguous", "evidence_missing"), (engine, number, name)


@pytest.mark.parametrize(
    ("name", "change", "least", "surely_wrong"),
    [
        ("one observation less", lambda case, chance: perturbing.leave_out(case, chance, 1), 0.90, 0.01),
        ("two observations less", lambda case, chance: perturbing.leave_out(case, chance, 2), 0.88, 0.02),
        ("other magnitudes", perturbing.rescaled, 0.97, 0.0),
        ("another build", lambda case, chance: perturbing.other_build(case), 0.98, 0.0),
        ("the other engine", lambda case, chance: perturbing.other_engine(case), 0.96, 0.0),
    ],
)
def test_no_case_hinges_on_one_observation(name, change, least, surely_wrong, known, library: Library):
    chance = random.Random(name)
    rows = judge(*known, library, change=lambda case: change(case, chance))
    right = share(rows, lambda row: row.right)
    wrong = share(rows, lambda row: not row.right and not row.abstained)
    print(f"{name}: right {right:.3f}, named another cause {wrong:.3f}")
    assert right >= least and wrong <= surely_wrong


def test_without_its_strongest_observation_it_abstains_rather_than_errs(known, library: Library):
    def weakened(case):
        found = answer(case, library).hypotheses[0].evidence
        return perturbing.without_fact(case, found[0].fact) if found else case

    rows = judge(*known, library, change=weakened)
    assert share(rows, lambda row: row.right) >= 0.70
    assert not [row.case for row in rows if not row.right and not row.abstained]


HEALTHY = ("tp1-7b-graph32-b", "tp1-7b-contdecode8", "tp2-27b-graph32")


@pytest.mark.parametrize("run", HEALTHY)
def test_a_healthy_launch_abstains_at_every_level_that_it_was_measured_at(run: str, library: Library):
    """As if the benchmark had stopped earlier: fewer levels, another highest one."""
    bundle = read_bundle(H200 / run)
    levels = sorted({row["c"] for row in bundle.bench})
    for highest in levels:
        rows = tuple(row for row in bundle.bench if row["c"] <= highest)
        kept = [
            fact for fact in bundle.evidence.facts
            if not (fact.name.startswith("client.") and isinstance(fact.labels.get("concurrency"), int) and fact.labels["concurrency"] > highest)
        ]  # fmt: skip
        evidence = bundle.evidence.model_copy(update={"facts": tuple(_at(fact, highest, rows) for fact in kept)})
        found = diagnose(_copied(bundle, evidence, rows), library)
        assert (found.verdict, found.reason) == ("cannot-tell", "healthy"), (highest, found.hypotheses[0].id)


def _at(fact, level: int, rows):
    """The unlabelled client facts name the highest level."""
    top = next(row for row in rows if row["c"] == level)
    values = {"client.concurrency": level, "client.output_tps": top["output_tps"], "client.itl_ms_p50": top["tpot_p50_ms"],
              "client.ttft_ms_p50": top["ttft_p50_ms"]}  # fmt: skip
    return fact.model_copy(update={"value": values[fact.name]}) if fact.name in values and not fact.labels else fact


def _copied(bundle, evidence, rows):
    if isinstance(bundle, Frozen):
        return bundle.model_copy(update={"evidence": evidence, "bench": rows})
    from dataclasses import replace

    return replace(bundle, evidence=evidence, bench=rows)
