"""Two studies side by side: an upgrade that changed a default, a command line that changed, and studies that cannot be compared."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from optimizer.core.forensics import compare
from optimizer.core.state import State
from optimizer.errors import UsageError
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.outcome import Done, Outcome
from optimizer.model.step import Measure, Observe
from optimizer.report.diff_view import diff_text
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog

from .model_box import PLAN, ModelBox, spec


class Version(ModelBox):
    """A release of the engine: its resolved defaults and what its start-up says."""

    def __init__(self, given: Mapping[str, Value], rate: float, *, resolved: Mapping[str, Value], facts: Mapping[str, Value], version: str = "0.5.12", **more: Any) -> None:
        super().__init__(given, lambda values: rate, **more)
        self.resolved, self.told = resolved, facts
        self.version = version

    def observe(self, step: Observe) -> Outcome:
        outcome = super().observe(step)
        assert isinstance(outcome, Done)
        return Done(body={**outcome.body, "box": {**outcome.body["box"], "engine_version": self.version}})

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
    found = compare(study(Version({}, 1200, **OLD)), study(Version({}, 800, **NEW, version="0.5.23")), PLAN)
    assert found["comparable"] == [] and found["asked"] == [] and not found["same_build"]
    assert found["resolved"] == [{"setting": "attention_backend", "before": "flashinfer", "after": "triton"}]
    assert found["speed"]["verdict"] == "slower" and found["speed"]["ratio"] == pytest.approx(800 / 1200, rel=0.05)
    low, high = found["speed"]["interval"]
    assert low < found["speed"]["ratio"] < high < 1
    [suspect] = found["suspects"]
    assert suspect["setting"] == "attention_backend" and suspect["back_to"] == "flashinfer" and suspect["unasked"]
    assert [flip["fact"] for flip in suspect["flips"]] == ["kernel.attention_backend"]
    text = diff_text(found)
    assert "set attention_backend to flashinfer (now triton, a changed default)" in text and "[" in text.split("Slower: ")[1]


def test_one_build_has_no_changed_default_and_what_follows_from_what_was_asked_is_not_put_back() -> None:
    small: dict[str, Any] = {"resolved": {"effective_max_running_requests": 4, "cuda_graph_bs": [1, 2, 4]}, "facts": {"scheduler.max_running": 4}}
    large: dict[str, Any] = {"resolved": {"effective_max_running_requests": 64, "cuda_graph_bs": [1, 2, 4, *range(8, 264, 8)]}, "facts": {"scheduler.max_running": 64}}
    slower = compare(study(Version({"max_running_requests": 64}, 1200, **large)), study(Version({"max_running_requests": 4, "env.NEW": "1"}, 400, **small)), PLAN)
    text = diff_text(slower)
    assert slower["same_build"] and [row["setting"] for row in slower["suspects"] if row["unasked"]] == []
    assert "(defaults that changed)" not in text and "effective_max_running_requests: 64 -> 4" in text and "set max_running_requests to 64 (now 4)" in text
    assert "35 -> 3 values: without [8, 16, 24" in text and "nothing at start-up tells what it did: env.NEW" in text
    faster = diff_text(compare(study(Version({"max_running_requests": 4}, 400, **small)), study(Version({"max_running_requests": 64}, 1200, **large)), PLAN))
    assert "What may have made it faster" in faster and "max_running_requests: 4 -> 64: it may have flipped scheduler.max_running" in faster and "Put back" not in faster


def test_where_the_time_went_names_the_settings_that_are_known_to_cure_it() -> None:
    """Two ceilings: the time outside graphs has grown. The setting that cures it is named although nothing at start-up told of it."""
    def ceiling(eager_ms: float) -> dict[str, Any]:
        return {"concurrency": 16, "lost": [{"bucket": "eager", "ms": eager_ms, "basis": "measured"}, {"bucket": "kernel", "ms": 2.0, "basis": "estimated"}]}

    known = replace(PLAN, playbooks=tuple(book.model_copy(update={"addresses": "eager" if book.id == "cuda-graph-disabled" else "none"}) for book in PLAN.playbooks))
    one, other = study(Version({}, 1200, **OLD)), study(Version({"disable_cuda_graph": True}, 400, **OLD))
    found = compare(one, other, known, ceilings=(ceiling(0.5), ceiling(12.75)))
    assert found["buckets"]["rows"][0] == {"bucket": "eager", "before_ms": 0.5, "after_ms": 12.75, "basis": "measured"}
    assert found["suspects"][0]["setting"] == "disable_cuda_graph" and found["suspects"][0]["cures"] == "eager"
    text = diff_text(found)
    assert "eager: 0.50 -> 12.75 ms (measured)" in text and "kernel" not in text and "such settings cure what costs time in eager" in text
    assert compare(one, other, PLAN, ceilings=(ceiling(0.5), None))["buckets"] is None


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
