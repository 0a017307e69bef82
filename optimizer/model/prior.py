"""A known-good result from elsewhere: what it ran on, the settings, and what they gave. Recorded when a study opens, so that its
journal says by itself what the study knew."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen, Value


class PriorArt(Frozen):
    """``settings`` is the whole launch as parameters; ``chosen`` names those that were picked on purpose rather than found there.

    ``before`` and ``after`` are values of ``metric`` at ``concurrency``; ``before`` None: nobody says."""

    name: str  # the study, or what the file calls itself
    kind: Literal["study", "file"]
    source: str
    engine: str
    engine_version: str | None = None
    model: str = ""  # last part of its path or hub name
    model_class: str = ""  # architecture, layers and width; empty where its config.json was not read
    gpu: str | None = None
    gpu_count: int = Field(default=0, ge=0)
    cpus: int = 0  # told apart by it where there is no GPU
    simulated: bool = False
    metric: str = "output_tokens_per_s"
    concurrency: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    before: FiniteFloat | None = None
    after: FiniteFloat | None = None
    settings: dict[str, Value] = Field(default_factory=dict)
    chosen: tuple[str, ...] = ()
