"""The schema of a prior-art file: somebody's known-good settings on a box, with what they gave. Strict like every knowledge file."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from optimizer.errors import KnowledgeError
from optimizer.knowledge.load import load_yaml
from optimizer.model.base import FiniteFloat, Frozen, Value
from optimizer.model.prior import PriorArt
from optimizer.model.target import unit_of

EXAMPLE = "prior_art: NAME; box_class: {engine: sglang, gpu: NVIDIA H200, count: 1}; model: NAME; settings: {…}; results: [{…}]; source: …"
METRICS = ("output_tokens_per_s", "requests_per_s", "total_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p50_ms")


class BoxClass(Frozen):
    engine: str
    engine_version: str | None = None
    gpu: str | None = None
    count: int = Field(ge=0, le=4096)
    cpus: int = Field(default=0, ge=0)


class Result(Frozen):
    metric: str = "output_tokens_per_s"
    concurrency: int | None = Field(default=None, ge=1)
    prompt_tokens: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    before: FiniteFloat | None = Field(default=None, gt=0)
    after: FiniteFloat = Field(gt=0)


class Document(Frozen):
    """``settings`` by parameter name (null: not given), ``env`` by variable; ``results`` by metric and load."""

    prior_art: str = Field(min_length=1, max_length=120)
    box_class: BoxClass
    model: str = Field(min_length=1)
    settings: dict[str, Value] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    results: tuple[Result, ...] = ()
    source: str = Field(min_length=1)


def prior_art(text: str, file: str) -> tuple[PriorArt, ...]:
    """One record per result, or one without a number. Raises KnowledgeError with file and line."""
    document = load_yaml(text, file)
    try:
        found = Document.model_validate(document.data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = tuple(first["loc"])
        while path and path not in document.lines:
            path = path[:-1]
        what = "is not understood here" if first["type"] == "extra_forbidden" else first["msg"]
        raise document.error(f"{'.'.join(map(str, first['loc']))}: {what}", path, hint=f"Shape: {EXAMPLE}") from error
    settings: dict[str, Value] = {**found.settings, **{f"env.{name}": value for name, value in found.env.items()}}
    if not settings:
        raise KnowledgeError(f"{file}:1: it names no settings.", hint=f"Shape: {EXAMPLE}")
    for index, result in enumerate(found.results):
        if result.metric not in METRICS or not unit_of(result.metric):
            raise document.error(f"{result.metric} is no metric that is measured here", ("results", index), hint=f"Metrics: {', '.join(METRICS)}.")
    common: dict[str, Any] = {
        "name": found.prior_art, "kind": "file", "source": found.source, "engine": found.box_class.engine,
        "engine_version": found.box_class.engine_version, "model": found.model.rstrip("/").rsplit("/", 1)[-1], "gpu": found.box_class.gpu,
        "gpu_count": found.box_class.count, "cpus": found.box_class.cpus, "settings": settings, "chosen": tuple(sorted(settings)),
    }  # fmt: skip
    if not found.results:
        return (PriorArt(**common),)
    return tuple(
        PriorArt(**common, metric=item.metric, concurrency=item.concurrency, prompt_tokens=item.prompt_tokens, output_tokens=item.output_tokens,
                 before=item.before, after=item.after)
        for item in found.results
    )  # fmt: skip
