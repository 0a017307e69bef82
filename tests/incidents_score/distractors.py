"""The honest stress of a diagnosis: every fact that a healthy launch would also have reported is filled into a case,
never overwriting one that the case has. Used by the tests and by benchmarks/diagnosis."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from optimizer.evidence.bundle import Bundle, bundle_from_case, read_bundle

# Facts that name the machine, the build or its whole configuration are not shared by another launch.
IDENTITY = ("engine.", "settings.", "startup.message", "startup.cause", "startup.last_stage")
# What a CPU launch says of graphs and GPUs no GPU launch would say.
DEVICE_BOUND = ("graphs.", "gpu.", "topology.", "allreduce.", "nccl.", "kernel.", "memory.", "decode.graph")
HEALTHY = {
    ("sglang", 1): "sglang-0.5.12-h200/tp1-7b-graph32-b",
    ("sglang", 2): "sglang-0.5.12-h200/tp2-27b-graph32",
    ("vllm", 1): "vllm-0.32-cpu/base",
    ("vllm", 2): "vllm-0.32-cpu/base",
}


def healthy_facts(recordings: Path, engine: str, gpus: int) -> tuple[dict[str, Any], ...]:
    """Facts of the nearest healthy launch, as a case file spells them; what a CPU launch cannot say comes from a GPU."""
    several = 2 if gpus > 1 else 1
    gpu = read_bundle(recordings / HEALTHY["sglang", several])
    nearest = read_bundle(recordings / HEALTHY[engine if engine in ("sglang", "vllm") else "sglang", several])
    if nearest.evidence.value("engine.device") != "cpu":
        return _spelled(nearest, ())
    facts = _spelled(nearest, DEVICE_BOUND)
    have = {fact["name"] for fact in facts}
    return (*facts, *(fact for fact in _spelled(gpu, ()) if fact["name"] not in have))


def _spelled(bundle: Bundle, without: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": fact.name, "value": fact.value, "unit": fact.unit, "labels": fact.labels, "basis": "measured"}
        for fact in bundle.evidence.facts
        if not fact.name.startswith((*IDENTITY, *without))
    )


def filled(case: Mapping[str, Any], facts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The case with all ``facts`` whose name neither the case, nor its tests, nor its log lines already speak of."""
    have = {fact.name for fact in bundle_from_case(json.dumps(case).encode()).evidence.facts}
    have |= {fact["name"] for fact in case.get("facts", ())}
    have |= {fact["name"] for test in case.get("tests", ()) for fact in test.get("facts", ())}
    extra = [dict(fact) for fact in facts if fact["name"] not in have]
    return {**case, "facts": [*case.get("facts", ()), *extra]}
