"""A cause that paid off is searched further: its first points are good guesses for other boxes, and what is left of its prediction is
worth asking a sampler for. A further point that fails says nothing against the one that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optimizer.core.state import State
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.runner.recorded import MemoryLog, verify

from .test_proposals import PLAN as OTHERS
from .test_proposals import SMALL_POOL, Box, bodies, proposals, run

PLAN = replace(OTHERS, playbooks=(SMALL_POOL.model_copy(update={"evidence": (SMALL_POOL.evidence[0].model_copy(update={"if_false_db": -3}),)}),))


class Cured(Box):
    """After the first point hardly anything tells of the cause any more; a better one is there all the same."""

    def _facts(self, settings: Mapping[str, Value]) -> Evidence:
        facts = super()._facts(settings).facts
        if float(str(settings["mem_fraction_static"])) > 0.5:
            facts = tuple(fact.model_copy(update={"value": 0}) if fact.name == "queue.depth_p95" else fact for fact in facts)
        return Evidence(facts=facts)


def searched(policy: int) -> tuple[State, MemoryLog]:
    return run(Cured(), PLAN, best_effort=True, policy_version=policy)


def test_a_cause_that_paid_off_is_searched_further() -> None:
    state, log = searched(5)
    assert proposals(log), "its sampler was asked"
    kept = bodies(log, "promoted")
    assert kept[0]["changes"] == {"mem_fraction_static": 0.6} and len(kept) > 1, kept
    assert state.baseline.values["mem_fraction_static"] != 0.6 or state.baseline.values.get("schedule_policy") == "lpm"
    assert state.beliefs[SMALL_POOL.id].status == "supported" and state.beliefs[SMALL_POOL.id].gained > 1.2
    assert state.closed is not None
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_it_ends_and_a_failed_point_is_nothing_against_the_kept_one() -> None:
    """Points that gain nothing: each is tried once, no more than the rule allows, and the cause stays supported."""

    class Flat(Cured):
        def __init__(self) -> None:
            super().__init__()
            self.speed = lambda values: 1000.0 if float(str(values["mem_fraction_static"])) < 0.55 else 1200.0

    state, log = run(Flat(), PLAN, best_effort=True, policy_version=5)
    assert proposals(log) and state.closed is not None
    assert state.beliefs[SMALL_POOL.id].status == "supported" and len(bodies(log, "promoted")) == 1
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_older_studies_did_not() -> None:
    _, log = searched(4)
    assert not proposals(log)
