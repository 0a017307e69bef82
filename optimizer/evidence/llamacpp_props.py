"""Reads llama.cpp's ``/props`` answer: slots, context, build. Wrong types are ignored, never guessed at."""

from collections.abc import Mapping

from optimizer.evidence.found import Found
from optimizer.model.base import Value


def llamacpp_props_facts(found: Found, info: Mapping[str, Value]) -> None:
    """Slots are the cap of running requests; the context of one slot is the longest request. ``speculative.types`` there is a
    request's default ("none" also on a server that drafts) and says nothing."""
    build = info.get("build_info")
    if isinstance(build, str) and build:
        found.add("engine.version", build[:80])
    resolved: dict[str, Value] = {}
    slots = info.get("total_slots")
    if isinstance(slots, int) and slots is not True and slots > 0:
        found.add("engine.name", "llamacpp")
        found.add("scheduler.max_running", slots)
        resolved["parallel"] = slots
    generation = info.get("default_generation_settings")
    if isinstance(generation, dict):
        context = generation.get("n_ctx")
        if isinstance(context, int) and context is not True and context > 0:
            found.add("model.max_context_tokens", context)
    if resolved:
        found.add("settings.resolved", resolved)


def method(spec_type: str) -> str:
    """``--spec-type`` as the fact's values: several types count as the first; a draft model and MTP keep their names."""
    first = spec_type.split(",")[0].strip().lower()
    if first.startswith("ngram"):
        return "ngram"
    return {"draft-simple": "draft_model", "draft-eagle3": "eagle3", "draft-mtp": "mtp"}.get(first, first or "none")


def kv_type(name: str) -> str | None:
    """``--cache-type-k`` as the fact's values; formats that the vocabulary does not know say nothing."""
    return {"f16": "fp16", "bf16": "bf16", "q8_0": "int8"}.get(name)
