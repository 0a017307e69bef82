"""Two studies side by side: an upgrade that changed a default, a command line that changed, and studies that cannot be compared."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from optimizer.core.forensics import compare
from optimizer.core.state import State
from optimizer.errors import UsageError
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.outcome import Done, Outcome
from optimizer.model.step import Measure
from optimizer.report.diff_view import diff_text
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog

from .model_box import PLAN, ModelBox, spec


class Version(ModelBox):
    """A release of the engine: its resolved defaults and what its start-up says."""

    def __init__(self, given: Mapping[str, Value], rate: float, *, resolved: Mapping[str, Value], facts: Mapping[str, Value], **more: Any) -> None:
        super().__init__(given, lambda values: rate, **more)
        self.resolved, self.told = resolved, facts

    def _measure(self, step: Measure) -> Outcome:
        outcome = super()._measure(step)
        assert isinstance(outcome, Done)
        evidence = Evidence.model_validate(outcome.body["evidence"])
        told = tuple(Fact(name=name, value=value, source="server.log", line=7) for name, value in self.told.items())
        body = {**outcome.body, "evidence": Evidence(facts=(*evidence.facts, *told)).plain(), "effective": {**outcome.body["effective"], **self.resolved}}
        return Done(body=body)


OLD: dict[str, Any] = {"resolved": {"attention_backend": "flashinfer", "port": 1, "chunked_prefill_size": 8192}, "facts": {"kernel.attention_backend": "flashinfer"}}
NEW: dict[str, Any] = {"resolved": {"attention_backend": "triton", "port": 2, "chunked_prefill_size": 8192}, "facts": {"kernel.attention_backend": "triton"}}


def study(box: ModelBox, **changes: Any) -> State:
    log = MemoryLog()
    log.append("opened", {"spec": spec(target="10tps@16", **changes).plain()}, expect=0)
    return asyncio.run(drive(log, box, PLAN))


def test_an_upgrade_that_changed_a_default_is_named_with_the_way_back() -> None:
    found = compare(study(Version({}, 1200, **OLD)), study(Version({}, 800, **NEW)), PLAN)
    assert found["comparable"] == [] and found["asked"] == []
    assert found["resolved"] == [{"setting": "attention_backend", "before": "flashinfer", "after": "triton"}]
    assert found["speed"]["verdict"] == "slower" and found["speed"]["ratio"] == pytest.approx(800 / 1200, rel=0.05)
    low, high = found["speed"]["interval"]
    assert low < found["speed"]["ratio"] < high < 1
    [suspect] = found["suspects"]
    assert suspect["setting"] == "attention_backend" and suspect["back_to"] == "flashinfer" and suspect["unasked"]
    assert [flip["fact"] for flip in suspect["flips"]] == ["kernel.attention_backend"]
    text = diff_text(found)
    assert "set attention_backend to flashinfer (now triton, a changed default)" in text and "[" in text.split("Slower: ")[1]


def test_the_same_speed_is_no_verdict() -> None:
    found = compare(study(Version({}, 1000, **OLD)), study(Version({}, 1010, **OLD, seed=2)), PLAN)
    assert found["speed"]["verdict"] == "cannot tell" and found["resolved"] == [] and found["flips"] == []
    assert "No setting can be blamed" in diff_text(found)


def test_what_was_asked_is_told_apart_from_what_was_resolved() -> None:
    found = compare(study(Version({}, 1000, **OLD)), study(Version({"max_running_requests": 4}, 500, **OLD)), PLAN)
    assert found["asked"] == [{"setting": "max_running_requests", "before": None, "after": 4}]
    assert found["suspects"][0]["setting"] == "max_running_requests" and not found["suspects"][0]["unasked"]


def test_different_loads_and_boxes_are_not_set_against_each_other() -> None:
    one = study(Version({}, 1000, **OLD))
    other = study(Version({}, 500, **OLD, gpu_count=2), workload=spec().workload.model_copy(update={"prompt_tokens": 64}))
    found = compare(one, other, PLAN)
    assert len(found["comparable"]) == 2 and "numbers of GPUs" in found["comparable"][0] and "loads" in found["comparable"][1]
    assert "cannot be set against each other" in diff_text(found) and "Slower" not in diff_text(found)


def test_a_study_without_a_measurement_is_refused() -> None:
    with pytest.raises(UsageError, match="measured nothing"):
        compare(State(), study(Version({}, 1000, **OLD)), PLAN)
